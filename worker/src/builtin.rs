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
use crate::data::{Dataset, Text};
use crate::registry::Registry;

/// Tokens are bytes.
const VOCABULARY: usize = 256;

/// A registry with `gpt`, `mlp` and `text`.
pub fn registry() -> Registry {
    let models = Registry::new().model("gpt", gpt).model("mlp", mlp);
    models
        .plan("gpt", |run| OnBackend::<Gpt, Cpu>::plan(gpt_config(run)).map_err(words))
        .plan("mlp", |run| OnBackend::<Mlp, Cpu>::plan(mlp_config(run)).map_err(words))
        .dataset("text", text)
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
