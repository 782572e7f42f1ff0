//! Newtypes, so that a rank is never taken for a worker or a step for a generation.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Copy,
            Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
        )]
        #[rkyv(derive(PartialEq, Eq, PartialOrd, Ord))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A worker's registration: the index of its entry in the log, never reused.
    WorkerId(u64)
);
number!(
    /// A coordinator's id: 1 is the founder, every other has the log index of its registration. An
    /// id is never used again.
    CoordinatorId(u64)
);
number!(
    /// A run's id: the log index of the entry that submitted it. An id is never used again.
    RunId(u64)
);
number!(
    /// A member's place in one generation, from 0. Rank 0 is the step leader.
    Rank(u32)
);
number!(
    /// The number of a generation, from 1. 0 stands for "none yet".
    Generation(u64)
);
number!(
    /// An optimizer step, from 1. The step that made a version of the parameters names that
    /// version, and 0 is the initial state.
    Step(u64)
);
number!(
    /// A fixed slice of every global batch, `0..data_shards`.
    DataShard(u32)
);
number!(
    /// A parameter shard: a fixed range of the flat parameter vector, by its index.
    Shard(u32)
);
number!(
    /// One start of one machine, as its processes see it: a digest of the boot's id and of the
    /// network's namespace. Two processes with the same id cannot listen at one address.
    MachineId(u64)
);
number!(
    /// The time of one leading coordinator, as in Raft.
    Term(u64)
);

impl Generation {
    /// The number after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Step {
    /// The step after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The longest name a node may have, bytes.
pub const MAX_NAME: usize = 64;

/// A node's name, as its certificate states it: 1 to 64 characters of `a-z 0-9 -`.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    Clone,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
#[rkyv(derive(PartialEq, Eq, PartialOrd, Ord))]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    /// Parses a name. `None` if it is empty, too long, or has a character outside the alphabet.
    pub fn parse(name: &str) -> Option<Self> {
        let fits = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        fits.then(|| Self(name.to_string()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The longest label of a zone, characters.
pub const MAX_ZONE: usize = 64;

/// What a machine may fail together with, as its operator calls it (a rack, a host, a cloud's
/// zone): 1 to 64 printable characters, the first and last of them no spaces.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(transparent)]
pub struct Zone(String);

impl Zone {
    /// Parses a label. `None` if it is empty, too long, has a character that cannot be seen, or a
    /// space at an end.
    pub fn parse(label: &str) -> Option<Self> {
        let fits = (1..=MAX_ZONE).contains(&label.chars().count())
            && label.trim() == label
            && !label.chars().any(char::is_control);
        fits.then(|| Self(label.to_string()))
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The longest host name, bytes: that of DNS.
pub const MAX_HOST: usize = 253;

/// A machine's node name, as `uname -n` prints it: at most [`MAX_HOST`] bytes, none of which steers
/// a terminal.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct HostName(String);

impl HostName {
    /// The name with control characters escaped, cut to the limit. `None` for an empty name.
    pub fn of(name: &str) -> Option<Self> {
        let shown = |c: char| match c.is_control() {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        };
        let mut text: String = name.chars().map(shown).collect();
        text.truncate(text.floor_char_boundary(MAX_HOST));
        (!text.is_empty()).then_some(Self(text))
    }

    /// Whether the name is as [`Self::of`] makes it. A name from a peer may be anything.
    pub fn is_valid(&self) -> bool {
        Self::of(&self.0).as_ref() == Some(self)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name that people use for a worker: `worker 2 (id 9, on node-b)`. The number is that of its
/// process, the id that of its registration.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct WorkerLabel {
    /// 1 for the first worker of the cluster.
    pub number: u32,
    /// The id of its registration.
    #[serde(rename = "id")]
    pub worker: WorkerId,
    /// The name of its machine, if the worker has told that.
    pub host: Option<HostName>,
}

impl fmt::Display for WorkerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, worker, host } = self;
        match host {
            Some(host) => write!(f, "worker {number} (id {worker}, on {host})"),
            None => write!(f, "worker {number} (id {worker})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_short_and_steers_no_terminal() {
        assert_eq!(HostName::of(""), None);
        for (name, shown) in [("node-7", "node-7"), ("a\u{1b}[2Jb", r"a\u{1b}[2Jb")] {
            let host = HostName::of(name).expect("a name");
            assert_eq!((host.to_string(), host.is_valid()), (shown.into(), true));
        }
        let long = HostName::of(&"ü".repeat(200)).expect("a name");
        assert_eq!((long.to_string().len(), long.is_valid()), (252, true));
        for raw in ["", "a\u{7}", &"h".repeat(254)] {
            assert!(!HostName(raw.into()).is_valid(), "{raw:?}");
        }
    }

    #[test]
    fn a_worker_is_called_by_number_id_and_host() {
        let mut label = WorkerLabel { number: 2, worker: WorkerId(9), host: HostName::of("b") };
        assert_eq!(label.to_string(), "worker 2 (id 9, on b)");
        label.host = None;
        assert_eq!(label.to_string(), "worker 2 (id 9)");
    }

    #[test]
    fn a_zone_has_1_to_64_printable_characters() {
        for label in ["a", "eu-west-1a", "Rack 7, row ü", &"z".repeat(64), &"ü".repeat(64)] {
            assert_eq!(Zone::parse(label).as_ref().map(Zone::as_str), Some(label));
        }
        for label in ["", " ", " a", "a\n", "a\tb", "\u{7f}", &"z".repeat(65)] {
            assert_eq!(Zone::parse(label), None, "{label:?}");
        }
    }
}
