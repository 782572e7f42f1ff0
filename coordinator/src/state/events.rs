//! The newest events of the cluster, and what the newest entry brought to the history.
//!
//! In: what happened, with the time of its entry. Out: numbered events. The log of events is
//! bounded: the shell keeps the whole history.

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{HistoryEvent, RunId};
use rkyv::{Archive, Deserialize, Serialize};

use super::State;

/// How many events the state keeps: the newest.
pub(super) const EVENTS: usize = 1_000;

/// The newest events, and their number.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct EventLog {
    /// At most [`EVENTS`], in order.
    pub(super) newest: Vec<Event>,
    /// How many events there were in all: the number of the newest.
    pub(super) count: u64,
    /// What the newest entry brought to the history.
    #[rkyv(with = rkyv::with::Skip)]
    pub(super) fresh: Vec<HistoryEvent>,
}

impl EventLog {
    /// Another entry is applied: nothing is fresh any more.
    pub(super) fn begin_entry(&mut self) {
        self.fresh.clear();
    }

    /// A run begins. Later events are of this run.
    pub(super) fn begin_run(&mut self, run: RunId) {
        self.fresh.push(HistoryEvent::Run(run));
    }

    /// Gives the event the next number.
    pub(super) fn note(&mut self, unix_ms: u64, kind: EventKind) {
        self.count += 1;
        let event = Event { number: self.count, unix_ms, kind };
        self.fresh.push(HistoryEvent::Event(event.clone()));
        self.newest.push(event);
        if self.newest.len() > EVENTS {
            self.newest.remove(0);
        }
    }
}

impl State {
    /// What the newest entry brought to the history, in order.
    pub fn new_events(&self) -> &[HistoryEvent] {
        &self.events.fresh
    }

    /// The newest thousand events.
    pub fn events(&self) -> &[Event] {
        &self.events.newest
    }
}
