//! How fast the members compute, and whether their data shards should be shared out anew.
//!
//! Each worker says how long a data shard takes its device, as the last steps tell. Where a step
//! would be shorter if the slow members had fewer data shards, and stays so for a while, the leader
//! changes the generation. No sum is cut otherwise than the reduction tree does, so the bits stay
//! the same. A leader forgets all of this when it ceases to lead, and the workers tell the next
//! one. This module does not know whether a change is possible now.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::{Generation, Member, Record, Step, WorkerId};
use everstep_transport::time::Time;

use crate::assign::{PacedShare, pays_to_share_anew};

/// Other shares have to be better for this long before a change.
const SUSTAINED_FOR: Duration = Duration::from_secs(30);
/// Other shares have to be better for this many steps, too.
const SUSTAINED_STEPS: u64 = 32;
/// The shares are compared with others at most once in this time: ten thousand members take a
/// moment.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A change for the sake of pace comes at most once in this time.
const REBALANCE_INTERVAL: Duration = Duration::from_secs(60);

/// Since when other shares have been better.
#[derive(Clone, Copy, Debug)]
struct Better {
    generation: Generation,
    since: Time,
    step: Step,
}

/// How fast workers compute.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// How long a data shard takes each worker, microseconds.
    shard_us: BTreeMap<WorkerId, u64>,
    better: Option<Better>,
    /// When the shares were last compared with others.
    looked: Time,
    /// When a change was last due.
    due: Option<Time>,
}

impl Paces {
    /// A worker says how long a data shard takes its device, microseconds. 0: it does not know now.
    pub(super) fn tell(&mut self, worker: WorkerId, shard_us: u64) {
        if shard_us > 0 {
            self.shard_us.insert(worker, shard_us);
        }
    }

    /// How long a data shard takes the worker, microseconds.
    pub(super) fn of(&self, worker: WorkerId) -> Option<u64> {
        self.shard_us.get(&worker).copied()
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.shard_us.remove(&worker);
    }

    /// Whether a change is due, because other shares have been better for long enough. `reached` is
    /// the newest committed step.
    pub(super) fn is_due(&mut self, now: Time, record: &Record, reached: Step) -> bool {
        if now.since(self.looked) < LOOK_INTERVAL {
            return false;
        }
        self.looked = now;
        if !pays_to_share_anew(&self.shares(record)) {
            self.better = None;
            return false;
        }
        let begins = Better { generation: record.number, since: now, step: reached };
        let before = self.better.filter(|better| better.generation == record.number);
        let better = *self.better.insert(before.unwrap_or(begins));
        let is_sustained = now.since(better.since) >= SUSTAINED_FOR
            && reached.0.saturating_sub(better.step.0) >= SUSTAINED_STEPS;
        let rests = self.due.is_none_or(|due| now.since(due) >= REBALANCE_INTERVAL);
        if is_sustained && rests {
            (self.better, self.due) = (None, Some(now));
        }
        is_sustained && rests
    }

    /// Something is under way that may be the reason for other paces.
    pub(super) fn disturb(&mut self) {
        self.better = None;
    }

    /// How many data shards each member has, and how long one takes it.
    fn shares(&self, record: &Record) -> Vec<PacedShare> {
        let share = |member: &Member| PacedShare {
            share: member.data_shards.len(),
            pace: self.of(member.worker),
        };
        record.members.iter().map(share).collect()
    }
}
