//! The models and data sets that every program has: `gpt`, `mlp`, `text` and `tokens`.
//!
//! Each is registered with its rules. `rules` has them, and `size` says how large a model may be.
//! The `optimizers` are in every registry.

pub(crate) mod optimizers;
mod rules;
mod size;

use std::sync::Arc;

use everstep_kernels::compute::Compute;
use everstep_kernels::device::ChosenDevice;
use everstep_kernels::models::{Gpt, GptConfig, Mlp, MlpConfig, ModelConfigError, OnBackend};
use everstep_kernels::precision;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::Precision;

use crate::data::text_cache::TextCache;
use crate::data::text_files;
use crate::data::text_samples::TextSamples;
use crate::data::token_samples::TokenSamples;
use crate::data::tokens::{self, TokenFileError, Tokens};
use crate::data::windows::Windows;
use crate::data::{Dataset, TextError};
use crate::registry::{BuildError, Registry};

/// A registry with `gpt`, `mlp`, `text` and `tokens`.
pub fn registry() -> Registry {
    let texts = TextCache::default();
    let models = Registry::new().model("gpt", gpt).model("mlp", mlp);
    models
        .plan("gpt", |run| OnBackend::<Gpt>::plan(gpt_config(run)).map_err(words))
        .plan("mlp", |run| OnBackend::<Mlp>::plan(mlp_config(run)).map_err(words))
        .model_rules("gpt", rules::gpt)
        .model_rules("mlp", rules::mlp)
        .placed_dataset("text", move |run| text(run, &texts))
        .placed_dataset("tokens", token_samples)
        .dataset_rules("text", rules::text)
        .dataset_rules("tokens", rules::tokens)
}

/// A file that the system does not let this process read is a matter of its machine. A path that
/// leads nowhere is an error of the run.
fn of_text(error: TextError) -> BuildError {
    let reason = error.to_string();
    match error.is_of_place() {
        true => BuildError::Place(reason),
        false => BuildError::Run(reason),
    }
}

fn of_tokens(error: TokenFileError) -> BuildError {
    let reason = error.to_string();
    match error.is_of_place() {
        true => BuildError::Place(reason),
        false => BuildError::Run(reason),
    }
}

fn words(error: ModelConfigError) -> String {
    error.to_string()
}

fn gpt(run: &RunSpec, device: ChosenDevice<'_>) -> Result<Box<dyn Compute>, String> {
    let opened = device.open::<Gpt>(precision(run), gpt_config(run));
    opened.map_err(|error| error.to_string())
}

fn gpt_config(run: &RunSpec) -> GptConfig {
    GptConfig {
        vocabulary: run.model.vocabulary as usize,
        layers: run.model.layers as usize,
        heads: run.model.heads as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
        recompute: run.model.recompute,
    }
}

fn mlp(run: &RunSpec, device: ChosenDevice<'_>) -> Result<Box<dyn Compute>, String> {
    let opened = device.open::<Mlp>(precision(run), mlp_config(run));
    opened.map_err(|error| error.to_string())
}

fn mlp_config(run: &RunSpec) -> MlpConfig {
    MlpConfig {
        vocabulary: run.model.vocabulary as usize,
        layers: run.model.layers as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
    }
}

/// The protocol's precision in the words of the kernels.
pub fn precision(run: &RunSpec) -> precision::Precision {
    match run.model.precision {
        Precision::F32 => precision::Precision::F32,
        Precision::Bf16 => precision::Precision::Bf16,
        Precision::F16 => precision::Precision::Fp16,
    }
}

/// How tokens are cut into samples: for `mlp` one target a sample, for every other model one after
/// each token.
fn windows(run: &RunSpec) -> Windows {
    match run.model.kind.as_str() {
        "mlp" => Windows::mlp(run.model.context),
        _ => Windows::gpt(run.model.context),
    }
}

/// A data set of the bytes of text files.
fn text(run: &RunSpec, texts: &TextCache) -> Result<Arc<dyn Dataset>, BuildError> {
    let files = text_files::resolve(&run.data.path).map_err(of_text)?;
    let text = texts.load(&files, run.data.validation).map_err(of_text)?;
    Ok(Arc::new(TextSamples::new(text, windows(run)).map_err(of_text)?))
}

/// A data set of the tokens of `.bin` files.
fn token_samples(run: &RunSpec) -> Result<Arc<dyn Dataset>, BuildError> {
    let files = tokens::files(&run.data.path).map_err(of_tokens)?;
    let tokens = Tokens::open(&files, &run.data, run.model.vocabulary).map_err(of_tokens)?;
    Ok(Arc::new(TokenSamples::new(tokens, windows(run)).map_err(of_tokens)?))
}

#[cfg(test)]
mod tests {
    use std::io;

    use everstep_transport::protocol::outcome::Inability;

    use super::*;

    #[test]
    fn what_the_system_does_not_let_be_read_is_an_error_of_the_place() {
        let unreadable = |kind: io::ErrorKind| {
            let error = TextError::unreadable("/data/text".as_ref(), kind.into());
            of_text(error).inability()
        };
        assert_eq!(unreadable(io::ErrorKind::PermissionDenied), Inability::Place);
        assert_eq!(unreadable(io::ErrorKind::StaleNetworkFileHandle), Inability::Place);
        assert_eq!(unreadable(io::ErrorKind::NotFound), Inability::Run);
        assert_eq!(unreadable(io::ErrorKind::InvalidData), Inability::Run);
        let short = TextError::TooShort { bytes: 3, context: 9 };
        assert_eq!(of_text(short).inability(), Inability::Run);
    }
}
