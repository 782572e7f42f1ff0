//! The state as bytes, for a replica that can no longer get the entries that led to it.
//!
//! The bytes are a BLAKE3 digest, a digest of the layout, and the state by rkyv. Equal states have
//! equal bytes (I14). Bytes from a peer or a disk give an error, or a state on which everything
//! here can rely. They do not hold what the newest entry brought to the history.

use everstep_transport::protocol::codec;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::requests::ArchivedKept;
use super::{ArchivedState, State};

const DIGEST: usize = 32;
const HEAD: usize = DIGEST + 8;

/// Why bytes are no state.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not those that were written.
    #[error("the snapshot is damaged")]
    Damaged,
    /// Another build wrote them.
    #[error("the snapshot was made by another version of Everstep; run the same build everywhere")]
    OtherVersion,
    /// The bytes are intact, but they are no state.
    #[error("the snapshot holds no state: {0}")]
    Garbled(String),
}

impl State {
    /// The state as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = rkyv::to_bytes::<rancor::Error>(self);
        let state = state.expect("a state is finite and needs no shared pointers");
        let mut bytes = vec![0; DIGEST];
        bytes.extend(schema().to_le_bytes());
        bytes.extend_from_slice(&state);
        let digest = blake3::hash(&bytes[DIGEST..]);
        bytes[..DIGEST].copy_from_slice(digest.as_bytes());
        bytes
    }

    /// The state that was encoded.
    ///
    /// # Errors
    /// [`SnapshotError`], for bytes that are not those of a state of this build.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (digest, rest) = bytes.split_at_checked(DIGEST).ok_or(SnapshotError::Damaged)?;
        let (layout, state) = rest.split_at_checked(HEAD - DIGEST).ok_or(SnapshotError::Damaged)?;
        if blake3::hash(rest).as_bytes() != digest {
            return Err(SnapshotError::Damaged);
        }
        if layout != schema().to_le_bytes() {
            return Err(SnapshotError::OtherVersion);
        }
        let mut aligned = AlignedVec::<16>::with_capacity(state.len());
        aligned.extend_from_slice(state);
        let state = rkyv::from_bytes::<Self, rancor::Error>(&aligned);
        let state = state.map_err(|error| SnapshotError::Garbled(error.to_string()))?;
        match state.contradiction() {
            None => Ok(state),
            Some(problem) => Err(SnapshotError::Garbled(problem.into())),
        }
    }

    /// A condition that applying an entry relies on, and that does not hold.
    fn contradiction(&self) -> Option<&'static str> {
        let known = |id| self.workers.contains_key(id);
        let members = self.record.iter().flat_map(|record| &record.members);
        match () {
            () if !self.gone.iter().all(known) => Some("a worker that is gone is not there"),
            () if !self.nodes.values().all(known) => Some("a node's worker is not there"),
            () if self.workers.keys().any(|id| id.0 > self.applied) => {
                Some("a worker is from the future")
            }
            () if !members.map(|member| &member.worker).all(known) => Some("a member is not there"),
            () if self.events.len() as u64 > self.noted => Some("there are too many events"),
            () => None,
        }
    }
}

/// A digest of the layout: of the vocabulary, and of the state's own types.
fn schema() -> u64 {
    let sizes = [size_of::<ArchivedState>(), size_of::<ArchivedKept>()];
    let layout = [codec::schema(), sizes[0] as u64, sizes[1] as u64];
    let digest = blake3::hash(&layout.map(u64::to_le_bytes).concat());
    u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes"))
}
