//! Writes what the scripts of `tests/checkpoint` compare with other programs: a checkpoint of a
//! small GPT in `DIR/checkpoints`, the same weights for `transformers` in `DIR/f32` and `DIR/bf16`,
//! and in `DIR/expected.json` tokens with the loss that Everstep computes for them.
//!
//! `gpt_checkpoint DIR` writes. `gpt_checkpoint --loss FOLDER DIR` reads weights from a folder that
//! another program has written, and prints their digest, and their loss for the same tokens.

#[path = "../tests/checkpoint/fixture.rs"]
mod fixture;

use std::error::Error;
use std::path::Path;

use everstep_checkpoint::choose::{Wanted, newest};
use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::export::{WeightType, export};
use everstep_checkpoint::import::{InitialWeights, WeightsPlace};
use everstep_checkpoint::part::reader::CheckpointReader;
use everstep_checkpoint::store::Environment;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_kernels::backend::Cpu;
use everstep_kernels::compute::{Batch, Compute};
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::random::Philox;
use everstep_transport::protocol::{Shard, Step};
use serde_json::json;

use fixture::Run;

const CONFIG: GptConfig = GptConfig {
    vocabulary: 256,
    layers: 2,
    heads: 4,
    width: 32,
    context: 16,
    micro_batch: 4,
    recompute: false,
};
/// Not small, so that every weight, bias and norm matters to the loss.
const DEVIATION: f32 = 0.3;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--loss", folder, directory] => print_loss(folder, Path::new(directory)),
        [directory] => write(Path::new(directory)),
        _ => Err("usage: gpt_checkpoint DIR, or gpt_checkpoint --loss FOLDER DIR".into()),
    }
}

fn write(directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut model = OnBackend::<Gpt>::new(CONFIG, Cpu::new)?;
    let mut layout = Layout::new();
    for tensor in model.layout().tensors() {
        layout.push(&tensor.name, &tensor.shape, Init::Normal { deviation: DEVIATION });
    }
    let mut run = Run { layout, ..Run::with_moments(2) };
    (run.spec.model.layers, run.spec.model.heads) = (CONFIG.layers as u32, CONFIG.heads as u32);
    (run.spec.model.width, run.spec.model.context) = (CONFIG.width as u32, CONFIG.context as u32);
    let store = DirectoryStore::open(&directory.join("checkpoints"))?;
    run.write(&store, Step(500));
    let manifest = newest(&store, Wanted::default())?.manifest.ok_or("it was written")?;
    let mut reader = CheckpointReader::new(&store, &manifest);
    let mut weights = Vec::new();
    for shard in (0..run.shards()).map(Shard) {
        let master = reader.read(shard)?.master;
        model.load(manifest.shard_range(shard).start, &master);
        weights.extend(master);
    }
    for (name, weight_type) in [("f32", WeightType::F32), ("bf16", WeightType::Bf16)] {
        export(&store, &manifest, &directory.join(name), weight_type, &mut |_| {})?;
    }
    let batch = batch();
    let loss = model.evaluate(&batch)?.loss;
    let rows = |values: &[u32]| -> Vec<Vec<u32>> {
        values.chunks(CONFIG.context).map(<[_]>::to_vec).collect()
    };
    let expected = json!({
        "tokens": rows(&batch.tokens), "targets": rows(&batch.targets), "loss": loss,
        "state_hash": manifest.state_hash, "weights": digest(&weights),
    });
    std::fs::write(directory.join("expected.json"), format!("{expected}\n"))?;
    println!("loss {loss}");
    Ok(())
}

/// Reads nothing of `directory` but for a check that it was written.
fn print_loss(folder: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    let expected = std::fs::read(directory.join("expected.json"))?;
    let expected: serde_json::Value = serde_json::from_slice(&expected)?;
    let mut model = OnBackend::<Gpt>::new(CONFIG, Cpu::new)?;
    let place: WeightsPlace = folder.parse()?;
    let weights = InitialWeights::open(&place, &Environment::default(), model.layout())?;
    let mut values = vec![0.0; model.layout().count()];
    weights.read(0..values.len(), &mut values)?;
    model.load(0, &values);
    let loss = model.evaluate(&batch())?.loss;
    let weights = digest(&values);
    println!("{}", json!({ "loss": loss, "expected": expected["loss"], "weights": weights }));
    Ok(())
}

/// A digest of all bits of these weights.
fn digest(weights: &[f32]) -> Digest {
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    Digest::of(&bytes)
}

fn batch() -> Batch {
    let count = CONFIG.micro_batch * CONFIG.context;
    let draw = |stream: u64| {
        let philox = Philox::new(3, 0, stream);
        (0..count as u64).map(|index| philox.u32(index) % CONFIG.vocabulary as u32).collect()
    };
    let (tokens, targets) = (draw(0), draw(1));
    Batch { rows: CONFIG.micro_batch, tokens, targets, features: Vec::new() }
}
