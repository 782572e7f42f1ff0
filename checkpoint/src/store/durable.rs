//! Files that are whole or absent, whatever ends the process: a partial file beside the final one,
//! fsync, one atomic change of the directory, fsync of the directory.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file_system::{FileSystem, LocalFiles, OpenFile, PAGE};
use crate::names::PARTIAL;

/// How many bytes are written at once. Each write costs the file system about as much as some
/// pages.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// The points between which a process may end. A hook of the file is called at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The partial file exists, and is empty.
    Created,
    /// The partial file has all bytes, maybe not durably.
    Written,
    /// The partial file is durable.
    Synced,
    /// The file is in place, maybe not durably.
    Renamed,
    /// The file is durable in place.
    Done,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::Written, Self::Synced, Self::Renamed, Self::Done];
}

/// What is called at each [`Stage`]. An error stands for the end of the process at this point: the
/// file stops where it is, and cleans nothing up.
pub type StageHook = Arc<dyn Fn(Stage) -> io::Result<()> + Send + Sync>;

/// Where files are written, and what is called at each stage of each.
#[derive(Clone)]
pub struct DurableFiles {
    /// The file system that the files lie on.
    pub files: Arc<dyn FileSystem>,
    /// The hook that each stage of each file calls.
    pub hook: StageHook,
}

impl DurableFiles {
    /// Those of a file system, without a hook.
    pub fn on(files: Arc<dyn FileSystem>) -> Self {
        Self { files, hook: Arc::new(|_| Ok(())) }
    }

    /// Those of the machine, without a hook.
    pub fn local() -> Self {
        Self::on(Arc::new(LocalFiles))
    }

    /// Begins a file at `path`. The partial file has a nonce in its name, so two writers of one
    /// file never share it. Room for `bytes` is reserved, if the file system can do that, so that a
    /// full disk is noticed at once.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn begin(&self, path: &Path, bytes: u64) -> io::Result<PartialFile> {
        let nonce = self.files.nonce()?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{nonce:016x}{PARTIAL}"));
        let partial = PathBuf::from(partial);
        let file = self.files.create(&partial)?;
        let (within, path) = (self.clone(), path.into());
        let (written, waiting, is_removed) = (0, WaitingBytes::default(), true);
        let mut begun = PartialFile { within, file, written, waiting, partial, path, is_removed };
        begun.pass(Stage::Created)?;
        if bytes > 0 {
            begun.file.reserve(bytes)?;
        }
        Ok(begun)
    }
}

/// Bytes that are not written yet, at most [`WRITTEN_AT_ONCE`]. They lie as far behind the begin of
/// a page as in the file, so that the disk can take whole pages as they are.
#[derive(Default)]
struct WaitingBytes {
    memory: Vec<u8>,
    range: Range<usize>,
}

impl WaitingBytes {
    /// Takes the next bytes, which lie at `offset` of the file if none wait. Returns those without
    /// room: then the others end with a page.
    fn take<'a>(&mut self, bytes: &'a [u8], offset: u64) -> &'a [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; WRITTEN_AT_ONCE + PAGE];
        }
        let page = self.memory.as_ptr().align_offset(PAGE);
        if self.range.is_empty() {
            let start = page + (offset % PAGE as u64) as usize;
            self.range = start..start;
        }
        let room = page + WRITTEN_AT_ONCE - self.range.end;
        let (now, later) = bytes.split_at(bytes.len().min(room));
        self.memory[self.range.end..][..now.len()].copy_from_slice(now);
        self.range.end += now.len();
        later
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// A file under way.
pub struct PartialFile {
    within: DurableFiles,
    file: Box<dyn OpenFile>,
    /// Where the next bytes go, those that wait first.
    written: u64,
    waiting: WaitingBytes,
    partial: PathBuf,
    path: PathBuf,
    /// Whether dropping removes the partial file.
    is_removed: bool,
}

impl PartialFile {
    /// Leaves room at the beginning.
    ///
    /// # Panics
    /// When there are bytes already: they would go elsewhere, or be written over.
    pub fn skip(&mut self, bytes: u64) {
        let is_empty = self.written == 0 && self.waiting.bytes().is_empty();
        assert!(is_empty, "room is left before the first byte");
        self.written = bytes;
    }

    /// Appends bytes. They may wait for the next ones.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut left = self.waiting.take(bytes, self.written);
        while !left.is_empty() {
            self.write_waiting()?;
            left = self.waiting.take(left, self.written);
        }
        Ok(())
    }

    fn write_waiting(&mut self) -> io::Result<()> {
        let bytes = self.waiting.bytes();
        self.file.write_all_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        self.waiting.range = 0..0;
        Ok(())
    }

    /// Writes the beginning.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write_head(&mut self, head: &[u8]) -> io::Result<()> {
        self.file.write_all_at(head, 0)
    }

    /// Puts the file in place, durably. A file that is there is replaced.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn replace(mut self) -> io::Result<()> {
        self.sync()?;
        self.within.files.rename(&self.partial, &self.path)?;
        self.placed()
    }

    /// Puts the file in place, durably, if there is none.
    ///
    /// # Errors
    /// Those of [`FileSystem::rename_new`], and errors of syncing.
    pub fn create_new(mut self) -> io::Result<()> {
        self.sync()?;
        self.within.files.rename_new(&self.partial, &self.path)?;
        self.placed()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.write_waiting()?;
        self.pass(Stage::Written)?;
        self.file.sync()?;
        self.pass(Stage::Synced)
    }

    fn placed(&mut self) -> io::Result<()> {
        self.is_removed = false;
        self.pass(Stage::Renamed)?;
        self.within.files.sync_folder(folder_of(&self.path))?;
        self.pass(Stage::Done)
    }

    fn pass(&mut self, stage: Stage) -> io::Result<()> {
        let passed = (self.within.hook)(stage);
        self.is_removed &= passed.is_ok();
        passed
    }
}

impl Drop for PartialFile {
    /// Removes the partial file. If that fails, it does no harm where it is.
    fn drop(&mut self) {
        if self.is_removed {
            let _ = self.within.files.remove(&self.partial);
        }
    }
}

/// The folder that has the entry of this path.
pub(super) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}
