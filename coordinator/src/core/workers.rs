//! Links that come and go, and the messages of workers on them.

use std::net::SocketAddr;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::reason::{FailReason, LinkEnd, LossReason, UnableCause};
use everstep_transport::protocol::{Message, NodeName, WorkerId};
use everstep_transport::time::Time;

use super::failure_detector::{Certainty, Suspicion, WORKER_SUSPECT_AFTER};
use super::links::{Link, PeerPhase};
use super::{Core, LinkId, Parts};
use crate::state::{Command, EntryOutcome, WorkerPhase};

/// The most characters of a peer's words that become history.
const MAX_REASON: usize = 1_000;

/// As much of a peer's words as may become history, with control characters escaped for terminals.
pub(super) fn bounded(words: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    words.chars().take(MAX_REASON).map(shown).collect()
}

/// The reason of a worker that cannot go on.
struct WorkerFailure {
    at_fault: Option<WorkerId>,
    fatal: bool,
    words: String,
}

// Links.
impl Core {
    /// A worker's newer link replaces an older one: the old end may be dead without a goodbye. This
    /// alone makes the worker no suspect: it may be about to say which worker it is.
    pub(super) fn connected(
        &mut self,
        link: LinkId,
        identity: Identity,
        address: Option<SocketAddr>,
    ) {
        let older = (identity.role == Role::Worker).then(|| self.links.of_worker(&identity.name));
        if let Some(older) = older.flatten() {
            self.outbox.close(older, "a newer link of the same node replaced it");
            self.links.remove(older);
        }
        if let Some(worker) = self.state.on_node(&identity.name) {
            self.health.returned(worker);
        }
        let is_coordinator = identity.role == Role::Coordinator;
        self.links.insert(link, identity, address);
        if is_coordinator {
            self.announce_lines(vec![link]);
        }
    }

    /// A worker that is no member may come back in time. A member is missed at once.
    pub(super) fn disconnected(&mut self, now: Time, link: LinkId, mut end: LinkEnd) {
        self.clients.forget(link);
        self.leadership.confirmations.forget(link);
        self.lines.on_lost_link(link);
        let name = self.links.find(link).map(|link| link.identity.name.clone());
        name.iter().for_each(|name| self.completion.unable.forget_place(name));
        let certainty = match end {
            LinkEnd::Goodbye(_) | LinkEnd::SaidAll => Certainty::Dead,
            #[cfg(feature = "planted")]
            LinkEnd::Refused
                if self.state.plant == Some(crate::plant::CorePlant::RefusalIsProof) =>
            {
                Certainty::Dead
            }
            LinkEnd::Refused => Certainty::Refused,
            _ => Certainty::Silent,
        };
        let gone = certainty != Certainty::Silent;
        if let Some(words) = end.words_mut() {
            *words = bounded(words);
        }
        let suspicion = Suspicion { reason: LossReason::LinkClosed(end), certainty };
        match self.links.remove(link) {
            // A worker that fell silent before its link timed out is judged by its silence.
            Some(PeerPhase::Registered(worker))
                if !gone && self.health.detector.is_silent(now, worker) => {}
            Some(PeerPhase::Registered(worker)) if gone || self.state.is_member(worker) => {
                self.suspect(now, worker, suspicion);
            }
            Some(_) if gone && self.leader().is_none() => self.note_departure(name, suspicion),
            _ => {}
        }
    }

    /// Notes the end of a process. The leader has noticed it, too, unless the leader is gone as
    /// well.
    fn note_departure(&mut self, name: Option<NodeName>, suspicion: Suspicion) {
        let worker = name.and_then(|name| self.state.on_node(&name));
        self.health.note_departure(worker, suspicion, |worker| self.state.is_present(worker));
    }

    /// Suspects, as a new leader, the workers that ended while this coordinator followed.
    pub(super) fn suspect_departed(&mut self, now: Time) {
        for (worker, suspicion) in self.health.take_departed() {
            if self.state.is_present(worker) {
                self.suspect(now, worker, suspicion);
            }
        }
    }

    pub(super) fn on_message(&mut self, now: Time, from: LinkId, message: Message) {
        let phase = self.links.find(from).map(|link| link.phase);
        match (phase, message) {
            (Some(PeerPhase::Operator), message) => self.on_operator_message(now, from, message),
            (Some(PeerPhase::Coordinator), message) => {
                self.on_coordinator_message(now, from, message)
            }
            // However far the worker has come here, it knows best which worker it is: another
            // leader may have given it an id since, or have evicted it.
            (Some(_), Message::Hello { worker }) => self.on_hello(now, from, worker),
            (
                Some(
                    PeerPhase::Welcomed
                    | PeerPhase::Registering(_)
                    | PeerPhase::Registered(_)
                    | PeerPhase::Unable,
                ),
                Message::Register(registration),
            ) => self.register(now, from, registration),
            (
                Some(PeerPhase::Welcomed | PeerPhase::Registering(_) | PeerPhase::Unable),
                Message::Unable { inability, reason },
            ) => {
                let cause = UnableCause::Words(bounded(&reason));
                self.cannot_build(now, from, inability, cause);
            }
            (Some(PeerPhase::Registered(worker)), message) => {
                self.on_worker_message(now, from, worker, message)
            }
            (Some(PeerPhase::Left(worker)), Message::Saved(part)) => self.saved(now, worker, part),
            (Some(PeerPhase::Left(worker)), Message::Unsaved { id, reason }) => {
                self.unsaved(now, worker, id, reason);
            }
            (
                Some(PeerPhase::Evicted(worker) | PeerPhase::Left(worker)),
                Message::Failed { at_fault, fatal: true, reason },
            ) => {
                let failure = WorkerFailure { at_fault, fatal: true, words: bounded(&reason) };
                self.failed(now, worker, failure);
            }
            // Its run is over, or has long forgotten it.
            (Some(PeerPhase::Connected), Message::Failed { fatal: true, .. })
                if self.leader().is_some() =>
            {
                self.links.ignore();
                self.release(from, Message::Dismiss);
            }
            _ => self.links.ignore(),
        }
    }
}

// Which workers are heard.
impl Core {
    /// How many of the run's workers have a link with this coordinator.
    pub(crate) fn linked_workers(&self) -> u32 {
        let is_of_run = |phase| match phase {
            PeerPhase::Greeted(Some(worker)) | PeerPhase::Registered(worker) => {
                self.state.is_present(worker)
            }
            _ => false,
        };
        self.workers_in(is_of_run).len() as u32
    }

    /// Whether this coordinator leads, a run goes on, and it hears none of the run's workers.
    pub(crate) fn hears_no_worker(&self, now: Time) -> bool {
        let mut present = self.state.present().map(|(worker, _)| worker).peekable();
        self.leader().is_some()
            && self.running()
            && present.peek().is_some()
            && present
                .all(|worker| self.health.detector.unheard(now, worker) >= WORKER_SUSPECT_AFTER)
    }
}

// How a worker comes in.
impl Core {
    fn on_hello(&mut self, now: Time, from: LinkId, worker: Option<WorkerId>) {
        self.leadership.confirmations.withdraw(from);
        self.links.enter(from, PeerPhase::Greeted(worker));
        self.introduce(from);
        if self.leader().is_some() {
            self.answer_hello(now, from);
        }
    }

    /// Answers all workers that have said Hello, and had no answer yet.
    pub(super) fn receive_waiting(&mut self, now: Time) {
        for link in self.workers_in(|phase| matches!(phase, PeerPhase::Greeted(_))) {
            self.answer_hello(now, link);
        }
    }

    fn answer_hello(&mut self, now: Time, link: LinkId) {
        if let Some(PeerPhase::Greeted(worker)) = self.links.find(link).map(|link| link.phase) {
            self.receive(now, link, worker, false);
        }
    }

    /// Answers a Hello. It says what it cannot take back only if it is `certain` that this
    /// coordinator leads.
    pub(super) fn receive(
        &mut self,
        now: Time,
        link: LinkId,
        worker: Option<WorkerId>,
        certain: bool,
    ) {
        #[cfg(feature = "planted")]
        let certain =
            certain || self.state.plant == Some(crate::plant::CorePlant::EvictUnconfirmed);
        let lasting = !self.state.is_ephemeral();
        match worker {
            None if self.running() => self.welcome(link),
            None if lasting => {} // the worker waits for the next run
            Some(worker) if self.running() && self.is_present(link, worker) => {
                self.admit(now, link, worker);
            }
            _ if !certain => self.leadership.confirm_word(link, &mut self.outbox),
            Some(_) if lasting && !self.running() => self.set_free(link),
            _ if !self.running() => self.release(link, Message::Dismiss),
            Some(worker) if self.has_left(link, worker) => {
                // The worker has left, and only did not hear of it.
                self.send_drained(link, worker);
            }
            Some(worker) => self.evict(link, worker),
            None => {}
        }
    }

    fn is_present(&self, link: LinkId, worker: WorkerId) -> bool {
        self.phase_of(link, worker).is_some_and(WorkerPhase::is_present)
            && !self.state.has_departed(worker)
    }

    fn has_left(&self, link: LinkId, worker: WorkerId) -> bool {
        let phase = self.phase_of(link, worker);
        phase == Some(WorkerPhase::Left) || phase.is_some() && self.state.has_departed(worker)
    }

    /// The phase of the worker that the peer says to be, if that worker is on the peer's node.
    fn phase_of(&self, link: LinkId, worker: WorkerId) -> Option<WorkerPhase> {
        let name = self.links.find(link).map(|link| &link.identity.name);
        let known = self.state.workers().get(&worker).filter(|known| name == Some(&known.name));
        known.map(|known| known.phase)
    }

    /// Tells the worker the run, once there is one.
    fn welcome(&mut self, link: LinkId) {
        if let (Some(run), Some(term)) = (self.state.run().cloned(), self.leader()) {
            self.links.enter(link, PeerPhase::Welcomed);
            self.outbox.send(link, Message::Welcome { run, term });
        }
    }

    /// The worker is registered, and this is its link from now on.
    fn admit(&mut self, now: Time, link: LinkId, worker: WorkerId) {
        let Some(term) = self.leader() else { return };
        let heard = self.health.detector.revive(now, worker);
        self.links.enter(link, PeerPhase::Registered(worker));
        self.outbox.send(link, Message::Registered { worker, term });
        self.replace_predecessors(now, worker);
        self.on_sign_of_life(now, heard);
        if self.state.present().count() == 1 {
            self.free_turned_away();
        }
        self.catch_up(now, link, worker);
    }

    /// Evicts a worker: its state is void. It may say Hello again, without an id.
    pub(super) fn evict(&mut self, link: LinkId, worker: WorkerId) {
        let name = self.links.find(link).map(|link| &link.identity.name);
        let known = self.state.workers().get(&worker).map(|known| &known.name);
        let is_known = known.is_some() && known == name;
        let phase = if is_known { PeerPhase::Evicted(worker) } else { PeerPhase::Connected };
        self.links.enter(link, phase);
        self.outbox.send(link, Message::Evicted { worker });
    }

    /// Proposes a registration. Another incarnation of the same worker is gone.
    fn register(&mut self, now: Time, from: LinkId, registration: Registration) {
        let Some(Link { identity, .. }) = self.links.find(from) else { return };
        let name = identity.name.clone();
        self.links.enter(from, PeerPhase::Registering(registration.incarnation));
        self.completion.unable.forget(&name);
        self.replace_others(now, &name, &registration);
        let run = self.state.run_id();
        self.propose(now, Command::Register { run, name, registration });
    }

    /// The log has decided on a registration. A worker without a link has until its deadline to
    /// come back.
    pub(super) fn registered(
        &mut self,
        now: Time,
        name: &NodeName,
        incarnation: u64,
        verdict: EntryOutcome,
    ) {
        let link = self.links.of_worker(name);
        let phase = link.and_then(|link| self.links.find(link)).map(|link| link.phase);
        let waits = phase == Some(PeerPhase::Registering(incarnation));
        match (link.filter(|_| waits), verdict) {
            (Some(link), EntryOutcome::Registered(worker)) => self.admit(now, link, worker),
            (None, EntryOutcome::Registered(worker)) => _ = self.health.detector.heard(now, worker),
            (Some(link), EntryOutcome::Refused(reason)) if self.state.is_ephemeral() => {
                self.release(link, Message::Refused { reason: reason.to_string() });
            }
            (Some(link), EntryOutcome::Refused(reason)) => self.turn_away(now, link, &reason),
            _ => {}
        }
    }
}

// Messages of a registered worker.
impl Core {
    fn on_worker_message(&mut self, now: Time, from: LinkId, worker: WorkerId, message: Message) {
        let heard = self.health.detector.heard(now, worker);
        self.on_sign_of_life(now, heard);
        match message {
            Message::Heartbeat(heartbeat) if heartbeat.worker == worker => {
                self.heartbeat(now, from, heartbeat);
            }
            Message::Status(status) => self.on_status(now, worker, status),
            Message::FetchRecord => {
                if let Some(record) = self.state.record().cloned() {
                    self.outbox.send(from, Message::Announce(record));
                }
            }
            Message::Leave => {
                self.health.set_preemption(now, worker, None);
                self.propose(now, Command::Drain { worker });
            }
            Message::Preempted(notice) => {
                self.health.set_preemption(now, worker, Some(notice));
                self.propose(now, Command::Preempt { worker, notice });
            }
            Message::Finished(result) if result.worker == worker => self.finished(now, result),
            Message::Written(place) => self.written_by(now, worker, place),
            Message::Stored(place) => self.stored_by(now, worker, place),
            Message::Predecessors { ended } => self.predecessors_ended(now, worker, &ended),
            Message::Saved(part) => self.saved(now, worker, part),
            Message::Unsaved { id, reason } => self.unsaved(now, worker, id, reason),
            Message::WrittenManifest(it) => self.wrote_manifest(now, worker, it),
            Message::Damaged { id, reason } => self.damaged(now, worker, id, &reason),
            Message::Verification { id, state } => self.on_verification(now, worker, id, state),
            Message::Unable { inability, reason } => {
                self.cannot_compute(now, worker, inability, &reason);
            }
            Message::Failed { at_fault, fatal, reason } => {
                let is_member = self.state.is_member(worker);
                match (fatal, is_member) {
                    (true, true) => {} // the worker waits for the end of the run
                    (true, false) => self.release(from, Message::Dismiss),
                    (false, _) => self.links.enter(from, PeerPhase::Released),
                }
                let fatal = fatal && is_member;
                let failure = WorkerFailure { at_fault, fatal, words: bounded(&reason) };
                self.failed(now, worker, failure);
            }
            _ => self.links.ignore(),
        }
    }

    fn heartbeat(&mut self, now: Time, from: LinkId, heartbeat: Heartbeat) {
        let Heartbeat { worker, generation, promised, lines, unreachable, .. } = heartbeat;
        let current = self.state.generation();
        let telemetry = heartbeat.telemetry.filter(|_| self.state.is_present(worker));
        self.health.set_telemetry(worker, telemetry);
        self.on_file_status(now, worker, heartbeat.unwritten);
        self.on_store_status(now, worker, heartbeat.store_error);
        self.change.hear_of(generation, current);
        if promised > current {
            self.keep_promise(now);
        }
        if self.state.is_present(worker) {
            self.health.paces.tell(worker, heartbeat.shard_us);
        }
        if self.state.is_member(worker) {
            self.gets_on(now, worker, heartbeat.computing);
        }
        if heartbeat.ready {
            self.change.synced(now, worker, generation);
        }
        let restores = self.state.is_member(worker) && self.restores().is_some();
        if generation == current {
            let Parts { change, roster, .. } = self.parts(now);
            change.cut_from_joiners(roster, worker, &unreachable);
            // No step outruns a member that restores a checkpoint.
            if !restores {
                change.set_behind(now, worker, heartbeat.behind);
            }
        }
        // Nothing that leaves the cluster is taken from outside the current generation.
        if generation == current && self.state.is_member(worker) {
            self.change.reach(heartbeat.step);
            self.health.set_unread(worker, generation, heartbeat.unread);
            self.report(now, worker, lines);
            self.on_unreachable(now, worker, &unreachable);
            if heartbeat.held {
                self.holds(now, worker);
            }
        }
        self.answer_heartbeat(from, worker);
    }

    /// A worker has failed. The run ends if the worker had a part in a history and says that it is
    /// broken. It also ends with the loss of the last worker, since the user has to mend the
    /// reason. Else the others go on without the worker.
    fn failed(&mut self, now: Time, worker: WorkerId, failure: WorkerFailure) {
        let WorkerFailure { at_fault, fatal, words } = failure;
        let lives = |other| other != worker && !self.health.detector.is_dead(other);
        let last = !self.state.present().any(|(other, _)| lives(other));
        if !fatal && !last {
            let reason = LossReason::Failed(words);
            return self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Dead });
        }
        let blamed = self.state.workers().get(&at_fault.unwrap_or(worker));
        let name = blamed.map(|known| known.name.clone());
        let worker = self.state.called(worker);
        let reason = match fatal {
            true => FailReason::Broken { worker, words },
            false => FailReason::LastWorkerFailed { worker, words },
        };
        self.propose_end(now, Outcome::Failed { name, reason });
    }
}
