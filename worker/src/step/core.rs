//! The worker from its first message to its last, as a plain state machine.
//!
//! Inputs: messages of the coordinators and of other members, reports of the device, and time.
//! Outputs: messages, pieces and jobs. The phases are those of `Phase`. [`Member`] does the step
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

mod coordinator;
mod leader;
mod peers;
mod unable;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::Pool;
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::{Inability, WorkerResult};
use everstep_transport::protocol::{
    Generation, Message, NodeName, RunSpec, Step, Term, WorkerId, codec,
};
use everstep_transport::time::Time;

use self::leader::Leader;
use self::unable::{Pause, Unable};
use self::writes::Model;
use super::event::{Built, Effect, Exit, Input, LinkId, Report, Summary};
use super::holdings::Holdings;
use super::learner::Learner;
use super::member::Member;
use super::scaling::{self, Scaling};
use super::setup::Setup;
use crate::optimize;

/// The worker's name and its clock.
#[derive(Clone, Debug)]
pub struct Identity {
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
    Learning(Box<Learner>),
    /// Is a member of a generation.
    Training(Box<Member>),
    /// Cannot compute the run, and waits for the next one or to try again.
    Unable(Box<RunSpec>, Unable),
    /// Has ended: it sends nothing more.
    Ended,
}

/// The interval of a worker's heartbeats.
pub const HEARTBEAT: Duration = Duration::from_millis(250);
/// The least time between heartbeats that are sent early because they carry news.
const PRESSING: Duration = Duration::from_millis(25);
/// Bytes of kept sums that the core adds up before links, heartbeats and other inputs have their
/// turn: some milliseconds.
const MERGE_BYTES: usize = 16 << 20;
/// Most lines in one heartbeat, because it must fit the control stream.
const LINES_PER_HEARTBEAT: usize = 200;

/// The worker's core.
#[derive(Debug)]
pub struct Core {
    identity: Identity,
    pool: Pool,
    /// After so many good steps in a row the loss scale of fp16 doubles.
    growth: u32,
    /// The core adds up so many bytes of kept sums at once.
    merge_bytes: usize,
    phase: Phase,
    leader: Leader,
    worker: Option<WorkerId>,
    /// The promised number, at least the generation's, and the term of the leader that asked for
    /// the last promise.
    promised: (Term, Generation),
    /// The worker was told to leave the run.
    drains: bool,
    /// The number of parameter shards of which no staying worker has a copy, as the leader last
    /// said.
    retained: u32,
    /// The leader lacks metrics lines, and asks every member for the lines that it has.
    lacks_lines: bool,
    heartbeat_at: Time,
    /// Whether the last heartbeat said that the worker holds, and that it is ready.
    told: (bool, bool),
    /// Peers to which this worker has lost the connection since the generation began.
    unreachable: BTreeSet<WorkerId>,
    /// Messages of peers for a generation that this worker does not know yet.
    early: BTreeMap<WorkerId, VecDeque<Message>>,
    /// The result that the worker has reported at the end, in this generation.
    finished: Option<WorkerResult>,
    model: Model,
    /// How long the core waits after the next failure of a build.
    pause: Pause,
    refused: u64,
    out: VecDeque<Effect>,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

impl Core {
    /// A worker that has sent nothing yet. Buffers for sums come from `pool`.
    pub fn new(identity: Identity, pool: Pool) -> Self {
        Self {
            identity,
            pool,
            growth: scaling::GROWTH,
            merge_bytes: MERGE_BYTES,
            phase: Phase::Greeting,
            leader: Leader::default(),
            worker: None,
            promised: (Term(0), Generation(0)),
            drains: false,
            retained: 0,
            lacks_lines: false,
            heartbeat_at: Time(0),
            told: (false, false),
            unreachable: BTreeSet::new(),
            early: BTreeMap::new(),
            finished: None,
            model: Model::default(),
            pause: Pause::default(),
            refused: 0,
            out: VecDeque::new(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// Sets after how many good steps the loss scale doubles. A run that has fewer steps than the
    /// usual number may need a smaller one. It must be the same for every worker.
    pub fn growing_after(self, growth: u32) -> Self {
        Self { growth, ..self }
    }

    /// Sets how many bytes of kept sums the core adds up at once, at least one shard's. A model
    /// with small shards may need fewer.
    pub fn merging(self, merge_bytes: usize) -> Self {
        Self { merge_bytes, ..self }
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
        self.worker
    }

    /// Some while the worker shall leave and has not left. The value is the number of parameter
    /// shards of which no staying worker has a copy, as the leader last said.
    pub fn leaving(&self) -> Option<u32> {
        (self.drains && !matches!(self.phase, Phase::Ended)).then_some(self.retained)
    }

    /// The promised number, at least the generation's, and the term of the leader that asked for
    /// the last promise.
    pub fn promised(&self) -> (Term, Generation) {
        self.promised
    }

    /// The generation whose record the worker has, as member or learner. 0 if it has none.
    pub fn generation(&self) -> Generation {
        match &self.phase {
            Phase::Learning(learner) => learner.roster().generation(),
            Phase::Training(member) => member.plan().generation(),
            _ => Generation(0),
        }
    }

    /// Messages and pieces refused so far.
    pub fn refused(&self) -> u64 {
        let phase = match &self.phase {
            Phase::Learning(learner) => learner.refused(),
            Phase::Training(member) => member.refused(),
            _ => 0,
        };
        self.refused + phase
    }

    // Inputs.

    /// Takes an input at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        match input {
            Input::CoordinatorUp { link, name } => {
                self.leader.up(link, name);
                self.greet(link);
            }
            Input::Coordinator { link, message } => self.coordinator(now, link, message),
            Input::CoordinatorLost { link } => self.leader.lost(link), // Training goes on.
            Input::CoordinatorGone(reason) => self.abandoned(&reason),
            Input::Drain => self.drain(),
            Input::DrainOverdue => self.end(Exit::Drained),
            Input::Built(built) => self.built(built),
            Input::BuildFailed { inability, reason } => self.unable(now, inability, reason),
            Input::Device(Report::Unable(reason)) => self.unable(now, Inability::Run, reason),
            Input::Peer { from, message } => self.peer(now, from, message),
            Input::PeerLost { from, .. } => self.peer_lost(now, from),
            Input::Piece { from, chunk, values } => self.piece(now, from, &chunk, values),
            Input::Refused => self.refused += 1,
            Input::Device(Report::Failed(reason)) => self.fail(None, false, reason),
            Input::Device(report) => self.report(now, report),
            Input::GoOn => {
                if let Phase::Training(member) = &mut self.phase {
                    member.go_on(now);
                }
            }
            Input::Tick => self.tick(now),
        }
        self.follow(now);
    }

    fn greet(&mut self, link: LinkId) {
        self.say(link, Message::Hello { schema: codec::schema(), worker: self.worker });
    }

    /// Takes a report of the device.
    fn report(&mut self, now: Time, report: Report) {
        let Some(report) = self.follow_file(now, report) else { return };
        match &mut self.phase {
            Phase::Learning(learner) => learner.report(report),
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
        self.pause = Pause::default();
        let fingerprint = &built.registration.fingerprint;
        let setup = Arc::new(Setup {
            parameters: fingerprint.parameters as usize,
            scaling: Scaling::of(run.model.precision, self.growth),
            schedule: optimize::schedule(&run),
            tokens_per_step: built.tokens_per_step,
            unix_ms_at_zero: self.identity.unix_ms_at_zero,
            pool: self.pool.clone(),
            merge_bytes: self.merge_bytes,
            run: *run,
        });
        self.model = Model::of(built.registration.model.clone());
        self.tell(Message::Register(built.registration.clone()));
        self.phase = Phase::Registering(setup, Box::new(built.registration));
    }

    // Time.

    fn tick(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Learning(learner) => learner.tick(now),
            Phase::Training(member) => member.tick(now),
            _ => {}
        }
        self.go_on_writing(now);
        self.try_again(now);
        if now.since(self.heartbeat_at) >= HEARTBEAT {
            self.heartbeat(now);
        }
    }

    fn heartbeat(&mut self, now: Time) {
        let (Some(worker), Some(_)) = (self.worker, self.leader.link()) else { return };
        self.heartbeat_at = now;
        self.told = self.standing();
        let asked = self.lacks_lines;
        let lines =
            self.member().into_iter().flat_map(|member| member.settled_lines(asked).cloned());
        let step = match &self.phase {
            Phase::Learning(learner) => learner.committed(),
            Phase::Training(member) => member.committed(),
            _ => Step(0),
        };
        let heartbeat = Heartbeat {
            worker,
            generation: self.generation(),
            promised: self.promised.1,
            step,
            lines: lines.take(LINES_PER_HEARTBEAT).collect(),
            unreachable: self.unreachable.iter().copied().collect(),
            held: self.told.0,
            ready: self.told.1,
            behind: self.behind(),
            computing: self.member().and_then(Member::computing),
            telemetry: None,
            unwritten: self.model.error(),
        };
        self.tell(Message::Heartbeat(heartbeat));
        self.say_unable();
    }

    fn behind(&self) -> u64 {
        match &self.phase {
            Phase::Learning(learner) => learner.behind(),
            Phase::Training(member) => member.behind(),
            _ => 0,
        }
    }

    /// Whether the worker holds, and whether it is ready. It is not ready while it cannot reach a
    /// member.
    fn standing(&self) -> (bool, bool) {
        let (roster, held, ready) = match &self.phase {
            Phase::Learning(learner) => (learner.roster(), false, learner.is_ready()),
            Phase::Training(member) => {
                (member.plan().roster(), member.is_held(), member.is_ready())
            }
            _ => return (false, false),
        };
        (held, ready && !self.unreachable.iter().any(|peer| roster.lists(*peer)))
    }

    /// Does what follows from the new state.
    fn follow(&mut self, now: Time) {
        self.begin_to_write();
        match &mut self.phase {
            Phase::Learning(learner) => {
                self.out.extend(std::iter::from_fn(|| learner.poll_effect()))
            }
            Phase::Training(member) => {
                member.look(now);
                self.out.extend(std::iter::from_fn(|| member.poll_effect()));
            }
            _ => return,
        }
        if let Some(broken) = self.member().and_then(Member::broken) {
            let (at_fault, reason) = (broken.at_fault(), broken.to_string());
            return self.fail(at_fault, true, reason);
        }
        self.press(now);
        let Some(summary) = self.member().and_then(Member::result) else { return };
        if self.finished.is_none() {
            let result = result(self.worker.unwrap_or_default(), summary, self.refused());
            self.finished = Some(result.clone());
            self.tell(Message::Finished(result));
        }
    }

    /// Sends a heartbeat at once if the leader waits for its news: the last lines, that this worker
    /// holds, or that it is ready.
    fn press(&mut self, now: Time) {
        let last_lines =
            |member: &Member| member.is_settled() && member.settled_lines(false).next().is_some();
        let (held, ready) = self.standing();
        let often = ready && !self.told.1 || self.member().is_some_and(last_lines);
        let due = now.since(self.heartbeat_at) >= PRESSING;
        if held && !self.told.0 || often && due {
            self.heartbeat(now);
        }
    }

    // Ends.

    /// The shell could not reach any coordinator for long. A worker that has an id waits for one:
    /// it may hold state that the run needs, and its join token may be used up. A worker that shall
    /// leave and is not a member may go. A worker that never met a coordinator probably has a wrong
    /// address.
    fn abandoned(&mut self, reason: &str) {
        if self.drains && self.member().is_none() {
            self.end(Exit::Drained);
        } else if self.worker.is_none() && !self.leader.has_met_any() {
            self.end(Exit::Failed(format!("no coordinator can be reached: {reason}")));
        }
    }

    fn drain(&mut self) {
        self.drains = true;
        match self.worker {
            Some(_) => self.tell(Message::Leave),
            None => self.end(Exit::Drained), // It takes no part in anything.
        }
    }

    /// The worker cannot go on, because of a member, of the history or of itself: it says so, and
    /// ends. It cannot repeat this to the next leader, so it tells every coordinator.
    fn fail(&mut self, at_fault: Option<WorkerId>, fatal: bool, reason: String) {
        for link in self.leader.links() {
            self.say(link, Message::Failed { at_fault, fatal, reason: reason.clone() });
        }
        self.end(Exit::Failed(reason));
    }

    fn end(&mut self, exit: Exit) {
        self.phase = Phase::Ended;
        self.out.push_back(Effect::Exit(exit));
    }

    /// Sends to the leader, if there is one.
    fn tell(&mut self, message: Message) {
        if let Some(link) = self.leader.link() {
            self.say(link, message);
        }
    }

    fn say(&mut self, link: LinkId, message: Message) {
        self.out.push_back(Effect::Tell { link, message });
    }

    /// Leaves the phase for another generation. Returns the setup and what the worker held, if it
    /// had them.
    fn leave(&mut self) -> Option<(Arc<Setup>, Holdings)> {
        self.refused = self.refused();
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Registering(setup, registration) => {
                let holdings = Holdings::initial(registration.fingerprint.shards);
                Some((setup, holdings))
            }
            Phase::Learning(learner) => Some((learner.setup().clone(), learner.into_holdings())),
            Phase::Training(member) => Some((member.setup().clone(), member.into_holdings())),
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
