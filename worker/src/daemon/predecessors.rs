//! The processes that had a worker's directory before this one, and the proof that they have ended.
//!
//! Several workers may share a directory. Each of them holds the lock of a file of its own there,
//! and writes its incarnations into it. The kernel takes the lock from a process when all of its
//! threads have ended, and not before. So a process that gets the lock knows: the process that
//! wrote the file has ended. A process that starts asks for the lock of every such file.
//!
//! Only the file itself proves this, under the kernel that gave the lock. So the file states the
//! machine's boot, its device and its inode. A copied folder has other inodes, and a disk in
//! another machine has another boot: they prove nothing, since the first process may live.
//!
//! Nothing depends on a proof. Without one the run waits, as it does for any silent worker.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::machine;

/// How many workers may share a directory, and keep a file there.
const MAX_FILES: u32 = 1_000;
/// How many incarnations a file names: the newest.
const MAX_INCARNATIONS: usize = 64;
/// How many ends a process proves, in one message.
const MAX_ENDED: usize = 4_096;
/// A longer file is not one of these.
const MAX_BYTES: u64 = 8 << 10;

/// A worker's own file, locked from now to the end of the process.
pub struct LockedFile {
    path: PathBuf,
    /// Open for reading alone, so that the file system can be made read-only meanwhile.
    _lock: File,
    written: Incarnations,
}

/// What a file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Incarnations {
    /// The boot of the machine on which they were written.
    boot: String,
    /// The device and the inode of the file.
    place: (u64, u64),
    /// The incarnations of the process that holds the lock, and of those that held it before it.
    incarnations: Vec<u64>,
}

/// What a directory shows to a process that starts.
#[derive(Default)]
pub struct Predecessors {
    /// The file that is this process's own. None if it cannot have one.
    pub own: Option<LockedFile>,
    /// The incarnations of processes that have ended, ascending.
    pub ended: Vec<u64>,
}

impl Predecessors {
    /// Asks for the lock of every file in a directory, and keeps the first that it gets.
    pub fn find(dir: &Path) -> Self {
        let Some(boot) = machine::boot() else { return Self::default() };
        let mut found = Self::default();
        for number in 1..=MAX_FILES {
            let path = dir.join(format!("worker-{number}.lock"));
            if found.own.is_some() && !path.exists() {
                break;
            }
            match LockedFile::take(&path, &boot) {
                Ok(Some(locked)) => {
                    found.ended.extend(&locked.written.incarnations);
                    found.own.get_or_insert(locked);
                }
                Ok(None) => {}
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "no end of a worker is proved by this file");
                    break;
                }
            }
        }
        found.ended.sort_unstable();
        found.ended.dedup();
        found.ended.truncate(MAX_ENDED);
        found
    }
}

impl LockedFile {
    /// Takes a file that no process holds. Makes it if it is not there. None if a process holds it.
    fn take(path: &Path, boot: &str) -> io::Result<Option<Self>> {
        if !path.exists() {
            OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        }
        let file = File::open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let place = place_of(&file)?;
        let mut text = String::new();
        let is_read = (&file).take(MAX_BYTES).read_to_string(&mut text).is_ok();
        let known = is_read.then(|| serde_json::from_str::<Incarnations>(&text).ok()).flatten();
        let known = known.filter(|known| known.boot == boot && known.place == place);
        let incarnations = known.map_or_else(Vec::new, |known| known.incarnations);
        let written = Incarnations { boot: boot.into(), place, incarnations };
        Ok(Some(Self { path: path.into(), _lock: file, written }))
    }

    /// Writes down an incarnation of this process. The caller registers it afterwards.
    pub fn begin(&mut self, incarnation: u64) {
        let incarnations = &mut self.written.incarnations;
        incarnations.push(incarnation);
        incarnations.drain(..incarnations.len().saturating_sub(MAX_INCARNATIONS));
        if let Err(error) = self.write() {
            tracing::warn!(%error, "the next process here does not prove the end of this one");
        }
    }

    /// Writes in place, since the lock is that of the inode. A part of a text is none, and proves
    /// nothing.
    fn write(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        if place_of(&file)? != self.written.place {
            return Err(io::Error::other("another file has taken its place"));
        }
        let text = serde_json::to_vec(&self.written)?;
        file.write_all_at(&text, 0)?;
        file.set_len(text.len() as u64)
    }
}

/// The device and the inode of a file.
fn place_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A process begins, and has these incarnations. Returns it, and the ends that it has proved.
    fn begin(dir: &Path, incarnations: &[u64]) -> (LockedFile, Vec<u64>) {
        let Predecessors { own, ended } = Predecessors::find(dir);
        let mut own = own.expect("a file of its own");
        incarnations.iter().for_each(|incarnation| own.begin(*incarnation));
        (own, ended)
    }

    #[test]
    fn a_process_proves_the_ends_of_all_that_had_the_directory_and_of_none_that_lives() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, ended) = begin(folder.path(), &[1, 2]);
        assert_eq!(ended, [0; 0]);
        let (second, ended) = begin(folder.path(), &[3]);
        assert_eq!(ended, [0; 0], "the first one lives");
        drop(first);
        let (third, ended) = begin(folder.path(), &[4]);
        assert_eq!(ended, [1, 2]);
        drop((second, third));
        let (last, ended) = begin(folder.path(), &[5]);
        assert_eq!(ended, [1, 2, 3, 4], "the third one may have died before it could tell");
        drop(last);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn a_copied_folder_and_another_boot_prove_nothing() {
        let [folder, copy] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let name = "worker-1.lock";
        let (living, _) = begin(folder.path(), &[1]);
        fs::copy(folder.path().join(name), copy.path().join(name)).expect("copied");
        assert_eq!(begin(copy.path(), &[]).1, [0; 0]);
        drop(living);
        let text = fs::read_to_string(folder.path().join(name)).expect("its text");
        let boot = machine::boot().expect("Linux tells");
        fs::write(folder.path().join(name), text.replace(&boot, "another")).expect("written");
        assert_eq!(begin(folder.path(), &[]).1, [0; 0]);
    }

    #[test]
    fn a_file_of_other_bytes_proves_nothing_and_is_written_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("worker-1.lock");
        for bytes in [&b"{\"boot\":"[..], &[0xff; 20_000], b""] {
            fs::write(&name, bytes).expect("written");
            let (own, ended) = begin(folder.path(), &[7]);
            assert_eq!(ended, [0; 0]);
            drop(own);
            assert_eq!(begin(folder.path(), &[]).1, [7]);
        }
    }

    #[test]
    fn the_newest_incarnations_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let all: Vec<u64> = (1..=100).collect();
        drop(begin(folder.path(), &all));
        assert_eq!(begin(folder.path(), &[]).1, all[36..]);
    }
}
