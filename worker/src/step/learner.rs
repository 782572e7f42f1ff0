//! A worker beside its generation: it knows the generation, and the members may feed it.
//!
//! Input: messages and pieces that members send a learner. Output: questions to owners, jobs. A
//! learner computes nothing, votes for nothing and leads nothing. It follows the commits that it
//! hears. Its learned state is its [`Holdings`]. No piece of its generation waits: what the learner
//! cannot take at once, it asks for again.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::codec::MAX_CONTROL;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, Generation, Message, Shard, Step, Term, WorkerId,
};
use everstep_transport::time::Time;

use super::event::{Admission, Effect, Gradient, Job, Report};
use super::holdings::{Holdings, Reduced};
use super::learning::{Head, Learning, Scene};
use super::roster::Roster;
use super::setup::Setup;

/// A worker that is not a member of its generation.
#[derive(Debug)]
pub(super) struct Learner {
    setup: Arc<Setup>,
    worker: WorkerId,
    roster: Roster,
    holdings: Holdings,
    learning: Learning,
    stage: Stage,
    /// The newest step whose line is written, as the leader said last in this generation.
    written: Step,
    refused: u64,
    out: VecDeque<Effect>,
}

/// How far a learner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for the Feed.
    Idle,
    /// The members feed it.
    Fed,
    /// It has promised a newer generation.
    Promised,
}

impl Learner {
    /// Begins a generation that does not list the worker, with the worker's state.
    pub fn enter(
        setup: Arc<Setup>,
        worker: WorkerId,
        roster: Roster,
        mut holdings: Holdings,
    ) -> Self {
        let jobs = holdings.enter(roster.record(), &BTreeMap::new());
        holdings.was_member = false;
        Self {
            learning: Learning::default(),
            stage: Stage::Idle,
            written: Step(0),
            refused: 0,
            out: jobs.into_iter().map(Effect::Device).collect(),
            setup,
            worker,
            roster,
            holdings,
        }
    }

    /// The state that outlives the generation.
    pub fn into_holdings(mut self) -> Holdings {
        let generation = self.roster.generation();
        for (shard, gradient) in self.learning.prepared(&self.holdings) {
            self.holdings.prepared.insert(shard, Reduced { generation, gradient });
        }
        self.holdings
    }

    // Outputs.

    /// The next effect, for the shell to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The record of the generation.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The part that does not change with the generation.
    pub fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// The step of the last commit known here.
    pub fn committed(&self) -> Step {
        self.holdings.committed()
    }

    /// Messages and pieces refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the states of all shards that it will own are here. The parameters that it computes
    /// with do not matter: a member fetches the ones that it lacks when its generation begins.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Fed
            && (self.setup.starts_no_step(self.roster.record()) || self.learning.has_heard())
            && self.learning.is_current(&self.holdings)
            && self.has_every_line()
    }

    /// Bytes that it still lacks of the shards that it learns.
    pub fn behind(&self) -> u64 {
        self.learning.behind(&self.roster, self.setup.state_parts(), &self.holdings)
    }

    /// Whether the line of every step is written, or here. The workers that have them may leave
    /// soon.
    fn has_every_line(&self) -> bool {
        let next = self.written.next();
        self.written >= self.holdings.committed() || self.holdings.lines.contains_key(&next)
    }

    /// The learner's state, as an answer to a Pause.
    pub fn status(
        &self,
        pause: (Term, Generation),
        unreachable: impl Iterator<Item = WorkerId>,
    ) -> Status {
        let mut status = self.holdings.status(pause, unreachable);
        let prepared = self.learning.prepared(&self.holdings).into_iter();
        status.prepared.extend(prepared.map(|(shard, _)| (shard, self.roster.generation())));
        status
    }

    /// What to do with a chunk of this generation from `from` whose header has arrived.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        let whole = chunk.count as usize == self.roster.length(chunk.shard);
        let expected = match chunk.kind {
            ChunkKind::Message => self.roster.lists(from) && chunk.count as usize <= MAX_CONTROL,
            ChunkKind::Parameters => whole && self.expects_parameters(from, chunk),
            ChunkKind::Reduced | ChunkKind::State if whole => {
                return self.learning.admit(from, chunk, &self.roster, &self.holdings);
            }
            _ => false,
        };
        if expected { Admission::Take } else { Admission::Drop }
    }

    /// Only parameters of the last commit are of use, and each shard's once.
    fn expects_parameters(&self, from: WorkerId, chunk: &Chunk) -> bool {
        let last = self.holdings.version();
        chunk.encoding == self.setup.run.all_gather
            && self.roster.is_primary(from, chunk.shard)
            && chunk.step == last.step
            && self.holdings.computing[chunk.shard.0 as usize] != last
    }

    // Inputs.

    /// The members feed it from now on, or with other shards than before. The members in `lost` let
    /// it in again: the learner gets new links to them, and asks again for the states that they owe
    /// it.
    pub fn feed(&mut self, shards: &[Shard], lost: &BTreeSet<WorkerId>) {
        if self.stage == Stage::Idle {
            self.stage = Stage::Fed;
            self.out.push_back(Effect::Enter(self.roster.record().clone()));
        } else {
            let members = self.roster.record().members.iter();
            let again = members.filter(|member| lost.contains(&member.worker));
            self.out.extend(again.map(|member| Effect::Meet {
                worker: member.worker,
                name: member.name.clone(),
                address: member.address,
            }));
        }
        self.learn_with(|learning, scene| learning.feed(shards, scene));
    }

    /// The worker has promised a newer generation.
    pub fn promise(&mut self) {
        self.stage = Stage::Promised;
    }

    /// A piece that was admitted has arrived whole.
    pub fn piece(&mut self, from: WorkerId, chunk: &Chunk, values: Buffer) {
        if self.admit(from, chunk) != Admission::Take || values.len() != chunk.count as usize {
            return self.refuse();
        }
        let shard = chunk.shard;
        match chunk.kind {
            ChunkKind::Parameters => {
                let version = self.holdings.version();
                self.holdings.computing[shard.0 as usize] = version;
                let load = Job::Load { shard, version: version.step, values };
                self.out.push_back(Effect::Device(load));
            }
            ChunkKind::Reduced => {
                let gradient = Gradient::received(chunk, values);
                self.learn_with(|learning, scene| learning.reduced(chunk, gradient, scene));
            }
            ChunkKind::State => {
                self.learn_with(|learning, scene| learning.part(shard, values, scene));
            }
            ChunkKind::Partial | ChunkKind::Master | ChunkKind::Message => self.refuse(),
        }
    }

    /// A member sends a message of this generation.
    pub fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match message {
            Message::Commit(commit) if self.roster.lists(from) => self.hear(now, commit),
            Message::State { shard, version, digest, .. } => {
                let head = Head { shard, version, digest };
                if !self.learn_with(|learning, scene| learning.head(from, head, scene)) {
                    self.refuse();
                }
            }
            _ => self.refuse(),
        }
    }

    /// The device reports.
    pub fn report(&mut self, report: Report) {
        match report {
            Report::Entered { generation, .. } => self.holdings.device.entered(generation),
            _ if self.holdings.device.entering.is_some() => {}
            Report::Restored { version, shard, intact } => {
                self.learn_with(|learning, scene| {
                    learning.restored((shard, version), intact, scene);
                });
            }
            _ => {} // Updates need no account here: the device makes them in order.
        }
    }

    /// The worker cannot reach another worker.
    pub fn lost(&mut self, peer: WorkerId) {
        self.learn_with(|learning, scene| learning.lost(peer, scene));
    }

    /// Time passes: the learner asks again for states that no owner has answered.
    pub fn tick(&mut self, now: Time) {
        if self.stage != Stage::Fed {
            return;
        }
        self.learn_with(|learning, scene| learning.tick(now, scene));
    }

    /// Every line up to `step` is written.
    pub fn written(&mut self, step: Step) {
        self.written = step;
        self.holdings.written(step);
    }

    // What follows.

    /// A step has committed. The learner may have missed commits before it. Then it does not know
    /// what the steps before have changed, and the parameters stay what they were.
    fn hear(&mut self, now: Time, commit: Commit) {
        if commit.step > self.committed() {
            if commit.step == self.committed().next() {
                let skip = self.holdings.skip(&commit);
                self.out.extend(skip.map(Effect::Device));
            }
            self.holdings.commit(now, commit.clone());
        }
        if commit.step > self.roster.record().resume {
            self.learn_with(|learning, scene| learning.commit(&commit, scene));
        }
    }

    fn learn_with<T>(&mut self, act: impl FnOnce(&mut Learning, &mut Scene<'_>) -> T) -> T {
        let Self { learning, setup, worker, roster, holdings, stage, out, .. } = self;
        let mut scene = Scene {
            worker: *worker,
            roster,
            setup,
            promised: *stage == Stage::Promised,
            holdings,
            out,
        };
        act(learning, &mut scene)
    }

    fn refuse(&mut self) {
        self.refused += 1;
    }
}
