//! What operators ask of the run under way besides its members: to pause, to go on, and to save a
//! checkpoint. A checkpoint that was not written may ask for a pause, too.
//!
//! The state keeps what was asked for, and the leader plans generations accordingly. A pause is in
//! force with the first generation that starts no step. A checkpoint that was asked for is under
//! way from the generation that saves it until it is listed or has failed. This module does not
//! know how a generation is planned.

use everstep_transport::protocol::outcome::{EventKind, PausedBy, RunPause};
use everstep_transport::protocol::reason::{PauseReason, UnsavedReason};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CheckpointId, Generation, OnFailure, Record, RunId, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// What the run is asked for.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Directives {
    /// Why the run is paused, if it is.
    pub(super) pause: Option<RunPause>,
    /// What asks for a checkpoint, until a generation saves it.
    pub(super) save: SaveRequests,
    /// The checkpoint that a generation was asked to save, until it is listed or has failed.
    pub(super) saving: Option<AskedCheckpoint>,
}

/// What asks for a checkpoint.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SaveRequests {
    /// Whether an operator asks for a checkpoint.
    pub(super) by_operator: bool,
    /// The pause does. A run that goes on needs it no more.
    pub(super) by_pause: bool,
}

/// A checkpoint that was asked for.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedCheckpoint {
    /// The checkpoint of the requested state.
    pub id: CheckpointId,
    /// The newest generation that was asked to save it.
    pub generation: Generation,
}

impl State {
    /// Why the run is paused, if it is.
    pub fn pause(&self) -> Option<&RunPause> {
        self.runs.directives.pause.as_ref()
    }

    /// Whether a checkpoint is asked for that no generation saves yet.
    pub fn wants_checkpoint(&self) -> bool {
        let SaveRequests { by_operator, by_pause } = self.runs.directives.save;
        by_operator || by_pause
    }

    /// The checkpoint that a generation was asked to save, until it is listed or has failed.
    pub fn asked_checkpoint(&self) -> Option<AskedCheckpoint> {
        self.runs.directives.saving
    }

    /// Checks that a run goes on, and that it is this one.
    fn must_train(&self, run: RunId) -> Result<(), Rejection> {
        self.runs.must_run()?;
        if self.run().is_none() {
            return Err(Rejection::NoRun);
        }
        self.runs.must_be(run)
    }

    /// An operator asks that the run pause. A run that keeps checkpoints saves one then.
    pub(super) fn pause_run(
        &mut self,
        unix_ms: u64,
        run: RunId,
    ) -> Result<EntryOutcome, Rejection> {
        self.must_train(run)?;
        if let Some(pause) = self.pause() {
            return Err(Rejection::Paused(pause.clone()));
        }
        let saves = self.run().is_some_and(|run| run.checkpoint.is_some());
        self.begin_pause(unix_ms, PausedBy::Operator, PauseReason::Asked);
        self.runs.directives.save.by_pause = saves;
        self.meet_request(unix_ms);
        Ok(EntryOutcome::Accepted)
    }

    fn begin_pause(&mut self, unix_ms: u64, by: PausedBy, reason: PauseReason) {
        let in_force = self.record().is_some_and(|record| record.waiting);
        let since_unix_ms = unix_ms;
        self.events.note(unix_ms, EventKind::Paused { by, reason: reason.clone() });
        self.runs.directives.pause = Some(RunPause { by, reason, since_unix_ms, in_force });
    }

    /// An operator lets the run go on.
    pub(super) fn resume_run(
        &mut self,
        unix_ms: u64,
        run: RunId,
    ) -> Result<EntryOutcome, Rejection> {
        self.must_train(run)?;
        if self.runs.directives.pause.take().is_none() {
            return Err(Rejection::NotPaused);
        }
        self.runs.directives.save.by_pause = false;
        self.events.note(unix_ms, EventKind::Resumed);
        Ok(EntryOutcome::Accepted)
    }

    /// An operator asks for a checkpoint.
    pub(super) fn ask_for_checkpoint(
        &mut self,
        unix_ms: u64,
        run: RunId,
    ) -> Result<EntryOutcome, Rejection> {
        self.must_train(run)?;
        if self.run().is_some_and(|run| run.checkpoint.is_none()) {
            return Err(Rejection::NoCheckpoints);
        }
        let rests = self.pause().is_some_and(|pause| pause.in_force);
        if rests && self.record().is_some_and(|record| record.resume == Step(0)) {
            return Err(Rejection::NothingToSave);
        }
        self.runs.directives.save.by_operator = true;
        self.meet_request(unix_ms);
        Ok(EntryOutcome::Accepted)
    }

    /// A generation begins: a pause may be in force with it, and its members may save a checkpoint.
    pub(super) fn direct(&mut self, unix_ms: u64, record: &Record) {
        if let Some(pause) = &mut self.runs.directives.pause {
            pause.in_force = record.waiting;
        }
        self.drop_undone_request(unix_ms);
        let id = record.commit.as_ref().map(CheckpointId::of).filter(|_| record.saves());
        let Some(id) = id else { return self.meet_request(unix_ms) };
        let is_news = self.wants_checkpoint();
        let directives = &mut self.runs.directives;
        let is_same = directives.saving.is_some_and(|asked| asked.id == id);
        directives.save = SaveRequests::default();
        directives.saving = Some(AskedCheckpoint { id, generation: record.number });
        if is_news || !is_same {
            self.events.note(unix_ms, EventKind::CheckpointRequested { step: id.step });
        }
        if self.checkpoints.find_whole(id).is_some() {
            self.runs.directives.saving = None;
        }
    }

    /// A run that rests may have the checkpoint already that is asked for.
    fn meet_request(&mut self, unix_ms: u64) {
        let Some(record) = self.record().filter(|record| record.waiting) else { return };
        let step = record.resume;
        if step > Step(0) && self.wants_checkpoint() && self.is_saved() {
            self.runs.directives.save = SaveRequests::default();
            self.events.note(unix_ms, EventKind::CheckpointRequested { step });
        }
    }

    /// A rollback undoes the step of the checkpoint that was asked for.
    fn drop_undone_request(&mut self, unix_ms: u64) {
        let asked = self.runs.directives.saving;
        if let Some(asked) = asked.filter(|asked| !self.is_of_history(asked.id)) {
            self.runs.directives.saving = None;
            let (step, reason) = (asked.id.step, UnsavedReason::WentBack);
            self.events.note(unix_ms, EventKind::CheckpointFailed { step, reason });
        }
    }

    /// A checkpoint is listed.
    pub(super) fn end_request(&mut self, id: CheckpointId) {
        self.runs.directives.saving.take_if(|asked| asked.id == id);
    }

    /// An event has told of something. A checkpoint that was not written is under way no more, and
    /// the run may ask for a pause then.
    pub(super) fn follow_event(&mut self, unix_ms: u64, kind: &EventKind) {
        let EventKind::CheckpointFailed { step, reason } = kind else { return };
        self.runs.directives.saving.take_if(|asked| asked.id.step == *step);
        let spec = self.run().and_then(|run| run.checkpoint.as_ref());
        let pauses = spec.is_some_and(|spec| spec.on_failure == OnFailure::Pause);
        if pauses && self.pause().is_none() {
            let reason = PauseReason::Unsaved { step: *step, reason: reason.clone() };
            self.begin_pause(unix_ms, PausedBy::FailedCheckpoint, reason);
        }
    }
}
