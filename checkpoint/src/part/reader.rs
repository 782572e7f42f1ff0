//! Reads shards of a checkpoint by their ranges, and believes none without its digest.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use everstep_kernels::optimizer::ShardState;
use everstep_transport::protocol::Shard;

use super::{FORMAT, FORMAT_KEY, RUN_KEY, STEP_KEY, tensor_name};
use crate::bytes_of::decode;
use crate::digest::{Digest, ShardHasher};
use crate::head::{ElementType, Head, LENGTH_BYTES, head_length};
use crate::manifest::Manifest;
use crate::names::{ObjectName, shown};
use crate::store::{ErrorKind, Store, StoreError};

/// What is wrong with a checkpoint, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file that is damaged.
    pub file: ObjectName,
    /// The shard, if it is one shard's bytes.
    pub shard: Option<Shard>,
    /// What is wrong with the file, in words.
    pub why: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file)?;
        if let Some(shard) = self.shard {
            write!(f, "parameter shard {shard}: ")?;
        }
        f.write_str(&self.why)
    }
}

/// Why a shard was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The checkpoint is damaged. An older one may do.
    #[error("{0}")]
    Damaged(Damage),
    /// The store did not answer. That says nothing of the checkpoint.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The head of a part lacks a tensor that the manifest states.
#[derive(Debug, thiserror::Error)]
#[error("its head has no tensor {name} of {length} f32 values")]
struct NoTensor {
    name: String,
    length: u64,
}

/// A checkpoint that is being read.
pub struct CheckpointReader<'a> {
    store: &'a dyn Store,
    manifest: &'a Manifest,
    /// Of each file that was opened: where the slots of its shards lie.
    opened: BTreeMap<u32, BTreeMap<Shard, Vec<Range<u64>>>>,
}

impl<'a> CheckpointReader<'a> {
    /// A reader of a checkpoint. It opens no file before a shard is asked for.
    pub fn new(store: &'a dyn Store, manifest: &'a Manifest) -> Self {
        Self { store, manifest, opened: BTreeMap::new() }
    }

    /// The state of a shard, exactly as it was written: its digest is that of the manifest.
    ///
    /// # Errors
    /// If the store does not answer, or the shard is not what was written.
    ///
    /// # Panics
    /// If the manifest has no such shard.
    pub fn read(&mut self, shard: Shard) -> Result<ShardState, ReadError> {
        let entry = &self.manifest.shards[shard.0 as usize];
        let file = self.manifest.file_name(entry.file);
        if !self.opened.contains_key(&entry.file) {
            let ranges = self.open(entry.file)?;
            self.opened.insert(entry.file, ranges);
        }
        let damage = |why: String| {
            ReadError::Damaged(Damage { file: file.clone(), shard: Some(shard), why })
        };
        let ranges = &self.opened[&entry.file][&shard];
        let mut hasher = ShardHasher::new(self.manifest.step);
        let mut slots = Vec::new();
        for range in ranges {
            let bytes = self.store.read(&file, range.clone());
            let bytes = bytes.map_err(|error| of_file(&file, Some(shard), error))?;
            hasher.update(&bytes);
            let mut values = vec![0.0; bytes.len() / 4];
            decode(&bytes, &mut values);
            slots.push(values);
        }
        let digest = hasher.finish();
        if digest != entry.blake3 {
            let stated = entry.blake3;
            return Err(damage(format!("its digest is {digest}, and was {stated} when written")));
        }
        let master = slots.remove(0);
        Ok(ShardState { master, moments: slots })
    }

    /// Reads the head of a file, and finds its shards in it. A part of another format is no damage:
    /// a newer program wrote it, and going back to an older checkpoint in silence would lose steps.
    fn open(&self, number: u32) -> Result<BTreeMap<Shard, Vec<Range<u64>>>, ReadError> {
        let manifest = self.manifest;
        let (name, entry) = (manifest.file_name(number), &manifest.files[number as usize]);
        let damage =
            |why: String| ReadError::Damaged(Damage { file: name.clone(), shard: None, why });
        let bytes = self.store.size(&name).map_err(|error| of_file(&name, None, error))?;
        if bytes != entry.bytes {
            let stated = entry.bytes;
            return Err(damage(format!("it has {bytes} bytes, and had {stated} when written")));
        }
        let read = self.store.read(&name, 0..entry.head_bytes);
        let head = read.map_err(|error| of_file(&name, None, error))?;
        if Digest::of(&head) != entry.head_blake3 {
            return Err(damage(self.why_another_head(&head, bytes)));
        }
        let length = head.first_chunk().map(|first| head_length(*first, bytes));
        if length != Some(Ok(entry.head_bytes)) {
            return Err(damage("its head has another length than the manifest states".into()));
        }
        let (text, data) = (&head[LENGTH_BYTES as usize..], bytes - entry.head_bytes);
        let head = Head::parse(text, data).map_err(|error| damage(error.0))?;
        if let Some(other) = head.metadata.get(FORMAT_KEY).filter(|it| **it != FORMAT.to_string()) {
            let why = format!(
                "its format is {}, and this program reads format {FORMAT}. Use a newer program",
                shown(other)
            );
            let place = self.store.place();
            return Err(StoreError::new(ErrorKind::Refuse, place, &name, why).into());
        }
        self.ranges(number, &head).map_err(|error| damage(error.to_string()))
    }

    /// Where the slots of the file's shards lie, if the head agrees with the manifest.
    fn ranges(
        &self,
        number: u32,
        head: &Head,
    ) -> Result<BTreeMap<Shard, Vec<Range<u64>>>, NoTensor> {
        let manifest = self.manifest;
        let start = manifest.files[number as usize].head_bytes;
        let tensors: BTreeMap<_, _> =
            head.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut found = BTreeMap::new();
        for (index, shard) in (0..).map(Shard).zip(&manifest.shards) {
            if shard.file != number {
                continue;
            }
            let length = manifest.shard_range(index).len() as u64;
            let mut ranges = Vec::new();
            for slot in manifest.slots.names() {
                let name = tensor_name(index, slot);
                let tensor = tensors.get(name.as_str());
                let fits = |tensor: &&&_| is_vector(tensor, length);
                let tensor = tensor.filter(fits).ok_or(NoTensor { name, length })?;
                ranges.push(start + tensor.data.start..start + tensor.data.end);
            }
            found.insert(index, ranges);
        }
        Ok(found)
    }

    /// What a head that is not the written one says of itself.
    fn why_another_head(&self, head: &[u8], bytes: u64) -> String {
        let text = &head[LENGTH_BYTES as usize..];
        let parsed = Head::parse(text, bytes - head.len() as u64).ok();
        let stated = |key| parsed.as_ref()?.metadata.get(key).map(|text| shown(text));
        match (stated(RUN_KEY), stated(STEP_KEY)) {
            (Some(run), _) if run != self.manifest.run => {
                format!("it is a file of another run, {run}")
            }
            (_, Some(step)) if step != self.manifest.step.to_string() => {
                format!("it is a file of another step, {step}")
            }
            _ => "its head is not the one that was written".into(),
        }
    }
}

/// Reads all of a checkpoint, and returns all damage. `progress` is told how many bytes each shard
/// took.
///
/// # Errors
/// If the store does not answer.
pub fn verify(
    store: &dyn Store,
    manifest: &Manifest,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Damage>, StoreError> {
    let mut reader = CheckpointReader::new(store, manifest);
    let mut found: Vec<Damage> = Vec::new();
    for shard in (0..manifest.shards.len() as u32).map(Shard) {
        match reader.read(shard) {
            Ok(_) => {}
            // A file that cannot be opened is told once, not for each of its shards.
            Err(ReadError::Damaged(damage)) if found.contains(&damage) => {}
            Err(ReadError::Damaged(damage)) => found.push(damage),
            Err(ReadError::Store(error)) => return Err(error),
        }
        progress(manifest.shard_range(shard).len() as u64 * manifest.slots.bytes_per_parameter());
    }
    Ok(found)
}

fn is_vector(tensor: &crate::head::TensorHead, length: u64) -> bool {
    tensor.element == ElementType::F32 && tensor.shape == [length]
}

/// An object that is gone or cut is damage of the checkpoint. Other errors are the store's.
fn of_file(file: &ObjectName, shard: Option<Shard>, error: StoreError) -> ReadError {
    match error.kind {
        ErrorKind::Damaged => {
            ReadError::Damaged(Damage { file: file.clone(), shard, why: error.why })
        }
        ErrorKind::Missing => {
            ReadError::Damaged(Damage { file: file.clone(), shard, why: "it is gone".into() })
        }
        ErrorKind::Retry | ErrorKind::Refuse => ReadError::Store(error),
    }
}
