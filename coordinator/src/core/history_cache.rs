//! What watchers are told of the past: the cluster's events, each once and in order (I13).
//!
//! Input: what entries brought to the history. After a snapshot of another coordinator, the
//! beginning of the history may be missing until the shell has fetched it. Meanwhile no watcher is
//! told of later events. The coordinator waits for a history that comes page by page, for as long
//! as pages come.

use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{HistoryEntry, HistoryEvent};
use everstep_transport::time::Time;

use crate::state::State;

/// When no page of the missing history has come for this long, no coordinator has it any more.
pub(crate) const HISTORY_LOST_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct HistoryCache {
    events: Vec<Event>,
    /// When the newest page came, while the beginning is missing and may yet come. `None`
    /// otherwise.
    lacks: Option<Time>,
}

impl HistoryCache {
    /// The past as far as a state knows it: all of the newest events.
    pub(super) fn of(state: &State, now: Time) -> Self {
        Self { events: state.events().to_vec(), lacks: Some(now) }
    }

    /// The past from the history of the cluster, in order.
    pub(super) fn restored(entries: impl IntoIterator<Item = HistoryEntry>) -> Self {
        let mut cache = Self::default();
        entries.into_iter().for_each(|entry| cache.take(&entry.events));
        cache
    }

    /// Whether all events are here that watchers will ever be told.
    pub(super) fn is_whole(&self) -> bool {
        self.lacks.is_none()
    }

    /// A page of the missing history has come.
    pub(super) fn is_told(&mut self, now: Time) {
        self.lacks = self.lacks.map(|_| now);
    }

    /// Time passes. After [`HISTORY_LOST_AFTER`] without a page, missing events stay missing.
    pub(super) fn tick(&mut self, now: Time) {
        self.lacks = self.lacks.filter(|since| now.since(*since) < HISTORY_LOST_AFTER);
    }

    /// Takes what an applied entry brings.
    pub(super) fn take(&mut self, events: &[HistoryEvent]) {
        for event in events {
            match event {
                HistoryEvent::Run(_) => {}
                HistoryEvent::Event(event) => self.events.push(event.clone()),
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
