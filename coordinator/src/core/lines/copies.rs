//! Which coordinators have every line of a trained run.
//!
//! The lines of a run under way are on the leader's disk and in the memory of all members. The
//! members may go when the run ends. From then on the coordinators' files alone have the lines, so
//! the leader ends no run before most of the coordinators have all lines on their disks: as with
//! entries of the log, the disks of fewer than half may be lost afterwards. A coordinator tells
//! all others when its file is complete, and each coordinator to which it gets a link later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::{Message, NodeName, Step};
use everstep_transport::time::Time;

use super::super::links::Links;
use super::super::{Core, LinkId};
use super::Lines;

/// A run ends without the word of other coordinators that they have all lines after this long: a
/// coordinator of an older build says so only when it is asked for lines.
const LINES_COPIED_AT_LATEST: Duration = Duration::from_secs(10);

/// How far the files of other coordinators reach, by their links.
#[derive(Debug, Default)]
pub(super) struct LineCopies(BTreeMap<LinkId, Step>);

impl LineCopies {
    /// Another coordinator says that its file is durable up to this step.
    pub(super) fn told(&mut self, by: LinkId, reach: Step) {
        let known = self.0.entry(by).or_default();
        *known = reach.max(*known);
    }

    /// The coordinators with a link that have the lines up to this step, by name.
    fn names<'a>(&self, links: &'a Links, step: Step) -> BTreeSet<&'a NodeName> {
        let complete = self.0.iter().filter(|(_, reach)| **reach >= step);
        let found = complete.filter_map(|(link, _)| links.find(*link));
        found.map(|link| &link.identity.name).collect()
    }
}

impl Lines {
    /// A link is gone. What its peer has said of its file counts no more.
    pub(in super::super) fn on_lost_link(&mut self, link: LinkId) {
        self.copies.0.remove(&link);
    }
}

impl Core {
    /// Tells these coordinators, if the file here is durable up to the run's last step.
    pub(in super::super) fn announce_lines(&mut self, to: Vec<LinkId>) {
        let Some(last) = self.state.run().map(|run| Step(run.steps)) else { return };
        let Lines { lineage, durable: reach, .. } = self.lines;
        if let Some(lineage) = lineage.filter(|_| reach >= last) {
            self.outbox.broadcast(to, Message::Lines { lineage, reach, lines: Vec::new() });
        }
    }

    /// Whether the run may end as far as its lines go: most coordinators have all of them, or have
    /// not said so for [`LINES_COPIED_AT_LATEST`]. `since` is when it could have ended otherwise.
    pub(in super::super) fn lines_let_run_end(&self, now: Time, since: Time) -> bool {
        #[cfg(feature = "planted")]
        if self.state.plant == Some(crate::plant::CorePlant::LinesOnOneDisk) {
            return true;
        }
        let last = Step(self.state.run().map_or(0, |run| run.steps));
        let names = self.lines.copies.names(&self.links, last);
        // A coordinator that was removed may have a link still.
        let all = self.state.coordinators();
        let complete = 1 + all.iter().filter(|known| names.contains(&known.name)).count();
        2 * complete > all.len() || now.since(since) >= LINES_COPIED_AT_LATEST
    }
}
