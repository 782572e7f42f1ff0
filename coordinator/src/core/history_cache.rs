//! The newest events of the cluster in memory, and sums of those of the run (I10, I13).
//!
//! Input: what entries brought to the history. The coordinator's file has all events, and this
//! cache has the newest ones. A reader that lacks older ones gets them from the file. After a
//! snapshot of another coordinator, the beginning of the history may be missing until the shell has
//! fetched it. Meanwhile no watcher is told of later events. The coordinator waits for a history
//! that comes page by page, for as long as pages come.

use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{HistoryEntry, HistoryEvent};
use everstep_transport::time::Time;

use super::figures::RunSums;
use crate::state::State;

/// When no page of the missing history has come for this long, no coordinator has it any more.
pub(crate) const HISTORY_LOST_AFTER: Duration = Duration::from_secs(120);
/// How many of the newest events a coordinator keeps in memory at least.
pub const RECENT_EVENTS: usize = 1_000;

/// The newest events, and sums of those of the run. Its memory does not grow with the history.
#[derive(Clone, Debug)]
pub struct HistoryCache {
    /// The newest events, in order: less than twice `room`, or those of a snapshot.
    recent: Vec<Event>,
    room: usize,
    /// The number of the newest event that left the cache. The file alone has it and those before.
    evicted: u64,
    sums: RunSums,
    /// When the newest page came, while the beginning is missing and may yet come. `None`
    /// otherwise.
    lacks: Option<Time>,
}

/// Events by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRange {
    /// The number before the first event.
    pub after: u64,
    /// The number of the last event.
    pub to: u64,
}

/// The events after one that a reader has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventsAfter<'a> {
    /// All of them that a reader may have now, in order.
    Recent(&'a [Event]),
    /// The history file has all of them.
    InFile(EventRange),
}

impl Default for HistoryCache {
    fn default() -> Self {
        Self::with_room(RECENT_EVENTS)
    }
}

impl HistoryCache {
    /// An empty cache that keeps at least `room` events, and fewer than twice as many.
    pub fn with_room(room: usize) -> Self {
        let sums = RunSums::default();
        Self { recent: Vec::new(), room: room.max(1), evicted: 0, sums, lacks: None }
    }

    /// An empty cache with the same room.
    pub(crate) fn emptied(&self) -> Self {
        Self::with_room(self.room)
    }

    /// The past from the history of the cluster, in order.
    #[must_use]
    pub fn restored(mut self, entries: impl IntoIterator<Item = HistoryEntry>) -> Self {
        entries.into_iter().for_each(|entry| self.take(&entry.events));
        self
    }

    /// The past as far as a state knows it: all of the newest events.
    pub(super) fn install(&mut self, state: &State, now: Time) {
        let mut sums = RunSums::default();
        state.events().iter().for_each(|event| sums.add(event));
        let (recent, room) = (state.events().to_vec(), self.room);
        *self = Self { recent, room, evicted: 0, sums, lacks: Some(now) };
    }

    /// The sums of the run's events.
    pub(super) fn sums(&self) -> &RunSums {
        &self.sums
    }

    /// Whether all events are here, or in the file, that watchers will ever be told.
    pub(super) fn is_whole(&self) -> bool {
        self.lacks.is_none()
    }

    /// A page of the missing history has come.
    pub(super) fn on_page(&mut self, now: Time) {
        self.lacks = self.lacks.map(|_| now);
    }

    /// Time passes. After [`HISTORY_LOST_AFTER`] without a page, missing events stay missing.
    pub(super) fn tick(&mut self, now: Time) {
        self.lacks = self.lacks.filter(|since| now.since(*since) < HISTORY_LOST_AFTER);
    }

    /// Takes what an applied entry brings. The file has it too before a reader asks.
    pub fn take(&mut self, events: &[HistoryEvent]) {
        for event in events {
            if let HistoryEvent::Event(event) = event {
                self.sums.add(event);
                self.recent.push(event.clone());
            }
        }
        if self.recent.len() >= 2 * self.room {
            let mut leaving = self.recent.drain(..self.recent.len() - self.room);
            self.evicted = leaving.next_back().map_or(self.evicted, |event| event.number);
        }
    }

    /// The events after the one with this number, once those between are here or in the file.
    pub(super) fn events_after(&self, number: u64) -> EventsAfter<'_> {
        let rest = &self.recent[self.recent.partition_point(|event| event.number <= number)..];
        match (rest.first(), self.is_whole()) {
            (Some(next), false) if next.number > number + 1 => EventsAfter::Recent(&[]),
            (Some(_), true) if number < self.evicted => {
                let to = rest.last().map_or(number, |event| event.number);
                EventsAfter::InFile(EventRange { after: number, to })
            }
            _ => EventsAfter::Recent(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::EventKind;

    use super::*;

    fn brought(number: u64) -> [HistoryEvent; 1] {
        let event = Event { number, unix_ms: number, kind: EventKind::Resumed };
        [HistoryEvent::Event(event)]
    }

    fn numbers(cache: &HistoryCache, after: u64) -> Vec<u64> {
        match cache.events_after(after) {
            EventsAfter::Recent(rest) => rest.iter().map(|event| event.number).collect(),
            EventsAfter::InFile(range) => panic!("{range:?} is in the file"),
        }
    }

    #[test]
    fn i10_memory_does_not_grow_with_the_number_of_events() {
        let mut cache = HistoryCache::default();
        for number in 1..=300_000 {
            cache.take(&brought(number));
            assert!(cache.recent.len() < 2 * RECENT_EVENTS);
        }
        assert!(cache.recent.capacity() <= 4 * RECENT_EVENTS, "{}", cache.recent.capacity());
        let newest = numbers(&cache, 300_000 - RECENT_EVENTS as u64);
        assert!(newest.iter().copied().eq(300_001 - RECENT_EVENTS as u64..=300_000));
    }

    #[test]
    fn events_that_left_memory_are_in_the_file_up_to_the_newest_that_was_applied() {
        let mut cache = HistoryCache::with_room(2);
        (1..=3).for_each(|number| cache.take(&brought(number)));
        assert_eq!(numbers(&cache, 0), [1, 2, 3]);
        cache.take(&brought(4));
        for after in [0, 1] {
            let expected = EventsAfter::InFile(EventRange { after, to: 4 });
            assert_eq!(cache.events_after(after), expected);
        }
        assert_eq!((numbers(&cache, 2), numbers(&cache, 3)), (vec![3, 4], vec![4]));
        assert_eq!((numbers(&cache, 4), numbers(&cache, u64::MAX)), (vec![], vec![]));
    }

    #[test]
    fn no_reader_gets_events_behind_missing_ones_that_may_yet_come() {
        let mut cache = HistoryCache::with_room(2);
        cache.install(&State::default(), Time(0));
        (8..=11).for_each(|number| cache.take(&brought(number)));
        for after in [0, 6, 8] {
            assert_eq!(numbers(&cache, after), [] as [u64; 0], "the file may lack some");
        }
        assert_eq!(numbers(&cache, 9), [10, 11]);
        cache.tick(Time(0) + HISTORY_LOST_AFTER);
        let rest = EventsAfter::InFile(EventRange { after: 0, to: 11 });
        assert_eq!(cache.events_after(0), rest, "the others are lost");
    }
}
