//! The models and the data set that every program has: `gpt`, `mlp`, and text.

use std::sync::Arc;

use everstep_kernels::backend::{Cpu, cuda};
use everstep_kernels::compute::Compute;
use everstep_kernels::device::{self, DeviceChoice};
use everstep_kernels::models::{ConfigError, Gpt, GptConfig, Mlp, MlpConfig, OnBackend};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::Precision;

use crate::data::text_files;
use crate::data::text_samples::TextSamples;
use crate::data::{Dataset, Text, TextError};
use crate::registry::{BuildError, Registry};

/// The number of tokens: every byte is one.
const VOCABULARY: usize = 256;

/// A registry with `gpt`, `mlp` and `text`.
pub fn registry() -> Registry {
    let models = Registry::new().model("gpt", gpt).model("mlp", mlp);
    models
        .plan("gpt", |run| OnBackend::<Gpt, Cpu>::plan(gpt_config(run)).map_err(words))
        .plan("mlp", |run| OnBackend::<Mlp, Cpu>::plan(mlp_config(run)).map_err(words))
        .placed_dataset("text", text)
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

fn words(error: ConfigError) -> String {
    error.to_string()
}

fn gpt(run: &RunSpec, device: DeviceChoice) -> Result<Box<dyn Compute>, String> {
    let opened = device::open::<Gpt>(device, precision(run), gpt_config(run));
    opened.map_err(|error| error.to_string())
}

fn gpt_config(run: &RunSpec) -> GptConfig {
    GptConfig {
        vocabulary: VOCABULARY,
        layers: run.model.layers as usize,
        heads: run.model.heads as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
        recompute: run.model.recompute,
    }
}

fn mlp(run: &RunSpec, device: DeviceChoice) -> Result<Box<dyn Compute>, String> {
    let opened = device::open::<Mlp>(device, precision(run), mlp_config(run));
    opened.map_err(|error| error.to_string())
}

fn mlp_config(run: &RunSpec) -> MlpConfig {
    MlpConfig {
        vocabulary: VOCABULARY,
        layers: run.model.layers as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
    }
}

/// The protocol's precision in the words of the kernels.
pub fn precision(run: &RunSpec) -> cuda::Precision {
    match run.model.precision {
        Precision::F32 => cuda::Precision::F32,
        Precision::Bf16 => cuda::Precision::Bf16,
        Precision::F16 => cuda::Precision::Fp16,
    }
}

/// Bytes of files: for `mlp` one target a sample, for every other model one after each token.
fn text(run: &RunSpec) -> Result<Arc<dyn Dataset>, BuildError> {
    let files = text_files::resolve(&run.data.path).map_err(of_text)?;
    let text = Arc::new(Text::load(&files, run.data.validation).map_err(of_text)?);
    let samples = match run.model.kind.as_str() {
        "mlp" => TextSamples::mlp(text, run.model.context),
        _ => TextSamples::gpt(text, run.model.context),
    };
    Ok(Arc::new(samples.map_err(of_text)?))
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
