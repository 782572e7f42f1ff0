//! The file system below a directory, as far as a store needs it.
//!
//! There are two: that of the machine ([`LocalFiles`]), and the one of the simulator, which loses
//! all unsynced changes. So the simulator can hold a directory to the order in which it syncs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    CWD, FallocateFlags, OFlags, RenameFlags, fallocate, fcntl_getfl, fcntl_setfl, renameat_with,
};
use rustix::io::Errno;

/// Disks take pages from memory as they are: so many bytes at a multiple of this, both in the file
/// and in memory. All other bytes are copied into memory of the system first.
pub const PAGE: usize = 4096;
/// Fewer bytes are faster with the copy.
const MIN_DIRECT_BYTES: usize = 64 << 10;

/// Names, folders and files. A name is durable once its folder is synced, and what a file contains
/// once the file is.
pub trait FileSystem: Send + Sync {
    /// Creates an empty file to write to. It is an error if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file to read from. A pipe or a device of that name does not block.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// What has this name. Links are followed.
    fn metadata(&self, path: &Path) -> io::Result<FileMetadata>;

    /// The entries of a folder.
    fn entries(&self, folder: &Path) -> io::Result<Vec<FolderEntry>>;

    /// Gives a file another name in one step. A file with that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file another name in one step, in place of the first. It is an error if the name is
    /// taken ([`io::ErrorKind::AlreadyExists`]), or if the file system cannot do that
    /// ([`io::ErrorKind::Unsupported`]).
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and those above it. Those that are there stay.
    fn create_folders(&self, folder: &Path) -> io::Result<()>;

    /// Removes a folder. It is an error if the folder has entries.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;

    /// Makes the entries of a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// A number that no other writer has.
    fn nonce(&self) -> io::Result<u64>;
}

/// A file that is open, to write or to read.
pub trait OpenFile: Send {
    /// The length in bytes. None if it is no regular file.
    fn bytes(&self) -> io::Result<Option<u64>>;

    /// Fills the whole buffer with the bytes at `offset`.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of these bytes at `offset`.
    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reserves room for a file of so many bytes, if the file system can do that.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;

    /// Makes the content durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a store must know of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMetadata {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The last change, seconds of Unix time.
    pub changed: u64,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// The path of the folder, and the entry's name.
    pub path: PathBuf,
    /// Whether it is a folder itself, and no link to one.
    pub is_folder: bool,
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalFiles;

impl FileSystem for LocalFiles {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let created = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(created))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        Ok(Box::new(opened))
    }

    fn metadata(&self, path: &Path) -> io::Result<FileMetadata> {
        let metadata = fs::metadata(path)?;
        let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let changed = changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (is_file, is_folder) = (metadata.is_file(), metadata.is_dir());
        Ok(FileMetadata { is_file, is_folder, bytes: metadata.len(), changed })
    }

    fn entries(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            Ok(FolderEntry { path: entry.path(), is_folder })
        };
        fs::read_dir(folder)?.map(entry).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match fs::hard_link(from, to) {
            Ok(()) => fs::remove_file(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            // Some file systems have no hard links, or count them.
            Err(_) => rename_to_free_name(from, to),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_folders(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        fs::remove_dir(folder)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn nonce(&self) -> io::Result<u64> {
        getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
    }
}

impl OpenFile for File {
    fn bytes(&self) -> io::Result<Option<u64>> {
        let metadata = self.metadata()?;
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Range { start, end } = pages(bytes, offset);
        let is_direct =
            start < end && write_direct(self, &bytes[start..end], offset + start as u64)?;
        if !is_direct {
            return FileExt::write_all_at(self, bytes, offset);
        }
        FileExt::write_all_at(self, &bytes[..start], offset)?;
        FileExt::write_all_at(self, &bytes[end..], offset + end as u64)
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        match fallocate(&*self, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Which of the bytes are whole pages, both in memory and at this offset of a file. Empty if they
/// are too few.
fn pages(bytes: &[u8], offset: u64) -> Range<usize> {
    let before = offset as usize % PAGE;
    let start = (PAGE - before) % PAGE;
    let end = ((before + bytes.len()) / PAGE * PAGE).saturating_sub(before);
    let is_aligned = (bytes.as_ptr() as usize + start).is_multiple_of(PAGE);
    if is_aligned && end.saturating_sub(start) >= MIN_DIRECT_BYTES { start..end } else { 0..0 }
}

/// Writes pages without a copy in memory of the system: that copy was half of the CPU time of a
/// thread that writes parts. Returns false, and has perhaps written some of them, if the file
/// system cannot do that.
fn write_direct(file: &File, pages: &[u8], offset: u64) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return Ok(false);
    }
    let written = FileExt::write_all_at(file, pages, offset);
    fcntl_setfl(file, flags)?;
    match written.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::INVAL | Errno::OPNOTSUPP)) => Ok(false),
        _ => written.map(|()| true),
    }
}

fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this file system has neither hard links nor a rename that replaces nothing. Use \
             another one for checkpoints",
        )),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes. The first one lies `shift` bytes behind the begin of a page of memory.
    fn bytes(memory: &mut Vec<u8>, shift: usize, count: usize) -> &[u8] {
        *memory = (0..count + 2 * PAGE).map(|at| (at % 251) as u8).collect();
        let start = memory.as_ptr().align_offset(PAGE) + shift;
        &memory[start..start + count]
    }

    #[test]
    fn whole_pages_are_those_of_memory_and_file() {
        let mut memory = Vec::new();
        let mut of = |shift, count, offset| pages(bytes(&mut memory, shift, count), offset);
        let many = 100 * PAGE;
        assert_eq!(of(0, many, 0), 0..many);
        assert_eq!(of(10, many, 10), PAGE - 10..many - 10);
        assert_eq!(of(10, many + 12, 3 * PAGE as u64 + 10), PAGE - 10..many - 10);
        assert_eq!(of(10, many, 0), 0..0, "memory and file differ");
        assert_eq!(of(10, PAGE, 10), 0..0, "too few");
    }

    #[test]
    fn bytes_of_any_place_and_length_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        for (shift, count, offset) in
            [(0, 300_000, 0), (7, 300_000, 7), (7, 300_000, 8), (4_095, 299_009, 4_095), (0, 5, 9)]
        {
            let mut memory = Vec::new();
            let bytes = bytes(&mut memory, shift, count);
            let mut file = LocalFiles.create(&path).expect("a file");
            file.write_all_at(bytes, offset).expect("written");
            let read = fs::read(&path).expect("a file");
            assert_eq!(read[offset as usize..], *bytes, "{shift} {count} {offset}");
            fs::remove_file(&path).expect("removed");
        }
    }
}
