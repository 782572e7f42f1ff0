//! A disk that fails as disks do: storage for one redb database, deterministic, on virtual time.
//!
//! The caller gives a seed, [`DiskFaults`] and a process's operations on its [`File`]. The disk
//! returns errors and delays ([`SimDisk::take_delay`]: redb calls are synchronous, so the driver
//! waits afterwards). After a [`SimDisk::crash`] it returns what a machine finds at its next start.
//! The same seed and the same operations give the same bytes. The disk does not know what is stored
//! on it.
//!
//! Intuition: a write goes to a cache, a sync brings the cache to the platter, a crash loses the
//! cache, but not neatly. Every unsynced write has a fate of its own. So the platter may hold the
//! last one and not the first, or every other sector of one.
//!
//! `tests/disk.rs` tests what redb 4 makes of it: a commit that returned is there after any crash,
//! a commit that did not is there whole or not at all. redb promises nothing about a bit that flips
//! on the platter. It checks its checksums when it recovers from a crash, not after a clean stop
//! and not when it reads. So a flipped bit may be an error or a panic at opening, a key or value
//! that is silently wrong, or one commit less than there was. A log on top therefore has a checksum
//! over place and content in every row, and one over the set of rows. Only other replicas can tell
//! it what it has lost without a trace.

// redb's backends are shared between threads, hence the mutex. Here it never waits.

mod platter;

use std::fmt;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redb::StorageBackend;

use crate::random::Random;
use platter::Platter;

/// The unit that a platter takes whole or not at all, bytes.
pub const SECTOR: usize = 512;

/// The faults of a disk, and how often they happen: chances are in parts of a million.
///
/// Without any (the default) a sync takes a while and a crash loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    /// **Stall**: an operation takes up to [`DiskFaults::longest_stall`] of virtual time.
    pub stall_ppm: u32,
    /// The longest time that a stalled operation takes.
    pub longest_stall: Duration,
    /// **Error**: an operation fails. It changes nothing, with one exception: after a failed sync
    /// the cache counts as clean, and its content has the fate that it would have in a crash.
    pub error_ppm: u32,
    /// **Full**: the file cannot become longer than this, bytes.
    pub capacity_bytes: u64,
    /// **Lost write**: at a crash, an unsynced write is lost.
    pub lost_ppm: u32,
    /// **Reordered write**: at a crash, an unsynced write came before another one that the process
    /// did earlier.
    pub reordered_ppm: u32,
    /// **Torn write**: at a crash, each [`SECTOR`] of an unsynced write is there or not.
    pub torn_ppm: u32,
    /// **Flipped bit**: at a crash, one stored bit changes, synced or not.
    pub flipped_ppm: u32,
    /// **Wiped**: at a crash, all content is lost, synced or not.
    pub wiped_ppm: u32,
}

impl Default for DiskFaults {
    fn default() -> Self {
        Self {
            stall_ppm: 0,
            longest_stall: Duration::from_secs(1),
            error_ppm: 0,
            capacity_bytes: u64::MAX,
            lost_ppm: 0,
            reordered_ppm: 0,
            torn_ppm: 0,
            flipped_ppm: 0,
            wiped_ppm: 0,
        }
    }
}

impl DiskFaults {
    /// A disk that keeps its word. It may be slow, and a crash loses, reorders and tears unsynced
    /// writes, as on any disk. Synced writes stay.
    pub fn of_an_honest_disk() -> Self {
        Self {
            stall_ppm: 1_000,
            lost_ppm: 300_000,
            reordered_ppm: 200_000,
            torn_ppm: 200_000,
            ..Self::default()
        }
    }
}

/// Counts of what survived a crash: writes since the last sync, and the fate of the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survival {
    /// Writes and changes of length that survived whole.
    pub kept: u32,
    /// Writes that survived in part.
    pub torn: u32,
    /// Writes and changes of length that were lost.
    pub lost: u32,
    /// Bits that changed on the platter.
    pub flipped: u32,
    /// Whether all content was lost.
    pub wiped: bool,
}

/// A disk with one file on it. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Drive>>);

#[derive(Debug)]
struct Drive {
    platter: Platter,
    faults: DiskFaults,
    random: Random,
    delay: Duration,
    /// How many processes have opened it. Only the last of them may use it.
    openings: u64,
    /// Operations until the power fails. None: it does not.
    operations_left: Option<u64>,
}

impl SimDisk {
    /// An empty disk. Its faults follow from `seed`.
    pub fn new(seed: u64, faults: DiskFaults) -> Self {
        Self(Arc::new(Mutex::new(Drive {
            platter: Platter::default(),
            faults,
            random: Random::new(seed),
            delay: Duration::ZERO,
            openings: 0,
            operations_left: None,
        })))
    }

    /// The file for a new process. The process that had it open is dead: its later operations fail.
    /// What it has written is there, synced or not, unless the disk [crashed](SimDisk::crash).
    pub fn open(&self) -> File {
        let mut drive = self.drive();
        drive.openings += 1;
        File { opening: drive.openings, disk: self.clone() }
    }

    /// Cuts the power now, or ends a cut. Returns what survived. The process that has the file open
    /// is dead.
    pub fn crash(&self) -> Survival {
        let mut drive = self.drive();
        drive.openings += 1;
        drive.operations_left = None;
        let Drive { platter, faults, random, .. } = &mut *drive;
        platter.crash(faults, random)
    }

    /// Cuts the power after this many more operations. The later ones fail and change nothing. The
    /// caller must [`SimDisk::crash`] then.
    pub fn cut_power_after(&self, operations: u64) {
        self.drive().operations_left = Some(operations);
    }

    /// Replaces the faults from now on.
    pub fn suffer(&self, faults: DiskFaults) {
        self.drive().faults = faults;
    }

    /// The virtual time that operations have taken since the last call. The driver lets it pass
    /// before it looks at their results.
    pub fn take_delay(&self) -> Duration {
        std::mem::take(&mut self.drive().delay)
    }

    /// BLAKE3 of the content that a reader would find.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(self.drive().platter.cached()).as_bytes()
    }

    /// A drive is sound between two operations even if its user panicked in one.
    fn drive(&self) -> MutexGuard<'_, Drive> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file as one process has it open.
pub struct File {
    disk: SimDisk,
    opening: u64,
}

/// Operations, by their effect on the cache. Every one may stall or fail.
impl StorageBackend for File {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.operate()?.platter.cached().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let drive = self.operate()?;
        let start = index(offset)?;
        let end = start.checked_add(out.len());
        let stored = end.and_then(|end| drive.platter.cached().get(start..end));
        out.copy_from_slice(stored.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut drive = self.operate()?;
        drive.make_room(len)?;
        drive.platter.resize(index(len)?);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut drive = self.begin()?;
        let failed = drive.fail();
        let Drive { platter, faults, random, delay, .. } = &mut *drive;
        *delay += random.delay();
        match &failed {
            Ok(()) => platter.sync(),
            Err(_) => _ = platter.forget(faults, random),
        }
        failed
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut drive = self.operate()?;
        let end = offset.checked_add(data.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        if end > drive.platter.cached().len() as u64 {
            drive.make_room(end)?;
            drive.platter.resize(index(end)?);
        }
        drive.platter.write(index(offset)?, data);
        Ok(())
    }
}

impl File {
    /// Begins an operation that may fail like any other.
    fn operate(&self) -> Result<MutexGuard<'_, Drive>, Error> {
        let mut drive = self.begin()?;
        drive.fail()?;
        Ok(drive)
    }

    /// Begins an operation, if this process is alive and there is power.
    fn begin(&self) -> Result<MutexGuard<'_, Drive>, Error> {
        let mut drive = self.disk.drive();
        if drive.openings != self.opening {
            return Err(Error::other("the process that opened this file is dead"));
        }
        if let Some(left) = &mut drive.operations_left {
            *left = left.checked_sub(1).ok_or_else(|| Error::other("the power has failed"))?;
        }
        drive.stall();
        Ok(drive)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File(opening {})", self.opening)
    }
}

impl Drive {
    fn stall(&mut self) {
        if chance(&mut self.random, self.faults.stall_ppm) {
            let longest = self.faults.longest_stall.as_nanos() as u64;
            self.delay += Duration::from_nanos(self.random.below(longest.max(1)));
        }
    }

    fn fail(&mut self) -> Result<(), Error> {
        match chance(&mut self.random, self.faults.error_ppm) {
            true => Err(Error::other("the disk reports an error")),
            false => Ok(()),
        }
    }

    fn make_room(&self, len: u64) -> Result<(), Error> {
        match len > self.faults.capacity_bytes {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

fn index(offset: u64) -> Result<usize, Error> {
    usize::try_from(offset).map_err(|_| ErrorKind::InvalidInput.into())
}

/// Whether an event happens that has a chance of `parts` in a million.
fn chance(random: &mut Random, parts: u32) -> bool {
    random.below(1_000_000) < u64::from(parts)
}
