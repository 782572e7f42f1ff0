//! Memory that the two ends of a link share, if both are processes of one user on one host.
//!
//! A lane that has such memory copies a tensor into a segment of its own, and its stream carries
//! the place in lieu of the bytes. The other end copies the tensor out, compares its digest, and
//! says that it is done with the range. Order, admission, generations and the identity of the
//! sender are those of the link. A segment is in use once the other end has said that it has it,
//! and a range is used again once the other end has said so. A lane waits for a range as it waits
//! for a link that is full. A lane that ends closes its segments, and nothing that was announced
//! in them is of use any more.
//!
//! The two ends meet once in the life of their link. Where they do not (other hosts, other users,
//! namespaces apart), the link carries all bytes. So it does once their socket has failed.

mod lane_memory;
mod notice;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod socket;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use everstep_kernels::shared_memory::ForeignSegment;
use everstep_transport::protocol::MemoryPlace;
use everstep_transport::quic::Link;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use twox_hash::XxHash3_64;

pub use self::lane_memory::LaneMemory;
use self::notice::MemoryNotice;
use crate::memory_ring::MemoryRing;

/// The most segments of the other end at once. An honest one has a few for each lane.
const MAX_FOREIGN_SEGMENTS: usize = 64;
/// The most notices that wait. An honest other end has fewer ranges for this one to release.
const MAX_NOTICES: usize = 8 << 10;

/// The shared memory of one link. Clones are the same.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Says that the state has changed.
    changed: watch::Sender<()>,
    /// What the other end is to hear.
    notices: mpsc::Sender<MemoryNotice>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the two ends have met, and both are there.
    is_shared: bool,
    own: BTreeMap<u32, OwnSegment>,
    own_bytes: usize,
    /// The number of the next own segment.
    own_next: u32,
    /// The segments of the other end.
    foreign: BTreeMap<u32, Arc<ForeignSegment>>,
    /// The number of its next segment.
    foreign_next: u32,
}

/// What this end knows of a segment of its own.
#[derive(Debug)]
struct OwnSegment {
    /// The ranges that the other end has not read yet.
    ring: MemoryRing,
    /// Whether the other end has the segment. None until it has said so.
    is_taken: Option<bool>,
}

/// Why a tensor cannot be read from memory.
#[derive(Debug, PartialEq, Eq)]
pub enum MemoryReadError {
    /// The sender has closed the segment: nothing in it is of use any more.
    Closed,
    /// The sender has never had such a segment.
    Unknown,
    /// The bytes are not those that the sender announced.
    Damaged,
}

impl SharedMemory {
    /// Begins to share memory with the other end of this link, if it is of this host. The task in
    /// `tasks` does so as long as it lives.
    pub fn begin(link: &Link, tasks: &mut JoinSet<()>) -> Self {
        let (shared, notices) = Self::new();
        // Other systems have no files in memory that can be sealed.
        #[cfg(target_os = "linux")]
        if link.is_within_host() {
            tasks.spawn(session::run(link.clone(), shared.clone(), notices));
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (link, tasks, notices);
        shared
    }

    /// Memory that no other process shares.
    pub fn none() -> Self {
        Self::new().0
    }

    fn new() -> (Self, mpsc::Receiver<MemoryNotice>) {
        let (notices, unsent) = mpsc::channel(MAX_NOTICES);
        let (state, changed) = (Mutex::default(), watch::Sender::default());
        (Self { inner: Arc::new(Inner { state, changed, notices }) }, unsent)
    }

    /// Whether the two ends share memory now.
    pub fn is_shared(&self) -> bool {
        self.state().is_shared
    }

    /// Reads what the other end has announced, and tells it that this is done.
    ///
    /// # Errors
    /// [`MemoryReadError`].
    pub fn read(&self, place: &MemoryPlace, into: &mut [u8]) -> Result<(), MemoryReadError> {
        let segment = self.foreign(place.segment)?;
        let read = segment.read(place.at, into);
        self.notify(MemoryNotice::Release { segment: place.segment, at: place.at });
        match read {
            Ok(()) if XxHash3_64::oneshot(into) == place.digest => Ok(()),
            _ => Err(MemoryReadError::Damaged),
        }
    }

    /// Tells the other end that this one does not want what it has announced.
    pub fn release(&self, place: &MemoryPlace) {
        let MemoryPlace { segment, at, .. } = *place;
        if self.foreign(segment).is_ok() {
            self.notify(MemoryNotice::Release { segment, at });
        }
    }

    /// A segment of the other end, which announces nothing in it before it is here.
    fn foreign(&self, number: u32) -> Result<Arc<ForeignSegment>, MemoryReadError> {
        let state = self.state();
        match state.foreign.get(&number) {
            Some(segment) => Ok(segment.clone()),
            None if number < state.foreign_next => Err(MemoryReadError::Closed),
            None => Err(MemoryReadError::Unknown),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A holder that panicked (none does) would still leave sound ranges.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and says so.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.inner.changed.send_replace(());
        changed
    }

    /// Tells the other end something. If it does not listen, nothing is shared any more.
    fn notify(&self, notice: MemoryNotice) {
        if self.inner.notices.try_send(notice).is_err() {
            self.change(|state| state.is_shared = false);
        }
    }

    /// The other end says this.
    fn hear(&self, notice: MemoryNotice) -> io::Result<()> {
        match notice {
            MemoryNotice::Open { segment, file } => {
                let is_taken = self.change(|state| state.open_foreign(segment, file))?;
                self.notify(MemoryNotice::Opened { segment, is_taken });
            }
            MemoryNotice::Opened { segment, is_taken } => self.change(|state| {
                if let Some(own) = state.own.get_mut(&segment) {
                    own.is_taken = Some(is_taken);
                }
            }),
            MemoryNotice::Close { segment } => {
                self.change(|state| state.foreign.remove(&segment));
            }
            MemoryNotice::Release { segment, at } => self.change(|state| {
                // A segment that is closed here has no ranges left.
                let Some(own) = state.own.get_mut(&segment) else { return Ok(()) };
                match own.ring.release(usize::try_from(at).unwrap_or(usize::MAX)) {
                    true => Ok(()),
                    false => Err(invalid("it releases what it does not hold")),
                }
            })?,
        }
        Ok(())
    }
}

impl State {
    /// The other end has opened a segment. Returns whether it is here: this process may have no
    /// free descriptor.
    fn open_foreign(&mut self, number: u32, file: Option<OwnedFd>) -> io::Result<bool> {
        if number != self.foreign_next || self.foreign.len() == MAX_FOREIGN_SEGMENTS {
            return Err(invalid("it opens segments that it may not open"));
        }
        self.foreign_next += 1;
        let Some(file) = file else { return Ok(false) };
        let segment = ForeignSegment::new(file).map_err(invalid)?;
        self.foreign.insert(number, Arc::new(segment));
        Ok(true)
    }
}

/// An error for what no honest process sends.
fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
