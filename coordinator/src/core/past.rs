//! What watchers are told of the past: the run's lines, each step once and in order (I13), and the
//! cluster's events.
//!
//! In: what entries brought to the history. All is kept, since a watcher may ask from the
//! beginning: about a hundred bytes a step. After a snapshot its beginning may be missing, until
//! the shell has fetched it; a watcher is told what is here.

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{Frame, MetricsLine, News, Step};

use crate::state::State;

#[derive(Debug, Default)]
pub(super) struct Past {
    lines: Vec<MetricsLine>,
    events: Vec<Event>,
}

impl Past {
    /// As far as a state knows it.
    pub(super) fn of(state: &State) -> Self {
        Self { lines: Vec::new(), events: state.events().to_vec() }
    }

    /// From the history of the cluster, in order.
    pub(super) fn restored(frames: impl IntoIterator<Item = Frame>) -> Self {
        let mut past = Self::default();
        frames.into_iter().for_each(|frame| past.take(&frame.news));
        past
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

    /// How long the newest step took, seconds; 0 if there is none.
    pub(super) fn pace(&self) -> f64 {
        self.lines.last().map_or(0.0, |line| line.seconds)
    }

    /// The lines after `step`, in order.
    pub(super) fn lines_after(&self, step: Step) -> &[MetricsLine] {
        &self.lines[self.lines.partition_point(|line| line.step <= step)..]
    }

    /// The events after the one with this number, in order.
    pub(super) fn events_after(&self, number: u64) -> &[Event] {
        &self.events[self.events.partition_point(|event| event.number <= number)..]
    }
}
