//! What a watcher is told: a page of what is new, and how the run stands.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::{
    Outcome, Update, WorkerResult, WorkerState, WorkerView,
};
use everstep_transport::protocol::{Rank, Step, WorkerId};

use super::lines::Lines;
use crate::state::State;

/// Most lines, and most events, in one answer.
pub(super) const PAGE: usize = 200;

/// Where a watcher's answer is taken from.
pub(super) struct Sources<'a> {
    pub(super) state: &'a State,
    pub(super) lines: &'a Lines,
    pub(super) results: &'a BTreeMap<WorkerId, WorkerResult>,
}

impl Sources<'_> {
    /// What is new after this step's line and this event. The end of the run is told with the last
    /// page, so that a watcher who stops there has everything.
    pub(super) fn after(&self, step: Step, event: u64) -> Update {
        let events = usize::try_from(event).ok().and_then(|event| self.state.events().get(event..));
        let (lines, events) = (self.lines.after(step), events.unwrap_or(&[]));
        let last = lines.len() <= PAGE && events.len() <= PAGE;
        Update {
            lines: lines.iter().take(PAGE).cloned().collect(),
            events: events.iter().take(PAGE).cloned().collect(),
            workers: self.workers(),
            bitwise: self.state.bitwise(),
            outcome: if last { self.state.outcome().clone() } else { Outcome::Running },
        }
    }

    fn workers(&self) -> Vec<WorkerView> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let ranks: BTreeMap<_, _> =
            members.zip(0..).map(|(member, rank)| (member.worker, Rank(rank))).collect();
        let views = self.state.workers().iter().map(|(&worker, known)| {
            let rank = ranks.get(&worker).copied();
            let state = match rank {
                _ if known.lost => WorkerState::Lost,
                _ if self.results.contains_key(&worker) => WorkerState::Finished,
                Some(_) => WorkerState::Training,
                None => WorkerState::Waiting,
            };
            let (name, address) = (known.name.clone(), known.registration.address);
            WorkerView { worker, name, address, rank, state }
        });
        views.collect()
    }
}
