//! The leader lets workers go only once most coordinators have every line of the run.
//!
//! The lines of a run under way are on the leader's disk and in the memory of all members. The
//! members may go when the run is complete, and when they leave together. From then on the
//! coordinators' files alone have the lines, so the leader lets them go only once most of the
//! coordinators have all lines on their disks: as with entries of the log, the disks of fewer than
//! half may be lost afterwards. A coordinator tells all others when its file is complete, and each
//! coordinator to which it gets a link later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::{Message, NodeName, Step, Term};
use everstep_transport::time::Time;

use super::super::links::Links;
use super::super::{Core, LinkId};
use super::Lines;

/// The members may go without the word of other coordinators that they have all lines after this
/// long: a coordinator of an older build says so only when it is asked for lines.
const LINES_COPIED_AT_LATEST: Duration = Duration::from_secs(10);

/// What is known of other coordinators' files.
#[derive(Debug, Default)]
pub(super) struct LineCopies {
    /// How far each file reaches, by link.
    reaches: BTreeMap<LinkId, Step>,
    /// Since when this leader, of this term, waits for the copies up to this step alone.
    awaited: Option<(Term, Step, Time)>,
}

impl LineCopies {
    /// Another coordinator says that its file is durable up to this step.
    pub(super) fn told(&mut self, by: LinkId, reach: Step) {
        let known = self.reaches.entry(by).or_default();
        *known = reach.max(*known);
    }

    /// The coordinators with a link that have the lines up to this step, by name.
    fn names<'a>(&self, links: &'a Links, step: Step) -> BTreeSet<&'a NodeName> {
        let complete = self.reaches.iter().filter(|(_, reach)| **reach >= step);
        let found = complete.filter_map(|(link, _)| links.find(*link));
        found.map(|link| &link.identity.name).collect()
    }
}

impl Lines {
    /// A link is gone. What its peer has said of its file counts no more.
    pub(in super::super) fn on_lost_link(&mut self, link: LinkId) {
        self.copies.reaches.remove(&link);
    }
}

impl Core {
    /// The last step before the members may go: the run's, or the one at which the run rests.
    fn last_step(&self) -> Option<Step> {
        let run = self.state.run()?;
        let rests = self.state.record().filter(|record| record.waiting);
        Some(rests.map_or(Step(run.steps), |record| record.resume))
    }

    /// Whether the leader waits for copies alone.
    pub(in super::super) fn awaits_line_copies(&self) -> bool {
        self.lines.copies.awaited.is_some()
    }

    /// Tells these coordinators, if the file here is durable up to the last step.
    pub(in super::super) fn announce_lines(&mut self, to: Vec<LinkId>) {
        let Some(last) = self.last_step() else { return };
        let Lines { lineage, durable: reach, .. } = self.lines;
        if let Some(lineage) = lineage.filter(|_| reach >= last) {
            self.outbox.broadcast(to, Message::Lines { lineage, reach, lines: Vec::new() });
        }
    }

    /// Whether the members may go as far as the lines matter: this coordinator has all of them on
    /// its disk, and most coordinators do, or have not said so for [`LINES_COPIED_AT_LATEST`].
    pub(in super::super) fn are_lines_copied(&mut self, now: Time) -> bool {
        let (Some(term), Some(last)) = (self.leader(), self.last_step()) else { return false };
        if self.written() < last {
            return false;
        }
        let names = self.lines.copies.names(&self.links, last);
        // A coordinator that was removed may have a link still.
        let all = self.state.coordinators();
        let complete = 1 + all.iter().filter(|known| names.contains(&known.name)).count();
        let are_copied = last == Step(0) || 2 * complete > all.len();
        #[cfg(feature = "planted")]
        let are_copied =
            are_copied || self.state.plant == Some(crate::plant::CorePlant::LinesOnOneDisk);
        let awaited = self.lines.copies.awaited.filter(|(of, to, _)| (*of, *to) == (term, last));
        let since = awaited.map_or(now, |(.., since)| since);
        let may_go = are_copied || now.since(since) >= LINES_COPIED_AT_LATEST;
        self.lines.copies.awaited = (!may_go).then_some((term, last, since));
        may_go
    }
}
