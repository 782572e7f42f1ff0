// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

// Copyright 2015 The etcd Authors
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

//! Raft, as published by the TiKV project: <https://docs.rs/raft/0.7.0> documents it. What differs
//! here, and why, says `vendor/README.md` of the repository.

#![deny(missing_docs)]
// Published code keeps its form: a newer compiler's taste is no reason to differ from it.
#![allow(warnings, clippy::all)]

/// Where upstream logs. Nothing is logged here: the replica around this crate says what matters.
#[derive(Clone, Debug, Default)]
pub struct Logger;

macro_rules! silent {
    ($($name:ident)*) => { silent!(@ ($) $($name)*); };
    (@ ($d:tt) $($name:ident)*) => { $(
        macro_rules! $name {
            ($d($d ignored:tt)*) => {{}};
        }
    )* };
}
silent!(trace debug info warn error);

macro_rules! fatal {
    ($logger:expr, $msg:expr) => {{
        panic!("{}", $msg)
    }};
    ($logger:expr, $fmt:expr, $($arg:tt)+) => {{
        panic!($fmt, $($arg)+)
    }};
}

mod confchange;
mod config;
mod errors;
mod log_unstable;
mod hash;
mod proto;
mod quorum;
mod raft;
mod raft_log;
pub mod raw_node;
mod read_only;
mod status;
pub mod storage;
mod tracker;
pub mod util;

pub use crate::raft::{
    vote_resp_msg_type, Raft, SoftState, StateRole, CAMPAIGN_ELECTION, CAMPAIGN_PRE_ELECTION,
    CAMPAIGN_TRANSFER, INVALID_ID, INVALID_INDEX,
};
pub use confchange::{Changer, MapChange};
pub use config::Config;
pub use errors::{Error, Result, StorageError};
pub use log_unstable::Unstable;
pub use quorum::joint::Configuration as JointConfig;
pub use quorum::majority::Configuration as MajorityConfig;
pub use raft_log::{RaftLog, NO_LIMIT};
pub use crate::proto::{eraftpb, parse_conf_change_v2, CodecError};
#[allow(deprecated)]
pub use raw_node::is_empty_snap;
pub use raw_node::{LightReady, Peer, RawNode, Ready, SnapshotStatus};
pub use read_only::{ReadOnlyOption, ReadState};
pub use status::Status;
pub use storage::{GetEntriesContext, RaftState, Storage};
pub use tracker::{Inflights, Progress, ProgressState, ProgressTracker};
pub use util::majority;

pub mod prelude {
    //! A "prelude" for crates using the `raft` crate.
    //!
    //! This prelude is similar to the standard library's prelude in that you'll
    //! almost always want to import its entire contents, but unlike the standard
    //! library's prelude you'll have to do so manually:
    //!
    //! ```
    //! use raft::prelude::*;
    //! ```
    //!
    //! The prelude may grow over time as additional items see ubiquitous use.

    pub use crate::proto::prelude::*;

    pub use crate::config::Config;
    pub use crate::raft::Raft;

    pub use crate::storage::{RaftState, Storage};

    pub use crate::raw_node::{Peer, RawNode, Ready, SnapshotStatus};

    pub use crate::Progress;

    pub use crate::status::Status;

    pub use crate::read_only::{ReadOnlyOption, ReadState};
}

type DefaultHashBuilder = std::hash::BuildHasherDefault<hash::Hasher>;
type HashMap<K, V> = std::collections::HashMap<K, V, DefaultHashBuilder>;
type HashSet<K> = std::collections::HashSet<K, DefaultHashBuilder>;
