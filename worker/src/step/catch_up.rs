//! How a worker syncs the shards that it will own: a member its new backups, a joiner all of its
//! shards.
//!
//! Intuition: collect the reduced gradients as they come, copy the state from an owner meanwhile,
//! and apply the gradients that came after that copy. Each shard is a [`ShardSync`]. If a gradient
//! is missing in between, or a copy is broken, the sync begins again.
//!
//! Input: a feed, reduced gradients, commits, states. Output: questions to owners, jobs. It lasts
//! one generation. The synced shards go to the worker's [`ReplicaState`]. Bounds: a limited number
//! of gradients wait for each shard, and a [`Window`] limits the states under way.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod shard_sync;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Chunk, ChunkKind, Commit, Message, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use self::shard_sync::{MAX_WAITING, ShardSync};
pub(crate) use self::window::MAX_BYTES as MAX_STATE_BYTES_UNDER_WAY;
use self::window::Window;
use super::event::{Admission, Effect, Gradient};
use super::replica_state::ReplicaState;
use super::setup::Setup;
use super::sized_record::SizedRecord;
use super::version::Version;

/// With so many bytes of gradients waiting, each shard keeps only the number of a new sync.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Commits that the worker remembers: enough for every gradient that may wait.
const MAX_COMMITS: usize = MAX_WAITING + 1;

/// The syncs of one generation.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    syncs: BTreeMap<Shard, ShardSync>,
    /// Recent commits of this generation, by step.
    commits: BTreeMap<Step, Commit>,
    /// Owners that this worker cannot ask.
    lost: BTreeSet<WorkerId>,
    /// How many bytes of states may be under way.
    window: Window,
}

/// The surroundings of the syncs: the worker, its generation, its state and its outputs.
pub(super) struct CatchUpContext<'a> {
    pub worker: WorkerId,
    pub sized_record: &'a SizedRecord,
    pub setup: &'a Setup,
    /// The worker has promised a newer generation: it asks no owner for anything.
    pub promised: bool,
    pub replica: &'a mut ReplicaState,
    pub out: &'a mut VecDeque<Effect>,
}

/// The header of a state, as its owner sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateHeader {
    pub shard: Shard,
    pub version: Step,
    pub digest: u64,
}

impl CatchUpContext<'_> {
    /// Whether no step is under way: the generation starts none, or its last commit holds. Then an
    /// owner's state is that of the last commit, and every later gradient will come.
    fn pauses(&self) -> bool {
        let record = self.sized_record.record();
        let last = self.replica.commit.as_ref();
        let holds = last.is_some_and(|last| last.hold && last.generation == record.number);
        holds || self.setup.starts_no_step(record)
    }
}

impl CatchUp {
    /// The worker syncs these shards from now on, and no others.
    pub fn feed(&mut self, shards: &[Shard], context: &mut CatchUpContext<'_>) {
        self.lost.clear(); // Every worker that feeds has a link again, or will have one.
        let mut before = std::mem::take(&mut self.syncs);
        let wanted = shards.iter().filter(|shard| {
            let owned = context.replica.copies.get(shard).is_some_and(|copy| !copy.syncing);
            shard.0 < context.sized_record.shards() && !owned
        });
        for shard in wanted {
            let held = context.replica.copies.contains_key(shard);
            let sync = before.remove(shard).unwrap_or_else(|| ShardSync::new(held));
            self.syncs.insert(*shard, sync);
        }
        let last = context.replica.commit.clone();
        self.commits.extend(
            last.filter(|commit| commit.generation == context.sized_record.generation())
                .map(|commit| (commit.step, commit)),
        );
        self.advance(context);
    }

    /// Whether every sync is at the last commit.
    pub fn is_current(&self, replica: &ReplicaState) -> bool {
        let current = |(shard, sync): (&Shard, &ShardSync)| {
            let copy = replica.copies.get(shard).filter(|_| sync.is_held());
            copy.is_some_and(|copy| copy.version.step == replica.committed())
        };
        self.syncs.iter().all(current)
    }

    /// Bytes that the worker still lacks: of states, and of the gradients of committed steps.
    pub fn behind(
        &self,
        sized_record: &SizedRecord,
        state_parts: usize,
        replica: &ReplicaState,
    ) -> u64 {
        let lacking = self.syncs.iter().map(|(shard, sync)| {
            let tensor = sized_record.length(*shard) * size_of::<f32>();
            let lacking = match replica.copies.get(shard).filter(|_| sync.is_held()) {
                Some(copy) => replica.committed().0.saturating_sub(copy.version.step.0),
                None => sync.lacking_parts(state_parts) as u64,
            };
            lacking.saturating_mul(tensor as u64)
        });
        lacking.fold(0, u64::saturating_add)
    }

    /// Whether the worker has heard a commit of this generation.
    pub fn has_heard(&self) -> bool {
        !self.commits.is_empty()
    }

    /// Reduced gradients of the step after the last commit, for shards whose copies are at that
    /// commit.
    pub fn prepared(&self, replica: &ReplicaState) -> Vec<(Shard, Gradient)> {
        let next = replica.committed().next();
        let held = self.syncs.iter().filter(|(shard, sync)| {
            let copy = replica.copies.get(shard);
            sync.is_held() && copy.is_some_and(|copy| copy.version.step.next() == next)
        });
        held.filter_map(|(shard, sync)| Some((*shard, sync.waiting(next)?))).collect()
    }

    // What arrives.

    /// What to do with a chunk that has its shard's length. The worker takes a gradient that is of
    /// use, or the next part of a state that it asked for.
    pub fn admit(
        &self,
        from: WorkerId,
        chunk: &Chunk,
        sized_record: &SizedRecord,
        replica: &ReplicaState,
    ) -> Admission {
        let Some(sync) = self.syncs.get(&chunk.shard) else { return Admission::Drop };
        let copy = replica.copies.get(&chunk.shard);
        let expected = match chunk.kind {
            ChunkKind::Reduced => {
                sized_record.is_primary(from, chunk.shard) && sync.wants(chunk.step, copy)
            }
            ChunkKind::State => sync.expects_part(from, chunk),
            _ => false,
        };
        if expected { Admission::Take } else { Admission::Drop }
    }

    /// A reduced gradient has arrived.
    pub fn reduced(&mut self, chunk: &Chunk, gradient: Gradient, context: &mut CatchUpContext<'_>) {
        let waiting: usize = self.syncs.values().map(ShardSync::waiting_bytes).sum();
        if let Some(sync) = self.syncs.get_mut(&chunk.shard) {
            sync.keep(chunk.step, gradient, waiting < MAX_WAITING_BYTES);
        }
        self.advance(context);
    }

    /// The header of a state has arrived. Returns whether the worker had asked for it.
    pub fn header(
        &mut self,
        from: WorkerId,
        header: StateHeader,
        context: &mut CatchUpContext<'_>,
    ) -> bool {
        self.heard(from);
        let known = Version::within(context.sized_record.record(), header.version).is_some();
        let sync = self.syncs.get_mut(&header.shard);
        let taken = sync.is_some_and(|sync| sync.begin(from, header, known));
        self.advance(context);
        taken
    }

    /// A part of a state has arrived.
    pub fn part(&mut self, shard: Shard, values: Buffer, context: &mut CatchUpContext<'_>) {
        if let Some(donor) = self.syncs.get(&shard).and_then(ShardSync::donor) {
            self.heard(donor);
        }
        if let Some(sync) = self.syncs.get_mut(&shard) {
            self.window.take(values.as_bytes().len());
            let job = sync.part(values, context.setup.state_parts);
            if job.is_some() {
                context.replica.copies.remove(&shard);
            }
            context.out.extend(job.map(Effect::Device));
        }
    }

    /// The device has taken a state over, or has found it broken.
    pub fn restored(
        &mut self,
        shard: Shard,
        version: Step,
        intact: bool,
        context: &mut CatchUpContext<'_>,
    ) {
        let version = Version::within(context.sized_record.record(), version);
        let sync = self.syncs.get_mut(&shard);
        if let (Some(sync), Some(version)) = (sync, version)
            && sync.restored(version.step, intact)
        {
            context.replica.restored(shard, version);
        }
        self.advance(context);
    }

    /// A step has committed.
    pub fn commit(&mut self, commit: &Commit, context: &mut CatchUpContext<'_>) {
        self.commits.insert(commit.step, commit.clone());
        if self.commits.len() > MAX_COMMITS {
            self.commits.pop_first();
        }
        self.advance(context);
    }

    /// The worker cannot reach an owner: it asks others for the states that this owner owes.
    pub fn lost(&mut self, peer: WorkerId, context: &mut CatchUpContext<'_>) {
        self.lost.insert(peer);
        for sync in self.syncs.values_mut() {
            sync.lost(peer);
        }
        self.advance(context);
    }

    /// Time passes: the worker asks another owner, or the same one again, if an owner does not
    /// answer.
    pub fn tick(&mut self, now: Time, context: &mut CatchUpContext<'_>) {
        self.window.tick(now);
        let late = self.syncs.values_mut().filter_map(|sync| sync.tick(now).then_some(()));
        if !context.promised && late.count() > 0 {
            self.ask(context);
        }
    }

    // What follows.

    /// An owner that sends anything may yet answer the rest.
    fn heard(&mut self, owner: WorkerId) {
        self.syncs.values_mut().for_each(|sync| sync.heard(owner));
    }

    fn advance(&mut self, context: &mut CatchUpContext<'_>) {
        let pauses = context.pauses();
        let CatchUpContext { replica, out, .. } = context;
        for (shard, sync) in &mut self.syncs {
            sync.advance(*shard, pauses, &self.commits, replica, out);
        }
        self.ask(context);
    }

    /// Asks owners for the wanted states, as far as the window has room.
    fn ask(&mut self, context: &mut CatchUpContext<'_>) {
        if context.promised {
            return;
        }
        let parts = context.setup.state_parts;
        let size = |shard| context.sized_record.length(shard) * size_of::<f32>() * parts;
        let under_way = self.syncs.iter().filter(|(_, sync)| sync.is_under_way());
        let mut under_way: usize = under_way.map(|(shard, _)| size(*shard)).sum();
        let pauses = context.pauses();
        let mut questions: BTreeMap<WorkerId, Vec<Shard>> = BTreeMap::new();
        for (shard, sync) in self.syncs.iter_mut().filter(|(_, l)| l.is_wanted(pauses)) {
            if under_way > 0 && under_way + size(*shard) > self.window.bytes() {
                break;
            }
            let owners = context.sized_record.owners(*shard);
            let owners = owners.filter(|it| *it != context.worker && !self.lost.contains(it));
            let Some(donor) = sync.ask(*shard, &owners.collect::<Vec<_>>()) else { continue };
            under_way += size(*shard);
            questions.entry(donor).or_default().push(*shard);
        }
        let generation = context.sized_record.generation();
        for (to, shards) in questions {
            let message = Message::FetchState { generation, shards };
            context.out.push_back(Effect::SendToPeer { to, message });
        }
    }
}
