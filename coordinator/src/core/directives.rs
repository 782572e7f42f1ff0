//! How a leader carries out what operators ask of a run besides its members: a pause, its end, a
//! checkpoint. Besides, how all workers of a run leave together: a joint leave.
//!
//! Each of these is a planned change: the leader compares the current record with what is asked
//! for. The members of a run that rests hold everything, join, leave and repair copies as ever, and
//! start no step. When all workers are to leave, no other worker can take what they hold. Then the
//! run rests, and its members save a checkpoint and leave together. This module does not know how
//! the members hold, nor how a record is planned.

use std::time::Duration;

use everstep_transport::protocol::outcome::{PausedBy, RunPause};
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{CheckpointId, Generation, Step, WorkerId};
use everstep_transport::time::Time;

use super::Core;
use super::failure_detector::{Certainty, Suspicion};
use crate::state::{Command, EntryOutcome, State, WorkerPhase};

/// Workers that are to leave save again this long after a checkpoint that was not written.
const LAST_SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What is asked of the next generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GenerationRequest {
    /// It starts no step: the run is paused.
    pub(super) pause: bool,
    /// All workers are to leave: it starts no step, and no member goes before the others.
    pub(super) closing: bool,
    /// Its members save the state that it begins with.
    pub(super) save: bool,
}

impl GenerationRequest {
    /// Whether the generation starts no step, however many members it has.
    pub(super) fn rests(self) -> bool {
        self.pause || self.closing
    }
}

/// What a leader remembers of the workers that leave together.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// The leader has proposed that all members of this generation leave together.
    proposed: Option<Generation>,
    /// When a checkpoint last failed.
    save_failed: Option<Time>,
}

impl Departures {
    /// A checkpoint was not written.
    pub(super) fn save_failed(&mut self, now: Time) {
        self.save_failed = Some(now);
    }

    fn may_save(&self, now: Time) -> bool {
        self.save_failed.is_none_or(|at| now.since(at) >= LAST_SAVE_RETRY_INTERVAL)
    }
}

/// Whether the current record has enough members that stay.
fn has_enough(state: &State) -> bool {
    let leaves = |worker: &WorkerId| {
        state.workers().get(worker).is_some_and(|known| known.phase == WorkerPhase::Leaving)
    };
    // Where all members leave, one of them stays until others have copies of what it holds.
    let stay = state.members().filter(|worker| !leaves(worker)).count().max(1);
    state.run().is_some_and(|run| stay >= run.min_workers as usize)
}

impl Core {
    /// What is asked of the next generation.
    pub(super) fn asked(&self, now: Time) -> GenerationRequest {
        let closing = self.state.is_closing();
        let pause = self.state.pause().is_some();
        #[cfg(feature = "planted")]
        let pause = pause && !self.forgets_pause();
        GenerationRequest { pause, closing, save: self.asks_to_save(now, closing) }
    }

    #[cfg(feature = "planted")]
    fn forgets_pause(&self) -> bool {
        let rests = self.state.record().is_some_and(|record| record.waiting);
        rests && self.state.plant == Some(crate::plant::CorePlant::ForgetPause)
    }

    /// Whether the next generation is to save a checkpoint. One that was asked for is saved anew if
    /// members have changed since, and no step was taken. If steps go on, the leader waits until it
    /// is listed or has failed.
    fn asks_to_save(&self, now: Time, closing: bool) -> bool {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else {
            return false;
        };
        let has_begun = self.change.reached() > Step(0);
        if run.checkpoint.is_none() || !has_begun {
            return false;
        }
        let own = record.commit.as_ref().map(CheckpointId::of);
        if let Some(asked) = self.state.asked_checkpoint() {
            return record.waiting && own == Some(asked.id) && asked.generation < record.number;
        }
        // A new generation would make members that restore a checkpoint begin to read it again. A
        // run that rests at a listed step has its checkpoint.
        if self.restores().is_some() || self.state.rests_at_listed() {
            return false;
        }
        let is_over = self.is_over();
        let has_failed = |pause: &RunPause| pause.by == PausedBy::FailedCheckpoint;
        // The run also pauses if the checkpoint of its last step fails. It ends once that is saved.
        let is_open = !is_over || self.state.pause().is_some_and(has_failed);
        let is_wanted = self.state.wants_checkpoint() && is_open;
        let leaves_soon = closing && !is_over && self.departures.may_save(now);
        is_wanted || leaves_soon
    }

    /// Whether the current record is not what is asked for.
    pub(super) fn is_to_be_changed(&self, now: Time) -> bool {
        let Some(record) = self.state.record() else { return false };
        let asked = self.asked(now);
        let differs = match asked.rests() {
            true => !record.waiting,
            false => record.waiting && has_enough(&self.state),
        };
        asked.save || differs && !self.is_over()
    }

    /// An operator's word has changed what is asked for.
    pub(super) fn on_directive(&mut self, now: Time) {
        if self.change.is_steady() {
            self.begin_due_change(now);
        }
        self.conclude(now);
    }

    /// Lets all members leave together, once a checkpoint has all that they hold, and most
    /// coordinators have the lines.
    pub(super) fn propose_joint_leave(&mut self, now: Time) {
        let is_free = self.change.is_steady() && self.running();
        if !is_free || !self.state.may_leave_together() {
            return;
        }
        let generation = self.state.generation();
        if self.departures.proposed != Some(generation) && self.are_lines_copied(now) {
            self.departures.proposed = Some(generation);
            self.propose(now, Command::LeaveAll { generation });
        }
    }

    /// All members have left, as the log says. The leader lets them go. The next workers find the
    /// checkpoint.
    pub(super) fn on_joint_leave(&mut self, now: Time, verdict: &EntryOutcome) {
        if *verdict != EntryOutcome::Accepted {
            self.departures.proposed = None;
            return;
        }
        let members: Vec<WorkerId> = self.state.members().collect();
        for worker in &members {
            if let Some(link) = self.links.of_registered(*worker) {
                self.send_drained(link, *worker);
            }
        }
        for worker in members {
            let reason = LossReason::Left;
            self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Dead });
        }
    }
}
