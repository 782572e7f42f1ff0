//! `model.safetensors`, written shard by shard as master weights arrive.
//!
//! Nothing is held in memory: every piece goes to its place in a temporary file beside the final
//! one, which it replaces once it is complete and durable.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use everstep_kernels::layout::Layout;
use everstep_transport::protocol::run::ModelSpec;
use serde_json::{Map, Value, json};

use super::model_path::{self, RUN_KEY};

/// The metadata key under which the model's specification stands.
pub const MODEL_KEY: &str = "everstep.model";

/// A model file under way.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    /// Where it is written: a place of this incarnation's own, since one that was thought lost may
    /// still be writing.
    temporary: PathBuf,
    /// Of the run: see [`model_path`].
    digest: String,
    header: Vec<u8>,
    /// Created by the first piece: only one worker writes.
    file: Option<File>,
    parameters: usize,
    missing: usize,
}

/// The model could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the model to {path}: {source}")]
pub struct ModelFileError {
    path: PathBuf,
    source: io::Error,
}

impl ModelFile {
    /// A file at `path` for a model of this layout, to be written by a worker's `incarnation`, of
    /// the run with this digest. Touches nothing yet.
    pub fn new(
        path: &Path,
        incarnation: u64,
        layout: &Layout,
        model: &ModelSpec,
        digest: &str,
    ) -> Self {
        let parameters = layout.count();
        Self {
            path: path.to_path_buf(),
            temporary: path.with_extension(format!("safetensors.{incarnation:016x}.partial")),
            digest: digest.into(),
            header: header(layout, model, digest),
            file: None,
            parameters,
            missing: parameters,
        }
    }

    /// Forgets what has been written: every range is to come again. A file that was complete stays
    /// until the next one is.
    pub fn begin_anew(&mut self) {
        if self.file.take().is_some() {
            // What was complete has its final name; what was not harms nobody where it stays.
            let _ = fs::remove_file(&self.temporary);
        }
        self.missing = self.parameters;
    }

    /// Writes `values` to `range` of the flat vector; `true` when the file is complete, in place
    /// and durable. Each range is written once, until it is begun anew.
    pub fn write(&mut self, range: Range<usize>, values: &[f32]) -> Result<bool, ModelFileError> {
        self.try_write(range, values).map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> ModelFileError {
        ModelFileError { path: self.path.clone(), source }
    }

    fn try_write(&mut self, range: Range<usize>, values: &[f32]) -> io::Result<bool> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = File::create(&self.temporary)?;
                file.write_all(&self.header)?;
                self.file.insert(file)
            }
        };
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.seek(SeekFrom::Start((self.header.len() + 4 * range.start) as u64))?;
        file.write_all(&bytes)?;
        self.missing -= range.len();
        if self.missing > 0 {
            return Ok(false);
        }
        file.sync_all()?;
        model_path::check(&self.path, &self.digest)?;
        fs::rename(&self.temporary, &self.path)?;
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        Ok(true)
    }
}

/// Length, then JSON padded to eight bytes: the head of a safetensors file.
fn header(layout: &Layout, model: &ModelSpec, digest: &str) -> Vec<u8> {
    let specification = serde_json::to_string(model).expect("a specification is plain data");
    let metadata =
        BTreeMap::from([("format", "pt"), (MODEL_KEY, &specification), (RUN_KEY, digest)]);
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!(metadata));
    for tensor in layout.tensors() {
        let offsets = [4 * tensor.range().start, 4 * tensor.range().end];
        let entry = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": offsets });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

#[cfg(test)]
mod tests {
    use everstep_kernels::layout::Init;
    use everstep_transport::protocol::run::Precision;
    use safetensors::SafeTensors;

    use super::*;

    fn model() -> ModelSpec {
        ModelSpec {
            kind: "mine".into(),
            layers: 1,
            heads: 1,
            width: 3,
            context: 1,
            precision: Precision::F32,
            recompute: false,
        }
    }

    #[test]
    fn pieces_in_any_order_make_a_file_that_others_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let mut layout = Layout::new();
        layout.push("weight", &[2, 3], Init::Constant(0.0));
        layout.push("bias", &[3], Init::Constant(0.0));
        let mut file = ModelFile::new(&path, 1, &layout, &model(), "aa");
        assert!(!file.write(4..9, &[4.0, 5.0, 6.0, 7.0, 8.0]).expect("written"));
        assert!(!path.exists(), "nothing half-written is ever in place");
        assert!(file.write(0..4, &[0.0, 1.0, 2.0, 3.0]).expect("written"));

        let bytes = fs::read(&path).expect("in place");
        let tensors = SafeTensors::deserialize(&bytes).expect("valid");
        let bias = tensors.tensor("bias").expect("named");
        let expected: Vec<u8> = [6.0f32, 7.0, 8.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!((bias.shape(), bias.data()), (&[3][..], &expected[..]));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("metadata");
        let text = &metadata.metadata().as_ref().expect("present")[MODEL_KEY];
        assert!(text.contains("\"mine\""));
    }

    #[test]
    fn a_file_that_is_begun_anew_needs_every_piece_again_and_leaves_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let mut layout = Layout::new();
        layout.push("bias", &[3], Init::Constant(0.0));
        let mut file = ModelFile::new(&path, 1, &layout, &model(), "aa");
        assert!(!file.write(0..2, &[1.0, 2.0]).expect("written"));
        file.begin_anew();
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
        assert!(!file.write(2..3, &[6.0]).expect("written"));
        assert!(file.write(0..2, &[4.0, 5.0]).expect("written"));
        file.begin_anew();
        assert!(path.exists(), "what was complete stays");
        assert!(file.write(0..3, &[7.0, 8.0, 9.0]).expect("written"));
    }

    #[test]
    fn the_model_of_another_run_is_never_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let mut layout = Layout::new();
        layout.push("bias", &[1], Init::Constant(0.0));
        let mut file = ModelFile::new(&path, 1, &layout, &model(), "aa");
        assert!(file.write(0..1, &[1.0]).expect("written"));
        let before = fs::read(&path).expect("in place");
        let mut again = ModelFile::new(&path, 2, &layout, &model(), "aa");
        assert!(again.write(0..1, &[1.0]).expect("the same run, written by another worker"));
        let mut other = ModelFile::new(&path, 3, &layout, &model(), "bb");
        let told = other.write(0..1, &[2.0]).expect_err("of another run").to_string();
        assert!(told.contains("another run's model is there"), "{told}");
        assert_eq!(fs::read(&path).expect("in place"), before);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let mut layout = Layout::new();
        layout.push("bias", &[1], Init::Constant(0.0));
        let mut file =
            ModelFile::new(Path::new("/nowhere/model.safetensors"), 1, &layout, &model(), "aa");
        let error = file.write(0..1, &[1.0]).expect_err("no such folder");
        assert!(error.to_string().contains("/nowhere/model.safetensors"));
    }
}
