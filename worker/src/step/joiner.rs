//! A worker beside its generation: it knows the generation, and the members may feed it.
//!
//! Input: messages and chunks that members send a joiner. Output: questions to owners, jobs. A
//! joiner computes nothing, votes for nothing and leads nothing. It follows the commits that it
//! hears. Its synced state is its [`ReplicaState`]. No chunk of its generation waits: what the
//! joiner cannot take at once, it asks for again.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::codec::MAX_CONTROL;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Chunk, ChunkKind, Commit, Message, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::Promise;
use super::catch_up::{CatchUp, CatchUpContext, StateHeader};
use super::event::{Admission, Effect, Gradient, Job, Report};
use super::replica_state::{EnterError, ReducedShard, ReplicaState};
use super::setup::Setup;
use super::sized_record::SizedRecord;

/// A worker that is not a member of its generation.
#[derive(Debug)]
pub(super) struct Joiner {
    setup: Arc<Setup>,
    worker: WorkerId,
    sized_record: SizedRecord,
    replica: ReplicaState,
    catch_up: CatchUp,
    stage: JoinerStage,
    /// The newest step whose line is written, as the leader said last in this generation.
    written: Step,
    refused: u64,
    out: VecDeque<Effect>,
}

/// How far a joiner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinerStage {
    /// It waits for the Feed.
    Idle,
    /// The members feed it.
    Fed,
    /// It has promised a newer generation.
    Promised,
}

impl Joiner {
    /// Begins a generation that does not list the worker, with the worker's state.
    ///
    /// # Errors
    /// If the record goes back behind what was settled (invariant I17).
    pub fn enter(
        setup: Arc<Setup>,
        worker: WorkerId,
        sized_record: SizedRecord,
        mut replica: ReplicaState,
    ) -> Result<Self, EnterError> {
        let jobs = replica.enter(sized_record.record(), &BTreeMap::new(), false)?;
        replica.was_member = false;
        Ok(Self {
            catch_up: CatchUp::default(),
            stage: JoinerStage::Idle,
            written: Step(0),
            refused: 0,
            out: jobs.into_iter().map(Effect::Device).collect(),
            setup,
            worker,
            sized_record,
            replica,
        })
    }

    /// The state that outlives the generation.
    pub fn into_replica_state(mut self) -> ReplicaState {
        let generation = self.sized_record.generation();
        for (shard, gradient) in self.catch_up.prepared(&self.replica) {
            self.replica.prepared.insert(shard, ReducedShard { generation, gradient });
        }
        self.replica
    }

    // Outputs.

    /// The next effect, for the shell to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The record of the generation.
    pub fn sized_record(&self) -> &SizedRecord {
        &self.sized_record
    }

    /// The part that does not change with the generation.
    pub fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// The step of the last commit known here.
    pub fn committed(&self) -> Step {
        self.replica.committed()
    }

    /// Messages and chunks refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the states of all shards that it will own are here. The parameters that it computes
    /// with do not matter: a member fetches the ones that it lacks when its generation begins.
    pub fn is_ready(&self) -> bool {
        self.stage == JoinerStage::Fed
            && (self.setup.starts_no_step(self.sized_record.record()) || self.catch_up.has_heard())
            && self.catch_up.is_current(&self.replica)
            && self.has_every_line()
    }

    /// Bytes that it still lacks of the shards that it syncs.
    pub fn behind(&self) -> u64 {
        self.catch_up.behind(&self.sized_record, self.setup.state_parts, &self.replica)
    }

    /// Whether the line of every step is written, or here. The workers that have them may leave
    /// soon.
    fn has_every_line(&self) -> bool {
        let next = self.written.next();
        self.written >= self.replica.committed() || self.replica.lines.contains_key(&next)
    }

    /// The joiner's state, as an answer to a Pause.
    pub fn status(&self, promise: Promise, unreachable: impl Iterator<Item = WorkerId>) -> Status {
        let mut status = self.replica.status(promise, unreachable);
        let prepared = self.catch_up.prepared(&self.replica).into_iter();
        status.prepared.extend(prepared.map(|(shard, _)| (shard, self.sized_record.generation())));
        status
    }

    /// What to do with a chunk of this generation from `from` whose header has arrived.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        let whole = chunk.count as usize == self.sized_record.length(chunk.shard);
        let expected = match chunk.kind {
            ChunkKind::Message => {
                self.sized_record.lists(from) && chunk.count as usize <= MAX_CONTROL
            }
            ChunkKind::Parameters => whole && self.expects_parameters(from, chunk),
            ChunkKind::Reduced | ChunkKind::State if whole => {
                return self.catch_up.admit(from, chunk, &self.sized_record, &self.replica);
            }
            _ => false,
        };
        if expected { Admission::Take } else { Admission::Drop }
    }

    /// Only parameters of the last commit are of use, and each shard's once.
    fn expects_parameters(&self, from: WorkerId, chunk: &Chunk) -> bool {
        let last = self.replica.version();
        chunk.encoding == self.setup.run.all_gather
            && self.sized_record.is_primary(from, chunk.shard)
            && chunk.step == last.step
            && self.replica.computing[chunk.shard.0 as usize] != last
    }

    // Inputs.

    /// The members feed it from now on, or with other shards than before. The members in `lost` let
    /// it in again: the joiner gets new links to them, and asks again for the states that they owe
    /// it.
    pub fn feed(&mut self, shards: &[Shard], lost: &BTreeSet<WorkerId>) {
        if self.stage == JoinerStage::Idle {
            self.stage = JoinerStage::Fed;
            self.out.push_back(Effect::Enter(self.sized_record.record().clone()));
        } else {
            let members = self.sized_record.record().members.iter();
            let again = members.filter(|member| lost.contains(&member.worker));
            self.out.extend(again.map(|member| Effect::AcceptPeer {
                worker: member.worker,
                name: member.name.clone(),
                address: member.address,
            }));
        }
        self.with_catch_up(|catch_up, context| catch_up.feed(shards, context));
    }

    /// The worker has promised a newer generation.
    pub fn promise(&mut self) {
        self.stage = JoinerStage::Promised;
    }

    /// A chunk that was admitted has arrived whole.
    pub fn on_chunk(&mut self, from: WorkerId, chunk: &Chunk, values: Buffer) {
        if self.admit(from, chunk) != Admission::Take || values.len() != chunk.count as usize {
            return self.refuse();
        }
        let shard = chunk.shard;
        match chunk.kind {
            ChunkKind::Parameters => {
                let version = self.replica.version();
                self.replica.computing[shard.0 as usize] = version;
                let load = Job::Load { shard, version: version.step, values };
                self.out.push_back(Effect::Device(load));
            }
            ChunkKind::Reduced => {
                let gradient = Gradient::received(chunk, values);
                self.with_catch_up(|catch_up, context| catch_up.reduced(chunk, gradient, context));
            }
            ChunkKind::State => {
                self.with_catch_up(|catch_up, context| catch_up.part(shard, values, context));
            }
            ChunkKind::Partial | ChunkKind::Master | ChunkKind::Message => self.refuse(),
        }
    }

    /// A member sends a message of this generation.
    pub fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match message {
            Message::Commit(commit) if self.sized_record.lists(from) => self.hear(now, commit),
            Message::State { shard, version, digest, .. } => {
                let header = StateHeader { shard, version, digest };
                if !self.with_catch_up(|catch_up, context| catch_up.header(from, header, context)) {
                    self.refuse();
                }
            }
            _ => self.refuse(),
        }
    }

    /// The device has finished a job, or a part of it.
    pub fn report(&mut self, report: Report) {
        match report {
            Report::Entered { generation, .. } => self.replica.device.entered(generation),
            Report::LoadStalled(_) | Report::Evaluating | Report::Evaluated => {
                self.replica.progress.report(&report);
            }
            _ if self.replica.device.entering.is_some() => {}
            Report::Restored { version, shard, intact, .. } => {
                self.with_catch_up(|catch_up, context| {
                    catch_up.restored(shard, version, intact, context);
                });
            }
            _ => {} // Updates need no account here: the device makes them in order.
        }
    }

    /// The worker cannot reach another worker.
    pub fn lost(&mut self, peer: WorkerId) {
        self.with_catch_up(|catch_up, context| catch_up.lost(peer, context));
    }

    /// Time passes: the joiner asks again for states that no owner has answered.
    pub fn tick(&mut self, now: Time) {
        if self.stage != JoinerStage::Fed {
            return;
        }
        self.with_catch_up(|catch_up, context| catch_up.tick(now, context));
    }

    /// Every line up to `step` is written.
    pub fn written(&mut self, step: Step) {
        self.written = step;
        self.replica.written(step);
    }

    // What follows.

    /// A step has committed. The joiner may have missed commits before it. Then it does not know
    /// what the steps before have changed, and the parameters stay what they were.
    fn hear(&mut self, now: Time, commit: Commit) {
        if commit.step > self.committed() {
            if commit.step == self.committed().next() {
                let skip = self.replica.skip(&commit);
                self.out.extend(skip.map(Effect::Device));
            }
            self.replica.commit(now, commit.clone());
        }
        if commit.step > self.sized_record.record().resume {
            self.with_catch_up(|catch_up, context| catch_up.commit(&commit, context));
        }
    }

    fn with_catch_up<T>(
        &mut self,
        act: impl FnOnce(&mut CatchUp, &mut CatchUpContext<'_>) -> T,
    ) -> T {
        let Self { catch_up, setup, worker, sized_record, replica, stage, out, .. } = self;
        let mut context = CatchUpContext {
            worker: *worker,
            sized_record,
            setup,
            promised: *stage == JoinerStage::Promised,
            replica,
            out,
        };
        act(catch_up, &mut context)
    }

    fn refuse(&mut self) {
        self.refused += 1;
    }
}
