//! I10: queues are bounded by the plan, whatever the network does.

use std::fmt;

use everstep_transport::protocol::Record;

use super::{Breach, Invariant};

/// Most messages on a control lane: as many as come while a link is silent, but not yet lost.
const CONTROL_LANE: usize = 64;
/// Most messages on a lane between coordinators: a leader's heartbeats every 25 ms, and its
/// proposals.
const LOG_LANE: usize = 512;
/// Generations that may begin while a device is busy with one pass. No simulation
/// has needed more.
const GENERATIONS: usize = 8;
/// Steps of a toy run until a silent link is lost: 3 s by a clock that is a tenth slow, of 80 ms.
const STEPS: usize = 42;
/// Master weights, the moments of Adam, and the head of a shard's state.
const STATE_ITEMS: usize = 4;

/// The kinds of queues for which the plan sets a bound, each with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Streams and messages from one member to another.
    Pair,
    /// Streams and messages from a member to a worker that is no member.
    Joiner,
    /// Jobs of a device.
    Device,
    /// Messages from one coordinator to another.
    Coordinators,
    /// Messages between a coordinator and another node.
    Control,
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pair => "pair of workers",
            Self::Joiner => "joiner",
            Self::Device => "device",
            Self::Coordinators => "lane between coordinators",
            Self::Control => "control lane",
        })
    }
}

#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) data_shards: u32,
    shards: usize,
}

impl Bounds {
    pub(super) fn new(data_shards: u32) -> Self {
        Self { data_shards, shards: 0 }
    }

    pub(super) fn recorded(&mut self, record: &Record) {
        self.shards = record.shards() as usize;
    }

    pub(super) fn queued(&self, kind: QueueKind, waiting: usize) -> Result<(), Breach> {
        let most = match kind {
            // For two steps: every partial, the reduced shards, the parameters or the masters, and
            // the commit. In addition, requested parameters and states.
            QueueKind::Pair => {
                2 * (self.shards * (self.data_shards as usize + 2) + 1)
                    + self.shards * (STATE_ITEMS + 1)
            }
            // An unreachable joiner gets the parameters and the reduced shards of every step until
            // its link is lost, and what it has asked for.
            QueueKind::Joiner => STEPS * (2 * self.shards + 1) + self.shards * (STATE_ITEMS + 1),
            // An update, a load and a write of every shard, a gradient and the end. Every new
            // generation adds an update, the requests of others, the entry and its gradient.
            QueueKind::Device => 3 * self.shards + 2 + GENERATIONS * (3 * self.shards + 3),
            QueueKind::Coordinators => LOG_LANE,
            QueueKind::Control => CONTROL_LANE,
        };
        if waiting <= most {
            return Ok(());
        }
        Err((Invariant::I10, format!("{waiting} wait in the queue of a {kind}, at most {most}")))
    }
}
