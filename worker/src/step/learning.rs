//! How a worker learns the shards that it will own: a member its new backups, a learner all of its
//! shards.
//!
//! Intuition: collect the reduced gradients as they come, copy the state from an owner meanwhile,
//! and apply the gradients that came after that copy. Each shard is a [`Lesson`]. If a gradient is
//! missing in between, or a copy is broken, the lesson begins again.
//!
//! Input: a feed, reduced gradients, commits, states. Output: questions to owners, jobs. It lasts
//! one generation. The learned shards go to the worker's [`Holdings`]. Bounds: a limited number of
//! gradients wait for each shard, and a [`Window`] limits the states under way.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod lesson;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Chunk, ChunkKind, Commit, Message, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use self::lesson::{Lesson, MAX_WAITING};
pub(crate) use self::window::MOST as MOST_UNDER_WAY;
use self::window::Window;
use super::event::{Admission, Effect, Gradient};
use super::holdings::Holdings;
use super::roster::Roster;
use super::setup::Setup;
use super::version::Version;

/// With so many bytes of gradients waiting, each shard keeps only the number of a new lesson.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Commits that the worker remembers: enough for every gradient that may wait.
const MAX_COMMITS: usize = MAX_WAITING + 1;

/// The lessons of one generation.
#[derive(Debug, Default)]
pub(super) struct Learning {
    lessons: BTreeMap<Shard, Lesson>,
    /// Recent commits of this generation, by step.
    commits: BTreeMap<Step, Commit>,
    /// Owners that this worker cannot ask.
    lost: BTreeSet<WorkerId>,
    /// How many bytes of states may be under way.
    window: Window,
}

/// The surroundings of the lessons: the worker, its generation, its state and its outputs.
pub(super) struct Scene<'a> {
    pub worker: WorkerId,
    pub roster: &'a Roster,
    pub setup: &'a Setup,
    /// The worker has promised a newer generation: it asks no owner for anything.
    pub promised: bool,
    pub holdings: &'a mut Holdings,
    pub out: &'a mut VecDeque<Effect>,
}

/// The head of a state, as its owner sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub shard: Shard,
    pub version: Step,
    pub digest: u64,
}

impl Scene<'_> {
    /// Whether no step is under way: the generation starts none, or its last commit holds. Then an
    /// owner's state is that of the last commit, and every later gradient will come.
    fn pauses(&self) -> bool {
        let record = self.roster.record();
        let last = self.holdings.commit.as_ref();
        let holds = last.is_some_and(|last| last.hold && last.generation == record.number);
        holds || self.setup.starts_no_step(record)
    }
}

impl Learning {
    /// The worker learns these shards from now on, and no others.
    pub fn feed(&mut self, shards: &[Shard], scene: &mut Scene<'_>) {
        self.lost.clear(); // Every worker that feeds has a link again, or will have one.
        let mut before = std::mem::take(&mut self.lessons);
        let wanted = shards.iter().filter(|shard| {
            let owned = scene.holdings.copies.get(shard).is_some_and(|copy| !copy.learned);
            shard.0 < scene.roster.shards() && !owned
        });
        for shard in wanted {
            let held = scene.holdings.copies.contains_key(shard);
            let lesson = before.remove(shard).unwrap_or_else(|| Lesson::new(held));
            self.lessons.insert(*shard, lesson);
        }
        let last = scene.holdings.commit.clone();
        self.commits.extend(
            last.filter(|commit| commit.generation == scene.roster.generation())
                .map(|commit| (commit.step, commit)),
        );
        self.advance(scene);
    }

    /// Whether every lesson is at the last commit.
    pub fn is_current(&self, holdings: &Holdings) -> bool {
        let current = |(shard, lesson): (&Shard, &Lesson)| {
            let copy = holdings.copies.get(shard).filter(|_| lesson.is_held());
            copy.is_some_and(|copy| copy.version.step == holdings.committed())
        };
        self.lessons.iter().all(current)
    }

    /// Bytes that the worker still lacks: of states, and of the gradients of committed steps.
    pub fn behind(&self, roster: &Roster, state_parts: usize, holdings: &Holdings) -> u64 {
        let lacking = self.lessons.iter().map(|(shard, lesson)| {
            let tensor = roster.length(*shard) * size_of::<f32>();
            let lacking = match holdings.copies.get(shard).filter(|_| lesson.is_held()) {
                Some(copy) => holdings.committed().0.saturating_sub(copy.version.step.0),
                None => lesson.lacking_parts(state_parts) as u64,
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
    pub fn prepared(&self, holdings: &Holdings) -> Vec<(Shard, Gradient)> {
        let next = holdings.committed().next();
        let held = self.lessons.iter().filter(|(shard, lesson)| {
            let copy = holdings.copies.get(shard);
            lesson.is_held() && copy.is_some_and(|copy| copy.version.step.next() == next)
        });
        held.filter_map(|(shard, lesson)| Some((*shard, lesson.waiting(next)?))).collect()
    }

    // What arrives.

    /// What to do with a chunk that has its shard's length. The worker takes a gradient that is of
    /// use, or the next part of a state that it asked for.
    pub fn admit(
        &self,
        from: WorkerId,
        chunk: &Chunk,
        roster: &Roster,
        holdings: &Holdings,
    ) -> Admission {
        let Some(lesson) = self.lessons.get(&chunk.shard) else { return Admission::Drop };
        let copy = holdings.copies.get(&chunk.shard);
        let expected = match chunk.kind {
            ChunkKind::Reduced => {
                roster.is_primary(from, chunk.shard) && lesson.wants(chunk.step, copy)
            }
            ChunkKind::State => lesson.expects_part(from, chunk),
            _ => false,
        };
        if expected { Admission::Take } else { Admission::Drop }
    }

    /// A reduced gradient has arrived.
    pub fn reduced(&mut self, chunk: &Chunk, gradient: Gradient, scene: &mut Scene<'_>) {
        let waiting: usize = self.lessons.values().map(Lesson::waiting_bytes).sum();
        if let Some(lesson) = self.lessons.get_mut(&chunk.shard) {
            lesson.put_off(chunk.step, gradient, waiting < MAX_WAITING_BYTES);
        }
        self.advance(scene);
    }

    /// The head of a state has arrived. Returns whether the worker had asked for it.
    pub fn head(&mut self, from: WorkerId, head: Head, scene: &mut Scene<'_>) -> bool {
        self.heard(from);
        let known = Version::within(scene.roster.record(), head.version).is_some();
        let lesson = self.lessons.get_mut(&head.shard);
        let taken = lesson.is_some_and(|lesson| lesson.begin(from, head, known));
        self.advance(scene);
        taken
    }

    /// A part of a state has arrived.
    pub fn part(&mut self, shard: Shard, values: Buffer, scene: &mut Scene<'_>) {
        if let Some(donor) = self.lessons.get(&shard).and_then(Lesson::donor) {
            self.heard(donor);
        }
        if let Some(lesson) = self.lessons.get_mut(&shard) {
            self.window.take(values.as_bytes().len());
            let job = lesson.part(values, scene.setup.state_parts());
            if job.is_some() {
                scene.holdings.copies.remove(&shard);
            }
            scene.out.extend(job.map(Effect::Device));
        }
    }

    /// The device has taken a state over, or has found it broken.
    pub fn restored(
        &mut self,
        (shard, version): (Shard, Step),
        intact: bool,
        scene: &mut Scene<'_>,
    ) {
        let version = Version::within(scene.roster.record(), version);
        let lesson = self.lessons.get_mut(&shard);
        if let (Some(lesson), Some(version)) = (lesson, version)
            && lesson.restored(version.step, intact)
        {
            scene.holdings.restored(shard, version);
        }
        self.advance(scene);
    }

    /// A step has committed.
    pub fn commit(&mut self, commit: &Commit, scene: &mut Scene<'_>) {
        self.commits.insert(commit.step, commit.clone());
        if self.commits.len() > MAX_COMMITS {
            self.commits.pop_first();
        }
        self.advance(scene);
    }

    /// The worker cannot reach an owner: it asks others for the states that this owner owes.
    pub fn lost(&mut self, peer: WorkerId, scene: &mut Scene<'_>) {
        self.lost.insert(peer);
        for lesson in self.lessons.values_mut() {
            lesson.lost(peer);
        }
        self.advance(scene);
    }

    /// Time passes: the worker asks another owner, or the same one again, if an owner does not
    /// answer.
    pub fn tick(&mut self, now: Time, scene: &mut Scene<'_>) {
        self.window.tick(now);
        let late = self.lessons.values_mut().filter_map(|lesson| lesson.tick(now).then_some(()));
        if !scene.promised && late.count() > 0 {
            self.ask(scene);
        }
    }

    // What follows.

    /// An owner that sends anything may yet answer the rest.
    fn heard(&mut self, owner: WorkerId) {
        self.lessons.values_mut().for_each(|lesson| lesson.heard(owner));
    }

    fn advance(&mut self, scene: &mut Scene<'_>) {
        let pauses = scene.pauses();
        let Scene { holdings, out, .. } = scene;
        for (shard, lesson) in &mut self.lessons {
            lesson.advance((*shard, pauses), &self.commits, holdings, out);
        }
        self.ask(scene);
    }

    /// Asks owners for the wanted states, as far as the window has room.
    fn ask(&mut self, scene: &mut Scene<'_>) {
        if scene.promised {
            return;
        }
        let parts = scene.setup.state_parts();
        let size = |shard| scene.roster.length(shard) * size_of::<f32>() * parts;
        let under_way = self.lessons.iter().filter(|(_, lesson)| lesson.is_under_way());
        let mut under_way: usize = under_way.map(|(shard, _)| size(*shard)).sum();
        let pauses = scene.pauses();
        let mut questions: BTreeMap<WorkerId, Vec<Shard>> = BTreeMap::new();
        for (shard, lesson) in self.lessons.iter_mut().filter(|(_, l)| l.is_wanted(pauses)) {
            if under_way > 0 && under_way + size(*shard) > self.window.bytes() {
                break;
            }
            let owners = scene.roster.owners(*shard);
            let owners = owners.filter(|it| *it != scene.worker && !self.lost.contains(it));
            let Some(donor) = lesson.ask(*shard, &owners.collect::<Vec<_>>()) else { continue };
            under_way += size(*shard);
            questions.entry(donor).or_default().push(*shard);
        }
        let generation = scene.roster.generation();
        for (to, shards) in questions {
            let message = Message::FetchState { generation, shards };
            scene.out.push_back(Effect::Send { to, message });
        }
    }
}
