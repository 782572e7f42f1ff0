//! The processes that had a worker's directory before this one, and the proof that they have ended.
//!
//! Several workers may share a directory. Each of them holds the lock of a file of its own there,
//! and writes its incarnations into it. The kernel takes the lock from a process when all of its
//! threads have ended, and not before. So a process that gets the lock knows: the process that
//! wrote the file has ended. A process that starts asks for the lock of every such file.
//!
//! Only the file itself proves this, under the kernel that gave the lock. So the file states the
//! machine's boot, its device and its inode. A copied folder has other inodes: it proves nothing,
//! since the first process may live.
//!
//! # After a boot
//!
//! If the file is of an earlier boot of this machine, all processes of that boot have ended with
//! their kernel: also those that wrote the file. (A machine that hibernates keeps its boot.) The
//! question is only whether it was this machine. Another machine could have written the file:
//!
//! - over a file system that several machines share. So the file must lie on a local one.
//! - before its disk came here, while its processes live on. So the file states the machine: a
//!   digest of the machine-id and of the addresses of all network cards.
//! - a machine with both in common, since one is a copy of the other. Then the copied file mostly
//!   has another inode, and proves nothing. **An image of the whole disk has the same inodes.** If
//!   a copy of a machine also has the addresses of its network cards, and starts a worker in the
//!   copied directory while the first machine runs, the proof is false. `docs/checkpoints.md`
//!   warns of this.
//!
//! A number of a device may change at a boot, so the inode alone must be the same. The lock counts
//! as before: a process that holds it lives now.
//!
//! Nothing depends on a proof. Without one the run waits, as it does for any silent worker.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::machine::{FileId, MachineBoot};

/// How many workers may share a directory, and keep a file there.
const MAX_FILES: u32 = 1_000;
/// How many incarnations a file names: the newest.
const MAX_INCARNATIONS: usize = 64;
/// How many ends a process proves, in one message.
const MAX_ENDED: usize = 4_096;
/// A longer file is not one of these.
const MAX_BYTES: u64 = 8 << 10;
/// The numbers by which Linux knows file systems of one machine alone (`statfs`): ext2 to ext4,
/// XFS, Btrfs, F2FS, ZFS and overlayfs, of which a file's bytes are on one of the others. What lies
/// in memory does not outlive a boot.
const LOCAL_FILE_SYSTEMS: [u32; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x794c_7630];

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
    /// What the machine keeps through its boots. A file of an older program lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
    /// The file as it was when its worker wrote it.
    place: FileId,
    /// The incarnations of the process that holds the lock, and of those that held it before it.
    incarnations: Vec<u64>,
}

impl Incarnations {
    /// Whether the process that wrote this has ended, as the holder of the file's lock sees it.
    fn proves_ends(&self, here: &MachineBoot, place: FileId, file: &File) -> io::Result<bool> {
        if self.boot == here.boot {
            return Ok(self.place == place);
        }
        let is_same_machine = self.machine.is_some() && self.machine == here.machine;
        Ok(is_same_machine && self.place.inode == place.inode && is_local(file)?)
    }
}

/// Whether no other machine can have the file open.
fn is_local(file: &File) -> io::Result<bool> {
    // The numbers have 32 bits. The type of the field depends on the processor.
    let kind = rustix::fs::fstatfs(file)?.f_type as u32;
    Ok(LOCAL_FILE_SYSTEMS.contains(&kind))
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
        MachineBoot::own().map(|here| Self::find_on(&here, dir)).unwrap_or_default()
    }

    fn find_on(here: &MachineBoot, dir: &Path) -> Self {
        let mut found = Self::default();
        for number in 1..=MAX_FILES {
            let path = dir.join(format!("worker-{number}.lock"));
            if found.own.is_some() && !path.exists() {
                break;
            }
            match LockedFile::take(&path, here) {
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
    fn take(path: &Path, here: &MachineBoot) -> io::Result<Option<Self>> {
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
        let known = match known {
            Some(known) if known.proves_ends(here, place, &file)? => Some(known),
            _ => None,
        };
        let incarnations = known.map_or_else(Vec::new, |known| known.incarnations);
        let MachineBoot { boot, machine } = here.clone();
        let written = Incarnations { boot, machine, place, incarnations };
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

fn place_of(file: &File) -> io::Result<FileId> {
    file.metadata().map(|metadata| FileId::of(&metadata))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A process begins, and has these incarnations. Returns it, and the ends that it has proved.
    fn begin(dir: &Path, incarnations: &[u64]) -> (LockedFile, Vec<u64>) {
        begin_on(&MachineBoot::own().expect("Linux tells"), dir, incarnations)
    }

    /// The same, at a boot of a machine.
    fn begin_on(here: &MachineBoot, dir: &Path, incarnations: &[u64]) -> (LockedFile, Vec<u64>) {
        let Predecessors { own, ended } = Predecessors::find_on(here, dir);
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
    fn a_copied_folder_proves_nothing() {
        let [folder, copy] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let name = "worker-1.lock";
        let (_living, _) = begin(folder.path(), &[1]);
        fs::copy(folder.path().join(name), copy.path().join(name)).expect("copied");
        assert_eq!(begin(copy.path(), &[]).1, [0; 0]);
    }

    /// A folder on a disk. The system's folder for temporary files may lie in memory.
    fn on_disk() -> tempfile::TempDir {
        let program = std::env::current_exe().expect("a program");
        tempfile::tempdir_in(program.parent().expect("its folder")).expect("a folder")
    }

    fn boot_of(machine: &str, boot: &str) -> MachineBoot {
        let machine = Some(machine.to_string()).filter(|machine| !machine.is_empty());
        MachineBoot { boot: boot.into(), machine }
    }

    #[test]
    fn a_boot_proves_the_ends_of_all_before_it_on_the_same_machine_alone() {
        for (before, now, proves) in [
            (boot_of("ada", "1"), boot_of("ada", "2"), true),
            (boot_of("ada", "1"), boot_of("bob", "2"), false), // a disk that came from another one
            (boot_of("ada", "1"), boot_of("", "2"), false),
            (boot_of("", "1"), boot_of("", "2"), false), // two of which nothing is known
            (boot_of("", "1"), boot_of("", "1"), true),  // the lock alone proves it
        ] {
            let folder = on_disk();
            drop(begin_on(&before, folder.path(), &[1, 2]));
            let (first, ended) = begin_on(&now, folder.path(), &[3]);
            assert_eq!(ended.len(), if proves { 2 } else { 0 }, "{before:?}, then {now:?}");
            drop(first);
            let ended = begin_on(&now, folder.path(), &[]).1;
            assert!(ended.ends_with(&[3]), "the file is of this boot now: {ended:?}");
        }
    }

    #[test]
    fn after_a_boot_neither_a_copy_nor_a_file_of_several_machines_proves_anything() {
        let [before, now] = ["1", "2"].map(|boot| boot_of("ada", boot));
        let [folder, copy] = [(); 2].map(|()| on_disk());
        drop(begin_on(&before, folder.path(), &[1]));
        let name = "worker-1.lock";
        fs::copy(folder.path().join(name), copy.path().join(name)).expect("copied");
        assert_eq!(begin_on(&now, copy.path(), &[]).1, [0; 0]);
        let lock = File::open(folder.path().join(name)).expect("the file");
        assert!(is_local(&lock).expect("the system tells"), "this test needs a disk");
        // The file system of the processes is none of one machine's disks.
        let foreign = File::open("/proc/self/status").expect("a file");
        assert!(!is_local(&foreign).expect("the system tells"));
    }

    #[test]
    fn a_file_of_an_older_program_proves_an_end_in_the_same_boot_alone() {
        let folder = on_disk();
        let here = MachineBoot { boot: "1".into(), machine: None };
        drop(begin_on(&here, folder.path(), &[1]));
        let text = fs::read_to_string(folder.path().join("worker-1.lock")).expect("its text");
        assert!(!text.contains("machine"), "as an older program wrote it: {text}");
        assert_eq!(begin_on(&boot_of("ada", "1"), folder.path(), &[]).1, [1]);
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
