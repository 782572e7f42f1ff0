//! What watchers are told of the past: the cluster's events, each once and in order (I13).
//!
//! In: what entries brought to the history. After a snapshot of another coordinator its beginning
//! may be missing, until the shell has fetched it: until then no watcher is told what comes behind
//! that. A history that comes page by page is waited for as long as pages come.

use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{Frame, News};
use everstep_transport::time::Time;

use crate::state::State;

/// When no page of the missing history has come for so long, nobody has it any more.
pub(crate) const TELLING: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Past {
    events: Vec<Event>,
    /// If its beginning is missing, and may yet be told: when the newest page of it came.
    lacks: Option<Time>,
}

impl Past {
    /// As far as a state knows it: all of the newest events.
    pub(super) fn of(state: &State, now: Time) -> Self {
        Self { events: state.events().to_vec(), lacks: Some(now) }
    }

    /// From the history of the cluster, in order.
    pub(super) fn restored(frames: impl IntoIterator<Item = Frame>) -> Self {
        let mut past = Self::default();
        frames.into_iter().for_each(|frame| past.take(&frame.news));
        past
    }

    /// Whether all is here that watchers will ever be told.
    pub(super) fn is_whole(&self) -> bool {
        self.lacks.is_none()
    }

    /// A page of what is missing has come.
    pub(super) fn is_told(&mut self, now: Time) {
        self.lacks = self.lacks.map(|_| now);
    }

    /// Time passes: in the end, what is missing stays missing.
    pub(super) fn tick(&mut self, now: Time) {
        self.lacks = self.lacks.filter(|since| now.since(*since) < TELLING);
    }

    /// An entry was applied.
    pub(super) fn take(&mut self, news: &[News]) {
        for news in news {
            match news {
                News::Run(_) => {}
                News::Event(event) => self.events.push(event.clone()),
            }
        }
    }

    /// The events after the one with this number, in order, once those between are here.
    pub(super) fn events_after(&self, number: u64) -> &[Event] {
        let rest = &self.events[self.events.partition_point(|event| event.number <= number)..];
        match rest.first() {
            Some(next) if next.number > number + 1 && !self.is_whole() => &[],
            _ => rest,
        }
    }
}
