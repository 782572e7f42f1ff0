//! The end of a run: whether the members' results are those of one history, and what the workers do
//! then.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::protocol::{Message, Record, Shard, WorkerId};
use everstep_transport::time::Time;

use super::links::Phase;
use super::{Command, Core, LinkId};
use crate::raft::MAX_ENTRY_BYTES;

/// Whether a result is of this generation: of all that the worker owns in it, and of nothing else.
/// A result does not name its generation, and may have been on its way when the generation began.
pub(super) fn belongs(record: &Record, result: &WorkerResult) -> bool {
    let Some(rank) = record.rank(result.worker) else { return false };
    let owned: BTreeSet<Shard> =
        record.owned_by(rank).into_iter().map(|(shard, _)| shard).collect();
    let digests: BTreeSet<Shard> = result.digests.iter().map(|(shard, _)| *shard).collect();
    let parts = &record.member(rank).data_shards;
    owned == digests && result.evaluations.iter().all(|found| parts.contains(&found.part))
}

/// Checks that all owners of every parameter shard report the same digest (I3). The error names the
/// shard and two workers that differ.
pub(super) fn agreement(
    record: &Record,
    results: &BTreeMap<WorkerId, WorkerResult>,
) -> Result<(), String> {
    let mut first = BTreeMap::new();
    for member in &record.members {
        let digests = results.get(&member.worker).map_or(&[][..], |result| &result.digests);
        for (shard, digest) in digests {
            let (name, expected) = *first.entry(shard).or_insert((&member.name, digest));
            if digest != expected {
                return Err(format!(
                    "{name} and {} ended with different copies of parameter shard {shard}",
                    member.name
                ));
            }
        }
    }
    Ok(())
}

impl Core {
    pub(super) fn propose_end(&mut self, now: Time, outcome: Outcome) {
        let (run, figures) = (self.state.run_id(), self.last_figures(&outcome));
        let steps = self.newest_step();
        self.propose(now, Command::End { run, outcome, figures, steps });
    }

    /// The log takes no entry of so many bytes. The leader would propose it again and again, and
    /// could not agree on anything else for this run: only records of generations can be so large.
    pub(crate) fn entry_too_large(&mut self, now: Time, bytes: usize) {
        if self.running() {
            let reason = format!(
                "the record of a generation takes {bytes} bytes of the log, which takes \
                 {MAX_ENTRY_BYTES} at most: train with fewer workers or copies"
            );
            self.propose_end(now, Outcome::Failed { name: None, reason });
        }
    }

    /// The run is over: everyone may go, or waits for the next run. The leader misses no worker any
    /// more.
    pub(super) fn dismiss(&mut self, now: Time) {
        self.begin_anew(now);
        for link in self.workers_in(|phase| !matches!(phase, Phase::Connected | Phase::Released)) {
            match self.links.find(link).map(|link| link.phase) {
                _ if self.state.is_ephemeral() => self.release(link, Message::Dismiss),
                Some(Phase::Greeted(None) | Phase::Foreign(_)) => {}
                _ => self.set_free(link),
            }
        }
    }

    /// The worker's run is over. It may say Hello again, without an id.
    pub(super) fn set_free(&mut self, link: LinkId) {
        let Some(term) = self.leader() else { return };
        self.links.enter(link, Phase::Connected);
        self.send(link, Message::Released { term });
    }
}
