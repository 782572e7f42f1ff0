//! Messages of coordinators: registration, promises, records, and the end.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::sync::Arc;

use everstep_transport::protocol::generation::RecordError;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Generation, Message, Record, RunSpec, Step, Term, WorkerId};
use everstep_transport::time::Time;

use super::checkpoints::Checkpoints;
use super::membership::Membership;
use super::peers::PeerInbox;
use super::writes::ModelWrites;
use super::{Core, Phase};
use crate::step::Promise;
use crate::step::event::{Effect, Exit, LinkId};
use crate::step::joiner::Joiner;
use crate::step::member::{Feed, Member};
use crate::step::plan::{MemberPlan, PlanError};
use crate::step::replica_state::{EnterError, ReplicaState};
use crate::step::setup::Setup;
use crate::step::sized_record::SizedRecord;

/// Why a worker that ends with its run has failed, although nothing went wrong here.
const ENDED_EARLY: &str = "the run has ended before this worker had trained it to its last step: \
                           `everstep run status` says how";

impl Core {
    /// Handles a message of a coordinator. An order of a leader is void if the worker has heard of
    /// a later term. A verdict on an id is in the log, and so is true for ever, whichever
    /// coordinator sends it. If the verdict names an id that is not this worker's, the sender does
    /// not know this worker's id, and the worker greets the sender again.
    pub(super) fn coordinator(&mut self, now: Time, link: LinkId, message: Message) {
        if !self.leader.is_up(link) {
            return; // The core has given the link up.
        }
        match message {
            Message::Coordinators { revision, members, .. } => {
                let known = self.leader.take_list(revision, members);
                self.out.extend(known.map(Effect::Coordinators));
            }
            Message::Welcome { run, term } => self.welcomed(link, run, term),
            Message::Registered { worker, term } => self.registered(now, link, worker, term),
            // Another link's record or answer may belong to a history, or to a run, that is over.
            Message::Announce(_) | Message::HeartbeatAnswer { .. }
                if self.leader.link() != Some(link) => {}
            Message::Announce(record) => self.announced(now, record),
            Message::HeartbeatAnswer { generation, written, lacks_lines, retained } => {
                self.departure.retained = retained;
                self.heartbeats.answered(lacks_lines);
                self.answered(now, generation, written);
            }
            Message::Pause { term, number } => self.pause(now, link, term, number),
            Message::Feed { term, generation, joiner, name, address, shards } => {
                let feed = Feed { joiner, name, address, shards };
                if self.obeys(term, generation) {
                    self.feed(feed);
                    self.replay_early(now);
                }
            }
            Message::Hold { term, generation } => {
                let obeys = self.obeys(term, generation);
                if let Phase::Training(member) = &mut self.phase
                    && obeys
                {
                    member.hold(now);
                }
            }
            Message::Write { term, generation } => self.write(term, generation),
            Message::WriteManifest(order) => self.write_manifest(order),
            Message::Verify { term, id } => self.verify(term, id),
            Message::Evicted { worker } if self.membership.is(worker) => self.evicted(),
            Message::Drain { worker } if self.membership.is(worker) => self.let_go(),
            Message::Released { term } if self.leader.hear(term) => self.released(),
            Message::Evicted { .. } | Message::Drain { .. } | Message::Released { .. } => {
                self.greet(link);
            }
            // Only this coordinator is of another build. The others still serve the worker.
            Message::Refused { .. } if self.leader.leads_elsewhere(link) => self.refused += 1,
            Message::Refused { reason } => self.end(Exit::Refused(reason)),
            Message::Unable { reason, .. } if !self.leader.leads_elsewhere(link) => {
                self.turned_away(now, reason);
            }
            Message::Dismiss if self.departure.requested => self.end(Exit::Drained),
            Message::Dismiss => self.end(Exit::Dismissed),
            _ => self.refused += 1,
        }
    }

    // Registration.

    /// A leader sends the run to a worker that it takes for new. The worker repeats what it sent to
    /// an earlier leader, or on a lost link. A repeated registration yields the same id.
    fn welcomed(&mut self, link: LinkId, run: RunSpec, term: Term) {
        if !self.leader.follow(link, term) {
            return;
        }
        if self.worker().is_some() {
            return self.greet(link); // The worker got its id after the Hello that this answers.
        }
        match &self.phase {
            Phase::Building(building) if **building == run => {} // It registers when that is done.
            Phase::Registering(setup, registration) if setup.run == run => {
                let registration = Message::Register((**registration).clone());
                self.send_to_leader(registration);
            }
            Phase::Unable(failed, _) if **failed == run => self.report_unable(),
            _ => self.build(run),
        }
    }

    pub(super) fn build(&mut self, run: RunSpec) {
        self.out.push_back(Effect::Build(run.clone()));
        self.phase = Phase::Building(Box::new(run));
    }

    /// A leader knows this worker, for the first time or on a new link, or has just come to lead.
    /// Earlier reports may not have arrived, so the worker repeats them.
    fn registered(&mut self, now: Time, link: LinkId, worker: WorkerId, term: Term) {
        let expected = match self.phase {
            Phase::Registering(..) => self.worker().is_none_or(|known| known == worker),
            _ => self.membership.is(worker),
        };
        if !expected {
            self.refused += 1;
            return;
        }
        if !self.leader.follow(link, term) {
            return;
        }
        if self.membership.registered(worker) {
            // So the next leader knows the worker's id at once.
            self.greet_all(|other| other != link);
        }
        if !self.ended.is_empty() {
            self.send_to_leader(Message::Predecessors { ended: self.ended.clone() });
        }
        self.heartbeat(now);
        if let Some(result) = self.membership.finished().cloned() {
            self.send_to_leader(Message::Finished(result));
        }
        self.report_written();
        self.repeat_checkpoints();
        if self.departure.requested {
            self.ask_to_leave(now);
        }
    }

    fn greet_all(&mut self, wanted: impl Fn(LinkId) -> bool) {
        let links = self.leader.links().into_iter().filter(|link| wanted(*link));
        links.for_each(|link| self.greet(link));
    }

    /// The worker's state is void. It begins again, as another worker in the same process.
    pub(super) fn evicted(&mut self) {
        if let Some(run) = self.forget() {
            self.build(run);
            self.greet_all(|_| true);
        }
    }

    /// The run is over. The worker waits for another one.
    fn released(&mut self) {
        let took_part = self.worker().is_some();
        let has_finished = self.membership.finished().is_some();
        if self.forget().is_none() {
            return;
        }
        if !took_part || !self.settings.ends_with_run {
            self.phase = Phase::Greeting;
            return self.greet_all(|_| true);
        }
        self.end(match has_finished {
            true => Exit::Dismissed,
            false => Exit::Failed(ENDED_EARLY.into()),
        });
    }

    /// Gives up the worker's id and all its state, and returns the run. None if the worker was told
    /// to leave (then it has left now), or if it had nothing to give up.
    fn forget(&mut self) -> Option<RunSpec> {
        if self.departure.requested {
            self.end(Exit::Drained);
            return None;
        }
        let run = match self.leave() {
            Some((setup, _)) => setup.run.clone(),
            None => match &self.phase {
                Phase::Building(run) | Phase::Unable(run, _) => (**run).clone(),
                _ => return None,
            },
        };
        self.leader.forget();
        self.membership = Membership::default();
        self.peers = PeerInbox::default();
        self.renew_model(false);
        self.model = ModelWrites::default();
        self.checkpoints = Checkpoints::default();
        self.heartbeats.forget();
        self.departure.retained = 0;
        Some(run)
    }

    fn answered(&mut self, now: Time, generation: Generation, written: Step) {
        // The leader announced the record, but it did not arrive.
        if generation > self.generation() && generation >= self.membership.generation() {
            self.send_to_leader(Message::FetchRecord);
        }
        let asked = self.tells_all_lines();
        match &mut self.phase {
            Phase::Joining(joiner) => joiner.written(written),
            Phase::Training(member) => {
                let before = member.written_step();
                member.written(now, written);
                let is_more = member.settled_lines(asked).next().is_some();
                // A long tail of lines goes out page by page, each page with the answer to the one
                // before.
                if before < written && is_more {
                    self.heartbeat(now);
                }
            }
            _ => {}
        }
    }

    // Generations.

    /// Promises a generation, and answers with the worker's Status (invariant I15: promises never
    /// fall).
    fn pause(&mut self, now: Time, link: LinkId, term: Term, number: Generation) {
        let fresh = number > self.generation() && number >= self.membership.generation();
        if self.worker().is_none() || !fresh || !self.leader.hear(term) {
            return;
        }
        if self.departure.requested {
            self.heartbeat(now); // with its lines: the next generation may not have it
        }
        self.membership.promise(term, number);
        self.stop();
        let unreachable = self.peers.unreachable();
        let promise = self.membership.promised();
        let status = match &self.phase {
            Phase::Registering(..) => blank(promise, unreachable.collect()),
            Phase::Joining(joiner) => joiner.status(promise, unreachable),
            Phase::Training(member) => member.status(promise, unreachable),
            _ => return,
        };
        self.send_on(link, Message::Status(status));
    }

    /// From now on the worker sends and takes nothing of the generation.
    fn stop(&mut self) {
        match &mut self.phase {
            Phase::Joining(joiner) => joiner.promise(),
            Phase::Training(member) => member.promise(),
            _ => {}
        }
    }

    /// Whether the worker obeys a leader's message on a generation.
    pub(super) fn obeys(&mut self, term: Term, generation: Generation) -> bool {
        let promised = self.membership.generation();
        let is_current = generation == self.generation() && generation == promised;
        is_current && self.leader.hear(term)
    }

    fn announced(&mut self, now: Time, record: Record) {
        let Some(worker) = self.worker() else { return };
        // A record older than the promise is over before this worker has entered it.
        if record.number <= self.generation() || record.number < self.membership.generation() {
            return;
        }
        let promised = self.membership.record(record.number);
        let listed = record.rank(worker).is_some();
        if !listed && matches!(self.phase, Phase::Training(_)) {
            return self.stop(); // Its state is void. The leader will say so.
        }
        self.peers.rename(&record);
        let Some((setup, replica)) = self.leave() else { return };
        #[cfg(feature = "planted")]
        let replica = self.planted(replica);
        self.membership.begin_generation();
        self.peers.begin_generation();
        self.renew_model(record.resume.0 >= setup.run.steps);
        self.checkpoints.renew(&record);
        self.heartbeats.begin_generation();
        let entrant = Entrant { worker, setup, replica };
        let entered = match listed {
            true => {
                self.peers.enter(&record);
                entrant.become_member(now, promised, record)
            }
            false => entrant.become_joiner(record),
        };
        match entered {
            Ok(phase) => self.phase = phase,
            Err(error) => return self.fail(None, error.is_fatal(), error.to_string()),
        }
        self.restore();
        self.replay_early(now);
    }

    fn feed(&mut self, feed: Feed) {
        match &mut self.phase {
            Phase::Joining(joiner) if self.membership.is(feed.joiner) => {
                let lost = self.peers.begin_feed();
                self.peers.enter(joiner.sized_record().record());
                joiner.feed(&feed.shards, &lost);
            }
            Phase::Training(member) => {
                if !member.plan().sized_record().lists(feed.joiner) {
                    self.peers.let_in(feed.joiner); // The joiner is let in again.
                    self.peers.meet(feed.joiner, &feed.name);
                }
                member.feed(feed);
            }
            _ => {} // Another joiner is fed.
        }
    }

    #[cfg(feature = "planted")]
    fn planted(&self, mut replica: ReplicaState) -> ReplicaState {
        replica.plant = self.plant;
        if self.plant == Some(crate::plant::Plant::ForgetLine) {
            replica.lines.clear();
        }
        replica
    }
}

/// Why a worker does not enter a record.
#[derive(Debug, thiserror::Error)]
enum NotEntered {
    /// The record contradicts itself.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record contradicts itself, or does not list the worker.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The record does not fit what this worker has.
    #[error(transparent)]
    Enter(#[from] EnterError),
}

impl NotEntered {
    /// Whether no other worker could enter the record either. What this worker has may be its own
    /// fault, and then the others go on without it.
    fn is_fatal(&self) -> bool {
        !matches!(self, Self::Enter(_))
    }
}

/// A worker that enters a record, with what it keeps from the phase before.
struct Entrant {
    worker: WorkerId,
    setup: Arc<Setup>,
    replica: ReplicaState,
}

impl Entrant {
    /// Enters a record that lists the worker. `promised` is its last promise before the record
    /// came.
    fn become_member(
        self,
        now: Time,
        promised: Generation,
        record: Record,
    ) -> Result<Phase, NotEntered> {
        let Self { worker, setup, replica } = self;
        let number = record.number;
        if promised != number {
            return Err(EnterError::Unpromised { number, promised }.into());
        }
        let data_shards = setup.run.batch.data_shards;
        let plan = MemberPlan::new(record, worker, setup.parameters, data_shards)?;
        let member = Member::enter(now, setup, plan, replica)?;
        Ok(Phase::Training(Box::new(member)))
    }

    /// Enters a record that does not list the worker.
    fn become_joiner(self, record: Record) -> Result<Phase, NotEntered> {
        let Self { worker, setup, replica } = self;
        let data_shards = setup.run.batch.data_shards;
        let sized_record = SizedRecord::new(record, setup.parameters, data_shards)?;
        let joiner = Joiner::enter(setup, worker, sized_record, replica)?;
        Ok(Phase::Joining(Box::new(joiner)))
    }
}

/// The evidence of a worker that has never been in a generation.
fn blank(promise: Promise, unreachable: Vec<WorkerId>) -> Status {
    Status {
        term: promise.term,
        number: promise.generation,
        commit: None,
        prepared: Vec::new(),
        versions: Vec::new(),
        under_way: None,
        unreachable,
    }
}
