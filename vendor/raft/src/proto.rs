//! What `raft-proto` has: the types that replicas exchange and keep, as plain structs. Of their
//! encodings only that of a change of members is here (`codec.rs`), since it is in entries; all
//! others are the user's.

mod codec;
mod confchange;
mod confstate;
pub mod eraftpb;

pub use codec::{parse_conf_change_v2, CodecError};
pub use confchange::{new_conf_change_single, ConfChangeI};
pub use confstate::conf_state_eq;

pub mod prelude {
    //! The types.
    pub use super::eraftpb::{
        ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2,
        ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot, SnapshotMetadata,
    };
}
