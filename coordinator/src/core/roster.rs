//! The run's workers as this coordinator sees them at one moment: the phase that the log gives
//! them, their links, and their suspicions.
//!
//! It only reads. A part of the core that decides something about workers takes a roster, and no
//! other part of the core.

use std::collections::BTreeSet;

use everstep_transport::protocol::{ModelPlace, WorkerId};
use everstep_transport::time::Time;

use super::LinkId;
use super::failure_detector::FailureDetector;
use super::feeds::FeedTargets;
use super::links::Links;
use super::pace::Paces;
use crate::state::{State, WorkerPhase};

/// The workers at one moment, for a part of the core that only reads them.
#[derive(Clone, Copy)]
pub(super) struct Roster<'a> {
    pub(super) now: Time,
    pub(super) state: &'a State,
    pub(super) links: &'a Links,
    pub(super) detector: &'a FailureDetector,
    pub(super) paces: &'a Paces,
}

impl<'a> Roster<'a> {
    /// The links of the members that have one, by rank.
    pub(super) fn member_links(self) -> Vec<LinkId> {
        self.state.members().filter_map(|member| self.links.of_registered(member)).collect()
    }

    pub(super) fn all_members_are_linked(self) -> bool {
        self.state.members().all(|member| self.is_linked(member))
    }

    pub(super) fn is_linked(self, worker: WorkerId) -> bool {
        self.links.of_registered(worker).is_some()
    }

    /// Whether an answer of the worker is worth waiting for.
    pub(super) fn may_answer(self, worker: WorkerId) -> bool {
        self.detector.may_answer(self.now, worker)
    }

    /// Whether a member is suspected.
    pub(super) fn suspects_member(self) -> bool {
        self.detector.suspects().any(|worker| self.state.is_member(worker))
    }

    /// The present workers that have ended according to the log.
    pub(super) fn reported_dead(self) -> Vec<WorkerId> {
        let present = self.state.present().map(|(worker, _)| worker);
        present.filter(|worker| self.state.is_reported_dead(*worker)).collect()
    }

    /// The members that have surely ended, and of which the log does not tell yet.
    pub(super) fn unreported_dead(self) -> Vec<WorkerId> {
        let is_dead = |worker: &WorkerId| {
            self.detector.is_dead(*worker) && !self.state.is_reported_dead(*worker)
        };
        self.state.members().filter(is_dead).collect()
    }

    /// The workers that join, unless they are suspected or `is_given_up`, and those that leave.
    pub(super) fn feed_targets(self, is_given_up: impl Fn(WorkerId) -> bool) -> FeedTargets {
        let mut feed_targets = FeedTargets::default();
        for (worker, known) in self.state.present() {
            match known.phase {
                WorkerPhase::Registered
                    if !self.detector.is_suspected(worker) && !is_given_up(worker) =>
                {
                    feed_targets.newcomers.insert(worker);
                }
                WorkerPhase::Leaving => {
                    feed_targets.leaving.insert(worker);
                }
                _ => {}
            }
        }
        feed_targets
    }

    /// Where the worker would write the model. `None` if it has no directory.
    pub(super) fn place_of(self, worker: WorkerId) -> Option<&'a ModelPlace> {
        self.state.place_of(worker)
    }

    /// Whether the run has a store of checkpoints. The model goes there, so a worker needs no
    /// directory of its own to write it.
    pub(super) fn has_store(self) -> bool {
        self.state.run().is_some_and(|run| run.checkpoint.is_some())
    }

    /// The workers that have a link and can write the model: members in rank order, and after the
    /// last step every other worker. Those with a directory come first.
    pub(super) fn writers(self, over: bool) -> Vec<WorkerId> {
        let members: BTreeSet<WorkerId> = self.state.members().collect();
        let beside = self.state.present().map(|(worker, _)| worker);
        let beside = beside.filter(|worker| over && !members.contains(worker));
        let all = self.state.members().chain(beside);
        let is_there =
            |worker: &WorkerId| self.is_linked(*worker) && !self.detector.is_suspected(*worker);
        let (mut writers, others): (Vec<WorkerId>, Vec<WorkerId>) =
            all.filter(is_there).partition(|worker| self.place_of(*worker).is_some());
        if self.has_store() {
            writers.extend(others);
        }
        writers
    }
}
