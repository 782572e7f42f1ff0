//! I10: queues are bounded by the plan, whatever the network does.

use everstep_transport::protocol::Record;

use super::{Found, Invariant};

/// Most messages on a control lane: what a link that is silent, and not yet lost, can take up.
const CONTROL_LANE: usize = 64;

#[derive(Debug)]
pub(super) struct Bounds {
    data_shards: usize,
    shards: usize,
}

impl Bounds {
    pub(super) fn new(data_shards: u32) -> Self {
        Self { data_shards: data_shards as usize, shards: 0 }
    }

    pub(super) fn entered(&mut self, record: &Record) {
        self.shards = record.shards() as usize;
    }

    pub(super) fn queued(&self, kind: &str, waiting: usize) -> Result<(), Found> {
        let most = match kind {
            // Of two steps: every partial, the reduced shards, the parameters or the masters, and
            // the commit.
            "pair of workers" => 2 * (self.shards * (self.data_shards + 2) + 1),
            // An update, a load and a write of every shard, a gradient and the end.
            "device" => 3 * self.shards + 2,
            _ => CONTROL_LANE,
        };
        if waiting <= most {
            return Ok(());
        }
        Err((Invariant::I10, format!("{waiting} wait in the queue of a {kind}, at most {most}")))
    }
}
