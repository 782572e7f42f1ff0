//! How large a built-in model may be as a whole, whatever its single values are.
//!
//! Input: a specification with single values that are valid. Output: a refusal in words. The
//! numbers are rough, since they only tell a model that a user may train from a slip of the
//! keyboard. Each worker finds out by itself what its memory holds.

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::SpecError;

/// Most parameters of a built-in model.
pub const MAX_PARAMETERS: u128 = 1 << 35;
/// Most bytes of activations of one micro-batch.
pub const MAX_ACTIVATIONS: u128 = 1 << 44;

/// The width of a token's embedding in an `mlp`.
const EMBEDDING: u128 = 16;

/// A built-in model's parameters, and the elements of its activations.
pub(super) struct Size {
    parameters: u128,
    activations: u128,
}

/// Checks the model as a whole.
pub(super) fn check(run: &RunSpec, size: &Size) -> Result<(), SpecError> {
    let Size { parameters, activations } = *size;
    if parameters > MAX_PARAMETERS {
        let (layers, width) = (run.model.layers, run.model.width);
        let problem = format!(
            "is {layers}, which with model.width = {width} makes {parameters} parameters. Lower \
             one of the two: a model has at most 2^35"
        );
        return Err(SpecError::new("model.layers", problem));
    }
    let bytes = 4 * activations;
    if bytes > MAX_ACTIVATIONS {
        let rows = run.batch.micro_batch;
        let problem = format!(
            "is {rows}: the activations of a micro-batch of this model take {bytes} bytes. Lower \
             it, model.context or the model: they may take at most 2^44"
        );
        return Err(SpecError::new("batch.micro_batch", problem));
    }
    Ok(())
}

/// The factors of a size, from the run.
struct Factors {
    layers: u128,
    width: u128,
    context: u128,
    rows: u128,
    vocabulary: u128,
}

impl Factors {
    fn of(run: &RunSpec) -> Self {
        Self {
            layers: run.model.layers.into(),
            width: run.model.width.into(),
            context: run.model.context.into(),
            rows: run.batch.micro_batch.into(),
            vocabulary: run.model.vocabulary.into(),
        }
    }
}

/// The size of a `gpt`.
pub(super) fn gpt(run: &RunSpec) -> Size {
    let Factors { layers, width, context, rows, vocabulary } = Factors::of(run);
    let block = 12 * width * width + 13 * width;
    let of_block = 16 * width + u128::from(run.model.heads) + 4;
    let kept = if run.model.recompute { of_block + layers * width } else { layers * of_block };
    Size {
        parameters: (vocabulary + context + 2) * width + layers * block,
        activations: rows * context * (kept + vocabulary),
    }
}

/// The size of an `mlp`.
pub(super) fn mlp(run: &RunSpec) -> Size {
    let Factors { layers, width, context, rows, vocabulary } = Factors::of(run);
    let first = context * EMBEDDING * width;
    let hidden = first + (layers - 1) * width * width + layers * width;
    Size {
        parameters: vocabulary * EMBEDDING + hidden + (width + 1) * vocabulary,
        activations: rows * (context * EMBEDDING + 2 * layers * width + vocabulary),
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::run::{MAX_COUNT, MAX_VOCABULARY};

    use super::*;
    use crate::builtin::registry;

    fn refusal(change: impl FnOnce(&mut RunSpec)) -> Option<String> {
        let mut run = exemplars::run();
        change(&mut run);
        registry().validate(&run).err().map(|error| error.to_string())
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
            run.model.vocabulary = MAX_VOCABULARY;
        });
        assert!(largest.is_some(), "nothing overflows");
        let wordy =
            refusal(|run| (run.model.vocabulary, run.model.width) = (MAX_VOCABULARY, 4_096));
        assert!(wordy.is_some_and(|told| told.starts_with("model.layers")), "its tokens count");
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
