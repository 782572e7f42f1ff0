//! The models and the data set that every program has: `gpt`, `mlp`, and text.

use std::sync::Arc;

use everstep_kernels::backend::cuda;
use everstep_kernels::compute::Compute;
use everstep_kernels::device::{self, DeviceChoice};
use everstep_kernels::models::{Gpt, GptConfig, Mlp, MlpConfig};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::Precision;

use crate::data::text_files;
use crate::data::text_samples::TextSamples;
use crate::data::{Dataset, Text};
use crate::registry::Registry;

/// Tokens are bytes.
const VOCABULARY: usize = 256;

/// A registry with `gpt`, `mlp` and `text`.
pub fn registry() -> Registry {
    Registry::new().model("gpt", gpt).model("mlp", mlp).dataset("text", text)
}

fn gpt(run: &RunSpec, device: DeviceChoice) -> Result<Box<dyn Compute>, String> {
    let config = GptConfig {
        vocabulary: VOCABULARY,
        layers: run.model.layers as usize,
        heads: run.model.heads as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
        recompute: run.model.recompute,
    };
    device::open::<Gpt>(device, precision(run), config).map_err(|error| error.to_string())
}

fn mlp(run: &RunSpec, device: DeviceChoice) -> Result<Box<dyn Compute>, String> {
    let config = MlpConfig {
        vocabulary: VOCABULARY,
        layers: run.model.layers as usize,
        width: run.model.width as usize,
        context: run.model.context as usize,
        micro_batch: run.batch.micro_batch as usize,
    };
    device::open::<Mlp>(device, precision(run), config).map_err(|error| error.to_string())
}

/// In the words of the kernels.
pub fn precision(run: &RunSpec) -> cuda::Precision {
    match run.model.precision {
        Precision::F32 => cuda::Precision::F32,
        Precision::Bf16 => cuda::Precision::Bf16,
        Precision::F16 => cuda::Precision::Fp16,
    }
}

/// Bytes of files: for `mlp` one target a sample, for every other model one after each token.
fn text(run: &RunSpec) -> Result<Arc<dyn Dataset>, String> {
    let words = |error: crate::data::TextError| error.to_string();
    let files = text_files::resolve(&run.data.path).map_err(words)?;
    let text = Arc::new(Text::load(&files, run.data.validation).map_err(words)?);
    let samples = match run.model.kind.as_str() {
        "mlp" => TextSamples::mlp(text, run.model.context),
        _ => TextSamples::gpt(text, run.model.context),
    };
    Ok(Arc::new(samples.map_err(words)?))
}
