//! How fast the members compute, and whether their data shards should be shared out anew.
//!
//! Each worker says how long a data shard takes its device, as the last steps tell. Where a step
//! would be shorter if the slow members had fewer data shards, and stays so for a while, the leader
//! changes the generation. No sum is cut otherwise than the reduction tree does, so the bits stay
//! the same. A leader forgets all of this when it ceases to lead, and the workers tell the next
//! one. This module does not know whether a change is possible now.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::{Generation, Record, Step, WorkerId};
use everstep_transport::time::Time;

use crate::assign::pays_to_share_anew;

/// Other shares have to be better for this long before a change.
const SUSTAINED_FOR: Duration = Duration::from_secs(10);
/// And for this many steps.
const SUSTAINED_STEPS: u64 = 32;
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
    /// When a change was last due.
    due: Option<Time>,
}

impl Paces {
    /// A worker says how long a data shard takes its device, microseconds. 0: it does not know.
    pub(super) fn tell(&mut self, worker: WorkerId, shard_us: u64) {
        match shard_us {
            0 => drop(self.shard_us.remove(&worker)),
            _ => drop(self.shard_us.insert(worker, shard_us)),
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

    /// How many data shards each member has, and how long one takes it. While that of some member
    /// is not known, all count as equally fast.
    fn shares(&self, record: &Record) -> Vec<(usize, u64)> {
        let members = record.members.iter();
        let each = members.clone().map(|member| self.of(member.worker)).collect::<Option<Vec<_>>>();
        let paces = each.unwrap_or_else(|| vec![1; record.members.len()]);
        members.map(|member| member.data_shards.len()).zip(paces).collect()
    }
}
