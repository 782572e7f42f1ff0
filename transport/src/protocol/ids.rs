//! Newtypes, so that a rank is never taken for a worker or a step for a generation.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, Default,
            PartialEq, Eq, PartialOrd, Ord, Hash,
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
    /// A member's place in one generation, from 0. Rank 0 is the step leader.
    Rank(u32)
);
number!(
    /// The number of a generation, from 1; 0 stands for "none yet".
    Generation(u64)
);
number!(
    /// An optimizer step, from 1; a version of the parameters is named by the step that made it,
    /// and 0 is the initial state.
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
    /// The reign of one leading coordinator.
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

/// A node's name, as its certificate states it: 1 to 64 of `a-z 0-9 -`.
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
    /// Parses a name; `None` when it is empty, too long, or has a character outside the alphabet.
    pub fn parse(name: &str) -> Option<Self> {
        let fits = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        fits.then(|| Self(name.to_string()))
    }

    /// The name.
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
    /// Parses a label; `None` when it is empty, too long, has a character that cannot be seen, or a
    /// space at an end.
    pub fn parse(label: &str) -> Option<Self> {
        let fits = (1..=MAX_ZONE).contains(&label.chars().count())
            && label.trim() == label
            && !label.chars().any(char::is_control);
        fits.then(|| Self(label.to_string()))
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
