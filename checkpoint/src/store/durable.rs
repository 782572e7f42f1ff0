//! Files that are whole or absent, whatever ends the process: a partial file beside the final one,
//! fsync, one atomic change of the directory, fsync of the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

use crate::names::PARTIAL;

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

/// A file under way.
pub struct PartialFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    hook: StageHook,
    /// Whether dropping removes the partial file.
    is_removed: bool,
}

impl PartialFile {
    /// Begins a file at `path`. The partial file has the nonce in its name, so two writers of one
    /// file never share it. Room for `bytes` is reserved, if the file system can do that, so that a
    /// full disk is noticed at once.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(path: &Path, nonce: u64, bytes: u64, hook: StageHook) -> io::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{nonce:016x}{PARTIAL}"));
        let partial = PathBuf::from(partial);
        let file = OpenOptions::new().write(true).create_new(true).open(&partial)?;
        let mut created = Self { file, partial, path: path.into(), hook, is_removed: true };
        created.pass(Stage::Created)?;
        if bytes > 0 {
            created.reserve(bytes)?;
        }
        Ok(created)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves room at the beginning.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(bytes)).map(|_| ())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Writes the beginning.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write_head(&mut self, head: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(head)
    }

    /// Puts the file in place, durably. A file that is there is replaced.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn replace(mut self) -> io::Result<()> {
        self.sync()?;
        fs::rename(&self.partial, &self.path)?;
        self.placed()
    }

    /// Puts the file in place, durably, if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is one, and [`ErrorKind::Unsupported`] if the file
    /// system can create a file in no way that is atomic.
    pub fn create_new(mut self) -> io::Result<()> {
        self.sync()?;
        match fs::hard_link(&self.partial, &self.path) {
            Ok(()) => fs::remove_file(&self.partial)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
            // Some file systems have no hard links, or count them.
            Err(_) => rename_new(&self.partial, &self.path)?,
        }
        self.placed()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.pass(Stage::Written)?;
        self.file.sync_all()?;
        self.pass(Stage::Synced)
    }

    fn placed(&mut self) -> io::Result<()> {
        self.is_removed = false;
        self.pass(Stage::Renamed)?;
        sync_folder(&self.path)?;
        self.pass(Stage::Done)
    }

    fn pass(&mut self, stage: Stage) -> io::Result<()> {
        let passed = (self.hook)(stage);
        self.is_removed &= passed.is_ok();
        passed
    }
}

impl Drop for PartialFile {
    /// Removes the partial file. If that fails, it does no harm where it is.
    fn drop(&mut self) {
        if self.is_removed {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Makes the entries of a file's folder durable.
///
/// # Errors
/// Errors of the file system.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(ErrorKind::AlreadyExists.into()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::Error::new(
            ErrorKind::Unsupported,
            "this file system has neither hard links nor a rename that replaces nothing; use \
             another one for checkpoints",
        )),
        Err(error) => Err(error.into()),
    }
}
