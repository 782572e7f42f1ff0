//! Weights out to a folder for `transformers`, and in again.

use std::fs;
use std::path::Path;

use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::export::{ExportError, WeightType, export};
use everstep_checkpoint::import::{ImportError, InitialWeights, WeightsPlace};
use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::Environment;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::{Shard, Step};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;

use crate::fixture::Run;

/// A run of a small GPT, its checkpoint, and a folder beside it.
struct ExportFixture {
    folder: tempfile::TempDir,
    store: DirectoryStore,
    run: Run,
    manifest: Manifest,
}

fn world() -> ExportFixture {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(&folder.path().join("checkpoints")).expect("a store");
    let mut run = Run::with_moments(2);
    run.layout = Layout::new();
    let normal = Init::Normal { deviation: 0.02 };
    run.layout.push("wte.weight", &[256, 8], normal);
    run.layout.push("wpe.weight", &[4, 8], normal);
    run.layout.push("h.0.attn.c_attn.weight", &[8, 24], normal);
    run.layout.push("ln_f.weight", &[8], Init::Constant(1.0));
    let manifest = run.write(&store, Step(20));
    ExportFixture { folder, store, run, manifest }
}

impl ExportFixture {
    fn master(&self) -> Vec<f32> {
        let shards = (0..self.run.shards()).map(Shard);
        shards.flat_map(|shard| self.run.state(Step(20), shard).master).collect()
    }

    fn exported(&self, weight_type: WeightType) -> std::path::PathBuf {
        let folder = self.folder.path().join(format!("{weight_type:?}"));
        let exported = export(&self.store, &self.manifest, &folder, weight_type, &mut |_| {});
        assert!(exported.expect("exported").config.is_some());
        folder
    }

    fn imported(&self, from: &Path) -> Result<(Vec<f32>, Digest), ImportError> {
        import(from, &self.run.layout)
    }
}

fn import(from: &Path, layout: &Layout) -> Result<(Vec<f32>, Digest), ImportError> {
    let place: WeightsPlace = from.to_str().expect("UTF-8").parse()?;
    let weights = InitialWeights::open(&place, &Environment::default(), layout)?;
    let mut values = vec![0.0; layout.count()];
    // In odd pieces, as owners read their own ranges.
    for start in (0..values.len()).step_by(777) {
        let range = start..values.len().min(start + 777);
        weights.read(range.clone(), &mut values[range])?;
    }
    Ok((values, weights.digest(&mut |_, _| {})?))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn exported_weights_come_back_to_the_same_bits() {
    let world = world();
    let folder = world.exported(WeightType::F32);
    let (values, digest) = world.imported(&folder).expect("weights that Everstep exported");
    assert_eq!(bits(&values), bits(&world.master()));
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(digest, Digest::of(&bytes));
    let by_file = world.imported(&folder.join("model.safetensors")).expect("the same file");
    assert_eq!(by_file.1, digest);
}

#[test]
fn bf16_weights_come_back_rounded_once() {
    let world = world();
    let (values, _) =
        world.imported(&world.exported(WeightType::Bf16)).expect("weights that Everstep exported");
    let mut rounded = world.master();
    everstep_kernels::reduce::round_bf16(&mut rounded);
    assert_eq!(bits(&values), bits(&rounded));
}

#[test]
fn the_folder_describes_the_model_for_transformers() {
    let world = world();
    for (weight_type, dtype, element) in
        [(WeightType::F32, "float32", Dtype::F32), (WeightType::Bf16, "bfloat16", Dtype::BF16)]
    {
        let folder = world.exported(weight_type);
        let text = fs::read(folder.join("config.json")).expect("read");
        let config: Value = serde_json::from_slice(&text).expect("JSON");
        for (key, value) in [
            ("vocab_size", 256),
            ("n_positions", 4),
            ("n_embd", 8),
            ("n_layer", i64::from(world.run.spec.model.layers)),
            ("n_head", i64::from(world.run.spec.model.heads)),
        ] {
            assert_eq!(config[key], value, "{key}");
        }
        assert_eq!(config["layer_norm_epsilon"], 1e-5);
        assert_eq!((&config["dtype"], &config["model_type"]), (&dtype.into(), &"gpt2".into()));
        let bytes = fs::read(folder.join("model.safetensors")).expect("read");
        let file = SafeTensors::deserialize(&bytes).expect("valid");
        assert_eq!(file.tensor("wte.weight").expect("named").dtype(), element);
        assert_eq!(file.tensor("h.0.attn.c_attn.weight").expect("named").shape(), [8, 24]);
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a head");
        assert_eq!(metadata.metadata().as_ref().expect("some")["format"], "pt");
    }
}

#[test]
fn a_model_that_transformers_does_not_know_has_weights_alone() {
    let mut world = world();
    world.run.spec.model.kind = "mine".into();
    let manifest = {
        let store = DirectoryStore::open(&world.folder.path().join("mine")).expect("a store");
        world.run.write(&store, Step(20))
    };
    let folder = world.folder.path().join("out");
    let exported = export(&world.store, &manifest, &folder, WeightType::F32, &mut |_| {});
    assert_eq!(exported.expect("exported").config, None);
    assert!(!folder.join("config.json").exists());
}

#[test]
fn a_model_that_is_there_is_never_replaced() {
    let world = world();
    let folder = world.exported(WeightType::F32);
    for name in ["config.json", "model.safetensors"] {
        let again = export(&world.store, &world.manifest, &folder, WeightType::F32, &mut |_| {});
        assert!(matches!(again, Err(ExportError::Occupied(_))), "{name} is there");
        fs::remove_file(folder.join(name)).expect("removed");
    }
}

#[test]
fn a_damaged_checkpoint_leaves_no_half_model() {
    let world = world();
    let part = ObjectName::Part(Step(20), world.manifest.files[0].name);
    let part = world.folder.path().join(format!("checkpoints/{part}"));
    let mut bytes = fs::read(&part).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&part, bytes).expect("written");
    let folder = world.folder.path().join("out");
    let failed = export(&world.store, &world.manifest, &folder, WeightType::F32, &mut |_| {});
    assert!(failed.expect_err("damaged").to_string().contains("parameter shard"));
    assert_eq!(fs::read_dir(&folder).expect("read").count(), 0);
}

/// Name, shape, type, and the value of all elements.
type Tensor<'a> = (&'a str, &'a [usize], Dtype, f32);

/// Writes a file with these tensors.
fn file(path: &Path, tensors: &[Tensor<'_>]) {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape, dtype, value)| {
            let count: usize = shape.iter().product();
            let bytes = match dtype {
                Dtype::F32 => value.to_le_bytes().to_vec(),
                Dtype::F16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
                Dtype::BF16 => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
                _ => vec![0; 8],
            };
            bytes.repeat(count)
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, dtype, _), data)| {
        (name.to_string(), TensorView::new(*dtype, shape.to_vec(), data).expect("a view"))
    });
    serialize_to_file(views, None, path).expect("written");
}

fn small() -> Layout {
    let mut layout = Layout::new();
    layout.push("wte.weight", &[3, 2], Init::Constant(0.0));
    layout.push("ln_f.bias", &[2], Init::Constant(0.0));
    layout
}

#[test]
fn the_forms_of_files_that_transformers_writes_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let wte: Tensor<'_> = ("transformer.wte.weight", &[3, 2], Dtype::F32, 1.5);
    let head = ("lm_head.weight", wte.1, Dtype::F32, 1.5);
    let bias: Tensor<'_> = ("transformer.ln_f.bias", &[2], Dtype::F16, 0.25);
    let mask: Tensor<'_> = ("transformer.h.0.attn.bias", &[1], Dtype::I64, 0.0);
    file(&path, &[wte, head, bias, mask]);
    let expected = [vec![1.5; 6], vec![0.25; 2]].concat();
    assert_eq!(import(folder.path(), &small()).expect("read").0, expected);

    fs::remove_file(&path).expect("removed");
    file(&folder.path().join("model-00001-of-00002.safetensors"), &[wte]);
    file(
        &folder.path().join("model-00002-of-00002.safetensors"),
        &[("ln_f.bias", &[2], Dtype::BF16, 0.25)],
    );
    let index = r#"{"metadata":{},"weight_map":{
        "transformer.wte.weight":"model-00001-of-00002.safetensors",
        "ln_f.bias":"model-00002-of-00002.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).expect("written");
    assert_eq!(import(folder.path(), &small()).expect("read").0, expected);
}

#[test]
fn weights_that_are_not_the_models_are_refused_with_the_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let wte: Tensor<'_> = ("wte.weight", &[3, 2], Dtype::F32, 1.0);
    let bias: Tensor<'_> = ("ln_f.bias", &[2], Dtype::F32, 1.0);
    let cases: [(&[Tensor<'_>], &str); 7] = [
        (&[wte], "there is no tensor \"ln_f.bias\""),
        (&[("wte.weight", &[2, 3], Dtype::F32, 1.0), bias], "has the shape [2, 3], and the run's"),
        (&[wte, bias, ("extra", &[1], Dtype::F32, 1.0)], "\"extra\" is none of the run's model"),
        (&[wte, ("ln_f.bias", &[2], Dtype::I64, 0.0)], "\"ln_f.bias\" is not f32, bf16 or f16"),
        (&[("wte.weight", &[3, 2], Dtype::F32, f32::NAN), bias], "a weight that is not finite"),
        (&[wte, bias, ("lm_head.weight", &[3, 2], Dtype::F32, 2.0)], "is not the embedding"),
        (&[wte, bias, ("lm_head.weight", &[3], Dtype::F32, 2.0)], "is none of the run's model"),
    ];
    for (tensors, words) in cases {
        file(&path, tensors);
        let told = import(folder.path(), &small()).expect_err(words).to_string();
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn files_that_are_no_weights_are_refused_with_their_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    for bytes in [&b""[..], b"short", &[255; 64], b"\x02\0\0\0\0\0\0\0{]", b"\x02\0\0\0\0\0\0\0{}x"]
    {
        fs::write(&path, bytes).expect("written");
        let told = import(folder.path(), &small()).expect_err("refused").to_string();
        assert!(told.contains("model.safetensors: it"), "{bytes:?}: {told}");
    }
    fs::remove_file(&path).expect("removed");
    let told = import(folder.path(), &small()).expect_err("empty").to_string();
    assert!(told.contains("model.safetensors: it is not there"), "{told}");
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(index, r#"{"weight_map":{"a":"../../etc/passwd"}}"#).expect("written");
    let told = import(folder.path(), &small()).expect_err("hostile").to_string();
    assert!(told.contains("is not the name of anything in a store"), "{told}");
    let gone = folder.path().join("nothing");
    let told = import(&gone, &small()).expect_err("gone").to_string();
    assert!(told.contains("there is no such folder") && !gone.exists(), "{told}");
}
