//! What operators ask of the run under way besides its members: to pause, to go on, and to save a
//! checkpoint. A checkpoint that was not written may ask for a pause, too.
//!
//! The state keeps what was asked for, and the leader plans generations accordingly. A pause is in
//! force with the first generation that starts no step. A checkpoint that was asked for is under
//! way from the generation that saves it (`checkpoint_progress.rs`). This module does not know how
//! a generation is planned.

use everstep_transport::protocol::outcome::{EventKind, PausedBy, RunPause};
use everstep_transport::protocol::reason::PauseReason;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Record, RunId, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// What the run is asked for.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Directives {
    /// Why the run is paused, if it is.
    pub(super) pause: Option<RunPause>,
    /// What asks for a checkpoint, until a generation saves it.
    pub(super) save: SaveRequests,
}

/// What asks for a checkpoint.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SaveRequests {
    /// Whether an operator asks for a checkpoint.
    pub(super) by_operator: bool,
    /// The pause does. A run that goes on needs it no more.
    pub(super) by_pause: bool,
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

    pub(super) fn begin_pause(&mut self, unix_ms: u64, by: PausedBy, reason: PauseReason) {
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
        if self.rests_at_listed() && !self.is_saved() {
            let step = self.record().map_or(Step(0), |record| record.resume);
            return Err(Rejection::CheckpointDamaged(step));
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
        self.drop_undone_checkpoints(unix_ms);
        if record.saves() && record.commit.is_some() {
            let is_news = self.wants_checkpoint();
            self.runs.directives.save = SaveRequests::default();
            self.begin_saving(unix_ms, record, is_news);
        } else {
            self.meet_request(unix_ms);
        }
    }

    /// A run that rests may have the checkpoint already that is asked for.
    pub(super) fn meet_request(&mut self, unix_ms: u64) {
        let Some(record) = self.record().filter(|record| record.waiting) else { return };
        let step = record.resume;
        if step > Step(0) && self.wants_checkpoint() && self.is_saved() {
            self.runs.directives.save = SaveRequests::default();
            self.events.note(unix_ms, EventKind::CheckpointRequested { step });
        }
    }
}
