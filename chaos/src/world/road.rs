//! The roads between machines: which are shut, and which are slow.
//!
//! A road joins slots, not processes, and outlives the processes. It does not know what travels on
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::time::Time;
use everstep_worker::step::event::Lane;

use super::NodeId;
use crate::random::Random;

/// The state of all roads.
#[derive(Debug, Default)]
pub struct Roads {
    /// Until when nothing arrives, for each road that was ever shut.
    shut: BTreeMap<(NodeId, NodeId), Time>,
    slow: Vec<Slow>,
}

#[derive(Debug)]
struct Slow {
    way: (NodeId, NodeId),
    /// One bulk lane, or everything.
    lane: Option<Lane>,
    extra: Duration,
    until: Time,
}

impl Roads {
    /// Shuts a road. A longer closure stays.
    pub fn shut(&mut self, way: (NodeId, NodeId), until: Time) {
        let end = self.shut.entry(way).or_default();
        *end = until.max(*end);
    }

    /// When a shut road opens. None if it is open.
    pub fn shut_until(&self, way: (NodeId, NodeId), now: Time) -> Option<Time> {
        if self.shut.is_empty() {
            return None;
        }
        self.shut.get(&way).copied().filter(|until| *until > now)
    }

    /// Makes a road, or one lane of it, up to `extra` slower until `until`.
    pub fn slow(
        &mut self,
        way: (NodeId, NodeId),
        lane: Option<Lane>,
        extra: Duration,
        until: Time,
    ) {
        self.slow.push(Slow { way, lane, extra, until });
    }

    /// The extra delay on a road at `now`.
    pub fn extra(
        &mut self,
        way: (NodeId, NodeId),
        lane: Option<Lane>,
        now: Time,
        random: &mut Random,
    ) -> Duration {
        if self.slow.is_empty() {
            return Duration::ZERO;
        }
        self.slow.retain(|slow| slow.until > now);
        let hit = |slow: &&Slow| slow.way == way && (slow.lane.is_none() || slow.lane == lane);
        let most: Duration = self.slow.iter().filter(hit).map(|slow| slow.extra).sum();
        Duration::from_nanos(random.below(most.as_nanos() as u64 + 1))
    }

    /// Opens all roads and makes them fast.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
