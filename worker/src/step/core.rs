//! The worker from its first message to its last, as a plain state machine.
//!
//! Inputs: messages of the coordinators and of other members, reports of the device and of the
//! threads that write checkpoints and the model's file, and time.
//! Outputs: messages, chunks and jobs. The phases are those of `Phase`. [`Member`] does the step
//! itself. The core does not know sockets, threads or files.
//!
//! The core keeps the worker's promise: once it has promised a generation, it takes nothing of an
//! older one, on any path (invariants I7 and I15). The core ends nothing when it loses a link, to a
//! coordinator or to a member. It reports a lost member, and the coordinators decide.
//!
//! There is a link to every coordinator, and one coordinator leads. The worker reports only to the
//! leader. Reports that are lost while no coordinator leads go again to the next leader. Training
//! does not wait for that.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod checkpoints;
mod coordinator;
mod departure;
mod failure;
mod heartbeats;
mod leader;
mod membership;
mod peers;
mod settings;
mod unable;
mod writes;

use std::collections::VecDeque;
use std::sync::Arc;

use everstep_kernels::buffer::Pool;
use everstep_transport::identity::Refusal;
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Generation, Message, NodeName, RunSpec, Step, WorkerId};
use everstep_transport::time::Time;

use self::checkpoints::Checkpoints;
use self::departure::Departure;
use self::failure::BrokenRun;
pub use self::heartbeats::HEARTBEAT_INTERVAL;
use self::heartbeats::{Heartbeats, Readiness};
use self::leader::Leader;
use self::membership::Membership;
use self::peers::PeerInbox;
use self::settings::CoreSettings;
use self::unable::{BuildBackoff, Unable};
use self::writes::ModelWrites;
use super::Promise;
use super::event::{Built, Effect, Exit, Input, LinkId, Report, Summary};
use super::joiner::Joiner;
use super::member::Member;
use super::replica_state::ReplicaState;
use super::setup::Setup;

/// The worker's name and its clock.
#[derive(Clone, Debug)]
pub struct WorkerIdentity {
    /// The name in its certificate.
    pub name: NodeName,
    /// Wall clock at the core's time zero.
    pub unix_ms_at_zero: u64,
}

/// What the worker does at present.
#[derive(Debug)]
enum Phase {
    /// Waits for a run.
    Greeting,
    /// Builds the run's model and data.
    Building(Box<RunSpec>),
    /// Has registered what it would compute, and waits for its id and a generation.
    Registering(Arc<Setup>, Box<Registration>),
    /// Knows a generation of which it is not a member.
    Joining(Box<Joiner>),
    /// Is a member of a generation.
    Training(Box<Member>),
    /// Cannot compute the run, and waits for the next one or to try again.
    Unable(Box<RunSpec>, Unable),
    /// Has found that no worker may go on, and waits until a leader has heard that.
    Broken(BrokenRun),
    /// Has ended: it sends nothing more.
    Ended,
}

/// Most lines in one heartbeat, because it must fit the control stream.
const LINES_PER_HEARTBEAT: usize = 200;

/// The state machine of a worker, from its first message to its last.
#[derive(Debug)]
pub struct Core {
    settings: CoreSettings,
    phase: Phase,
    leader: Leader,
    membership: Membership,
    departure: Departure,
    heartbeats: Heartbeats,
    peers: PeerInbox,
    model: ModelWrites,
    checkpoints: Checkpoints,
    /// Incarnations of other workers that have ended, as this worker can prove.
    ended: Vec<u64>,
    /// How long the core waits after the next failure of a build.
    backoff: BuildBackoff,
    refused: u64,
    out: VecDeque<Effect>,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

impl Core {
    /// A worker that has sent nothing yet. Buffers for sums come from `pool`.
    pub fn new(identity: WorkerIdentity, pool: Pool) -> Self {
        Self {
            settings: CoreSettings::new(identity, pool),
            phase: Phase::Greeting,
            leader: Leader::default(),
            membership: Membership::default(),
            departure: Departure::default(),
            heartbeats: Heartbeats::default(),
            peers: PeerInbox::default(),
            model: ModelWrites::default(),
            checkpoints: Checkpoints::default(),
            ended: Vec::new(),
            backoff: BuildBackoff::default(),
            refused: 0,
            out: VecDeque::new(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// Sets after how many good steps the loss scale doubles. A run that has fewer steps than the
    /// usual number may need a smaller one. It must be the same for every worker.
    pub fn growing_after(mut self, growth: u32) -> Self {
        self.settings.growth = growth;
        self
    }

    /// The worker ends with the run that it takes part in, and waits for no other one: it can
    /// compute no other.
    pub fn ending_with_run(mut self) -> Self {
        self.settings.ends_with_run = true;
        self
    }

    /// Sets how many bytes of kept sums the core adds up at once, at least one shard's. A model
    /// with small shards may need fewer.
    pub fn merging(mut self, merge_bytes: usize) -> Self {
        self.settings.merge_bytes = merge_bytes;
        self
    }

    /// The worker tells each leader that the workers with these incarnations have ended.
    pub fn succeeding(mut self, ended: Vec<u64>) -> Self {
        self.ended = ended;
        self
    }

    /// The worker has this bug from its next generation on.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: crate::plant::Plant) {
        self.plant = Some(plant);
    }

    // Outputs.

    /// The next effect, for the shell to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The member, while the worker is one.
    pub fn member(&self) -> Option<&Member> {
        match &self.phase {
            Phase::Training(member) => Some(member),
            _ => None,
        }
    }

    /// The worker's id, once it is registered.
    pub fn worker(&self) -> Option<WorkerId> {
        self.membership.worker()
    }

    /// Some while the worker shall leave and has not left. The value is the number of parameter
    /// shards of which no staying worker has a copy, as the leader last said.
    pub fn leaving(&self) -> Option<u32> {
        let Departure { requested, retained, .. } = self.departure;
        (requested && !matches!(self.phase, Phase::Ended)).then_some(retained)
    }

    /// The promised number, at least the generation's, and the term of the leader that asked for
    /// the last promise.
    pub fn promised(&self) -> Promise {
        self.membership.promised()
    }

    /// The generation whose record the worker has, as member or joiner. 0 if it has none.
    pub fn generation(&self) -> Generation {
        match &self.phase {
            Phase::Joining(joiner) => joiner.sized_record().generation(),
            Phase::Training(member) => member.plan().generation(),
            _ => Generation(0),
        }
    }

    /// Messages and chunks refused so far.
    pub fn refused(&self) -> u64 {
        let phase = match &self.phase {
            Phase::Joining(joiner) => joiner.refused(),
            Phase::Training(member) => member.refused(),
            _ => 0,
        };
        self.refused + phase
    }

    // Inputs.

    /// Takes an input at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        match self.phase {
            Phase::Broken(_) => return self.tell_broken(input),
            Phase::Ended => return,
            _ => {}
        }
        match input {
            Input::CoordinatorUp { link, name } => {
                self.leader.up(link, name);
                self.greet(link);
            }
            Input::Coordinator { link, message } => self.coordinator(now, link, message),
            Input::CoordinatorLost { link } => self.leader.lost(link), // Training goes on.
            Input::CoordinatorGone(reason) => self.abandoned(&reason),
            Input::Removed => self.end(Exit::Refused(Refusal::Removed.to_string())),
            Input::Drain => self.drain(now),
            Input::Preempted(notice) => self.preempted(now, notice),
            Input::DrainOverdue => self.end(Exit::Overdue),
            Input::Built(built) => self.built(built),
            Input::BuildFailed { inability, reason } => self.unable(now, inability, reason),
            Input::Device(Report::Unable { inability, reason }) => {
                self.unable(now, inability, reason);
            }
            Input::Peer { from, message } => self.peer(now, from, message),
            Input::PeerLost { from, .. } => self.peer_lost(now, from),
            Input::Chunk { from, chunk, values } => self.on_chunk(now, from, &chunk, values),
            Input::Refused => self.refused += 1,
            Input::Device(Report::Failed(reason)) => self.fail(None, false, reason),
            Input::Device(report) => self.report(now, report),
            Input::Store(report) => self.store(report),
            Input::File(generation, report) => self.follow_file(now, generation, report),
            Input::Yielded => {
                if let Phase::Training(member) = &mut self.phase {
                    member.after_yield(now);
                }
            }
            Input::Tick => self.tick(now),
        }
        self.follow(now);
    }

    fn greet(&mut self, link: LinkId) {
        self.send_on(link, Message::Hello { worker: self.worker() });
    }

    /// Takes a report of the device.
    fn report(&mut self, now: Time, report: Report) {
        let Some(report) = self.follow_master(now, report) else { return };
        let Some(report) = self.follow_saving(report) else { return };
        match &mut self.phase {
            Phase::Joining(joiner) => joiner.report(report),
            Phase::Training(member) => member.report(now, report),
            _ => {}
        }
    }

    fn built(&mut self, built: Built) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Building(run) = phase else {
            self.phase = phase;
            return;
        };
        self.backoff = BuildBackoff::default();
        let setup = Arc::new(self.settings.setup(*run, &built));
        self.model = ModelWrites::of(built.registration.model.clone());
        self.send_to_leader(Message::Register(built.registration.clone()));
        self.phase = Phase::Registering(setup, Box::new(built.registration));
    }

    // Time.

    fn tick(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Joining(joiner) => joiner.tick(now),
            Phase::Training(member) => member.tick(now),
            _ => {}
        }
        self.continue_writing(now);
        self.retry_build(now);
        if self.heartbeats.is_due(now) {
            self.heartbeat(now);
        }
    }

    fn heartbeat(&mut self, now: Time) {
        let (Some(worker), Some(_)) = (self.worker(), self.leader.link()) else { return };
        let readiness = self.readiness();
        self.heartbeats.sent(now, readiness);
        let asked = self.tells_all_lines();
        let lines =
            self.member().into_iter().flat_map(|member| member.settled_lines(asked).cloned());
        let step = match &self.phase {
            Phase::Joining(joiner) => joiner.committed(),
            Phase::Training(member) => member.committed(),
            _ => Step(0),
        };
        let heartbeat = Heartbeat {
            worker,
            generation: self.generation(),
            promised: self.membership.generation(),
            step,
            lines: lines.take(LINES_PER_HEARTBEAT).collect(),
            unreachable: self.peers.unreachable().collect(),
            held: readiness.held,
            ready: readiness.ready,
            behind: self.behind(),
            unread: self.member().map_or(0, Member::unread),
            computing: self.member().and_then(Member::computing),
            shard_us: self.member().map_or(0, Member::shard_us),
            telemetry: None,
            unwritten: self.model.error(),
            store_error: self.checkpoints.error(),
        };
        self.send_to_leader(Message::Heartbeat(heartbeat));
        self.report_unable();
    }

    fn behind(&self) -> u64 {
        match &self.phase {
            Phase::Joining(joiner) => joiner.behind(),
            Phase::Training(member) => member.behind(),
            _ => 0,
        }
    }

    /// Whether the worker holds, and whether it is ready. It is not ready while it cannot reach a
    /// member.
    fn readiness(&self) -> Readiness {
        let (sized_record, held, ready) = match &self.phase {
            Phase::Joining(joiner) => (joiner.sized_record(), false, joiner.is_ready()),
            Phase::Training(member) => {
                (member.plan().sized_record(), member.is_held(), member.is_ready())
            }
            _ => return Readiness::default(),
        };
        let reaches = !self.peers.unreachable().any(|peer| sized_record.lists(peer));
        Readiness { held, ready: ready && reaches }
    }

    /// Does what follows from the new state.
    fn follow(&mut self, now: Time) {
        self.begin_to_write(now);
        match &mut self.phase {
            Phase::Joining(joiner) => self.out.extend(std::iter::from_fn(|| joiner.poll_effect())),
            Phase::Training(member) => {
                member.track_progress(now);
                while let Some(effect) = member.poll_effect() {
                    member.check_effect(&effect);
                    self.out.push_back(effect);
                }
            }
            _ => return,
        }
        if let Some(divergence) = self.member().and_then(Member::divergence) {
            let (at_fault, reason) = (divergence.at_fault(), divergence.to_string());
            return self.fail(at_fault, true, reason);
        }
        self.heartbeat_early(now);
        let Some(summary) = self.member().and_then(Member::result) else { return };
        if self.membership.finished().is_none() {
            let result = result(self.worker().unwrap_or_default(), summary, self.refused());
            self.membership.finish(result.clone());
            self.send_to_leader(Message::Finished(result));
        }
    }

    /// Sends a heartbeat at once if the leader waits for its news: the last lines, that this worker
    /// holds, or that it is ready.
    fn heartbeat_early(&mut self, now: Time) {
        let last_lines =
            |member: &Member| member.is_settled() && member.settled_lines(false).next().is_some();
        let last_lines = self.member().is_some_and(last_lines);
        if self.heartbeats.is_due_early(now, self.readiness(), last_lines) {
            self.heartbeat(now);
        }
    }

    // Ends.

    fn end(&mut self, exit: Exit) {
        self.phase = Phase::Ended;
        self.out.push_back(Effect::Exit(exit));
    }

    /// Sends to the leader, if there is one.
    fn send_to_leader(&mut self, message: Message) {
        if let Some(link) = self.leader.link() {
            self.send_on(link, message);
        }
    }

    fn send_on(&mut self, link: LinkId, message: Message) {
        self.out.push_back(Effect::SendToCoordinator { link, message });
    }

    /// Leaves the phase for another generation. Returns the setup and what the worker held, if it
    /// had them.
    fn leave(&mut self) -> Option<(Arc<Setup>, ReplicaState)> {
        self.refused = self.refused();
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Registering(setup, registration) => {
                let replica = ReplicaState::initial(registration.fingerprint.shards);
                Some((setup, replica))
            }
            Phase::Joining(joiner) => Some((joiner.setup().clone(), joiner.into_replica_state())),
            Phase::Training(member) => Some((member.setup().clone(), member.into_replica_state())),
            phase => {
                self.phase = phase;
                None
            }
        }
    }
}

/// The core's and the device's part of the result. The shell adds its own measurements.
fn result(worker: WorkerId, summary: &Summary, refused: u64) -> WorkerResult {
    WorkerResult {
        worker,
        data_shards_computed: summary.data_shards_computed,
        compute_seconds: summary.compute_seconds,
        exposed_communication_seconds: summary.exposed_seconds,
        optimizer_bytes: summary.optimizer_bytes,
        flops_per_sample: summary.flops_per_sample,
        evaluations: summary.evaluations.clone(),
        digests: summary.digests.clone(),
        refused,
        ..WorkerResult::default()
    }
}
