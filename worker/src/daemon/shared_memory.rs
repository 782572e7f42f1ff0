//! Memory that the two ends of a link share, if both are processes of one user on one host.
//!
//! A lane that has such memory copies a tensor into a segment of its own, and its stream carries
//! the place in lieu of the bytes. The other end copies the tensor out, compares its digest, and
//! says that it is done with the range. Order, admission, generations and the identity of the
//! sender are those of the link. A range is used again only once the reader has said so; a lane
//! waits for that as it waits for a link that is full. A lane that ends closes its segments, and
//! nothing that was announced in them is of use any more.
//!
//! Where the ends do not meet (other hosts, containers or users), the link carries all bytes.

mod lane_memory;
mod notice;
mod ring;
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
use self::ring::Ring;

/// The most bytes of the segments that one end of a link has open. What finds no room goes over
/// the link.
const LINK_BYTES: usize = 24 << 20;
/// The most segments of the other end at once. An honest one has a few for each lane.
const MAX_FOREIGN_SEGMENTS: usize = 64;

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
    notices: mpsc::UnboundedSender<MemoryNotice>,
}

/// How far the two ends are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// They share no memory, and will not.
    #[default]
    Apart,
    /// They look for each other. The other end may have found this one already.
    Meeting,
    /// They share memory.
    Sharing,
}

#[derive(Debug, Default)]
struct State {
    standing: Standing,
    /// How often the two ends have met. What was open before is of no use after that.
    met: u64,
    /// The ranges of own segments that the other end has not read yet.
    rings: BTreeMap<u32, Ring>,
    own_bytes: usize,
    /// Whether the system has refused memory for an own segment.
    is_refused: bool,
    /// The segments of the other end.
    foreign: BTreeMap<u32, Arc<ForeignSegment>>,
    /// The number of the next segment of each end, at least.
    own_next: u32,
    foreign_next: u32,
}

/// Why a tensor cannot be read from memory.
#[derive(Debug, PartialEq, Eq)]
pub enum MemoryReadError {
    /// The sender has closed the segment: nothing in it is of use any more.
    Closed,
    /// The two ends share no memory.
    Apart,
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
            shared.change(|state| state.standing = Standing::Meeting);
            tasks.spawn(session::run(link.clone(), shared.clone(), notices));
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (link, tasks, notices);
        shared
    }

    /// Memory that is shared with nobody.
    pub fn none() -> Self {
        Self::new().0
    }

    fn new() -> (Self, mpsc::UnboundedReceiver<MemoryNotice>) {
        let (notices, unsent) = mpsc::unbounded_channel();
        let (state, changed) = (Mutex::default(), watch::Sender::default());
        (Self { inner: Arc::new(Inner { state, changed, notices }) }, unsent)
    }

    /// Whether the two ends share memory now.
    #[cfg(test)]
    pub fn is_shared(&self) -> bool {
        self.state().standing == Standing::Sharing
    }

    /// Reads what the other end has announced, and tells it that this is done.
    ///
    /// # Errors
    /// [`MemoryReadError`].
    pub async fn read(&self, place: &MemoryPlace, into: &mut [u8]) -> Result<(), MemoryReadError> {
        let segment = self.foreign(place.segment).await?;
        let read = segment.read(place.at, into);
        self.release(place);
        match read {
            Ok(()) if XxHash3_64::oneshot(into) == place.digest => Ok(()),
            _ => Err(MemoryReadError::Damaged),
        }
    }

    /// Tells the other end that nobody here wants what it has announced.
    pub fn release(&self, place: &MemoryPlace) {
        let MemoryPlace { segment, at, .. } = *place;
        self.notify(MemoryNotice::Release { segment, at });
    }

    /// A segment of the other end. Waits until its descriptor is here, which has another way than
    /// the announcement.
    async fn foreign(&self, number: u32) -> Result<Arc<ForeignSegment>, MemoryReadError> {
        let mut changed = self.inner.changed.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(segment) = state.foreign.get(&number) {
                    return Ok(segment.clone());
                }
                if number < state.foreign_next {
                    return Err(MemoryReadError::Closed);
                }
                if state.standing == Standing::Apart {
                    return Err(MemoryReadError::Apart);
                }
            }
            let _ = changed.changed().await; // `self` holds the sender
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

    fn notify(&self, notice: MemoryNotice) {
        let _ = self.inner.notices.send(notice); // an error means that the other end is gone
    }

    /// The other end says this.
    fn hear(&self, notice: MemoryNotice) -> io::Result<()> {
        self.change(|state| match notice {
            MemoryNotice::Open { segment, file } => state.open_foreign(segment, file),
            MemoryNotice::Close { segment } => {
                state.foreign.remove(&segment);
                Ok(())
            }
            MemoryNotice::Release { segment, at } => {
                let ring = state.rings.get_mut(&segment);
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                match ring.is_none_or(|ring| ring.release(at)) {
                    true => Ok(()), // a segment that is closed here has no ranges left
                    false => Err(io::Error::other("it releases what it did not hold")),
                }
            }
        })
    }
}

impl State {
    /// The two ends have met. The other end knows no segment that was opened before, and wants no
    /// range of its own back.
    fn meet(&mut self) {
        self.standing = Standing::Sharing;
        self.met += 1;
        self.foreign.clear();
    }

    fn open_foreign(&mut self, number: u32, file: OwnedFd) -> io::Result<()> {
        if number < self.foreign_next || self.foreign.len() == MAX_FOREIGN_SEGMENTS {
            return Err(io::Error::other("it opens segments that it may not open"));
        }
        let segment = ForeignSegment::new(file).map_err(io::Error::other)?;
        self.foreign_next = number.saturating_add(1);
        self.foreign.insert(number, Arc::new(segment));
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
