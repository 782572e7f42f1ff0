//! How a worker syncs one shard.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Chunk, Commit, Decision, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::StateHeader;
use crate::step::event::{Effect, Gradient, Job};
use crate::step::replica_state::{ReplicaState, ShardCopy};

/// The most reduced gradients of one shard that wait, at first. The sync drops older ones. Each
/// time the steps have outrun a state on its way, the limit doubles. Otherwise a sync would never
/// catch up.
const FIRST_WAITING: usize = 4;
/// The most doublings, of this limit and of the time to answer.
const MAX_DOUBLINGS: u32 = 6;
/// The most reduced gradients of one shard that wait, after all doublings.
pub const MAX_WAITING: usize = FIRST_WAITING << MAX_DOUBLINGS;
/// The sync gives up an owner that sends nothing for so long after the question. Each try doubles
/// this. An owner answers after its device has done its earlier jobs, which may take a whole step.
pub const STATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How far one shard is synced.
#[derive(Debug)]
pub struct ShardSync {
    stage: SyncStage,
    /// How often the worker has asked an owner. The next try asks the next owner.
    tries: u32,
    /// How often the steps have outrun this sync.
    outrun: u32,
    /// Since when the owner is known to have sent nothing. None if it has just sent something.
    quiet_since: Option<Time>,
    /// From this step on every reduced gradient is here, or on its way.
    first: Option<Step>,
    /// Gradients that the sync cannot apply yet.
    waiting: BTreeMap<Step, Gradient>,
}

#[derive(Debug)]
enum SyncStage {
    /// The worker has asked no owner.
    Wanted,
    /// The worker has asked an owner.
    Asked { donor: WorkerId },
    /// The owner sends the state.
    Arriving { donor: WorkerId, header: StateHeader, parts: Vec<Buffer> },
    /// The device is taking the state over.
    Restoring { version: Step },
    /// The device holds the shard, and the shard follows the commits.
    Held,
}

impl ShardSync {
    /// A sync for a shard that the worker may hold already, since an earlier generation.
    pub fn new(held: bool) -> Self {
        let stage = if held { SyncStage::Held } else { SyncStage::Wanted };
        Self {
            stage,
            tries: 0,
            outrun: 0,
            quiet_since: None,
            first: None,
            waiting: BTreeMap::new(),
        }
    }

    pub fn is_held(&self) -> bool {
        matches!(self.stage, SyncStage::Held)
    }

    /// Whether its state is on its way, and so takes up room in the window.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.stage, SyncStage::Wanted | SyncStage::Held)
    }

    /// Whether to ask for its state. The worker waits for a first gradient, which shows that the
    /// primary feeds it. If steps pause, no gradient comes, and the worker asks at once.
    pub fn is_wanted(&self, pauses: bool) -> bool {
        matches!(self.stage, SyncStage::Wanted) && (pauses || self.first.is_some())
    }

    /// How many of the tensors that make up its state have not arrived.
    pub fn lacking_parts(&self, wanted: usize) -> usize {
        match &self.stage {
            SyncStage::Wanted | SyncStage::Asked { .. } => wanted,
            SyncStage::Arriving { parts, .. } => wanted.saturating_sub(parts.len()),
            SyncStage::Restoring { .. } | SyncStage::Held => 0,
        }
    }

    /// The gradient of a step. None if it does not wait here.
    pub fn waiting(&self, step: Step) -> Option<Gradient> {
        self.waiting.get(&step).cloned()
    }

    /// Whether the gradient of a step is of use.
    pub fn wants(&self, step: Step, copy: Option<&ShardCopy>) -> bool {
        let applied = self.is_held() && copy.is_some_and(|copy| step <= copy.version.step);
        !applied && !self.waiting.contains_key(&step)
    }

    /// Whether a chunk is the next part of the state that arrives.
    pub fn expects_part(&self, from: WorkerId, chunk: &Chunk) -> bool {
        let SyncStage::Arriving { donor, header, parts } = &self.stage else { return false };
        *donor == from && header.version == chunk.step && parts.len() == chunk.index as usize
    }

    /// Keeps a gradient. If too many wait, the sync drops the oldest as if it had never come.
    /// `room` says whether there is room for more than the first few.
    pub fn keep(&mut self, step: Step, gradient: Gradient, room: bool) {
        self.waiting.insert(step, gradient);
        let first = self.first.unwrap_or(step);
        self.first = Some(first.min(step));
        let most = if room { self.max_waiting() } else { FIRST_WAITING };
        while self.waiting.len() > most {
            let dropped = self.waiting.pop_first();
            self.first = dropped.map(|(oldest, _)| oldest.next()).max(self.first);
        }
    }

    /// Bytes of the gradients that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.values().map(|gradient| gradient.values.as_bytes().len()).sum()
    }

    fn max_waiting(&self) -> usize {
        FIRST_WAITING << self.outrun.min(MAX_DOUBLINGS)
    }

    /// Chooses the owner to ask, and notes that it is asked. The choice spreads the shards, so that
    /// several owners serve.
    pub fn ask(&mut self, shard: Shard, owners: &[WorkerId]) -> Option<WorkerId> {
        let place = ((shard.0 + self.tries) as usize).checked_rem(owners.len())?;
        self.tries += 1;
        self.quiet_since = None;
        self.stage = SyncStage::Asked { donor: owners[place] };
        Some(owners[place])
    }

    /// An owner answers. If its version is not part of this generation's history, the worker asks
    /// again.
    pub fn begin(&mut self, from: WorkerId, header: StateHeader, known: bool) -> bool {
        let SyncStage::Asked { donor } = self.stage else { return false };
        if donor != from {
            return false;
        }
        let arriving = SyncStage::Arriving { donor, header, parts: Vec::new() };
        self.stage = if known { arriving } else { SyncStage::Wanted };
        true
    }

    /// Takes an admitted part. Returns the device's job once all parts are here.
    pub fn part(&mut self, values: Buffer, wanted: usize) -> Option<Job> {
        let SyncStage::Arriving { header, parts, .. } = &mut self.stage else { return None };
        parts.push(values);
        if parts.len() < wanted {
            return None;
        }
        let (StateHeader { shard, version, digest }, parts) = (*header, std::mem::take(parts));
        self.stage = SyncStage::Restoring { version };
        Some(Job::Restore { shard, version, digest, parts })
    }

    /// The device has taken a version over, or has found it broken. Returns whether the shard is
    /// held now.
    pub fn restored(&mut self, version: Step, intact: bool) -> bool {
        if !matches!(self.stage, SyncStage::Restoring { version: awaited } if awaited == version) {
            return false;
        }
        self.stage = if intact { SyncStage::Held } else { SyncStage::Wanted };
        if intact {
            self.waiting = self.waiting.split_off(&version.next());
        }
        intact
    }

    /// The owner that shall answer. None if the worker waits for no answer.
    pub fn donor(&self) -> Option<WorkerId> {
        match self.stage {
            SyncStage::Asked { donor } | SyncStage::Arriving { donor, .. } => Some(donor),
            _ => None,
        }
    }

    /// The worker cannot reach an owner.
    pub fn lost(&mut self, peer: WorkerId) {
        if self.donor() == Some(peer) {
            self.stage = SyncStage::Wanted;
        }
    }

    /// An owner has sent something, perhaps of another shard.
    pub fn heard(&mut self, owner: WorkerId) {
        if self.donor() == Some(owner) {
            self.quiet_since = None;
        }
    }

    /// Time passes: gives up an owner that has sent nothing for too long. Returns whether it did.
    pub fn tick(&mut self, now: Time) -> bool {
        if self.donor().is_none() {
            return false;
        }
        let since = *self.quiet_since.get_or_insert(now);
        let doublings = self.tries.saturating_sub(1).min(MAX_DOUBLINGS);
        let late = now.since(since) >= STATE_ANSWER_TIMEOUT * (1 << doublings);
        if late {
            self.stage = SyncStage::Wanted;
        }
        late
    }

    /// Applies all gradients that it can. Begins again if a gradient will never come, or if the
    /// steps have outrun the sync.
    pub fn advance(
        &mut self,
        shard: Shard,
        pauses: bool,
        commits: &BTreeMap<Step, Commit>,
        replica: &mut ReplicaState,
        out: &mut VecDeque<Effect>,
    ) {
        while self.is_held() {
            let Some(copy) = replica.copies.get(&shard) else { break };
            let next = copy.version.step.next();
            let outrun = replica.committed().0 >= copy.version.step.0 + self.max_waiting() as u64;
            let commit = commits.get(&next);
            let gradient = self.waiting.remove(&next);
            match commit {
                Some(commit) if gradient.is_some() || commit.decision == Decision::Skip => {
                    out.push_back(Effect::Device(replica.update(commit, shard, gradient)));
                }
                _ => {
                    // While steps pause, every gradient that will come has long been on its way.
                    let never = self.first.map_or(pauses && commit.is_some(), |first| next < first);
                    let missing = gradient.is_none() && never;
                    self.waiting.extend(gradient.map(|gradient| (next, gradient)));
                    #[cfg(feature = "planted")]
                    if missing && replica.has_plant(crate::plant::Plant::FeedGap) {
                        if self.leaps(shard, commits, replica, out) {
                            continue;
                        }
                        return;
                    }
                    if missing || outrun {
                        self.outrun += 1;
                        self.stage = SyncStage::Wanted;
                    }
                    return;
                }
            }
        }
    }

    /// A planted bug: applies a later gradient over a gap.
    #[cfg(feature = "planted")]
    fn leaps(
        &mut self,
        shard: Shard,
        commits: &BTreeMap<Step, Commit>,
        replica: &mut ReplicaState,
        out: &mut VecDeque<Effect>,
    ) -> bool {
        let Some(first) = self.first else { return false };
        // The bug tells the device that nothing happened in between.
        let Some(commit) = commits.get(&first).filter(|_| self.waiting.contains_key(&first)) else {
            return false;
        };
        let Some(copy) = replica.copies.get(&shard) else { return false };
        for step in copy.version.step.0 + 1..first.0 {
            let skipped = Commit { step: Step(step), decision: Decision::Skip, ..commit.clone() };
            out.push_back(Effect::Device(replica.update(&skipped, shard, None)));
        }
        true
    }
}
