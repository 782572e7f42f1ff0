//! `everstep generate`: continues a text with a trained model.
//!
//! In: `model.safetensors` of a run, with the model's description in its metadata, and a prompt.
//! Out: text on stdout. It knows models only as [`Compute`]: tokens in, logits out.

use std::path::Path;

use everstep_kernels::compute::Compute;
use everstep_kernels::layout::Tensor;
use everstep_kernels::random::Philox;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::{
    BatchSpec, InitSpec, LossUnit, ModelSpec, OptionMap, Precision, SpecError, TargetUnit,
};
use everstep_worker::device::model_file::MODEL_KEY;
use everstep_worker::registry::{Registry, RegistryError};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::cli::{GenerateFlags, Overrides};
use crate::config::{self, ConfigError};
use crate::failure::{Exit, Failure};
use crate::output;

/// The settings of a continued text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How many bytes to add.
    pub bytes: usize,
    /// The divisor of the logits. With 0 the likeliest byte is always taken.
    pub temperature: f64,
    /// The seed of the drawn bytes. The same seed gives the same text.
    pub seed: u64,
}

/// A file that has no model which this program can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It cannot be read.
    #[error("the file cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is no safetensors file.
    #[error("the file is not in the safetensors format: {0}")]
    Format(#[from] SafeTensorError),
    /// Its metadata do not describe the model.
    #[error("the file's metadata have no \"{MODEL_KEY}\": Everstep did not write it")]
    NoModel,
    /// Its description of the model cannot be read.
    #[error("the file's metadata \"{MODEL_KEY}\" cannot be read: {0}")]
    Metadata(#[from] serde_json::Error),
    /// The described sizes are impossible.
    #[error("the file's metadata name a model that cannot be: {0}")]
    Spec(#[from] SpecError),
    /// The model cannot be built.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The model cannot be built from the settings that are not in the metadata.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor of the model is missing or has another shape.
    #[error("the file's tensors are not those of its model: {0}")]
    Tensor(String),
}

pub(crate) fn run(flags: &GenerateFlags, registry: &Registry) -> Result<(), Failure> {
    let refused = || Failure::new(Exit::Usage, "the text cannot be continued");
    let GenerateOptions { temperature, .. } = flags.options();
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(refused()
            .at("--temperature")
            .because(format!("it is {temperature}"))
            .next("pass 0 or a number above it, 0.8 say"));
    }
    let mut model = read_model(&flags.model, registry).map_err(|error| {
        refused()
            .at(flags.model.display())
            .because(error)
            .next("name the model.safetensors of a completed run, with the program that trained it")
    })?;
    let text = continue_text(&mut *model, flags.prompt.as_bytes(), &flags.options());
    let text = text.ok_or_else(|| {
        refused()
            .at(flags.model.display())
            .because("this kind of model does not predict bytes")
            .next("use a model of the kind gpt or mlp that was trained on text")
    })?;
    let whole = [flags.prompt.as_bytes(), &text].concat();
    output::print(visible(&whole))
}

/// Text that is safe for a terminal. The control characters of a young model could change the
/// terminal's state. They become dots.
pub(crate) fn visible(bytes: &[u8]) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { '.' } else { c };
    String::from_utf8_lossy(bytes).chars().map(shown).collect()
}

/// The bytes with which the model continues `prompt`. `None` if the model does not predict bytes.
///
/// The same bits of parameters, prompt and options give the same bytes on one kind of machine. An
/// empty prompt stands for the beginning of a line.
pub fn continue_text(
    compute: &mut dyn Compute,
    prompt: &[u8],
    options: &GenerateOptions,
) -> Option<Vec<u8>> {
    let start = if prompt.is_empty() { b"\n" } else { prompt };
    let mut tokens: Vec<u32> = start.iter().copied().map(u32::from).collect();
    let chance = Philox::new(options.seed, CONTINUATION, 0);
    for index in 0..options.bytes {
        let logits = compute.next_logits(&tokens)?;
        let byte = u8::try_from(sample(&logits, options.temperature, chance.unit(index as u64)));
        tokens.push(byte.ok()?.into());
    }
    Some(tokens[start.len()..].iter().map(|token| *token as u8).collect())
}

/// Philox's purpose for continued texts. Training uses the lowest numbers.
const CONTINUATION: u32 = 1 << 8;

/// Builds the model that the file's metadata name, and loads the file's tensors into it.
pub fn read_model(path: &Path, registry: &Registry) -> Result<Box<dyn Compute>, ModelError> {
    let bytes = std::fs::read(path)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let model = metadata.metadata().as_ref().and_then(|texts| texts.get(MODEL_KEY));
    let run = run_of(parse_model(model.ok_or(ModelError::NoModel)?)?, registry)?;
    let file = SafeTensors::deserialize(&bytes)?;
    // Metadata may name any model. The program builds it only if the file has its tensors.
    let tensors = registry.plan_model(&run)?.layout.tensors().to_vec();
    check(&tensors, &file)?;
    let mut compute = registry.build_model_on_host(&run)?;
    for tensor in &tensors {
        compute.load(tensor.offset, &values(tensor, &file)?);
    }
    Ok(compute)
}

fn parse_model(json: &str) -> Result<ModelSpec, serde_json::Error> {
    ModelFields::deserialize(&mut serde_json::Deserializer::from_str(json))
}

/// The fields of a [`ModelSpec`] in the metadata.
#[derive(Deserialize)]
#[serde(remote = "ModelSpec")]
struct ModelFields {
    kind: String,
    layers: u32,
    heads: u32,
    width: u32,
    context: u32,
    #[serde(default = "bytes")]
    vocabulary: u32,
    #[serde(default)]
    precision: Precision,
    #[serde(default)]
    recompute: bool,
    #[serde(skip)]
    init: Option<InitSpec>,
    #[serde(default)]
    unit: TargetUnit,
    #[serde(default)]
    loss_unit: LossUnit,
    #[serde(default)]
    options: OptionMap,
}

/// The vocabulary of files that state none.
fn bytes() -> u32 {
    ModelSpec::VOCABULARY
}

/// A run of that model, one row at a time. All other settings are defaults.
fn run_of(model: ModelSpec, registry: &Registry) -> Result<RunSpec, ModelError> {
    let defaults = config::resolve(None, &Overrides::default(), registry)?.run;
    let batch = BatchSpec { data_shards: 1, micro_batch: 1, accumulate: 1 };
    let run = RunSpec { model, batch, ..defaults };
    registry.validate(&run)?;
    Ok(run)
}

/// The file must have these tensors and no others.
fn check(tensors: &[Tensor], file: &SafeTensors<'_>) -> Result<(), ModelError> {
    if file.len() != tensors.len() {
        let counts = format!("{} where the model has {}", file.len(), tensors.len());
        return Err(ModelError::Tensor(counts));
    }
    tensors.iter().try_for_each(|tensor| found(tensor, file).map(drop))
}

fn values(tensor: &Tensor, file: &SafeTensors<'_>) -> Result<Vec<f32>, ModelError> {
    let view = found(tensor, file)?;
    let (elements, _) = view.data().as_chunks();
    Ok(elements.iter().copied().map(f32::from_le_bytes).collect())
}

/// A tensor of the file, if it has the right shape.
fn found<'a>(tensor: &Tensor, file: &SafeTensors<'a>) -> Result<TensorView<'a>, ModelError> {
    let Tensor { name, shape, .. } = tensor;
    let found = file
        .tensor(name)
        .map_err(|_| ModelError::Tensor(format!("there is none named \"{name}\"")))?;
    if found.dtype() != Dtype::F32 || found.shape() != shape {
        let (dtype, found) = (found.dtype(), found.shape());
        let problem = format!("\"{name}\" is {dtype:?} {found:?}, not F32 {shape:?}");
        return Err(ModelError::Tensor(problem));
    }
    Ok(found)
}

/// Draws an index with the probabilities softmax(`logits / temperature`), by a number in `[0, 1)`.
fn sample(logits: &[f32], temperature: f64, unit: f32) -> usize {
    let likeliest =
        (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or_default();
    if temperature == 0.0 {
        return likeliest;
    }
    let weight = |logit: &f32| ((f64::from(*logit - logits[likeliest])) / temperature).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = f64::from(unit) * total;
    let drawn = logits.iter().position(|logit| {
        left -= weight(logit);
        left < 0.0
    });
    // Rounding may leave a rest, and a NaN leaves everything.
    drawn.unwrap_or(likeliest)
}

impl GenerateFlags {
    fn options(&self) -> GenerateOptions {
        GenerateOptions { bytes: self.bytes, temperature: self.temperature, seed: self.seed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_model_reaches_a_terminal() {
        let told = visible(b"fn \x1b[2J\x07\x00\x7f\xc2\x9bx\r\n\ty\xff");
        assert_eq!(told, "fn .[2J....x.\n\ty\u{fffd}");
    }
}
