//! A file system that loses what is not synced, for a directory of checkpoints.
//!
//! The caller gives a seed, and a process's operations on its [`ProcessFiles`]. The same seed and
//! the same operations give the same files. A directory's own code does these operations, so the
//! order in which it syncs is the one of production.
//!
//! Intuition: operations change a cache, which all processes see. A sync of a file makes its
//! content durable, and a sync of a folder the names in it. When the power fails, each folder keeps
//! the first few of its unsynced changes, independently of the other folders. Of an unsynced file a
//! part may be left, or zeros in place of its end: lengths are in a file system's journal, and data
//! are not. The end of a process loses nothing, but leaves its work half done.

// A store is shared between threads in production, hence the mutex. Here it never waits.

mod nodes;

use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use everstep_checkpoint::store::file_system::{FileMetadata, FileSystem, FolderEntry, OpenFile};

use crate::random::Random;
use nodes::{Nodes, SimNode};

/// What a file system does when a process asks it to sync. A test may plant the bug of a process
/// that does not ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncFlaws {
    /// No sync of a file does anything.
    pub skips_files: bool,
    /// No sync of a folder does anything.
    pub skips_folders: bool,
}

/// A file system. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimFiles(Arc<Mutex<Volume>>);

#[derive(Debug)]
struct Volume {
    nodes: Nodes,
    random: Random,
    flaws: SyncFlaws,
    /// Seconds of Unix time.
    clock: u64,
    nonces: u64,
    /// Operations until the power fails. None: it does not.
    cut_after: Option<u64>,
    cuts: u64,
    changes: u64,
}

impl SimFiles {
    /// An empty file system. The fate of unsynced changes follows from `seed`.
    pub fn new(seed: u64, flaws: SyncFlaws) -> Self {
        Self(Arc::new(Mutex::new(Volume {
            nodes: Nodes::default(),
            random: Random::new(seed),
            flaws,
            clock: 0,
            nonces: 0,
            cut_after: None,
            cuts: 0,
            changes: 0,
        })))
    }

    /// The files as a process sees them. It ends before it has changed or synced anything more than
    /// `operations` times. When the power fails, all later operations fail.
    pub fn process(&self, operations: Option<u64>) -> ProcessFiles {
        let left = Arc::new(AtomicU64::new(operations.unwrap_or(u64::MAX)));
        ProcessFiles { files: self.clone(), left, cuts: self.volume().cuts }
    }

    /// Sets the clock that tells when a file was changed, seconds of Unix time.
    pub fn set_clock(&self, seconds: u64) {
        self.volume().clock = seconds;
    }

    /// The power fails after so many further changes and syncs. None: it does not.
    pub fn cut_after(&self, operations: Option<u64>) {
        self.volume().cut_after = operations;
    }

    /// The power fails now.
    pub fn cut(&self) {
        self.volume().cut();
    }

    /// How often the power has failed.
    pub fn cuts(&self) -> u64 {
        self.volume().cuts
    }

    /// How many changes there were. A sync changes nothing.
    pub fn changes(&self) -> u64 {
        self.volume().changes
    }

    /// The number of the newest access that may have changed a folder, or anything in it. It grows
    /// with every such access, also to others. None if there is no such folder.
    pub fn newest_change(&self, folder: &Path) -> Option<u64> {
        self.volume().nodes.newest_change(folder)
    }

    /// Damages a file as a failing disk does: its end is gone, or is zeros. Returns false if there
    /// is no such file.
    pub fn tear(&self, path: &Path) -> bool {
        let mut volume = self.volume();
        let Volume { nodes, random, changes, .. } = &mut *volume;
        let Ok(SimNode::File(content)) = nodes.find_mut(path) else { return false };
        content.tear(random);
        *changes += 1;
        true
    }

    fn volume(&self) -> MutexGuard<'_, Volume> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    fn cut(&mut self) {
        let Self { nodes, random, cuts, changes, cut_after, .. } = self;
        nodes.cut(random);
        (*cuts, *changes, *cut_after) = (*cuts + 1, *changes + 1, None);
    }
}

/// The files as one process sees them.
#[derive(Clone, Debug)]
pub struct ProcessFiles {
    files: SimFiles,
    /// How often the process changes or syncs anything before it ends.
    left: Arc<AtomicU64>,
    /// How often the power had failed when the process began.
    cuts: u64,
}

impl ProcessFiles {
    /// The file system, to look at it.
    fn look(&self) -> Result<MutexGuard<'_, Volume>> {
        let volume = self.files.volume();
        if volume.cuts != self.cuts {
            return Err(Error::new(ErrorKind::TimedOut, "the store's machine has lost its power"));
        }
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(Error::new(ErrorKind::BrokenPipe, "the process has ended"));
        }
        Ok(volume)
    }

    /// The file system, to change or to sync something.
    fn touch(&self) -> Result<MutexGuard<'_, Volume>> {
        let mut volume = self.look()?;
        match volume.cut_after {
            Some(0) => {
                volume.cut();
                drop(volume);
                return self.look();
            }
            Some(more) => volume.cut_after = Some(more - 1),
            None => {}
        }
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(u64::from(left != u64::MAX)), Ordering::Relaxed);
        Ok(volume)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Nodes, u64) -> Result<T>) -> Result<T> {
        let mut volume = self.touch()?;
        volume.changes += 1;
        let clock = volume.clock;
        change(&mut volume.nodes, clock)
    }

    fn opened(&self, node: u64) -> Box<dyn OpenFile> {
        Box::new(SimOpenFile { process: self.clone(), node })
    }
}

impl FileSystem for ProcessFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let node = self.change(|nodes, clock| nodes.create(path, clock))?;
        Ok(self.opened(node))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn OpenFile>> {
        let node = self.look()?.nodes.number(path)?;
        Ok(self.opened(node))
    }

    fn metadata(&self, path: &Path) -> Result<FileMetadata> {
        let volume = self.look()?;
        Ok(match volume.nodes.find(path)? {
            SimNode::Folder(_) => {
                FileMetadata { is_file: false, is_folder: true, bytes: 0, changed: 0 }
            }
            SimNode::File(content) => FileMetadata {
                is_file: true,
                is_folder: false,
                bytes: content.bytes().len() as u64,
                changed: content.changed(),
            },
        })
    }

    fn entries(&self, folder: &Path) -> Result<Vec<FolderEntry>> {
        self.look()?.nodes.entries(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(|nodes, _| nodes.rename(from, to))
    }

    /// A link, and the removal of the first name. A process may end in between.
    fn rename_new(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(|nodes, _| nodes.link(from, to))?;
        self.remove(from)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.change(|nodes, _| nodes.remove(path))
    }

    fn create_folders(&self, folder: &Path) -> Result<()> {
        let mut above: Vec<&Path> = folder.ancestors().collect();
        above.reverse();
        for folder in above {
            if self.look()?.nodes.find(folder).is_err() {
                self.change(|nodes, _| nodes.create_folder(folder))?;
            }
        }
        Ok(())
    }

    fn remove_folder(&self, folder: &Path) -> Result<()> {
        self.change(|nodes, _| nodes.remove_folder(folder))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        let mut volume = self.touch()?;
        match volume.flaws.skips_folders {
            true => Ok(()),
            false => volume.nodes.sync_folder(folder),
        }
    }

    fn nonce(&self) -> Result<u64> {
        let mut volume = self.look()?;
        volume.nonces += 1;
        Ok(volume.nonces)
    }
}

/// A file that a process has open.
#[derive(Debug)]
struct SimOpenFile {
    process: ProcessFiles,
    node: u64,
}

impl OpenFile for SimOpenFile {
    fn bytes(&self) -> Result<Option<u64>> {
        let volume = self.process.look()?;
        Ok(volume.nodes.content(self.node).map(|content| content.bytes().len() as u64))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let volume = self.process.look()?;
        let content = volume.nodes.content(self.node).ok_or(ErrorKind::IsADirectory)?;
        let bytes = content.bytes().get(offset as usize..).unwrap_or_default();
        let bytes = bytes.get(..buffer.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let node = self.node;
        self.process.change(|nodes, clock| {
            let content = nodes.content_mut(node).ok_or(ErrorKind::IsADirectory)?;
            content.write(bytes, offset as usize, clock);
            Ok(())
        })
    }

    fn reserve(&mut self, _bytes: u64) -> Result<()> {
        self.process.look().map(drop)
    }

    fn sync(&mut self) -> Result<()> {
        let mut volume = self.process.touch()?;
        let is_skipped = volume.flaws.skips_files;
        if let Some(content) = volume.nodes.content_mut(self.node).filter(|_| !is_skipped) {
            content.sync();
        }
        Ok(())
    }
}
