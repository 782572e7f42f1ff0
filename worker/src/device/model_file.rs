//! Writes `model.safetensors` shard by shard as master weights arrive.
//!
//! It holds nothing in memory. Every piece goes to its place in a temporary file beside the final
//! one. The temporary file replaces the final one once it is complete and durable. Opening reserves
//! the room of the whole file on the disk, so the worker finds a full disk before any weights
//! travel. After an error the temporary file is gone, and the file can be opened again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use everstep_kernels::layout::Layout;
use everstep_transport::protocol::run::ModelSpec;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::model_path::{self, RUN_KEY};

/// The metadata key of the model's specification.
pub const MODEL_KEY: &str = "everstep.model";

/// A model file under way.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    /// The path of the temporary file. It is this incarnation's own, since a worker that counts as
    /// lost may still be writing.
    temporary: PathBuf,
    /// The digest of the run: see [`model_path`].
    digest: String,
    header: Vec<u8>,
    /// None unless this worker writes: only one worker writes.
    file: Option<File>,
    parameters: usize,
    missing: usize,
}

impl ModelFile {
    /// A file at `path` for a model of this layout and for the run with this digest. The worker's
    /// `incarnation` names its temporary file. This touches nothing yet.
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

    /// The path of the complete file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many parameters the complete file has.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Whether the file is under way.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Begins the file from its start: every range is still to come. Reserves all of its room on
    /// the disk, if the file system can do that.
    ///
    /// # Errors
    /// If the directory takes no file, or has too little room.
    pub fn open(&mut self) -> io::Result<()> {
        self.close();
        model_path::check(&self.path, &self.digest)?;
        let opened = self.try_open();
        if opened.is_err() {
            self.remove();
        }
        self.file = Some(opened?);
        Ok(())
    }

    /// Forgets the written ranges. A complete file stays until the next one is complete.
    pub fn close(&mut self) {
        if self.file.take().is_some() {
            self.remove();
        }
        self.missing = self.parameters;
    }

    /// Writes `values` to `range` of the flat vector. `true` when the file is complete, in place
    /// and durable. The caller writes each range once. A closed file takes nothing.
    ///
    /// # Errors
    /// Errors of the file system. The file is then closed.
    pub fn write(&mut self, range: Range<usize>, values: &[f32]) -> io::Result<bool> {
        let written = self.try_write(range, values);
        if written.is_err() {
            self.close();
        }
        written
    }

    fn try_open(&self) -> io::Result<File> {
        let mut file = File::create(&self.temporary)?;
        let length = (self.header.len() + 4 * self.parameters) as u64;
        match fallocate(&file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        file.write_all(&self.header)?;
        Ok(file)
    }

    fn try_write(&mut self, range: Range<usize>, values: &[f32]) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
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
        self.file = None;
        Ok(true)
    }

    /// Removes the temporary file. If that fails, the file does no harm where it is.
    fn remove(&self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// The head of a safetensors file: its length, then JSON padded to eight bytes.
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
            vocabulary: 256,
            precision: Precision::F32,
            recompute: false,
            init: None,
            unit: Default::default(),
            loss_unit: Default::default(),
            options: Default::default(),
        }
    }

    fn opened(path: &Path, incarnation: u64, layout: &Layout, digest: &str) -> ModelFile {
        let mut file = ModelFile::new(path, incarnation, layout, &model(), digest);
        file.open().expect("opened");
        file
    }

    #[test]
    fn pieces_in_any_order_make_a_file_that_others_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let mut layout = Layout::new();
        layout.push("weight", &[2, 3], Init::Constant(0.0));
        layout.push("bias", &[3], Init::Constant(0.0));
        let mut file = opened(&path, 1, &layout, "aa");
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
        let mut file = opened(&path, 1, &layout, "aa");
        assert!(!file.write(0..2, &[1.0, 2.0]).expect("written"));
        file.close();
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
        assert!(!file.write(0..3, &[1.0, 2.0, 3.0]).expect("nothing"), "it is not open");
        file.open().expect("opened");
        assert!(!file.write(2..3, &[6.0]).expect("written"));
        assert!(file.write(0..2, &[4.0, 5.0]).expect("written"));
        file.open().expect("opened");
        assert!(path.exists(), "what was complete stays");
        assert!(file.write(0..3, &[7.0, 8.0, 9.0]).expect("written"));
    }

    #[test]
    fn the_model_of_another_run_is_never_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let mut layout = Layout::new();
        layout.push("bias", &[1], Init::Constant(0.0));
        let mut file = opened(&path, 1, &layout, "aa");
        assert!(file.write(0..1, &[1.0]).expect("written"));
        let before = fs::read(&path).expect("in place");
        let mut again = opened(&path, 2, &layout, "aa");
        assert!(again.write(0..1, &[1.0]).expect("the same run, written by another worker"));
        let mut other = ModelFile::new(&path, 3, &layout, &model(), "bb");
        let told = other.open().expect_err("of another run").to_string();
        assert!(told.contains("another run's model is there"), "{told}");
        assert_eq!(fs::read(&path).expect("in place"), before);
    }

    #[test]
    fn a_folder_that_is_gone_takes_a_file_again_when_it_is_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = folder.path().join("runs");
        let mut layout = Layout::new();
        layout.push("bias", &[2], Init::Constant(0.0));
        let path = runs.join("model.safetensors");
        let mut file = ModelFile::new(&path, 1, &layout, &model(), "aa");
        assert_eq!(file.open().expect_err("gone").kind(), io::ErrorKind::NotFound);

        fs::create_dir(&runs).expect("back");
        file.open().expect("opened");
        assert!(!file.write(0..1, &[1.0]).expect("written"));
        fs::remove_dir_all(&runs).expect("gone again");
        assert_eq!(file.write(1..2, &[2.0]).expect_err("gone").kind(), io::ErrorKind::NotFound);

        fs::create_dir(&runs).expect("back again");
        file.open().expect("opened");
        assert!(!file.write(0..1, &[1.0]).expect("every range is to come again"));
        assert!(file.write(1..2, &[2.0]).expect("written"));
        assert_eq!(fs::read_dir(&runs).expect("read").count(), 1, "the model and nothing else");
    }
}
