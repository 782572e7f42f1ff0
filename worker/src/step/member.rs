//! A member's part in one generation: reduce, vote, commit, gather.
//!
//! A `Round` is all that a member knows of this generation's try of the step under way. A commit
//! ends the round and begins the next. The state that outlives the generation is its
//! [`ReplicaState`]. The member refuses and counts chunks and messages outside the plan, and they
//! change nothing. It does not take early chunks: their senders keep them ([`Member::admit`]). Once
//! the worker has promised a newer generation, the member sends nothing more, and only keeps
//! account of its device.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod admit;
pub(super) mod checkpoint;
mod commit;
mod enter;
mod feed;
mod gather;
mod invariants;
#[cfg(feature = "planted")]
mod planted;
mod reduce;
mod serve;
mod step_state;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::Shared;
use everstep_kernels::reduce::{Sum, TreeNode};
use everstep_transport::protocol::message::ShardTime;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, Encoding, Message, MetricsLine, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

use self::checkpoint::Restoring;
use self::commit::Voting;
pub use self::feed::Feed;
use self::gather::AllGather;
use self::serve::Serving;
use self::step_state::StepControl;
use super::Promise;
use super::catch_up::{CatchUp, CatchUpContext, StateHeader};
use super::event::{Effect, Job, Lane, Report, StreamItem, Summary};
use super::finish::Finish;
use super::gradients::Merge;
use super::plan::MemberPlan;
use super::progress::DeviceTask;
use super::replica_state::{PendingEntries, ReplicaState};
use super::setup::Setup;
use super::vote_tally::Divergence;

/// This generation's attempt at the step under way.
#[derive(Debug, Default)]
struct Round {
    /// Sums that this worker computed, on their way up to the subtrees that it sends.
    merge: Merge,
    /// Sums kept of an aborted try that are not in `merge` yet, in order.
    kept: VecDeque<(Shard, TreeNode, Shared)>,
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
pub enum StepWait {
    /// The reduced shards that it owns. It cannot vote without them.
    ReduceScatter,
    /// The votes of the other members, or the commit.
    Commit,
}

/// A worker that is a member of a generation.
#[derive(Debug)]
pub struct Member {
    setup: Arc<Setup>,
    plan: MemberPlan,
    replica: ReplicaState,
    control: StepControl,
    round: Round,
    all_gather: AllGather,
    voting: Voting,
    serving: Serving,
    /// Shards that the members feed to this member, because it will own them.
    catch_up: Option<CatchUp>,
    restoring: Restoring,
    finish: Finish,
    refused: u64,
    out: VecDeque<Effect>,
}

impl Member {
    // Outputs.

    /// The next effect, for the shell to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The member's view of its generation.
    pub fn plan(&self) -> &MemberPlan {
        &self.plan
    }

    /// The part that does not change with the generation.
    pub(super) fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// The step of the last commit known here.
    pub fn committed(&self) -> Step {
        self.replica.committed()
    }

    /// The last commit known here.
    pub fn commit(&self) -> Option<&Commit> {
        self.replica.commit.as_ref()
    }

    /// The last step that no failure can undo, as far as this member knows.
    pub fn settled(&self) -> Step {
        self.replica.settled
    }

    /// What the step under way waits for, apart from this member's own computing.
    pub fn waits_for(&self) -> Option<(Step, StepWait)> {
        let computed = self.replica.gradients.contributions().len();
        let waiting = match self.round.voted {
            Some(_) => StepWait::Commit,
            None if computed == self.plan.data_shards().len() => StepWait::ReduceScatter,
            None => return None,
        };
        (!self.is_over()).then_some((self.step(), waiting))
    }

    /// Messages and chunks refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// A broken invariant of the whole generation. None until this member has seen one.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.voting.divergence()
    }

    /// Whether the last step is settled, as far as this member knows.
    pub fn is_settled(&self) -> bool {
        self.settled().0 == self.setup.run.steps
    }

    /// The member's results, once it is done. The step leader also waits until every line is
    /// written.
    pub fn result(&self) -> Option<&Summary> {
        let is_told = self.is_settled() && self.replica.written >= self.settled();
        let told = !self.plan.is_step_leader() || is_told;
        self.finish.summary().filter(|_| told && !self.control.is_promised())
    }

    /// Whether its master weights are those of the last step, and no promise forbids it to say so.
    pub(super) fn has_finished(&self) -> bool {
        self.finish.summary().is_some() && !self.control.is_promised()
    }

    /// Unwritten lines of settled steps, oldest first. The step leader returns them always, other
    /// members only if the leader has `asked` all members.
    pub fn settled_lines(&self, asked: bool) -> impl Iterator<Item = &MetricsLine> {
        let tells = asked || self.plan.is_step_leader();
        self.replica.lines_up_to(if tells { self.settled() } else { Step(0) })
    }

    /// The newest step whose line is written, as the leader said last.
    pub fn written_step(&self) -> Step {
        self.replica.written
    }

    /// Whether its last commit holds, and the member has done all that follows from it.
    pub fn is_held(&self) -> bool {
        self.control.is_holding() && self.all_gather.is_complete()
    }

    /// Bytes that it still lacks of the shards that it syncs.
    pub fn behind(&self) -> u64 {
        let (sized_record, parts) = (self.plan.sized_record(), self.setup.state_parts);
        let behind = |catch_up: &CatchUp| catch_up.behind(sized_record, parts, &self.replica);
        self.catch_up.as_ref().map_or(0, behind)
    }

    /// Bytes that it has yet to read of the checkpoint that it restores.
    pub fn unread(&self) -> u64 {
        self.restoring.unread(self.plan.sized_record(), self.setup.state_parts)
    }

    /// Whether it has synced all that the members feed it.
    pub fn is_ready(&self) -> bool {
        let current = |catch_up: &CatchUp| catch_up.is_current(&self.replica);
        let rests = self.setup.starts_no_step(self.plan.record());
        let heard = |catch_up: &CatchUp| rests || catch_up.has_heard();
        self.catch_up.as_ref().is_some_and(|catch_up| heard(catch_up) && current(catch_up))
    }

    /// The member's state, as an answer to a Pause.
    pub(super) fn status(
        &self,
        promise: Promise,
        unreachable: impl Iterator<Item = WorkerId>,
    ) -> Status {
        let mut status = self.replica.status(promise, unreachable);
        let syncing = self.catch_up.iter().flat_map(|catch_up| catch_up.prepared(&self.replica));
        status.prepared.extend(syncing.map(|(shard, _)| (shard, self.plan.generation())));
        status
    }

    // Inputs.

    /// Another member, or a joiner, sends a message of this generation.
    pub fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match message {
            Message::Prepared(vote) => self.cast(from, vote),
            Message::Commit(commit) => self.on_commit(now, from, commit),
            Message::Go { step, .. } => self.go(from, step),
            Message::FetchParameters { shards, .. } => self.share(from, shards),
            Message::FetchState { shards, .. } => self.export(from, shards),
            Message::FetchMasters { .. } => self.hand_out_masters(from),
            Message::State { shard, version, digest, .. } => {
                self.state_begins(from, StateHeader { shard, version, digest });
            }
            _ => self.refuse(),
        }
        self.advance(now);
    }

    /// The device has finished a job, or a part of it.
    pub fn report(&mut self, now: Time, report: Report) {
        let Some(report) = self.follow_device(report) else { return };
        match report {
            Report::Partial { step, shard, node, sum } => self.partial(step, shard, node, sum),
            Report::Computed { step, contribution, seconds, load_seconds } => {
                let tree = self.plan.tree();
                let loaded = Duration::try_from_secs_f64(load_seconds).unwrap_or_default();
                self.replica.progress.computed(now, loaded);
                self.replica
                    .progress
                    .pace(step, Duration::try_from_secs_f64(seconds).unwrap_or_default());
                self.replica.gradients.computed(tree, step, contribution, seconds);
            }
            Report::Updated { version, shard, digest, parameters } => {
                self.replica.progress.updated(now);
                self.updated(shard, version, digest, parameters);
            }
            Report::Shared { to, version, shard, values } => {
                self.shared(to, shard, version, values);
            }
            Report::State { to, version, shard, digest, parts } => {
                self.exported(to, StateHeader { shard, version, digest }, parts);
            }
            Report::Restored { version, shard, digest, .. }
                if self.restored(shard, version, digest) => {}
            Report::Restored { version, shard, intact, .. } => {
                self.with_catch_up(|catch_up, context| {
                    catch_up.restored(shard, version, intact, context);
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
            // `follow_device` and the core handle the others.
            Report::Entered { .. }
            | Report::Saving { .. }
            | Report::LoadStalled(_)
            | Report::Evaluating
            | Report::Evaluated
            | Report::Unable { .. }
            | Report::Failed(_) => {}
        }
        self.advance(now);
    }

    /// Time passes for the device, too.
    pub(super) fn track_progress(&mut self, now: Time) {
        let task = self.device_task();
        #[cfg(feature = "planted")]
        let task = task.filter(|task| self.times(*task));
        self.replica.progress.look(now, task);
    }

    /// What the device has to do. It computes only if it has the parameters of other owners, and
    /// its own shards of a checkpoint. It makes its own parameters by itself. A pass of an earlier
    /// step may still be under way, and has to end before the device goes on. One of this step that
    /// waits for parameters keeps the device from following into the generation.
    fn device_task(&self) -> Option<DeviceTask> {
        let Self { replica, all_gather, restoring, .. } = self;
        let PendingEntries { entering, void_until } = replica.device;
        let gradients = &replica.gradients;
        let computes = gradients.is_computed() && all_gather.has_others();
        let is_behind = entering.is_some() || !all_gather.is_updated();
        match entering {
            _ if !restoring.is_over() => None,
            None if self.finishes() => Some(DeviceTask::Evaluation),
            _ if computes => Some(DeviceTask::DataShard),
            _ if !is_behind => None,
            Some(_) if void_until.is_some() => Some(DeviceTask::Beginning),
            Some(_) if gradients.is_computed() => None,
            None if !gradients.has_earlier_pass() => Some(DeviceTask::Updates),
            _ => Some(DeviceTask::Remainder),
        }
    }

    /// Whether the device evaluates and digests after the last step.
    fn finishes(&self) -> bool {
        self.is_over() && self.round.voted.is_some() && self.finish.summary().is_none()
    }

    /// How long the device computes, for a heartbeat.
    pub(super) fn computing(&self) -> Option<ShardTime> {
        self.replica.progress.told()
    }

    /// How long a data shard takes the device, microseconds, for a heartbeat. 0 if it is not known.
    pub(super) fn shard_us(&self) -> u64 {
        self.replica.progress.shard_us()
    }

    /// Every line up to `step` is written.
    pub fn written(&mut self, now: Time, step: Step) {
        self.replica.written(step);
        self.advance(now);
    }

    // Effects.

    fn device(&mut self, job: Job) {
        self.out.push_back(Effect::Device(job));
    }

    fn send(&mut self, to: WorkerId, message: Message) {
        if !self.control.is_promised() {
            self.out.push_back(Effect::SendToPeer { to, message });
        }
    }

    fn stream(&mut self, to: WorkerId, lane: Lane, chunk: Chunk, values: Shared) {
        let item =
            StreamItem::Tensor { chunk: Chunk { count: values.len() as u32, ..chunk }, values };
        self.put(to, lane, chunk.step, item);
    }

    fn put(&mut self, to: WorkerId, lane: Lane, step: Step, item: StreamItem) {
        if !self.control.is_promised() {
            self.out.push_back(Effect::Stream { to, lane, step, item });
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

    fn with_catch_up<T>(
        &mut self,
        act: impl FnOnce(&mut CatchUp, &mut CatchUpContext<'_>) -> T,
    ) -> Option<T> {
        let Self { catch_up, plan, setup, replica, out, control, .. } = self;
        let mut context = CatchUpContext {
            worker: plan.worker(),
            sized_record: plan.sized_record(),
            setup,
            promised: control.is_promised(),
            replica,
            out,
        };
        catch_up.as_mut().map(|catch_up| act(catch_up, &mut context))
    }

    fn node(chunk: &Chunk) -> TreeNode {
        TreeNode { level: chunk.level, index: chunk.index }
    }
}
