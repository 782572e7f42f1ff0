//! A toy device: jobs in order, a data shard at a time, with additions that show their order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::optimizer::ShardState;
use everstep_kernels::reduce::{self, Tree, TreeNode};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, RunSpec, Shard, Step, WorkerId};
use everstep_worker::data::Sampler;
use everstep_worker::step::event::{
    Gradient, Job, Report, ShardOrigin, ShardToSave, Summary, Work,
};

/// A parameter before the device has begun from the beginning, or got it from another device.
const UNREAD: f32 = f32::NAN;

/// Master weights and two moments, as AdamW has them.
#[derive(Clone, Debug)]
struct Copy {
    parts: [Vec<f32>; 3],
    version: Step,
    primary: bool,
    owned: bool,
}

pub struct ToyDevice {
    tree: Tree,
    sampler: Sampler,
    jobs: VecDeque<Job>,
    /// The rest of the pass under way.
    pass: Option<(Step, Arc<Work>, VecDeque<DataShard>)>,
    computing: Vec<(Step, Vec<f32>)>,
    copies: BTreeMap<Shard, Copy>,
    /// Shards that a checkpoint will bring, each with whether this device is primary.
    awaited: BTreeMap<Shard, bool>,
    /// Data shards computed, of each step.
    pub computed: Vec<(Step, DataShard)>,
}

impl ToyDevice {
    pub fn new(run: &RunSpec, parameters: usize, samples: u64) -> Self {
        let length = |shard| reduce::shard_range(parameters, shard).len();
        Self {
            tree: Tree::new(run.batch.data_shards),
            sampler: Sampler::new(run.seed, samples, run.batch),
            jobs: VecDeque::new(),
            pass: None,
            computing: (0..3).map(|shard| (Step(0), vec![UNREAD; length(shard)])).collect(),
            copies: BTreeMap::new(),
            awaited: BTreeMap::new(),
            computed: Vec::new(),
        }
    }

    pub fn give(&mut self, job: Job) {
        if matches!(&job, Job::Enter { origin, .. } if *origin != ShardOrigin::Held) {
            self.pass = None;
            self.jobs.retain(|job| !matches!(job, Job::Gradient { .. }));
        }
        self.jobs.push_back(job);
    }

    /// Does the next job or data shard that it can do.
    pub fn work(&mut self) -> Vec<Report> {
        let Some((step, work, left)) = &mut self.pass else {
            let job = self.jobs.pop_front();
            return job.map_or_else(Vec::new, |job| self.perform(job));
        };
        let (step, work) = (*step, Arc::clone(work));
        if self.computing.iter().all(|(version, _)| version.next() == step) {
            let data_shard = left.pop_front().expect("something is left");
            let last = left.is_empty();
            if last {
                self.pass = None;
            }
            return self.gradient(step, &work, data_shard, last);
        }
        // While the pass waits, questions are answered before their turn, and a job of a later step
        // ends the pass.
        if let Some(place) = self.question() {
            let job = self.jobs.remove(place).expect("a job");
            return self.perform(job);
        }
        let over = |job: &Job| match job {
            Job::Update { step: settled, .. } | Job::Skip { step: settled } => *settled >= step,
            Job::Gradient { step: other, .. } => *other > step,
            _ => false,
        };
        if self.jobs.iter().any(over) {
            self.pass = None;
        } else if let Some(Job::Update { .. } | Job::Restore { .. }) = self.jobs.front() {
            let job = self.jobs.pop_front().expect("a job");
            return self.perform(job);
        }
        Vec::new()
    }

    /// The first waiting job that the device does before its turn: parameters to load, or a
    /// question about shards that no earlier job changes.
    fn question(&self) -> Option<usize> {
        let mut changed = BTreeSet::new();
        self.jobs.iter().position(|job| match job {
            Job::Load { .. } => true,
            Job::Share { shards, .. } | Job::Export { shards, .. } | Job::Save { shards, .. } => {
                shards.iter().all(|shard| !changed.contains(shard))
            }
            Job::Update { shard, .. } | Job::Restore { shard, .. } => {
                changed.insert(*shard);
                false
            }
            _ => false,
        })
    }

    fn perform(&mut self, job: Job) -> Vec<Report> {
        match job {
            Job::Enter { generation, origin, owned, syncing } => {
                self.enter(origin, &owned, &syncing);
                let owned = self.copies.iter().filter(|(_, copy)| copy.owned);
                let owned = owned.map(|(shard, copy)| (*shard, copy.version, copy.digest()));
                vec![Report::Entered { generation, owned: owned.collect() }]
            }
            Job::Gradient { step, work, .. } => {
                let left = work.data_shards.iter().copied().collect();
                self.pass = Some((step, work, left));
                Vec::new()
            }
            Job::Load { shard, version, values } => {
                self.computing[shard.0 as usize] = (version, values.to_vec());
                Vec::new()
            }
            Job::Update { shard, step, gradient, .. } => {
                let intact = |it: &Gradient| it.digest == reduce::digest(0, &it.values);
                assert!(gradient.iter().all(intact), "it is what its primary made");
                vec![self.update(shard, step, gradient.map(|it| it.values))]
            }
            Job::Skip { step } => {
                let before = self.computing.iter_mut().filter(|(held, _)| held.next() == step);
                before.for_each(|(version, _)| *version = step);
                Vec::new()
            }
            Job::Share { to, shards } => {
                let shared = |shard: Shard| {
                    let copy = &self.copies[&shard];
                    let values = Shared::new(Buffer::detached(copy.parts[0].clone()));
                    Report::Shared { to, version: copy.version, shard, values }
                };
                shards.into_iter().map(shared).collect()
            }
            Job::Export { to, shards } => {
                let exported = |shard: Shard| {
                    let copy = &self.copies[&shard];
                    let parts = copy.parts.iter().cloned();
                    let parts = parts.map(|part| Shared::new(Buffer::detached(part))).collect();
                    let (version, digest) = (copy.version, copy.digest());
                    Report::State { to, version, shard, digest, parts }
                };
                shards.into_iter().map(exported).collect()
            }
            Job::Restore { shard, version, digest, parts } => {
                vec![self.restore((shard, version), digest, &parts)]
            }
            Job::Save { commit, shards } => {
                let to_save = |shard| self.copies[&shard].to_save(shard, commit.step);
                let shards = shards.into_iter().map(to_save).collect();
                vec![Report::Saving { commit, shards }]
            }
            Job::Finish { version, .. } => self.finish(version),
            Job::Masters { to } => self.masters(to),
        }
    }

    fn restore(
        &mut self,
        (shard, version): (Shard, Step),
        digest: u64,
        parts: &[Buffer],
    ) -> Report {
        let parts: Vec<Vec<f32>> = parts.iter().map(|part| part.to_vec()).collect();
        let parts = parts.try_into().expect("three parts");
        let awaited = self.awaited.remove(&shard);
        let (primary, owned) = (awaited == Some(true), awaited.is_some());
        let copy = Copy { parts, version, primary, owned };
        let intact = copy.digest() == digest;
        if intact {
            self.copies.insert(shard, copy);
            self.follow(shard);
        }
        Report::Restored { version, shard, digest, intact }
    }

    fn enter(&mut self, origin: ShardOrigin, owned: &[(Shard, bool)], syncing: &[Shard]) {
        self.awaited.clear();
        if origin != ShardOrigin::Held {
            let begins = origin == ShardOrigin::Seed;
            for (version, values) in &mut self.computing {
                let value = if begins { 0.5 } else { UNREAD };
                (*version, *values) = (Step(0), vec![value; values.len()]);
            }
            let initial = |shard: &Shard| {
                let length = self.computing[shard.0 as usize].1.len();
                let parts = [vec![0.5; length], vec![0.0; length], vec![0.0; length]];
                Copy { parts, version: Step(0), primary: false, owned: true }
            };
            self.copies = owned.iter().map(|(shard, _)| (*shard, initial(shard))).collect();
        }
        if origin == ShardOrigin::Checkpoint {
            self.copies.clear();
            self.awaited = owned.iter().copied().collect();
            return;
        }
        let mut held = std::mem::take(&mut self.copies);
        for (shard, primary) in owned {
            let copy = held.remove(shard).expect("I16: an owner holds its shards");
            self.copies.insert(*shard, Copy { primary: *primary, owned: true, ..copy });
        }
        for shard in syncing {
            let copy = held.remove(shard).map(|copy| Copy { owned: false, ..copy });
            self.copies.extend(copy.map(|copy| (*shard, copy)));
        }
    }

    fn gradient(
        &mut self,
        step: Step,
        work: &Work,
        data_shard: DataShard,
        last: bool,
    ) -> Vec<Report> {
        self.computed.push((step, data_shard));
        let samples = self.sampler.shard_samples(step, data_shard).collect();
        let loss = f64::from(data_shard.0) + step.0 as f64;
        let (weight, samples_lost, samples_repeated) = (1.0, 0, 0);
        let contribution = Contribution {
            data_shard,
            loss,
            weight,
            samples,
            samples_lost,
            samples_repeated,
            evaluation: None,
            scalars: Vec::new(),
        };
        let mut reports = Vec::new();
        if last {
            for node in &work.subtrees {
                for shard in (0..3).map(Shard) {
                    let sum = Shared::new(Buffer::detached(self.sum(step, shard, *node)));
                    reports.push(Report::Partial { step, shard, node: *node, sum });
                }
            }
        }
        reports.push(Report::Computed { step, contribution, seconds: 0.001, load_seconds: 0.0 });
        reports
    }

    /// A node is its left child plus its right child.
    fn sum(&self, step: Step, shard: Shard, node: TreeNode) -> Vec<f32> {
        let Some([left, right]) = self.tree.children(node) else {
            // One step's gradient is not finite: the step is skipped.
            if step == Step(7) && node.index == 3 {
                return vec![f32::NAN; self.computing[shard.0 as usize].1.len()];
            }
            let parameters = &self.computing[shard.0 as usize].1;
            let scale = [1.0, 1e-3, 1e3, 1e-5][node.index as usize % 4];
            let at = |(i, p): (usize, &f32)| {
                ((i as f32 * 0.37 + node.index as f32 * 1.7 + step.0 as f32 * 0.9).sin() + p)
                    * scale
            };
            return parameters.iter().enumerate().map(at).collect();
        };
        let (left, right) = (self.sum(step, shard, left), self.sum(step, shard, right));
        left.iter().zip(right).map(|(left, right)| left + right).collect()
    }

    fn update(&mut self, shard: Shard, step: Step, gradient: Option<Shared>) -> Report {
        let copy = self.copies.get_mut(&shard).expect("only what is held is updated");
        assert_eq!(copy.version.next(), step, "I3: versions follow each other");
        copy.version = step;
        let changed = gradient.is_some();
        if let Some(gradient) = gradient {
            let [master, first, second] = &mut copy.parts;
            for (i, g) in gradient.iter().enumerate() {
                first[i] = 0.9 * first[i] + g;
                second[i] = second[i].max(g.abs());
                master[i] -= 0.01 * first[i] / (second[i] + 1.0);
            }
        }
        self.follow(shard);
        let copy = &self.copies[&shard];
        let values = || Shared::new(Buffer::detached(copy.parts[0].clone()));
        let parameters = (changed && copy.primary && copy.owned).then(values);
        Report::Updated { version: step, shard, digest: copy.digest(), parameters }
    }

    fn follow(&mut self, shard: Shard) {
        let copy = &self.copies[&shard];
        let computing = &mut self.computing[shard.0 as usize];
        if copy.version >= computing.0 {
            *computing = (copy.version, copy.parts[0].clone());
        }
    }

    fn finish(&mut self, version: Step) -> Vec<Report> {
        let current = self.computing.iter().all(|(held, _)| *held == version);
        assert!(current, "every shard has been gathered");
        vec![Report::Finished(Summary::default())]
    }

    fn masters(&self, to: WorkerId) -> Vec<Report> {
        let primaries = self.copies.iter().filter(|(_, copy)| copy.owned && copy.primary);
        primaries
            .map(|(shard, copy)| {
                let values = Shared::new(Buffer::detached(copy.parts[0].clone()));
                Report::Exported { to, shard: *shard, values }
            })
            .collect()
    }
}

impl Copy {
    fn to_save(&self, shard: Shard, version: Step) -> ShardToSave {
        assert_eq!(self.version, version, "I12: a checkpoint has one version");
        let [master, moments @ ..] = self.parts.clone();
        let state = Arc::new(ShardState { master, moments: moments.into() });
        ShardToSave { shard, state, digest: self.digest() }
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.version.hash(&mut hasher);
        self.parts.iter().for_each(|part| bits(part).hash(&mut hasher));
        hasher.finish()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
