//! What watchers are told of the past: the run's lines, each step once and in order (I13), and the
//! cluster's events.
//!
//! In: what entries brought to the history. All is kept, since a watcher may ask from the
//! beginning: about a hundred bytes a step. After a snapshot its beginning may be missing, until
//! the shell has fetched it: until then no watcher is told what comes behind that.

use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{Frame, MetricsLine, News, Step};
use everstep_transport::time::Time;

use crate::state::State;

/// In so much time millions of steps of history are told; what nobody has can be told by nobody.
pub(crate) const TELLING: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Past {
    lines: Vec<MetricsLine>,
    events: Vec<Event>,
    /// Since when its beginning is missing, if it is, and may yet be told.
    lacks: Option<Time>,
}

impl Past {
    /// As far as a state knows it: all of the newest events, and no lines.
    pub(super) fn of(state: &State, now: Time) -> Self {
        Self { lines: Vec::new(), events: state.events().to_vec(), lacks: Some(now) }
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

    /// Time passes: in the end, what is missing stays missing.
    pub(super) fn tick(&mut self, now: Time) {
        self.lacks = self.lacks.filter(|since| now.since(*since) < TELLING);
    }

    /// An entry was applied.
    pub(super) fn take(&mut self, news: &[News]) {
        for news in news {
            match news {
                News::Run(_) => self.lines.clear(),
                News::Event(event) => self.events.push(event.clone()),
                News::Lines(lines) => self.lines.extend_from_slice(lines),
                News::Forget(after) => self.lines.retain(|line| line.step <= *after),
            }
        }
    }

    /// The line of the newest step, if one is here, whatever is missing before.
    pub(super) fn newest_line(&self) -> Option<&MetricsLine> {
        self.lines.last()
    }

    /// How long the newest step took, seconds; 0 if there is none.
    pub(super) fn pace(&self) -> f64 {
        self.lines.last().map_or(0.0, |line| line.seconds)
    }

    /// The lines after `step`, in order, once those before are here.
    pub(super) fn lines_after(&self, step: Step) -> &[MetricsLine] {
        if !self.is_whole() {
            return &[];
        }
        &self.lines[self.lines.partition_point(|line| line.step <= step)..]
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
