//! Which worker writes the trained model, and why the model waits.
//!
//! The leader tells one worker to write at the beginning of each generation: the first member that
//! has a directory. After the last step another worker may take its place, because its disk fails
//! or its process is gone. Where no member has a directory, a worker beside the generation may
//! write. The leader tells no worker to stop. Each worker that it told keeps trying, and the run is
//! complete as soon as one file is durable (I22). This knowledge is the leader's own: workers tell
//! it again to the next leader.
//!
//! If the run has a store of checkpoints, the writer copies its file there, and the run is complete
//! when the store has the model. Any worker can write it then, with a directory or without. A store
//! that is away keeps the run from its end. A run that goes on without checkpoints is content with
//! the writer's file after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{
    CheckpointSpec, Generation, Message, ModelAwaited, ModelPlace, Step, WorkerId, WriteFailure,
};
use everstep_transport::time::Time;

use super::Core;
use super::checkpoints::goes_on_without_checkpoints;
use super::roster::Roster;
use super::workers::bounded;
use crate::state::State;

/// A worker that cannot write its file for this long gives way to another worker.
const MODEL_WRITER_REPLACED_AFTER: Duration = Duration::from_secs(10);
/// How often the leader repeats its order to write, until the worker is done.
const MODEL_WRITE_REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the leader checks which worker writes.
const MODEL_WRITER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What the leader knows of the model.
#[derive(Debug, Default)]
pub(super) struct ModelWriting {
    /// The worker that was told to write, the generation, and the time of the last order.
    told: Option<(WorkerId, Generation, Time)>,
    /// Workers that cannot write their files.
    failing: BTreeMap<WorkerId, Failing>,
    /// Since when the trained run has no worker that could write.
    no_writer_since: Option<Time>,
    /// Whether an event has said that no worker has a directory.
    no_place_is_noted: bool,
    /// The place of a file on a worker's machine.
    durable: Option<ModelPlace>,
    /// The place in the run's store.
    stored: Option<ModelPlace>,
    /// When the leader last checked which worker writes.
    checked_at: Time,
}

#[derive(Debug)]
struct Failing {
    since: Time,
    reason: String,
}

impl ModelWriting {
    /// A generation begins. A durable model stays valid only if the generation begins after the
    /// last step.
    pub(super) fn renew(&mut self, is_last: bool) {
        self.durable.take_if(|_| !is_last);
        self.stored.take_if(|_| !is_last);
        self.checked_at = Time(0);
    }

    /// The place of the durable model: in the run's store if it is there. `None` until the model is
    /// durable.
    pub(super) fn place(&self) -> Option<&ModelPlace> {
        self.stored.as_ref().or(self.durable.as_ref())
    }

    /// Whether the model is where the run wants it.
    fn is_in_place(&self, has_store: bool) -> bool {
        self.stored.is_some() || !has_store && self.durable.is_some()
    }

    /// The worker that was told to write last.
    fn told_worker(&self) -> Option<WorkerId> {
        self.told.map(|(worker, ..)| worker)
    }

    /// Checks now and then whether a worker is to be told to write. `over` says whether the last
    /// step is committed. The store has failed some workers for long.
    fn check(
        &mut self,
        roster: Roster<'_>,
        over: bool,
        failed: &BTreeSet<WorkerId>,
    ) -> Option<ModelOrder> {
        let (now, state) = (roster.now, roster.state);
        let is_due =
            self.checked_at == Time(0) || now.since(self.checked_at) >= MODEL_WRITER_CHECK_INTERVAL;
        if self.is_in_place(roster.has_store()) || state.record().is_none() || !is_due {
            return None;
        }
        self.checked_at = now;
        let generation = state.generation();
        if !over && self.is_told(roster, generation) {
            return None;
        }
        let Some(writer) = self.writer(roster, over, failed) else {
            return self.miss_writer(roster, over);
        };
        self.no_writer_since = None;
        let is_due = match self.told {
            Some((told, of, at)) => {
                (told, of) != (writer, generation)
                    || over && now.since(at) >= MODEL_WRITE_REPEAT_INTERVAL
            }
            None => true,
        };
        is_due.then(|| {
            self.told = Some((writer, generation, now));
            ModelOrder::Write(writer)
        })
    }

    /// Whether a worker that has a link was told to write in this generation.
    fn is_told(&self, roster: Roster<'_>, generation: Generation) -> bool {
        let Some((worker, of, _)) = self.told else { return false };
        of == generation && roster.is_linked(worker)
    }

    /// The worker that was told to write, unless its file or the store fails it for long and
    /// another worker may do better.
    fn writer(
        &self,
        roster: Roster<'_>,
        over: bool,
        failed: &BTreeSet<WorkerId>,
    ) -> Option<WorkerId> {
        let writers = roster.writers(over);
        let is_old =
            |failing: &Failing| roster.now.since(failing.since) >= MODEL_WRITER_REPLACED_AFTER;
        let failing = self.failing.iter().filter(|(_, failing)| is_old(failing));
        let failing: Vec<WorkerId> = failing.map(|(worker, _)| *worker).collect();
        let shares_place = |worker: &WorkerId| {
            let place = roster.place_of(*worker);
            failing.iter().any(|other| place.is_some() && roster.place_of(*other) == place)
        };
        let is_sound = |worker: &WorkerId| {
            !failing.contains(worker) && !failed.contains(worker) && !shares_place(worker)
        };
        let told = self.told_worker().filter(|worker| writers.contains(worker));
        let sound = told.filter(is_sound).or_else(|| writers.iter().copied().find(is_sound));
        sound.or(told).or_else(|| writers.first().copied())
    }

    /// No worker can write. If no worker has a directory at all, an event says so once.
    fn miss_writer(&mut self, roster: Roster<'_>, over: bool) -> Option<ModelOrder> {
        if over {
            self.no_writer_since.get_or_insert(roster.now);
        }
        let has_place = |worker: WorkerId| roster.place_of(worker).is_some();
        let no_place =
            !roster.has_store() && !roster.state.present().any(|(worker, _)| has_place(worker));
        let is_news = no_place && !self.no_place_is_noted;
        self.no_place_is_noted |= no_place;
        is_news.then_some(ModelOrder::NoteNoStore)
    }

    /// A worker says whether it can write its file. Returns a failure that is news.
    fn on_file_status(
        &mut self,
        roster: Roster<'_>,
        worker: WorkerId,
        error: Option<String>,
    ) -> Option<WriteFailure> {
        let Some(reason) = error else {
            self.failing.remove(&worker);
            return None;
        };
        let reason = bounded(&reason);
        if let Some(failing) = self.failing.get_mut(&worker) {
            failing.reason = reason;
            return None;
        }
        let failure = write_failure(roster.state, worker, &reason)?;
        self.failing.insert(worker, Failing { since: roster.now, reason });
        Some(failure)
    }

    /// Why the model of a trained run waits, and since when.
    fn awaited(&self, state: &State) -> Option<(Option<WriteFailure>, Time)> {
        if self.place().is_some() {
            return None;
        }
        if let Some(since) = self.no_writer_since {
            return Some((None, since));
        }
        let (writer, ..) = self.told?;
        let Failing { since, reason } = self.failing.get(&writer)?;
        Some((Some(write_failure(state, writer, reason)?), *since))
    }
}

/// What the leader does about the model.
enum ModelOrder {
    /// It tells this worker to write.
    Write(WorkerId),
    /// It has an event say that no worker has a directory.
    NoteNoStore,
}

/// A worker cannot write its file. `None` for a worker that has nowhere to write.
fn write_failure(state: &State, worker: WorkerId, reason: &str) -> Option<WriteFailure> {
    let store = || state.run()?.checkpoint.as_ref().map(CheckpointSpec::model_path);
    let in_store = || Some(ModelPlace { host: String::new(), path: store()? });
    let place = state.place_of(worker).cloned().or_else(in_store)?;
    let number = state.label(worker).map_or(0, |label| label.number);
    Some(WriteFailure { worker, number, place, reason: reason.to_string() })
}

impl Core {
    /// Makes sure that a worker writes the model, or that an event says why none does.
    pub(super) fn see_to_model(&mut self, now: Time) {
        if !self.change.is_free() || !self.running() {
            return;
        }
        let over = self.is_over();
        let failed = self.checkpoints.failing_for(MODEL_WRITER_REPLACED_AFTER);
        let Self { completion, state, links, health, .. } = self;
        let roster = health.roster(now, state, links);
        match completion.model.check(roster, over, &failed) {
            Some(ModelOrder::Write(worker)) => self.send_write(now, worker),
            Some(ModelOrder::NoteNoStore) => self.note(now, EventKind::NoStore),
            None => {}
        }
        if over && self.gives_store_up(now) {
            self.conclude(now);
        }
    }

    /// Whether the model is durable where the run wants it: only then is a run complete (I22).
    pub(super) fn is_model_durable(&self, now: Time) -> bool {
        let has_store = self.state.run().is_some_and(|run| run.checkpoint.is_some());
        #[cfg(feature = "planted")]
        let has_store =
            has_store && self.state.plant != Some(crate::plant::CorePlant::FinishUnstored);
        self.completion.model.is_in_place(has_store) || self.gives_store_up(now)
    }

    /// Whether the run ends with the writer's file alone: its store has been away for long, and the
    /// run goes on without checkpoints.
    fn gives_store_up(&self, now: Time) -> bool {
        let model = &self.completion.model;
        let goes_on = self.state.run().is_some_and(goes_on_without_checkpoints);
        goes_on
            && model.durable.is_some()
            && model
                .told_worker()
                .is_some_and(|writer| self.checkpoints.without_store(now).contains(&writer))
    }

    /// Whether the run has nothing left to do but to put its model into the store.
    pub(super) fn awaits_stored_model(&self) -> bool {
        let has_store = self.state.run().is_some_and(|run| run.checkpoint.is_some());
        self.is_over() && has_store && self.completion.model.stored.is_none()
    }

    /// Tells a worker to write. The members let in a worker that is no member first.
    fn send_write(&mut self, now: Time, worker: WorkerId) {
        let (Some(term), Some(link)) = (self.leader(), self.links.of_registered(worker)) else {
            return;
        };
        if !self.state.is_member(worker) {
            self.send_feed(now, worker);
        }
        let generation = self.state.generation();
        self.outbox.send(link, Message::Write { term, generation });
    }

    /// A worker says whether it can write its file.
    pub(super) fn on_file_status(&mut self, now: Time, worker: WorkerId, error: Option<String>) {
        let Self { completion, state, links, health, .. } = self;
        let roster = health.roster(now, state, links);
        if let Some(failure) = completion.model.on_file_status(roster, worker, error) {
            self.note(now, EventKind::Unwritten { failure });
        }
    }

    /// A worker's file is durable.
    pub(super) fn written_by(&mut self, now: Time, worker: WorkerId, place: ModelPlace) {
        if self.state.place_of(worker) == Some(&place) {
            self.completion.model.durable = Some(place);
            self.conclude(now);
        } else {
            self.links.ignore();
        }
    }

    /// The model is durable in the run's store, as this worker says.
    pub(super) fn stored_by(&mut self, now: Time, worker: WorkerId, place: ModelPlace) {
        let run = self.state.run();
        let spec = run.and_then(|run| run.checkpoint.as_ref());
        let is_own = spec.is_some_and(|spec| spec.model_path() == place.path);
        // A new leader may not have heard of the last commit, but has its line.
        let is_trained = run.is_some_and(|run| self.written() >= Step(run.steps));
        let is_over = is_trained || self.is_over();
        if is_own && place.is_valid() && self.state.is_present(worker) && is_over {
            self.completion.model.stored = Some(place);
            self.conclude(now);
        } else {
            self.links.ignore();
        }
    }

    /// Why the model of a trained run waits.
    pub(super) fn model_awaited(&self) -> Option<ModelAwaited> {
        if !self.running() || !self.is_over() {
            return None;
        }
        let (failed, since) = self.completion.model.awaited(&self.state)?;
        Some(ModelAwaited { failed, since_unix_ms: self.unix_ms(since) })
    }
}
