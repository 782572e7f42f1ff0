//! Which worker writes the trained model, and why the model waits.
//!
//! The leader tells one worker to write at the beginning of each generation: the first member that
//! has a directory. After the last step another worker may take its place, because its disk fails
//! or its process is gone. Where no member has a directory, a worker beside the generation may
//! write. The leader tells no worker to stop. Each worker that it told keeps trying, and the run is
//! complete as soon as one file is durable (I22). This knowledge is the leader's own: workers tell
//! it again to the next leader.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{
    Generation, Message, ModelAwaited, ModelPlace, WorkerId, WriteFailure,
};
use everstep_transport::time::Time;

use super::workers::bounded;
use super::{Core, change};
use crate::state::Command;

/// A worker that cannot write its file for this long gives way to another worker.
const GIVE_WAY: Duration = Duration::from_secs(10);
/// How often the leader repeats its order to write, until the worker is done.
const REPEAT: Duration = Duration::from_secs(1);
/// How often the leader checks which worker writes.
const LOOK: Duration = Duration::from_millis(100);

/// What the leader knows of the model.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The worker that was told to write, the generation, and the time of the last order.
    told: Option<(WorkerId, Generation, Time)>,
    /// Workers that cannot write their files.
    failing: BTreeMap<WorkerId, Failing>,
    /// Since when the trained run has no worker that could write.
    nobody_since: Option<Time>,
    /// Whether an event has said that no worker has a directory.
    nobody_is_noted: bool,
    durable: Option<ModelPlace>,
    /// When the leader last checked which worker writes.
    looked_at: Time,
}

#[derive(Debug)]
struct Failing {
    since: Time,
    reason: String,
}

impl Model {
    /// A generation begins. A durable model stays valid only if the generation begins after the
    /// last step.
    pub(super) fn renew(&mut self, is_last: bool) {
        self.durable.take_if(|_| !is_last);
        self.looked_at = Time(0);
    }

    /// The place of the durable model. `None` until the model is durable.
    pub(super) fn durable(&self) -> Option<&ModelPlace> {
        self.durable.as_ref()
    }
}

impl Core {
    /// Makes sure that a worker writes the model, or that an event says why none does.
    pub(super) fn see_to_model(&mut self, now: Time) {
        let is_steady = matches!(self.phase, change::Phase::Steady | change::Phase::Holding(_));
        if !is_steady || !self.running() || self.model.durable.is_some() {
            return;
        }
        let is_due = self.model.looked_at == Time(0) || now.since(self.model.looked_at) >= LOOK;
        if self.state.record().is_none() || !is_due {
            return;
        }
        self.model.looked_at = now;
        let over = self.is_over();
        if !over && self.is_told(self.state.generation()) {
            return;
        }
        let Some(writer) = self.writer(now, over) else { return self.miss_writer(now, over) };
        self.model.nobody_since = None;
        let generation = self.state.generation();
        let is_due = match self.model.told {
            Some((told, of, at)) => {
                (told, of) != (writer, generation) || over && now.since(at) >= REPEAT
            }
            None => true,
        };
        if is_due {
            self.model.told = Some((writer, generation, now));
            self.tell_to_write(writer, generation);
        }
    }

    /// Whether a worker that has a link was told to write in this generation.
    fn is_told(&self, generation: Generation) -> bool {
        let Some((worker, of, _)) = self.model.told else { return false };
        of == generation && self.links.of_registered(worker).is_some()
    }

    /// The workers that have a directory and a link: members in rank order, and after the last step
    /// every other worker.
    fn writers(&self, over: bool) -> Vec<WorkerId> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let members: Vec<WorkerId> = members.map(|member| member.worker).collect();
        let beside = self.state.present().map(|(worker, _)| worker);
        let beside = beside.filter(|worker| over && !members.contains(worker));
        let all = members.iter().copied().chain(beside);
        all.filter(|worker| self.place_of(*worker).is_some())
            .filter(|worker| self.links.of_registered(*worker).is_some())
            .filter(|worker| !self.silence.is_suspected(*worker))
            .collect()
    }

    /// The worker that was told to write, unless its file fails for long and another place is free.
    fn writer(&self, now: Time, over: bool) -> Option<WorkerId> {
        let writers = self.writers(over);
        let failing = self.model.failing.iter();
        let failing = failing.filter(|(_, failing)| now.since(failing.since) >= GIVE_WAY);
        let failing: BTreeSet<WorkerId> = failing.map(|(worker, _)| *worker).collect();
        let places: Vec<_> = failing.iter().map(|worker| self.place_of(*worker)).collect();
        let is_sound = |worker: &WorkerId| !places.contains(&self.place_of(*worker));
        let told = self.model.told.map(|(worker, ..)| worker);
        let told = told.filter(|worker| writers.contains(worker));
        let sound = told.filter(is_sound).or_else(|| writers.iter().copied().find(is_sound));
        sound.or(told).or_else(|| writers.first().copied())
    }

    fn place_of(&self, worker: WorkerId) -> Option<&ModelPlace> {
        self.state.workers().get(&worker)?.registration.model.as_ref()
    }

    /// Tells a worker to write. The members let in a worker that is no member first.
    fn tell_to_write(&mut self, worker: WorkerId, generation: Generation) {
        let (Some(term), Some(link)) = (self.leader(), self.links.of_registered(worker)) else {
            return;
        };
        if !self.state.is_member(worker) {
            self.say_feed(worker);
        }
        self.send(link, Message::Write { term, generation });
    }

    /// No worker can write. If no worker has a directory at all, an event says so once.
    fn miss_writer(&mut self, now: Time, over: bool) {
        if over {
            self.model.nobody_since.get_or_insert(now);
        }
        let has_place = |worker: WorkerId| self.place_of(worker).is_some();
        let nobody = !self.state.present().any(|(worker, _)| has_place(worker));
        if nobody && !self.model.nobody_is_noted {
            self.model.nobody_is_noted = true;
            self.note(now, EventKind::NoStore);
        }
    }

    /// A worker says whether it can write its file.
    pub(super) fn hear_of_file(&mut self, now: Time, worker: WorkerId, error: Option<String>) {
        let Some(reason) = error else {
            self.model.failing.remove(&worker);
            return;
        };
        let reason = bounded(&reason);
        if let Some(failing) = self.model.failing.get_mut(&worker) {
            failing.reason = reason;
            return;
        }
        let Some(place) = self.place_of(worker).cloned() else { return };
        let failing = Failing { since: now, reason: reason.clone() };
        self.model.failing.insert(worker, failing);
        let failure = WriteFailure { worker, number: self.number_of(worker), place, reason };
        self.note(now, EventKind::Unwritten { failure });
    }

    /// A worker's file is durable.
    pub(super) fn written_by(&mut self, now: Time, worker: WorkerId, place: ModelPlace) {
        if self.place_of(worker) == Some(&place) {
            self.model.durable = Some(place);
            self.conclude(now);
        } else {
            self.ignored += 1;
        }
    }

    /// Whether the model is durable: only then is a run complete (I22).
    pub(super) fn is_durable(&self) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::Plant::FinishUnwritten) {
            return true;
        }
        self.model.durable.is_some()
    }

    /// Why the model of a trained run waits.
    pub(super) fn model_awaited(&self) -> Option<ModelAwaited> {
        if !self.running() || !self.is_over() || self.model.durable.is_some() {
            return None;
        }
        if let Some(since) = self.model.nobody_since {
            return Some(ModelAwaited { failed: None, since_unix_ms: self.unix_ms(since) });
        }
        let (writer, ..) = self.model.told?;
        let Failing { since, reason } = self.model.failing.get(&writer)?;
        let (worker, place, reason) = (writer, self.place_of(writer)?.clone(), reason.clone());
        let failed = Some(WriteFailure { worker, number: self.number_of(worker), place, reason });
        Some(ModelAwaited { failed, since_unix_ms: self.unix_ms(*since) })
    }

    fn number_of(&self, worker: WorkerId) -> u32 {
        self.state.label(worker).map_or(0, |label| label.number)
    }

    /// Brings an event of the run into the log.
    pub(super) fn note(&mut self, now: Time, kind: EventKind) {
        let run = self.state.run_id();
        self.propose(now, Command::Note { run, kind });
    }
}
