//! How large a built-in model may be as a whole, whatever its single values are.
//!
//! Input: a specification with single values that are valid. Output: a refusal in words. The
//! numbers are rough, since they only tell a model that a user may train from a slip of the
//! keyboard. Each worker finds out by itself what its memory holds. This module does not judge a
//! model that the user's program registered.

use super::{RunSpec, SpecError, refuse};

/// Most parameters of a built-in model.
pub const MAX_PARAMETERS: u128 = 1 << 35;
/// Most bytes of activations of one micro-batch.
pub const MAX_ACTIVATIONS: u128 = 1 << 44;

/// Tokens are bytes.
const VOCABULARY: u128 = 256;
/// The width of a token's embedding in an `mlp`.
const EMBEDDING: u128 = 16;

/// A built-in model's parameters, and the elements of its activations.
struct Size {
    parameters: u128,
    activations: u128,
}

impl RunSpec {
    /// Checks the model as a whole.
    pub(super) fn validate_size(&self) -> Result<(), SpecError> {
        let Some(Size { parameters, activations }) = self.size() else { return Ok(()) };
        if parameters > MAX_PARAMETERS {
            let (layers, width) = (self.model.layers, self.model.width);
            let problem = format!(
                "is {layers}, which with model.width = {width} makes {parameters} parameters; \
                 lower one of the two: a model has at most 2^35"
            );
            return refuse("model.layers", problem);
        }
        let bytes = 4 * activations;
        if bytes > MAX_ACTIVATIONS {
            let rows = self.batch.micro_batch;
            let problem = format!(
                "is {rows}: the activations of a micro-batch of this model take {bytes} bytes; \
                 lower it, model.context or the model: they may take at most 2^44"
            );
            return refuse("batch.micro_batch", problem);
        }
        Ok(())
    }

    /// The model's size. `None` for a model that is not built in.
    fn size(&self) -> Option<Size> {
        let model = &self.model;
        let (layers, width) = (u128::from(model.layers), u128::from(model.width));
        let (context, rows) = (u128::from(model.context), u128::from(self.batch.micro_batch));
        match model.kind.as_str() {
            "gpt" => {
                let block = 12 * width * width + 13 * width;
                let of_block = 16 * width + u128::from(model.heads) + 4;
                let kept =
                    if model.recompute { of_block + layers * width } else { layers * of_block };
                Some(Size {
                    parameters: (VOCABULARY + context + 2) * width + layers * block,
                    activations: rows * context * (kept + VOCABULARY),
                })
            }
            "mlp" => {
                let first = context * EMBEDDING * width;
                let hidden = first + (layers - 1) * width * width + layers * width;
                let parameters = VOCABULARY * EMBEDDING + hidden + (width + 1) * VOCABULARY;
                let activations = rows * (context * EMBEDDING + 2 * layers * width + VOCABULARY);
                Some(Size { parameters, activations })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::exemplars;
    use crate::protocol::run::{MAX_COUNT, RunSpec};

    fn refusal(change: impl FnOnce(&mut RunSpec)) -> Option<String> {
        let mut run = exemplars::run();
        change(&mut run);
        run.validate().err().map(|error| error.to_string())
    }

    #[test]
    fn a_model_of_absurd_size_is_refused_with_words() {
        let deep = refusal(|run| (run.model.layers, run.model.width) = (MAX_COUNT, 384));
        let words = "model.layers is 65536, which with model.width = 384 makes";
        assert!(deep.is_some_and(|told| told.starts_with(words)));
        let long = refusal(|run| {
            (run.model.layers, run.model.context, run.batch.micro_batch) = (8_192, 65_536, 65_536);
            run.batch.data_shards = 1;
        });
        assert!(long.is_some_and(|told| told.starts_with("batch.micro_batch is 65536")));
        let largest = refusal(|run| {
            run.model.kind = "mlp".into();
            (run.model.layers, run.model.width, run.model.heads) = (MAX_COUNT, MAX_COUNT, 1);
            (run.model.context, run.batch.micro_batch) = (MAX_COUNT, MAX_COUNT);
        });
        assert!(largest.is_some(), "nothing overflows");
    }

    #[test]
    fn a_large_model_is_valid_and_so_is_any_that_a_program_registered() {
        assert_eq!(refusal(|run| (run.model.layers, run.model.width) = (96, 4_096)), None);
        let own = refusal(|run| {
            run.model.kind = "rings".into();
            (run.model.layers, run.model.width) = (MAX_COUNT, MAX_COUNT);
        });
        assert_eq!(own, None);
    }
}
