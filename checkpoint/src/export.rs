//! Writes the weights of a checkpoint into a folder that Hugging Face `transformers` loads:
//! `model.safetensors`, and for a GPT `config.json`.
//!
//! A GPT here has GPT-2's names and shapes, its weights as `[in, out]`, its tanh form of GELU and a
//! head tied to the embedding. So the tensors go out as they are. `transformers` adds the prefix
//! `transformer.` by itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use everstep_kernels::backend::Norm;
use everstep_kernels::reduce;
use everstep_transport::protocol::{RunSpec, Shard};
use serde_json::{Value, json};

use crate::bytes_of::Encoder;
use crate::head::{ElementType, Head, TensorHead};
use crate::manifest::{Manifest, ManifestError};
use crate::names::FileName;
use crate::part::reader::{CheckpointReader, ReadError};
use crate::store::Store;
use crate::store::durable::{DurableFiles, PartialFile};

/// The metadata key of the model's specification: `everstep generate` reads it.
pub const MODEL_KEY: &str = "everstep.model";

/// How exported weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// f32, the bits of the master weights.
    #[default]
    F32,
    /// Rounded to the nearest bf16: half of the bytes.
    Bf16,
}

/// The files that an export wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The path of `model.safetensors`.
    pub weights: PathBuf,
    /// The description for `transformers`. None if it knows no model of this kind.
    pub config: Option<PathBuf>,
}

/// Why weights were not written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The folder has a model already.
    #[error("{0} is there already. Name another folder, or move it away")]
    Occupied(PathBuf),
    /// The folder cannot be written.
    #[error("{path}: {error}")]
    Write {
        /// The file that could not be written.
        path: PathBuf,
        /// The error of the file system.
        error: io::Error,
    },
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The specification of its run cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Writes the weights of a checkpoint into a folder, which is made if it is not there. Holds one
/// shard at a time. `progress` is told how many parameters each shard has.
///
/// # Errors
/// If the folder has a model already or cannot be written, or the checkpoint cannot be read. No
/// half-written file remains.
pub fn export(
    store: &dyn Store,
    manifest: &Manifest,
    folder: &Path,
    weight_type: WeightType,
    progress: &mut dyn FnMut(u64),
) -> Result<Exported, ExportError> {
    let run = manifest.run_spec()?;
    let weights = folder.join(FileName::weights().to_string());
    let config = folder.join(FileName::config().to_string());
    for path in [&weights, &config] {
        if path.exists() {
            return Err(ExportError::Occupied(path.clone()));
        }
    }
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error| ExportError::Write { path, error }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut file = begin(&weights).map_err(failed(&weights))?;
    file.write(&head(manifest, &run, weight_type)).map_err(failed(&weights))?;
    let mut reader = CheckpointReader::new(store, manifest);
    let mut encoder = Encoder::default();
    for shard in (0..manifest.shards.len() as u32).map(Shard) {
        let master = reader.read(shard)?.master;
        let written = match weight_type {
            WeightType::F32 => encoder.try_each(&master, &mut |bytes| file.write(bytes)),
            WeightType::Bf16 => {
                let mut bytes = vec![0; 2 * master.len()];
                reduce::encode_bf16(&master, &mut bytes);
                file.write(&bytes)
            }
        };
        written.map_err(failed(&weights))?;
        progress(master.len() as u64);
    }
    file.replace().map_err(failed(&weights))?;
    let Some(description) = config_of(manifest, &run, weight_type) else {
        return Ok(Exported { weights, config: None });
    };
    let text = format!("{description:#}\n");
    let written = begin(&config).and_then(|mut file| {
        file.write(text.as_bytes())?;
        file.replace()
    });
    written.map_err(failed(&config))?;
    Ok(Exported { weights, config: Some(config) })
}

fn begin(path: &Path) -> io::Result<PartialFile> {
    DurableFiles::local().begin(path, 0)
}

fn head(manifest: &Manifest, run: &RunSpec, weight_type: WeightType) -> Vec<u8> {
    let element = match weight_type {
        WeightType::F32 => ElementType::F32,
        WeightType::Bf16 => ElementType::Bf16,
    };
    let mut tensors: Vec<TensorHead> = Vec::new();
    for tensor in &manifest.tensors {
        let start = tensors.last().map_or(0, |last| last.data.end);
        tensors.push(TensorHead::at(start, tensor.name.clone(), element, tensor.shape.clone()));
    }
    let model = serde_json::to_string(&run.model).expect("a specification is plain data");
    let metadata = [("format".to_string(), "pt".to_string()), (MODEL_KEY.to_string(), model)];
    Head { metadata: metadata.into(), tensors }.to_bytes(0)
}

/// What `transformers` must know of a GPT to compute the same logits. None for other models.
fn config_of(manifest: &Manifest, run: &RunSpec, weight_type: WeightType) -> Option<Value> {
    let shape = |name: &str| {
        let tensor = manifest.tensors.iter().find(|tensor| tensor.name == name)?;
        <[u64; 2]>::try_from(tensor.shape.as_slice()).ok()
    };
    if run.model.kind != "gpt" {
        return None;
    }
    let ([vocabulary, width], [context, _]) = (shape("wte.weight")?, shape("wpe.weight")?);
    let dtype = match weight_type {
        WeightType::F32 => "float32",
        WeightType::Bf16 => "bfloat16",
    };
    // The decimal number that an f32 stands for: as a plain f64 it would be 9.99999974e-6.
    let epsilon: f64 = Norm::EPSILON.to_string().parse().expect("a number is one");
    Some(json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": context,
        "n_embd": width,
        "n_layer": run.model.layers,
        "n_head": run.model.heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": epsilon,
        "tie_word_embeddings": true,
        // There is no dropout here, so fine-tuning elsewhere begins without it.
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        // Else `transformers` assumes token 50256, which these models need not have.
        "bos_token_id": null,
        "eos_token_id": null,
        // Version 5 reads the first, version 4 the second.
        "dtype": dtype,
        "torch_dtype": dtype,
    }))
}
