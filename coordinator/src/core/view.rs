//! What a watcher is told: a page of what is new, and how the run stands.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::{Outcome, Update, Waiting, WorkerState, WorkerView};
use everstep_transport::protocol::{Rank, Step, WorkerId};

use super::Core;
use crate::state::{Standing, Worker};

/// Most lines, and most events, in one answer.
pub(super) const PAGE: usize = 200;

impl Core {
    /// What is new after this step's line and this event. The end of the run is told with the last
    /// page, so that a watcher who stops there has everything.
    pub(super) fn update(&self, step: Step, event: u64) -> Update {
        let events = usize::try_from(event).ok().and_then(|event| self.state.events().get(event..));
        let (lines, events) = (self.lines.after(step), events.unwrap_or(&[]));
        let last = lines.len() <= PAGE && events.len() <= PAGE;
        Update {
            lines: lines.iter().take(PAGE).cloned().collect(),
            events: events.iter().take(PAGE).cloned().collect(),
            workers: self.views(),
            bitwise: self.state.bitwise(),
            waiting: self.waiting(),
            outcome: if last { self.state.outcome().clone() } else { Outcome::Running },
        }
    }

    fn views(&self) -> Vec<WorkerView> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let members: BTreeMap<_, _> = members
            .zip(0..)
            .map(|(member, rank)| (member.worker, (Rank(rank), member.data_shards.len() as u32)))
            .collect();
        let views = self.state.workers().iter().map(|(&worker, known)| {
            let place = members.get(&worker);
            WorkerView {
                worker,
                name: known.name.clone(),
                address: known.registration.address,
                rank: place.map(|(rank, _)| *rank),
                data_shards: place.map_or(0, |(_, data_shards)| *data_shards),
                state: self.state_of(worker, known),
            }
        });
        views.collect()
    }

    fn state_of(&self, worker: WorkerId, known: &Worker) -> WorkerState {
        match known.standing {
            Standing::Lost => WorkerState::Lost,
            Standing::Left => WorkerState::Left,
            Standing::Member | Standing::Leaving if self.silence.is_suspected(worker) => {
                WorkerState::Suspected
            }
            _ if self.results.contains_key(&worker) => WorkerState::Finished,
            Standing::Leaving => WorkerState::Leaving,
            Standing::Member => WorkerState::Training,
            Standing::Registered if self.feeds.lessons().contains_key(&worker) => {
                WorkerState::Learning
            }
            Standing::Registered => WorkerState::Waiting,
        }
    }

    /// A run that has begun and starts no step, for want of workers.
    fn waiting(&self) -> Option<Waiting> {
        let (run, record) = (self.state.run()?, self.state.record()?);
        let of_generation = self.state.waiting_since();
        let (members, since_unix_ms) = match self.short_of_workers() {
            Some((members, since)) => (members, of_generation.unwrap_or(self.unix_ms(since))),
            None => (record.world_size(), of_generation?),
        };
        self.running().then_some(Waiting { members, wanted: run.min_workers, since_unix_ms })
    }
}
