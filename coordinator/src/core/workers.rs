//! Links that come and go, and the messages of workers on them.

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::codec::schema;
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::protocol::{Message, NodeName, WorkerId};
use everstep_transport::time::Time;

use super::links::{Link, LinkEnd, Phase};
use super::silence::{Certainty, Doubt, PATIENCE};
use super::{Core, LinkId, finish};
use crate::state::{Command, Standing, Verdict};

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
struct Failure {
    at_fault: Option<WorkerId>,
    fatal: bool,
    reason: String,
}

// Links.
impl Core {
    /// A worker's newer link replaces an older one: the old end may be dead without a goodbye. This
    /// alone makes the worker no suspect: it may be about to say which worker it is.
    pub(super) fn connected(&mut self, link: LinkId, identity: Identity) {
        let older = (identity.role == Role::Worker).then(|| self.links.of_worker(&identity.name));
        if let Some(older) = older.flatten() {
            self.close(older, "a newer link of the same node replaced it");
            self.links.remove(older);
        }
        if let Some(worker) = self.state.on_node(&identity.name) {
            self.departed.remove(&worker);
        }
        self.links.insert(link, identity);
    }

    /// A worker that is no member may come back in time. A member is missed at once.
    pub(super) fn disconnected(&mut self, now: Time, link: LinkId, end: LinkEnd, reason: &str) {
        self.requests.forget(link);
        self.watchers.forget(link);
        self.confirmations.forget(link);
        let name = self.links.find(link).map(|link| link.identity.name.clone());
        name.iter().for_each(|name| self.unable.disconnected(name));
        let certainty = match end {
            LinkEnd::Goodbye => Certainty::Dead,
            #[cfg(feature = "planted")]
            LinkEnd::Refused if self.plant == Some(crate::plant::Plant::RefusalIsProof) => {
                Certainty::Dead
            }
            LinkEnd::Refused => Certainty::Refused,
            LinkEnd::Lost => Certainty::Silent,
        };
        let gone = end != LinkEnd::Lost;
        let doubt = Doubt { reason: format!("its link closed: {}", bounded(reason)), certainty };
        match self.links.remove(link) {
            // A worker that fell silent before its link timed out is judged by its silence.
            Some(Phase::Registered(worker)) if !gone && self.silence.is_silent(now, worker) => {}
            Some(Phase::Registered(worker)) if gone || self.state.is_member(worker) => {
                self.suspect(now, worker, doubt);
            }
            Some(_) if gone && self.leader().is_none() => self.note_departure(name, doubt),
            _ => {}
        }
    }

    /// Notes the end of a process. The leader has noticed it, too, unless the leader is gone as
    /// well.
    fn note_departure(&mut self, name: Option<NodeName>, doubt: Doubt) {
        self.departed.retain(|worker, _| self.state.is_present(*worker));
        if let Some(worker) = name.and_then(|name| self.state.on_node(&name)) {
            self.departed.insert(worker, doubt);
        }
    }

    /// Suspects, as a new leader, the workers that ended while this coordinator followed.
    pub(super) fn miss_departed(&mut self, now: Time) {
        for (worker, doubt) in std::mem::take(&mut self.departed) {
            if self.state.is_present(worker) {
                self.suspect(now, worker, doubt);
            }
        }
    }

    pub(super) fn message(&mut self, now: Time, from: LinkId, message: Message) {
        let phase = self.links.find(from).map(|link| link.phase);
        match (phase, message) {
            (Some(Phase::Operator), message) => self.operate(now, from, message),
            (Some(Phase::Coordinator), message) => self.consult(now, from, message),
            // However far the worker has come here, it knows best which worker it is: another
            // leader may have given it an id since, or have evicted it.
            (Some(_), Message::Hello { schema, worker }) => self.greet(now, from, schema, worker),
            (
                Some(
                    Phase::Welcomed | Phase::Registering(_) | Phase::Registered(_) | Phase::Unable,
                ),
                Message::Register(registration),
            ) => self.register(now, from, registration),
            (
                Some(Phase::Welcomed | Phase::Registering(_) | Phase::Unable),
                Message::Unable { inability, reason },
            ) => self.cannot_build(now, from, (inability, &reason)),
            (Some(Phase::Registered(worker)), message) => self.work(now, from, worker, message),
            (Some(Phase::Evicted(worker)), Message::Failed { at_fault, fatal: true, reason }) => {
                self.links.enter(from, Phase::Released);
                let failure = Failure { at_fault, fatal: true, reason: bounded(&reason) };
                self.failed(now, worker, failure);
            }
            _ => self.ignored += 1,
        }
    }
}

// Which workers are heard.
impl Core {
    /// How many of the run's workers have a link with this coordinator.
    pub(crate) fn linked_workers(&self) -> u32 {
        let is_of_run = |phase| match phase {
            Phase::Greeted(Some(worker)) | Phase::Registered(worker) => {
                self.state.is_present(worker)
            }
            _ => false,
        };
        self.workers_in(is_of_run).len() as u32
    }

    /// Whether this coordinator leads, a run goes on, and it hears none of the run's workers.
    pub(crate) fn is_deaf(&self, now: Time) -> bool {
        let mut present = self.state.present().map(|(worker, _)| worker).peekable();
        self.leader().is_some()
            && self.running()
            && present.peek().is_some()
            && present.all(|worker| self.silence.unheard(now, worker) >= PATIENCE)
    }
}

// How a worker comes in.
impl Core {
    fn greet(&mut self, now: Time, from: LinkId, theirs: u64, worker: Option<WorkerId>) {
        self.confirmations.withdraw(from);
        if theirs != schema() {
            self.links.enter(from, Phase::Foreign(theirs));
        } else {
            self.links.enter(from, Phase::Greeted(worker));
            self.introduce(from);
        }
        if self.leader().is_some() {
            self.answer_hello(now, from);
        }
    }

    /// Answers all workers that have said Hello, and had no answer yet.
    pub(super) fn receive_waiting(&mut self, now: Time) {
        for link in self.workers_in(|phase| matches!(phase, Phase::Greeted(_) | Phase::Foreign(_)))
        {
            self.answer_hello(now, link);
        }
    }

    fn answer_hello(&mut self, now: Time, link: LinkId) {
        match self.links.find(link).map(|link| link.phase) {
            Some(Phase::Greeted(worker)) => self.receive(now, link, worker, false),
            Some(Phase::Foreign(theirs)) => {
                let ours = schema();
                let reason = format!(
                    "this worker speaks another version of the protocol ({theirs:016x}) than the \
                     coordinator ({ours:016x}); run the same build everywhere"
                );
                self.release(link, Message::Refused { reason });
            }
            _ => {}
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
        let certain = certain || self.plant == Some(crate::plant::Plant::EvictUnconfirmed);
        let lasting = !self.state.is_ephemeral();
        match worker {
            None if self.running() => self.welcome(link),
            None if lasting => {} // the worker waits for the next run
            Some(worker) if self.running() && self.is_present(link, worker) => {
                self.admit(now, link, worker);
            }
            _ if !certain => self.confirm_word(link),
            Some(_) if lasting && !self.running() => self.set_free(link),
            _ if !self.running() => self.release(link, Message::Dismiss),
            Some(worker) if self.standing_of(link, worker) == Some(Standing::Left) => {
                // The worker has left, and only did not hear of it.
                self.see_off(link, worker);
            }
            Some(worker) => self.evict(link, worker),
            None => {}
        }
    }

    fn is_present(&self, link: LinkId, worker: WorkerId) -> bool {
        self.standing_of(link, worker).is_some_and(Standing::is_present)
    }

    /// The standing of the worker that the peer says to be, if that worker is on the peer's node.
    fn standing_of(&self, link: LinkId, worker: WorkerId) -> Option<Standing> {
        let name = self.links.find(link).map(|link| &link.identity.name);
        let known = self.state.workers().get(&worker).filter(|known| name == Some(&known.name));
        known.map(|known| known.standing)
    }

    /// Tells the worker the run, once there is one.
    fn welcome(&mut self, link: LinkId) {
        if let (Some(run), Some(term)) = (self.state.run().cloned(), self.leader()) {
            self.links.enter(link, Phase::Welcomed);
            self.send(link, Message::Welcome { run, term });
        }
    }

    /// The worker is registered, and this is its link from now on.
    fn admit(&mut self, now: Time, link: LinkId, worker: WorkerId) {
        let Some(term) = self.leader() else { return };
        let heard = self.silence.revive(now, worker);
        self.links.enter(link, Phase::Registered(worker));
        self.send(link, Message::Registered { worker, term });
        self.hear(now, heard);
        self.catch_up(now, link, worker);
    }

    /// Evicts a worker: its state is void. It may say Hello again, without an id.
    pub(super) fn evict(&mut self, link: LinkId, worker: WorkerId) {
        self.links.enter(link, Phase::Connected);
        self.send(link, Message::Evicted { worker });
    }

    /// Proposes a registration. Another incarnation of the same worker is gone.
    fn register(&mut self, now: Time, from: LinkId, registration: Registration) {
        let Some(Link { identity, .. }) = self.links.find(from) else { return };
        let name = identity.name.clone();
        self.links.enter(from, Phase::Registering(registration.incarnation));
        self.unable.forget(&name);
        self.replace_incarnations(now, &name, &registration);
        let run = self.state.run_id();
        self.propose(now, Command::Register { run, name, registration });
    }

    /// A process that registers under the name of a worker has taken the place of that worker's
    /// process, which has ended. So has a process that listens at the same address of the same
    /// machine, where the worker's link is lost.
    ///
    /// The address alone proves nothing. An address may pass to another machine while its first
    /// owner sleeps, and a holder of a worker's credentials can state any address.
    fn replace_incarnations(&mut self, now: Time, name: &NodeName, registration: &Registration) {
        let Registration { incarnation, address, machine, .. } = registration;
        let replaced = self.state.present().filter_map(|(worker, known)| {
            let unlinked = self.links.of_registered(worker).is_none();
            let (reason, certainty) = match &known.registration {
                same if same.incarnation == *incarnation => return None,
                _ if known.name == *name => ("it registered anew", Certainty::Dead),
                other if other.address != *address || !unlinked => return None,
                other if machine.is_some() && other.machine == *machine => {
                    ("another process listens at its address", Certainty::Dead)
                }
                #[cfg(feature = "planted")]
                _ if self.plant == Some(crate::plant::Plant::AddressIsProof) => {
                    ("another process listens at its address", Certainty::Dead)
                }
                _ => ("another worker states its address", Certainty::Refused),
            };
            Some((worker, Doubt { reason: reason.into(), certainty }))
        });
        let replaced: Vec<(WorkerId, Doubt)> = replaced.collect();
        for (worker, doubt) in replaced {
            self.suspect(now, worker, doubt);
        }
    }

    /// The log has decided on a registration. A worker without a link has until its deadline to
    /// come back.
    pub(super) fn registered(
        &mut self,
        now: Time,
        name: &NodeName,
        incarnation: u64,
        verdict: Verdict,
    ) {
        let link = self.links.of_worker(name);
        let phase = link.and_then(|link| self.links.find(link)).map(|link| link.phase);
        let waits = phase == Some(Phase::Registering(incarnation));
        match (link.filter(|_| waits), verdict) {
            (Some(link), Verdict::Registered(worker)) => self.admit(now, link, worker),
            (None, Verdict::Registered(worker)) => _ = self.silence.heard(now, worker),
            (Some(link), Verdict::Refused(reason)) => {
                self.release(link, Message::Refused { reason });
            }
            _ => {}
        }
    }
}

// Messages of a registered worker.
impl Core {
    fn work(&mut self, now: Time, from: LinkId, worker: WorkerId, message: Message) {
        let heard = self.silence.heard(now, worker);
        self.hear(now, heard);
        match message {
            Message::Heartbeat(heartbeat) if heartbeat.worker == worker => {
                self.heartbeat(now, from, heartbeat);
            }
            Message::Status(status) => self.testify(now, worker, status),
            Message::FetchRecord => {
                if let Some(record) = self.state.record().cloned() {
                    self.send(from, Message::Announce(record));
                }
            }
            Message::Leave => self.propose(now, Command::Drain { worker }),
            Message::Finished(result) if result.worker == worker => self.finished(now, result),
            Message::Written(place) => self.written_by(now, worker, place),
            Message::Unable { inability, reason } => {
                self.cannot_compute(now, worker, (inability, &reason));
            }
            Message::Failed { at_fault, fatal, reason } => {
                self.links.enter(from, Phase::Released);
                let fatal = fatal && self.state.is_member(worker);
                let failure = Failure { at_fault, fatal, reason: bounded(&reason) };
                self.failed(now, worker, failure);
            }
            _ => self.ignored += 1,
        }
    }

    fn heartbeat(&mut self, now: Time, from: LinkId, heartbeat: Heartbeat) {
        let Heartbeat { worker, generation, promised, lines, unreachable, behind, .. } = heartbeat;
        let current = self.state.generation();
        match heartbeat.telemetry.filter(|_| self.state.is_present(worker)) {
            Some(telemetry) => drop(self.telemetry.insert(worker, telemetry)),
            None => drop(self.telemetry.remove(&worker)),
        }
        self.hear_of_file(now, worker, heartbeat.unwritten);
        if promised > current {
            self.keep_promise(now);
        }
        if self.state.is_member(worker) {
            self.gets_on(now, worker, heartbeat.computing);
        }
        if heartbeat.ready {
            self.feeds.learned(now, worker, generation);
        }
        if generation == current {
            self.cut_from_learners(now, worker, &unreachable);
            if self.feeds.lessons().contains_key(&worker) {
                self.catch_up.tell(now, worker, behind);
            }
        }
        // Nothing that leaves the cluster is taken from outside the current generation.
        if generation == current && self.state.is_member(worker) {
            self.reached = self.reached.max(heartbeat.step);
            self.report(now, worker, lines);
            self.cut_off(now, worker, &unreachable);
            if heartbeat.held {
                self.holds(now, worker);
            }
        }
        self.answer_heartbeat(from, worker);
    }

    fn finished(&mut self, now: Time, result: WorkerResult) {
        let record = self.state.record();
        if record.is_some_and(|record| finish::belongs(record, &result)) {
            self.results.insert(result.worker, result);
            self.conclude(now);
        } else {
            self.ignored += 1;
        }
    }

    /// A worker has failed. The run ends if the worker had a part in a history and says that it is
    /// broken. It also ends with the loss of the last worker, since the user has to mend the
    /// reason. Else the others go on without the worker.
    fn failed(&mut self, now: Time, worker: WorkerId, failure: Failure) {
        let Failure { at_fault, fatal, reason } = failure;
        let lives = |other| other != worker && !self.silence.is_dead(other);
        let last = !self.state.present().any(|(other, _)| lives(other));
        if !fatal && !last {
            let reason = format!("it failed: {reason}");
            return self.suspect(now, worker, Doubt { reason, certainty: Certainty::Dead });
        }
        let says = self.state.called(worker);
        let reason = match fatal {
            true => format!("{says} cannot go on, nor may anyone: {reason}"),
            false => format!("{says} was lost: it failed: {reason}"),
        };
        let blamed = self.state.workers().get(&at_fault.unwrap_or(worker));
        let name = blamed.map(|known| known.name.clone());
        self.propose_end(now, Outcome::Failed { name, reason });
    }
}
