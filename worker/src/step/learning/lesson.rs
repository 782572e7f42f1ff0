//! How one shard is learned.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Chunk, Commit, Decision, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::Head;
use crate::step::event::{Effect, Gradient, Job};
use crate::step::holdings::{Copy, Holdings};

/// Reduced gradients of one shard that wait at first, at most; older ones are dropped. Whenever the
/// steps have outrun a state on its way, it is doubled: else it would never be caught up with.
const FIRST_WAITING: usize = 4;
/// How often something is doubled, at most.
const MAX_DOUBLINGS: u32 = 6;
/// Reduced gradients of one shard that wait, at most.
pub const MAX_WAITING: usize = FIRST_WAITING << MAX_DOUBLINGS;
/// An owner that was asked and says nothing for so long is asked no more. Each try doubles this:
/// an owner answers when its device has done what it was told before, perhaps a whole step.
pub const ANSWER: Duration = Duration::from_secs(5);

/// How far one shard is learned.
#[derive(Debug)]
pub struct Lesson {
    stage: Stage,
    /// How often an owner was asked: the next time another one is.
    tries: u32,
    /// How often the steps have outrun what it had.
    outrun: u32,
    /// Since when the owner that was asked is known to have said nothing.
    quiet_since: Option<Time>,
    /// From this step on every reduced gradient is here, or on its way.
    first: Option<Step>,
    /// Gradients that cannot be applied yet.
    waiting: BTreeMap<Step, Gradient>,
}

#[derive(Debug)]
enum Stage {
    /// No owner has been asked.
    Wanted,
    /// An owner has been asked.
    Asked { donor: WorkerId },
    /// It answers.
    Arriving { donor: WorkerId, head: Head, parts: Vec<Buffer> },
    /// The device is taking it on.
    Restoring { version: Step },
    /// It is held, and follows the commits.
    Held,
}

impl Lesson {
    /// A shard that may be held already, since an earlier generation.
    pub fn new(held: bool) -> Self {
        let stage = if held { Stage::Held } else { Stage::Wanted };
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
        matches!(self.stage, Stage::Held)
    }

    /// Whether its state takes up room on its way.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Wanted | Stage::Held)
    }

    /// Whether to ask for its state: a primary that feeds shows itself by a first gradient, unless
    /// steps pause, and there are none.
    pub fn is_wanted(&self, pauses: bool) -> bool {
        matches!(self.stage, Stage::Wanted) && (pauses || self.first.is_some())
    }

    /// How many of the tensors that make up its state have not arrived.
    pub fn lacking_parts(&self, wanted: usize) -> usize {
        match &self.stage {
            Stage::Wanted | Stage::Asked { .. } => wanted,
            Stage::Arriving { parts, .. } => wanted.saturating_sub(parts.len()),
            Stage::Restoring { .. } | Stage::Held => 0,
        }
    }

    /// The gradient of a step, if it waits.
    pub fn waiting(&self, step: Step) -> Option<Gradient> {
        self.waiting.get(&step).cloned()
    }

    /// Whether the gradient of a step is of use.
    pub fn wants(&self, step: Step, copy: Option<&Copy>) -> bool {
        let applied = self.is_held() && copy.is_some_and(|copy| step <= copy.version.step);
        !applied && !self.waiting.contains_key(&step)
    }

    /// Whether a chunk is the next part of the state that arrives.
    pub fn expects_part(&self, from: WorkerId, chunk: &Chunk) -> bool {
        let Stage::Arriving { donor, head, parts } = &self.stage else { return false };
        *donor == from && head.version == chunk.step && parts.len() == chunk.index as usize
    }

    /// Takes a gradient; where too many wait, the oldest is as if it had never come. Whether there
    /// is room for more than the first few, the caller knows.
    pub fn put_off(&mut self, step: Step, gradient: Gradient, room: bool) {
        self.waiting.insert(step, gradient);
        let first = self.first.unwrap_or(step);
        self.first = Some(first.min(step));
        let most = if room { self.patience() } else { FIRST_WAITING };
        while self.waiting.len() > most {
            let dropped = self.waiting.pop_first();
            self.first = dropped.map(|(oldest, _)| oldest.next()).max(self.first);
        }
    }

    /// Bytes of the gradients that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.values().map(|gradient| gradient.values.as_bytes().len()).sum()
    }

    fn patience(&self) -> usize {
        FIRST_WAITING << self.outrun.min(MAX_DOUBLINGS)
    }

    /// Chooses whom to ask, and counts it as asked: so that several owners serve, each is asked
    /// for some shards.
    pub fn ask(&mut self, shard: Shard, owners: &[WorkerId]) -> Option<WorkerId> {
        let place = ((shard.0 + self.tries) as usize).checked_rem(owners.len())?;
        self.tries += 1;
        self.quiet_since = None;
        self.stage = Stage::Asked { donor: owners[place] };
        Some(owners[place])
    }

    /// An owner answers; one whose version is not part of this generation's history is asked again.
    pub fn begin(&mut self, from: WorkerId, head: Head, known: bool) -> bool {
        let Stage::Asked { donor } = self.stage else { return false };
        if donor != from {
            return false;
        }
        let arriving = Stage::Arriving { donor, head, parts: Vec::new() };
        self.stage = if known { arriving } else { Stage::Wanted };
        true
    }

    /// Takes a part that was admitted; returns what the device has to do once all are there.
    pub fn part(&mut self, values: Buffer, wanted: usize) -> Option<Job> {
        let Stage::Arriving { head, parts, .. } = &mut self.stage else { return None };
        parts.push(values);
        if parts.len() < wanted {
            return None;
        }
        let (Head { shard, version, digest }, parts) = (*head, std::mem::take(parts));
        self.stage = Stage::Restoring { version };
        Some(Job::Restore { shard, version, digest, parts })
    }

    /// The device has taken a version on, or has found it broken; says whether it is held now.
    pub fn restored(&mut self, version: Step, intact: bool) -> bool {
        if !matches!(self.stage, Stage::Restoring { version: awaited } if awaited == version) {
            return false;
        }
        self.stage = if intact { Stage::Held } else { Stage::Wanted };
        if intact {
            self.waiting = self.waiting.split_off(&version.next());
        }
        intact
    }

    /// Who is to answer, if somebody is.
    pub fn donor(&self) -> Option<WorkerId> {
        match self.stage {
            Stage::Asked { donor } | Stage::Arriving { donor, .. } => Some(donor),
            _ => None,
        }
    }

    /// An owner cannot be reached.
    pub fn lost(&mut self, peer: WorkerId) {
        if self.donor() == Some(peer) {
            self.stage = Stage::Wanted;
        }
    }

    /// An owner says something, perhaps of another shard.
    pub fn heard(&mut self, owner: WorkerId) {
        if self.donor() == Some(owner) {
            self.quiet_since = None;
        }
    }

    /// Time passes: gives an owner up that has said nothing for too long. Says whether it did.
    pub fn tick(&mut self, now: Time) -> bool {
        if self.donor().is_none() {
            return false;
        }
        let since = *self.quiet_since.get_or_insert(now);
        let doublings = self.tries.saturating_sub(1).min(MAX_DOUBLINGS);
        let late = now.since(since) >= ANSWER * (1 << doublings);
        if late {
            self.stage = Stage::Wanted;
        }
        late
    }

    /// Applies what can be applied, or begins again where that has become impossible.
    pub fn advance(
        &mut self,
        (shard, pauses): (Shard, bool),
        commits: &BTreeMap<Step, Commit>,
        holdings: &mut Holdings,
        out: &mut VecDeque<Effect>,
    ) {
        while self.is_held() {
            let Some(copy) = holdings.copies.get(&shard) else { break };
            let next = copy.version.step.next();
            let outrun = holdings.committed().0 >= copy.version.step.0 + self.patience() as u64;
            let commit = commits.get(&next);
            let gradient = self.waiting.remove(&next);
            match commit {
                Some(commit) if gradient.is_some() || commit.decision == Decision::Skip => {
                    out.push_back(Effect::Device(holdings.update(commit, shard, gradient)));
                }
                _ => {
                    // Where steps pause, none comes that has not been on its way since long.
                    let never = self.first.map_or(pauses && commit.is_some(), |first| next < first);
                    let missing = gradient.is_none() && never;
                    self.waiting.extend(gradient.map(|gradient| (next, gradient)));
                    #[cfg(feature = "planted")]
                    if missing && holdings.has_plant(crate::plant::Plant::FeedGap) {
                        if self.leaps(shard, commits, holdings, out) {
                            continue;
                        }
                        return;
                    }
                    if missing || outrun {
                        self.outrun += 1;
                        self.stage = Stage::Wanted;
                    }
                    return;
                }
            }
        }
    }

    /// Applies a later gradient over a gap: a planted bug.
    #[cfg(feature = "planted")]
    fn leaps(
        &mut self,
        shard: Shard,
        commits: &BTreeMap<Step, Commit>,
        holdings: &mut Holdings,
        out: &mut VecDeque<Effect>,
    ) -> bool {
        let Some(first) = self.first else { return false };
        // The device is told that nothing happened in between.
        let Some(commit) = commits.get(&first).filter(|_| self.waiting.contains_key(&first)) else {
            return false;
        };
        let Some(copy) = holdings.copies.get(&shard) else { return false };
        for step in copy.version.step.0 + 1..first.0 {
            let skipped = Commit { step: Step(step), decision: Decision::Skip, ..commit.clone() };
            out.push_back(Effect::Device(holdings.update(&skipped, shard, None)));
        }
        true
    }
}
