//! A member's part in one generation: reduce, vote, commit, gather.
//!
//! Everything a member knows of the step under way is its `Round`; a commit ends the round and
//! begins the next. Pieces and messages outside the plan are refused, counted, and change nothing.
//! What is early is not taken: its sender keeps it ([`Member::admit`]).

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod commit;
#[cfg(feature = "planted")]
mod planted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::{self, Node, Operand, Sum};
use everstep_transport::protocol::codec::MAX_CONTROL;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, DataShard, Encoding, Message, MetricsLine, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

use super::ballot::{Ballot, Broken};
use super::event::{Admission, Effect, Job, Lane, Parcel, Report, Summary};
use super::finish::Finish;
use super::plan::Plan;
use super::setup::Setup;

/// The step under way.
#[derive(Debug)]
struct Round {
    step: Step,
    /// The sums of the shards of which this member is primary.
    sums: BTreeMap<Shard, Sum>,
    /// This member's own partials, until the commit is known: a redo of the step may need them.
    kept: BTreeMap<(Shard, Node), Shared>,
    /// The complete sums of all owned shards.
    reduced: BTreeMap<Shard, Shared>,
    squares: BTreeMap<Shard, f64>,
    contributions: BTreeMap<DataShard, Contribution>,
    compute_seconds: f64,
    voted: bool,
    /// How many partials of each shard have come.
    #[cfg(feature = "planted")]
    arrived: BTreeMap<Shard, usize>,
}

impl Round {
    fn new(step: Step) -> Self {
        Self {
            step,
            sums: BTreeMap::new(),
            kept: BTreeMap::new(),
            reduced: BTreeMap::new(),
            squares: BTreeMap::new(),
            contributions: BTreeMap::new(),
            compute_seconds: 0.0,
            voted: false,
            #[cfg(feature = "planted")]
            arrived: BTreeMap::new(),
        }
    }
}

/// A worker that is a member of a generation.
#[derive(Debug)]
pub struct Member {
    setup: Arc<Setup>,
    plan: Plan,
    round: Round,
    /// The last commit known here.
    commit: Option<Commit>,
    committed_at: Time,
    /// Owned shards whose state is not yet that of the last commit.
    updating: BTreeSet<Shard>,
    /// Digests of the owned shards, each of its newest version.
    digests: BTreeMap<Shard, u64>,
    /// Shards of others whose parameters of the last commit have not arrived.
    gathering: BTreeSet<Shard>,
    /// The votes on the step under way, if this member is the step leader.
    ballot: Option<Ballot>,
    /// Lines of commits that nobody has said to have written.
    lines: BTreeMap<Step, MetricsLine>,
    settled: Step,
    finish: Finish,
    refused: u64,
    /// What makes this history one that must not go on.
    broken: Option<Broken>,
    out: VecDeque<Effect>,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

/// Most lines of recent commits that a member keeps until they are written; with so many, the step
/// leader commits nothing more (invariant I13: none is dropped).
const MAX_LINES: usize = 65_536;

impl Member {
    /// Enters a first generation, at version 0.
    pub fn enter(now: Time, setup: Arc<Setup>, plan: Plan) -> Self {
        let first = plan.record().resume.next();
        let mut member = Self {
            round: Round::new(first),
            commit: None,
            committed_at: now,
            updating: plan.owned().keys().copied().collect(),
            digests: BTreeMap::new(),
            gathering: BTreeSet::new(),
            ballot: plan.leads().then(|| Ballot::new(first, false)),
            lines: BTreeMap::new(),
            settled: Step(0),
            finish: Finish::new(&plan),
            refused: 0,
            broken: None,
            out: VecDeque::new(),
            #[cfg(feature = "planted")]
            plant: None,
            setup,
            plan,
        };
        member.out.push_back(Effect::Enter(member.plan.record().clone()));
        member.device(Job::Enter {
            generation: member.plan.generation(),
            data_shards: member.plan.data_shards().to_vec(),
            subtrees: member.plan.subtrees().collect(),
            owned: member.plan.owned().iter().map(|(shard, primary)| (*shard, *primary)).collect(),
        });
        member.begin_compute();
        // Who computes nothing and owns nothing is done already.
        member.advance(now);
        member
    }

    // Outputs.

    /// The next thing to be done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The last step whose commit is known here.
    pub fn committed(&self) -> Step {
        self.commit.as_ref().map_or(self.plan.record().resume, |commit| commit.step)
    }

    /// The last commit known here.
    pub fn commit(&self) -> Option<&Commit> {
        self.commit.as_ref()
    }

    /// The last step that no failure can undo, as far as this member knows.
    pub fn settled(&self) -> Step {
        self.settled
    }

    /// Messages and pieces refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// An invariant of the whole generation that does not hold, once this member has seen it.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Whether the last step is settled, as far as this member knows.
    pub fn is_settled(&self) -> bool {
        self.settled.0 == self.setup.run.steps
    }

    /// What the member has to report, once it is done: the step leader also waits until every line
    /// is written.
    pub fn result(&self) -> Option<&Summary> {
        let told = !self.plan.leads() || self.is_settled() && self.lines.is_empty();
        self.finish.result().filter(|_| told)
    }

    /// Lines of settled steps that are not written yet, oldest first; the step leader's alone.
    pub fn settled_lines(&self) -> impl Iterator<Item = &MetricsLine> {
        let settled = if self.plan.leads() { self.settled } else { Step(0) };
        self.lines.range(..=settled).map(|(_, line)| line)
    }

    /// What to do with a chunk from `from` whose header has arrived. A receiver takes only what
    /// its plan expects, and never allocates for anything else.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        use std::cmp::Ordering::{Equal, Greater, Less};
        if chunk.generation != self.plan.generation() {
            let newer = chunk.generation > self.plan.generation();
            #[cfg(feature = "planted")]
            if !newer && self.has_plant(crate::plant::Plant::AcceptOld) {
                return Admission::Take;
            }
            return if newer { Admission::Wait } else { Admission::Drop };
        }
        let node = Node { level: chunk.level, index: chunk.index };
        let (expected, now) = match chunk.kind {
            ChunkKind::Message if chunk.count as usize <= MAX_CONTROL => return Admission::Take,
            ChunkKind::Message => return Admission::Drop,
            ChunkKind::Partial => {
                (self.plan.expects_partial(from, chunk.shard, node), self.round.step)
            }
            ChunkKind::Reduced => (self.plan.expects_reduced(from, chunk.shard), self.round.step),
            ChunkKind::Parameters => {
                let encoded = chunk.encoding == self.setup.run.all_gather;
                (encoded && self.plan.expects_parameters(from, chunk.shard), self.committed())
            }
            ChunkKind::Master => (self.plan.expects_master(from, chunk.shard), self.committed()),
        };
        if !expected || chunk.count as usize != self.plan.length(chunk.shard) {
            return Admission::Drop;
        }
        match chunk.step.cmp(&now) {
            #[cfg(feature = "planted")]
            Less if self.has_plant(crate::plant::Plant::AcceptOld) => Admission::Take,
            Less => Admission::Drop,
            Greater => Admission::Wait,
            Equal if self.has(chunk) => Admission::Drop,
            Equal => Admission::Take,
        }
    }

    /// Whether a chunk's content is here already.
    fn has(&self, chunk: &Chunk) -> bool {
        match chunk.kind {
            ChunkKind::Reduced => self.round.reduced.contains_key(&chunk.shard),
            ChunkKind::Parameters => !self.gathering.contains(&chunk.shard),
            _ => false, // The sum, and the end of the run, know what they have.
        }
    }

    // Inputs.

    /// A piece that was admitted has arrived whole.
    pub fn piece(&mut self, now: Time, from: WorkerId, chunk: &Chunk, values: Buffer) {
        // The member may have moved on while the body was on its way.
        if self.admit(from, chunk) != Admission::Take || values.len() != chunk.count as usize {
            return self.refuse();
        }
        match chunk.kind {
            ChunkKind::Partial => {
                let node = Node { level: chunk.level, index: chunk.index };
                self.add(chunk.shard, node, Operand::Owned(values));
            }
            ChunkKind::Reduced => {
                self.round.reduced.insert(chunk.shard, Shared::new(values));
            }
            ChunkKind::Parameters => self.gather(chunk.shard, values),
            ChunkKind::Master => self.write(chunk.shard, Shared::new(values)),
            ChunkKind::Message => self.refuse(),
        }
        self.advance(now);
    }

    /// Another member says something.
    pub fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match message {
            Message::Prepared(vote) => self.cast(from, vote),
            Message::Commit(commit) => self.learn(now, from, commit),
            _ => self.refuse(),
        }
        self.advance(now);
    }

    /// The device has done something.
    pub fn report(&mut self, now: Time, report: Report) {
        match report {
            Report::Partial { step, shard, node, sum } => {
                assert_eq!(step, self.round.step, "the device computes the step under way");
                self.partial(shard, node, sum);
            }
            Report::Computed { step, contribution, seconds } => {
                assert_eq!(step, self.round.step, "the device computes the step under way");
                self.round.compute_seconds += seconds;
                self.round.contributions.insert(contribution.data_shard, contribution);
            }
            Report::Updated { version, shard, digest, parameters } => {
                assert_eq!(version, self.committed(), "the device updates to the last commit");
                self.updated(shard, digest, parameters);
            }
            Report::Exported { shard, values } if self.plan.leads() => self.write(shard, values),
            Report::Exported { shard, values } => {
                let to = self.plan.record().step_leader();
                self.stream(to, ChunkKind::Master, (shard, None), values);
            }
            Report::Finished(summary) => self.finish.summary = Some(summary),
            Report::Written => self.finish.written = true,
            Report::Failed(_) => unreachable!("the core ends on a failed device"),
        }
        self.advance(now);
    }

    /// Every line up to `step` is written.
    pub fn written(&mut self, now: Time, step: Step) {
        self.lines = self.lines.split_off(&step.next());
        self.advance(now);
    }

    // Reduce.

    fn partial(&mut self, shard: Shard, node: Node, sum: Shared) {
        self.round.kept.insert((shard, node), sum.clone());
        let primary = self.plan.primary(shard);
        if primary == self.plan.worker() {
            self.add(shard, node, Operand::Kept(sum));
        } else {
            self.stream(primary, ChunkKind::Partial, (shard, Some(node)), sum);
        }
    }

    fn add(&mut self, shard: Shard, node: Node, partial: Operand) {
        #[cfg(feature = "planted")]
        let node = self.place_of_partial(shard, node);
        let (tree, length) = (self.plan.tree(), self.plan.length(shard));
        let pool = &self.setup.pool;
        let sums = &mut self.round.sums;
        let sum = sums.entry(shard).or_insert_with(|| Sum::new(tree, length, pool.clone()));
        match sum.insert(node, partial) {
            Ok(None) => {}
            Ok(Some(total)) => self.reduced(shard, total.into_shared()),
            Err(_) => self.refuse(),
        }
    }

    fn reduced(&mut self, shard: Shard, gradient: Shared) {
        self.round.squares.insert(shard, reduce::sum_of_squares(&gradient));
        let backups: Vec<_> = self.plan.backups(shard).collect();
        for to in backups {
            self.stream(to, ChunkKind::Reduced, (shard, None), gradient.clone());
        }
        self.round.reduced.insert(shard, gradient);
    }

    // Gather.

    /// Each stream of parameters begins with the commit that made them.
    fn head_streams(&mut self, commit: &Commit) {
        let primaries = self.plan.owned().iter().filter(|(_, primary)| **primary);
        let receivers: BTreeSet<_> =
            primaries.flat_map(|(shard, _)| self.plan.gatherers(*shard)).collect();
        for to in receivers {
            let parcel = Parcel::Commit(commit.clone());
            let (lane, step) = (Lane::Parameters, commit.step);
            self.out.push_back(Effect::Stream { to, lane, step, parcel });
        }
    }

    fn updated(&mut self, shard: Shard, digest: u64, parameters: Option<Shared>) {
        self.updating.remove(&shard);
        self.digests.insert(shard, digest);
        let Some(values) = parameters else { return };
        let receivers: Vec<_> = self.plan.gatherers(shard).collect();
        for to in receivers {
            self.stream(to, ChunkKind::Parameters, (shard, None), values.clone());
        }
    }

    fn gather(&mut self, shard: Shard, values: Buffer) {
        self.gathering.remove(&shard);
        self.device(Job::Load { shard, version: self.committed(), values });
    }

    fn write(&mut self, shard: Shard, values: Shared) {
        if self.finish.expect_master(shard) {
            self.device(Job::Write { shard, values });
        } else {
            self.refuse();
        }
    }

    // Effects.

    fn device(&mut self, job: Job) {
        self.out.push_back(Effect::Device(job));
    }

    fn send(&mut self, to: WorkerId, message: Message) {
        self.out.push_back(Effect::Send { to, message });
    }

    fn stream(
        &mut self,
        to: WorkerId,
        kind: ChunkKind,
        (shard, node): (Shard, Option<Node>),
        values: Shared,
    ) {
        let parameters = kind == ChunkKind::Parameters;
        let (lane, step) = match kind {
            ChunkKind::Partial => (Lane::Partials, self.round.step),
            ChunkKind::Reduced => (Lane::Reduced, self.round.step),
            ChunkKind::Master => (Lane::Masters, self.committed()),
            ChunkKind::Parameters | ChunkKind::Message => (Lane::Parameters, self.committed()),
        };
        let chunk = Chunk {
            kind,
            generation: self.plan.generation(),
            step,
            shard,
            level: node.map_or(0, |node| node.level),
            index: node.map_or(0, |node| node.index),
            count: values.len() as u32,
            encoding: if parameters { self.setup.run.all_gather } else { Encoding::F32 },
        };
        let parcel = Parcel::Tensor { chunk, values };
        self.out.push_back(Effect::Stream { to, lane, step, parcel });
    }

    fn refuse(&mut self) {
        self.refused += 1;
    }
}
