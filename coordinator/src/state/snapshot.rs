//! The state as bytes, for a replica that can no longer get the entries that led to it.
//!
//! The bytes are a BLAKE3 digest, the number of the format, and the state by rkyv. Equal states
//! have equal bytes (I14). Bytes from a peer or a disk give an error, or a state on which
//! everything here can rely. They do not hold what the newest entry brought to the history.

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::format::LogFormat;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::{LOG_FORMATS, State};

const DIGEST: usize = 32;

/// Why bytes are no state.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not those that were written.
    #[error("the snapshot is damaged")]
    Damaged,
    /// A later build wrote them.
    #[error(
        "the snapshot has format {found}, and this build of Everstep reads formats {} to {newest}: \
         start a later build", LOG_FORMATS.start()
    )]
    OtherFormat {
        /// The number of the snapshot's format.
        found: u64,
        /// The newest format that this build reads.
        newest: LogFormat,
    },
    /// The bytes are intact, but they are no state.
    #[error("the snapshot holds no state: {0}")]
    Garbled(Box<rancor::Error>),
    /// The bytes are those of a state that contradicts itself.
    #[error("the snapshot holds no state: {0}")]
    Contradictory(&'static str),
}

impl State {
    /// The state as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = rkyv::to_bytes::<rancor::Error>(self);
        let state = state.expect("a state is finite and needs no shared pointers");
        let mut bytes = vec![0; DIGEST];
        bytes.extend(u64::from(self.log_format().0).to_le_bytes());
        bytes.extend_from_slice(&state);
        let digest = blake3::hash(&bytes[DIGEST..]);
        bytes[..DIGEST].copy_from_slice(digest.as_bytes());
        bytes
    }

    /// The digest of the state's bytes. Coordinators with the same newest entry have the same one
    /// (I14).
    pub fn digest(&self) -> [u8; 32] {
        let bytes = self.encode();
        *bytes.first_chunk().expect("the bytes begin with their digest")
    }

    /// The state that was encoded. `newest` is the newest format that the reader knows.
    ///
    /// # Errors
    /// [`SnapshotError`], for bytes that are not those of a state of a known format.
    pub fn decode(bytes: &[u8], newest: LogFormat) -> Result<Self, SnapshotError> {
        let (found, state) = opened(bytes)?;
        let oldest = LOG_FORMATS.start().0;
        if !(u64::from(oldest)..=u64::from(newest.0)).contains(&found) {
            return Err(SnapshotError::OtherFormat { found, newest });
        }
        let mut aligned = AlignedVec::<16>::with_capacity(state.len());
        aligned.extend_from_slice(state);
        let state = rkyv::from_bytes::<Self, rancor::Error>(&aligned);
        let state = state.map_err(|error| SnapshotError::Garbled(error.into()))?;
        match state.contradiction() {
            None => Ok(state),
            Some(problem) => Err(SnapshotError::Contradictory(problem)),
        }
    }

    /// A condition that applying an entry relies on, and that does not hold.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let workers = &self.workers;
        let known = |id: &WorkerId| workers.by_id.contains_key(id);
        match () {
            () if !workers.gone.iter().all(known) => Some("a worker that is gone is not there"),
            () if !workers.nodes.values().all(known) => Some("a node's worker is not there"),
            () if workers.by_id.keys().any(|id| id.0 > self.applied) => {
                Some("a worker is from the future")
            }
            () if !self.members().all(|id| known(&id)) => Some("a member is not there"),
            () if self.events.newest.len() as u64 > self.events.count => {
                Some("there are too many events")
            }
            () => self.checkpoints.contradiction(),
        }
    }
}

/// The number of the format in a snapshot's head, and the bytes of the state.
pub(super) fn opened(bytes: &[u8]) -> Result<(u64, &[u8]), SnapshotError> {
    let (digest, rest) = bytes.split_first_chunk::<DIGEST>().ok_or(SnapshotError::Damaged)?;
    let (format, state) = rest.split_first_chunk().ok_or(SnapshotError::Damaged)?;
    match blake3::hash(rest) == *digest {
        true => Ok((u64::from_le_bytes(*format), state)),
        false => Err(SnapshotError::Damaged),
    }
}
