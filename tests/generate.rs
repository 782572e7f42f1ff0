//! Continued texts: the drawn bytes, and the files that are refused.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use everstep::cli::Overrides;
use everstep::config::resolve;
use everstep::generate::{GenerateOptions, ModelError, continue_text, read_model};
use everstep_kernels::compute::{Batch, Compute, ComputeError, Evaluation, GradientSink, Pass};
use everstep_kernels::layout::{Init, Layout};
use everstep_worker::builtin;
use everstep_worker::registry::Registry;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

/// A model with its parameters as the logits for the next byte, shifted by the last byte.
struct Cycle {
    layout: Layout,
    parameters: Vec<f32>,
}

impl Cycle {
    fn new(logits: [f32; 4]) -> Self {
        let mut layout = Layout::new();
        layout.push("logits", &[4], Init::Constant(0.0));
        Self { layout, parameters: logits.to_vec() }
    }
}

impl Compute for Cycle {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load(&mut self, offset: usize, values: &[f32]) {
        self.parameters[offset..offset + values.len()].copy_from_slice(values);
    }

    fn gradient(
        &mut self,
        _batch: &Batch,
        _pass: Pass,
        _exchange: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        Err(ComputeError::Batch("it does not learn".into()))
    }

    fn evaluate(&mut self, _batch: &Batch) -> Result<Evaluation, ComputeError> {
        Err(ComputeError::Batch("it does not learn".into()))
    }

    fn next_logits(&mut self, tokens: &[u32]) -> Option<Vec<f32>> {
        let last = *tokens.last()? as usize;
        Some((0..4).map(|byte| self.parameters[(byte + 4 - last % 4) % 4]).collect())
    }

    fn device_bytes(&self) -> usize {
        0
    }
}

fn registry() -> Registry {
    Registry::new().model("cycle", |_, _| Ok(Box::new(Cycle::new([0.0; 4]))))
}

const CYCLE: &str = r#"{"kind": "cycle", "layers": 1, "heads": 1, "width": 4, "context": 4}"#;

/// A file of one tensor, `logits`, that prefers the byte after the last.
fn model_file(directory: &TempDir, shape: usize, model: Option<&str>) -> PathBuf {
    let path = directory.path().join("model.safetensors");
    let bytes: Vec<u8> =
        [0.0, 9.0, 0.0, 0.0].iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![shape], &bytes[..4 * shape]).unwrap();
    let metadata = model.map(|model| HashMap::from([("everstep.model".into(), model.into())]));
    std::fs::write(&path, safetensors::serialize([("logits", view)], metadata).unwrap()).unwrap();
    path
}

fn options(temperature: f64) -> GenerateOptions {
    GenerateOptions { bytes: 400, temperature, seed: 3 }
}

#[test]
fn at_temperature_zero_the_likeliest_byte_is_taken() {
    let mut model = Cycle::new([0.0, 9.0, 0.0, 0.0]);
    let text = continue_text(&mut model, &[0], &GenerateOptions { bytes: 6, ..options(0.0) });
    assert_eq!(text.unwrap(), [1, 2, 3, 0, 1, 2]);
}

#[test]
fn the_seed_decides_the_text_and_nothing_else_does() {
    let text = |seed| {
        let mut model = Cycle::new([0.0, 1.0, 0.0, 2.0]);
        continue_text(&mut model, b"ab", &GenerateOptions { seed, ..options(1.0) }).unwrap()
    };
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
}

#[test]
fn bytes_are_drawn_as_often_as_their_softmax_says() {
    let mut model = Cycle::new([0.0, 2.0_f32.ln(), f32::NEG_INFINITY, 0.0]);
    let text =
        continue_text(&mut model, &[0], &GenerateOptions { bytes: 4_000, ..options(1.0) }).unwrap();
    let mut counts = [0; 4];
    for (last, next) in [0].iter().chain(&text).zip(&text) {
        counts[usize::from((next + 4 - last) % 4)] += 1;
    }
    assert!((900..1_100).contains(&counts[0]), "{counts:?}");
    assert!((1_900..2_100).contains(&counts[1]), "{counts:?}");
    assert_eq!(counts[2], 0);
}

#[test]
fn an_empty_prompt_is_continued_and_a_broken_model_does_not_panic() {
    let mut model = Cycle::new([f32::NAN; 4]);
    assert_eq!(continue_text(&mut model, b"", &options(0.7)).unwrap().len(), 400);
}

#[test]
fn a_model_is_read_with_the_tensors_of_its_file() {
    let directory = TempDir::new().unwrap();
    let path = model_file(&directory, 4, Some(CYCLE));
    let mut model = read_model(&path, &registry()).unwrap();
    let text = continue_text(&mut *model, &[3], &GenerateOptions { bytes: 3, ..options(0.0) });
    assert_eq!(text.unwrap(), [0, 1, 2]);
}

#[test]
fn the_program_continues_a_text_with_a_gpt() {
    let directory = TempDir::new().unwrap();
    let model = r#"{"kind": "gpt", "layers": 1, "heads": 2, "width": 8, "context": 4}"#;
    let path = gpt_file(&directory, model);
    let output = Command::new(env!("CARGO_BIN_EXE_everstep"))
        .args(["generate", "--prompt", "longer than the context: ", "--bytes", "20", "--model"])
        .arg(path)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("printed as UTF-8");
    assert!(text.starts_with("longer than the context: ") && text.ends_with('\n'), "{text}");
    assert!(output.stderr.is_empty());
}

/// A gpt with all parameters zero: every byte is as likely as any other.
fn gpt_file(directory: &TempDir, model: &str) -> PathBuf {
    let mut run = resolve(None, &Overrides::default(), &builtin::registry()).unwrap().run;
    (run.model.layers, run.model.heads, run.model.width, run.model.context) = (1, 2, 8, 4);
    let compute = builtin::registry().build_model_on_host(&run).unwrap();
    let zeros = vec![0; 4 * compute.layout().count()];
    let views = compute.layout().tensors().iter().map(|tensor| {
        let bytes = &zeros[..4 * tensor.count()];
        (&tensor.name, TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap())
    });
    let metadata = HashMap::from([("everstep.model".into(), model.into())]);
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
    path
}

#[test]
fn a_file_that_is_no_model_is_refused_in_words() {
    let directory = TempDir::new().unwrap();
    let refused = |path: PathBuf| read_model(&path, &registry()).err().expect("refused");
    assert!(matches!(refused(directory.path().join("none")), ModelError::Unreadable(_)));
    assert!(matches!(refused(PathBuf::from("Cargo.toml")), ModelError::Format(_)));
    let with = |shape, model| refused(model_file(&directory, shape, model));
    assert!(matches!(with(4, None), ModelError::NoModel));
    assert!(matches!(with(4, Some("{}")), ModelError::Metadata(_)));
    let zero = CYCLE.replace("\"width\": 4", "\"width\": 0");
    assert!(matches!(with(4, Some(&zero)), ModelError::Spec(_)));
    let circle = CYCLE.replace("cycle", "circle");
    let unknown = with(4, Some(&circle)).to_string();
    assert!(unknown.contains("no model named \"circle\""), "{unknown}");
    // The metadata may name a model of any size. The file's content decides whether the program
    // builds it.
    let deep = r#"{"kind": "gpt", "layers": 65536, "heads": 1, "width": 32, "context": 4}"#;
    let path = model_file(&directory, 4, Some(deep));
    let deep = read_model(&path, &builtin::registry()).err().expect("refused").to_string();
    assert!(deep.contains("1 where the model has"), "{deep}");
    let shape = with(3, Some(CYCLE)).to_string();
    assert!(shape.contains("\"logits\" is F32 [3], not F32 [4]"), "{shape}");
}
