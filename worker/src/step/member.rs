//! A member's part in one generation: reduce, vote, commit, gather.
//!
//! A `Round` is all that a member knows of this generation's try of the step under way. A commit
//! ends the round and begins the next. The state that outlives the generation is its [`Holdings`].
//! The member refuses and counts pieces and messages outside the plan, and they change nothing. It
//! does not take early pieces: their senders keep them ([`Member::admit`]). Once the worker has
//! promised a newer generation, the member sends nothing more, and only keeps account of its
//! device.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod admit;
mod commit;
mod enter;
mod feed;
mod gather;
mod pace;
#[cfg(feature = "planted")]
mod planted;
mod reduce;
mod serve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::Shared;
use everstep_kernels::reduce::{Node, Sum};
use everstep_transport::protocol::message::ShardTime;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, Encoding, Generation, Message, MetricsLine, Shard, Step, Term,
    WorkerId,
};
use everstep_transport::time::Time;

pub use self::feed::Feed;
use self::feed::Feeds;
use self::pace::Pace;
use self::serve::Questions;
use super::ballot::{Ballot, Broken};
use super::event::{Effect, Job, Lane, Parcel, Report, Summary};
use super::finish::Finish;
use super::gradients::Merge;
use super::holdings::Holdings;
use super::learning::{Learning, Scene};
use super::plan::Plan;
use super::setup::Setup;

/// This generation's attempt at the step under way.
#[derive(Debug, Default)]
struct Round {
    /// Sums that this worker computed, on their way up to the subtrees that it sends.
    merge: Merge,
    /// Sums kept of an aborted try that are not in `merge` yet, in order.
    kept: VecDeque<(Shard, Node, Shared)>,
    /// The sums of the shards of which this member is primary.
    sums: BTreeMap<Shard, Sum>,
    squares: BTreeMap<Shard, f64>,
    /// When this member voted. None before.
    voted: Option<Time>,
    /// The number of partials of each shard that have arrived.
    #[cfg(feature = "planted")]
    arrived: BTreeMap<Shard, usize>,
}

/// What a member waits for once it has computed its data shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The reduced shards that it owns. It cannot vote without them.
    ReduceScatter,
    /// The votes of the other members, or the commit.
    Commit,
}

/// A worker that is a member of a generation.
#[derive(Debug)]
pub struct Member {
    setup: Arc<Setup>,
    plan: Plan,
    holdings: Holdings,
    pace: Pace,
    round: Round,
    /// Owned shards that the device has not yet reported at the version of the last commit.
    updating: BTreeSet<Shard>,
    /// Digests of the owned shards, each of its newest version.
    digests: BTreeMap<Shard, u64>,
    /// Shards of other owners for which the parameters of the last commit have not arrived.
    gathering: BTreeSet<Shard>,
    /// The votes on the step under way, if this member is the step leader.
    ballot: Option<Ballot>,
    /// Seconds from the vote for the step before to its commit. 0 in a generation's first step.
    commit_seconds: f64,
    /// The next commit shall hold.
    hold: bool,
    /// The workers that this member feeds, and from which step on.
    feeds: Feeds,
    /// Questions of other workers.
    questions: Questions,
    /// Shards that the members feed to this member, because it will own them.
    learning: Option<Learning>,
    finish: Finish,
    refused: u64,
    /// The reason why this history must not go on. None if there is none.
    broken: Option<Broken>,
    out: VecDeque<Effect>,
}

impl Member {
    // Outputs.

    /// The next effect, for the shell to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The member's view of its generation.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The part that does not change with the generation.
    pub(super) fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// The step of the last commit known here.
    pub fn committed(&self) -> Step {
        self.holdings.committed()
    }

    /// The last commit known here.
    pub fn commit(&self) -> Option<&Commit> {
        self.holdings.commit.as_ref()
    }

    /// The last step that no failure can undo, as far as this member knows.
    pub fn settled(&self) -> Step {
        self.holdings.settled
    }

    /// What the step under way waits for, apart from this member's own computing.
    pub fn waits_for(&self) -> Option<(Step, Waiting)> {
        let computed = self.holdings.gradients.contributions().len();
        let waiting = match self.round.voted {
            Some(_) => Waiting::Commit,
            None if computed == self.plan.data_shards().len() => Waiting::ReduceScatter,
            None => return None,
        };
        (!self.is_over()).then_some((self.step(), waiting))
    }

    /// Messages and pieces refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// A broken invariant of the whole generation. None until this member has seen one.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Whether the last step is settled, as far as this member knows.
    pub fn is_settled(&self) -> bool {
        self.settled().0 == self.setup.run.steps
    }

    /// The member's results, once it is done. The step leader also waits until every line is
    /// written.
    pub fn result(&self) -> Option<&Summary> {
        let is_told = self.is_settled() && self.holdings.written >= self.settled();
        let told = !self.plan.leads() || is_told;
        self.finish.summary().filter(|_| told && !self.pace.is_promised())
    }

    /// Whether its master weights are those of the last step, and no promise forbids it to say so.
    pub(super) fn has_finished(&self) -> bool {
        self.finish.summary().is_some() && !self.pace.is_promised()
    }

    /// Unwritten lines of settled steps, oldest first. The step leader returns them always, other
    /// members only if the leader has `asked` all members.
    pub fn settled_lines(&self, asked: bool) -> impl Iterator<Item = &MetricsLine> {
        let tells = asked || self.plan.leads();
        self.holdings.lines_up_to(if tells { self.settled() } else { Step(0) })
    }

    /// The newest step whose line is written, as the leader said last.
    pub fn written_step(&self) -> Step {
        self.holdings.written
    }

    /// Whether its last commit holds, and the member has done all that follows from it.
    pub fn is_held(&self) -> bool {
        self.pace.is_holding() && self.updating.is_empty() && self.gathering.is_empty()
    }

    /// Bytes that it still lacks of the shards that it learns.
    pub fn behind(&self) -> u64 {
        let parts = self.setup.state_parts();
        let behind =
            |learning: &Learning| learning.behind(self.plan.roster(), parts, &self.holdings);
        self.learning.as_ref().map_or(0, behind)
    }

    /// Whether it has learned all that the members feed it.
    pub fn is_ready(&self) -> bool {
        let current = |learning: &Learning| learning.is_current(&self.holdings);
        let rests = self.setup.starts_no_step(self.plan.record());
        let heard = |learning: &Learning| rests || learning.has_heard();
        self.learning.as_ref().is_some_and(|learning| heard(learning) && current(learning))
    }

    /// The member's state, as an answer to a Pause.
    pub(super) fn status(
        &self,
        pause: (Term, Generation),
        unreachable: impl Iterator<Item = WorkerId>,
    ) -> Status {
        let mut status = self.holdings.status(pause, unreachable);
        let learned = self.learning.iter().flat_map(|learning| learning.prepared(&self.holdings));
        status.prepared.extend(learned.map(|(shard, _)| (shard, self.plan.generation())));
        status
    }

    // Inputs.

    /// Another member, or a learner, sends a message of this generation.
    pub fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match message {
            Message::Prepared(vote) => self.cast(from, vote),
            Message::Commit(commit) => self.learn(now, from, commit),
            Message::Go { step, .. } => self.go(from, step),
            Message::FetchParameters { shards, .. } => self.share(from, shards),
            Message::FetchState { shards, .. } => self.export(from, shards),
            Message::FetchMasters { .. } => self.hand_out_masters(from),
            Message::State { shard, version, digest, .. } => {
                self.state_begins(from, shard, (version, digest));
            }
            _ => self.refuse(),
        }
        self.advance(now);
    }

    /// The device reports.
    pub fn report(&mut self, now: Time, report: Report) {
        let Some(report) = self.follow_device(report) else { return };
        match report {
            Report::Partial { step, shard, node, sum } => self.partial(step, shard, node, sum),
            Report::Computed { step, contribution, seconds, load_seconds } => {
                let tree = self.plan.tree();
                let loaded = Duration::try_from_secs_f64(load_seconds).unwrap_or_default();
                self.holdings.progress.computed(now, loaded);
                self.holdings.gradients.computed(tree, step, contribution, seconds);
            }
            Report::Updated { version, shard, digest, parameters } => {
                self.updated((shard, version), digest, parameters);
            }
            Report::Shared { to, version, shard, values } => {
                self.shared(to, (shard, version), values);
            }
            Report::State { to, version, shard, digest, parts } => {
                self.exported(to, (shard, version, digest), parts);
            }
            Report::Restored { version, shard, intact } => {
                self.learn_with(|learning, scene| {
                    learning.restored((shard, version), intact, scene);
                });
            }
            Report::Exported { to, shard, values } => {
                self.stream(to, Lane::Masters, self.chunk(ChunkKind::Master, shard), values);
            }
            Report::Finished(summary) => {
                for to in self.finish.finished(summary) {
                    self.device(Job::Masters { to });
                }
            }
            // The core handles reports on the file and on failures.
            Report::Entered { .. }
            | Report::Opened
            | Report::Unwritten(_)
            | Report::Written
            | Report::Unable(_)
            | Report::Failed(_) => {}
        }
        self.advance(now);
    }

    /// Time passes for the device, too. It computes only if it has the parameters of other owners.
    /// It makes its own by itself.
    pub(super) fn look(&mut self, now: Time) {
        let is_ready = self.gathering.is_empty() && self.holdings.gradients.is_computed();
        self.holdings.progress.look(now, is_ready);
    }

    /// How long the device computes, for a heartbeat.
    pub(super) fn computing(&self) -> Option<ShardTime> {
        self.holdings.progress.told()
    }

    /// Every line up to `step` is written.
    pub fn written(&mut self, now: Time, step: Step) {
        self.holdings.written(step);
        self.advance(now);
    }

    // Effects.

    fn device(&mut self, job: Job) {
        self.out.push_back(Effect::Device(job));
    }

    fn send(&mut self, to: WorkerId, message: Message) {
        if !self.pace.is_promised() {
            self.out.push_back(Effect::Send { to, message });
        }
    }

    fn stream(&mut self, to: WorkerId, lane: Lane, chunk: Chunk, values: Shared) {
        let parcel =
            Parcel::Tensor { chunk: Chunk { count: values.len() as u32, ..chunk }, values };
        self.put(to, lane, chunk.step, parcel);
    }

    fn put(&mut self, to: WorkerId, lane: Lane, step: Step, parcel: Parcel) {
        if !self.pace.is_promised() {
            self.out.push_back(Effect::Stream { to, lane, step, parcel });
        }
    }

    /// The header of a tensor of this generation. The caller fills in its length.
    fn chunk(&self, kind: ChunkKind, shard: Shard) -> Chunk {
        let step = match kind {
            ChunkKind::Partial | ChunkKind::Reduced => self.step(),
            _ => self.committed(),
        };
        let parameters = kind == ChunkKind::Parameters;
        let encoding = if parameters { self.setup.run.all_gather } else { Encoding::F32 };
        let generation = self.plan.generation();
        Chunk { kind, generation, step, shard, level: 0, index: 0, count: 0, encoding, digest: 0 }
    }

    fn refuse(&mut self) {
        self.refused += 1;
    }

    // Common parts.

    /// The step under way.
    fn step(&self) -> Step {
        self.committed().next()
    }

    fn learn_with<T>(&mut self, act: impl FnOnce(&mut Learning, &mut Scene<'_>) -> T) -> Option<T> {
        let Self { learning, plan, setup, holdings, out, pace, .. } = self;
        let mut scene = Scene {
            worker: plan.worker(),
            roster: plan.roster(),
            setup,
            promised: pace.is_promised(),
            holdings,
            out,
        };
        learning.as_mut().map(|learning| act(learning, &mut scene))
    }

    fn node(chunk: &Chunk) -> Node {
        Node { level: chunk.level, index: chunk.index }
    }
}
