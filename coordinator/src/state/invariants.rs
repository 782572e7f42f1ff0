//! Assertions after each applied entry: what the state itself must see to, whatever the entry says.
//! Each names its invariant, and a broken one stops the process.
//!
//! An entry that breaks a rule is refused, and never trips an assertion: these check that the rules
//! hold afterwards. All are cheap. Only a new generation costs its number of members. A state with
//! a planted bug asserts nothing here: the simulator's checks are to find the bug.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::{
    CheckpointId, Generation, HistoryEvent, Lineage, ListedCheckpoint, Step,
};

use super::events::EVENTS;
use super::workers::REMEMBERED;
use super::{Command, EntryOutcome, State};

/// What no entry may take back, as it was before an entry.
pub(super) struct Milestones {
    generation: Generation,
    lineage: Lineage,
    settled: Step,
    events: u64,
    log_format: LogFormat,
}

impl State {
    /// What no entry may take back.
    pub(super) fn milestones(&self) -> Milestones {
        Milestones {
            generation: self.generation(),
            lineage: self.lines().lineage,
            settled: self.settled(),
            events: self.events.count,
            log_format: self.log_format(),
        }
    }

    /// An entry has been applied.
    pub(super) fn check_applied(
        &self,
        before: &Milestones,
        command: &Command,
        outcome: &EntryOutcome,
    ) {
        if self.is_exempt() {
            return;
        }
        self.check_history(before);
        match (command, outcome) {
            (Command::Generation(_), EntryOutcome::Accepted) => self.check_generation(before),
            _ => assert!(
                self.generation() == before.generation || self.record().is_none(),
                "I1: only a record makes a generation"
            ),
        }
        assert!(self.generation() >= before.generation, "I1: a generation's number is used again");
        if let (Command::ListCheckpoint { checkpoint, .. }, EntryOutcome::Accepted) =
            (command, outcome)
        {
            self.check_listing(checkpoint);
        }
        if let (Command::Register { name, .. }, EntryOutcome::Registered(id)) = (command, outcome) {
            let known = self.workers().contains_key(id) && self.on_node(name) == Some(*id);
            assert!(known && id.0 <= self.index(), "I7: worker {id} has the id of another worker");
        }
        let format = (before.log_format, self.log_format());
        assert!(
            format.0 <= format.1,
            "I23: the log's format goes back from {} to {}",
            format.0,
            format.1
        );
    }

    /// What the history gained, and what it must not lose.
    fn check_history(&self, before: &Milestones) {
        let settled = self.settled();
        let same = self.lines().lineage == before.lineage;
        assert!(
            !same || settled >= before.settled,
            "I5: settled steps go back from {} to {settled} without a rollback",
            before.settled
        );
        let mut number = before.events;
        for event in self.new_events() {
            if let HistoryEvent::Event(event) = event {
                number += 1;
                assert_eq!(event.number, number, "I13: events are numbered one by one");
            }
        }
        assert_eq!(self.events.count, number, "I13: each event is told once");
        let bounded = self.events().len() <= EVENTS && self.workers.gone.len() <= REMEMBERED;
        assert!(bounded, "I10: the state keeps too many events, or workers that are gone");
    }

    /// A generation has begun.
    fn check_generation(&self, before: &Milestones) {
        let generation = self.generation();
        assert!(generation > before.generation, "I1: generations come one after the other");
        let record = self.record().filter(|record| record.number == generation);
        let record = record.expect("I1: a generation has its record");
        let resumed = record.commit.as_ref().map_or(Step(0), |commit| commit.step);
        assert_eq!(record.resume, resumed, "I17: a record resumes at the commit that it has");
        let listed = self.checkpoints().newest_step();
        assert!(
            listed <= record.resume,
            "I12: a checkpoint of step {listed} is listed, and history goes up to {resumed}"
        );
        let members = record.members.iter().all(|member| self.is_member(member.worker));
        assert!(members, "I1: each worker of generation {generation}'s record is a member");
        if let Some(problem) = self.contradiction() {
            panic!("I14: the state contradicts itself: {problem}");
        }
    }

    /// A checkpoint is listed: it is of the run's history, and stays for now.
    fn check_listing(&self, checkpoint: &ListedCheckpoint) {
        let id @ CheckpointId { step, generation } = checkpoint.id();
        let is_own = self.is_of_history(id);
        assert!(is_own, "I12: step {step} of generation {generation} is listed, and undone");
        let listed = self.checkpoints();
        if listed.newest_step() == step {
            assert!(listed.find_whole(id).is_some(), "I12: the newest checkpoint is dropped");
        }
        let problem = listed.contradiction();
        assert_eq!(problem, None, "I12: the checkpoints contradict each other");
    }

    /// Whether a bug is planted in the state and its core: neither asserts anything then.
    #[cfg(feature = "planted")]
    pub(crate) fn is_exempt(&self) -> bool {
        self.plant.is_some()
    }

    /// Whether a bug is planted in the state and its core: neither asserts anything then.
    #[cfg(not(feature = "planted"))]
    pub(crate) fn is_exempt(&self) -> bool {
        false
    }
}
