//! Which parameter shards have fewer owners than the run asks for, and since when.
//!
//! In: the ranges of such shards that each generation names, with its time. Out: ranges of
//! neighbours with one history each. This module does not know the owners.

use std::collections::BTreeMap;

use everstep_transport::protocol::Shard;

/// The shards that have too few owners now, and those that had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Since when each shard has too few owners: wall clock, milliseconds of Unix time.
    since: BTreeMap<Shard, u64>,
    over: Vec<Lapse>,
}

/// A time in which a range of neighbouring parameter shards had too few owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Lapse {
    /// The first of the shards.
    pub first: Shard,
    /// How many shards, from the first on.
    pub count: u32,
    /// When the lapse began: wall clock of the coordinator, milliseconds of Unix time.
    #[serde(rename = "since_unix_ms")]
    pub from_unix_ms: u64,
    /// When the lapse ended. None while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

impl Protection {
    /// A generation began at `unix_ms` in which these ranges have too few owners. A range is a
    /// first shard and a count.
    pub fn begin(&mut self, runs: &[(Shard, u32)], unix_ms: u64) {
        let lacking = runs
            .iter()
            .flat_map(|(first, count)| first.0..first.0.saturating_add(*count))
            .map(Shard);
        let since = |shard: Shard| (shard, *self.since.get(&shard).unwrap_or(&unix_ms));
        let now: BTreeMap<_, _> = lacking.map(since).collect();
        let before = std::mem::take(&mut self.since);
        let ended = before.into_iter().filter(|(shard, _)| !now.contains_key(shard));
        self.over.extend(neighbours(ended, Some(unix_ms)));
        self.since = now;
    }

    /// The shards that have too few owners now.
    pub fn open(&self) -> Vec<Lapse> {
        neighbours(self.since.iter().map(|(shard, since)| (*shard, *since)), None)
    }

    /// Drops the lapses that are over.
    pub fn forget_over(&mut self) {
        self.over.clear();
    }

    /// All lapses. Those that are over come first.
    pub fn lapses(&self) -> Vec<Lapse> {
        self.over.iter().copied().chain(self.open()).collect()
    }
}

/// Joins neighbouring shards with an equal beginning. The shards come in ascending order.
fn neighbours(shards: impl Iterator<Item = (Shard, u64)>, until: Option<u64>) -> Vec<Lapse> {
    let mut lapses: Vec<Lapse> = Vec::new();
    for (shard, since) in shards {
        match lapses.last_mut() {
            Some(last) if last.from_unix_ms == since && last.first.0 + last.count == shard.0 => {
                last.count += 1;
            }
            _ => lapses.push(Lapse {
                first: shard,
                count: 1,
                from_unix_ms: since,
                until_unix_ms: until,
            }),
        }
    }
    lapses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lapse(first: u32, count: u32, from_unix_ms: u64, until_unix_ms: Option<u64>) -> Lapse {
        Lapse { first: Shard(first), count, from_unix_ms, until_unix_ms }
    }

    #[test]
    fn each_shard_keeps_the_time_since_which_it_lacks_owners() {
        let mut protection = Protection::default();
        protection.begin(&[(Shard(0), 4)], 10);
        assert_eq!(protection.open(), [lapse(0, 4, 10, None)]);
        protection.begin(&[(Shard(2), 4), (Shard(9), 1)], 20);
        let open = [lapse(2, 2, 10, None), lapse(4, 2, 20, None), lapse(9, 1, 20, None)];
        assert_eq!(protection.open(), open);
        protection.begin(&[], 30);
        assert_eq!(protection.open(), []);
        let over = [lapse(0, 2, 10, Some(20)), lapse(2, 2, 10, Some(30))];
        let later = [lapse(4, 2, 20, Some(30)), lapse(9, 1, 20, Some(30))];
        assert_eq!(protection.lapses(), [over, later].concat());
    }
}
