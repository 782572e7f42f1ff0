//! The parameter shards of this worker: of every shard the parameters to compute with, and of the
//! shards that it owns or syncs a copy of the state, f32 master weights and optimizer moments.
//!
//! Input: the [`Job`]s that change or ask for state, in order. Output: their [`Report`]s, and new
//! parameters through a `write(offset, values)`, since they may come while a pass is under way. The
//! parameters to compute with follow each copy that is at least as new. They are rounded as the run
//! wants, exactly as its primary sends them to all other workers.
//!
//! This file does not know passes, and relies on the core to check each worker's requests.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::compute::STAGES;
use everstep_kernels::layout::Layout;
use everstep_kernels::optimizer::{Optimizer, ShardState, clip_factor};
use everstep_kernels::reduce;
use everstep_kernels::schedule::LearningRates;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::{RunSpec, Shard, Step, WorkerId};
use tracing::trace_span;

use super::initial::InitialParameters;
use super::rounding::Rounding;
use super::saved_states::SavedStates;
use super::shard_update::{MadeUpdate, ShardChange, ShardUpdate, UpdateContext};
use super::stored_shard::{ShardError, ShardRole, StoredShard};
use super::{DeviceChannel, DeviceParts};
use crate::optimize;
use crate::step::event::{Job, Report, ShardOrigin, ShardToSave};

/// How many updates are made at once for each thread beyond the first: two, since shards differ in
/// the time that they take. One thread makes them one by one, so that each goes out at once.
const UPDATES_A_THREAD: usize = 2;
/// The parameters of all shards that are updated at once, at most.
const MAX_UPDATED: usize = 8 << 20;

/// The target of parameters to compute with: `write(offset, values)`.
pub type Write<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// The state and the parameters of each parameter shard on this worker.
pub struct ShardStore {
    initial: InitialParameters,
    rounding: Rounding,
    clip_norm: Option<f64>,
    layout: Layout,
    optimizer: Optimizer,
    rates: LearningRates,
    pool: Pool,
    /// The threads that share the updates of a step.
    threads: Threads,
    copies: BTreeMap<Shard, StoredShard>,
    /// The shards to hold that a checkpoint has not brought yet.
    awaited: BTreeMap<Shard, ShardRole>,
    /// States that were handed out to be saved, and that their shards have left.
    saved: SavedStates,
    /// The version of each shard of the parameters to compute with.
    versions: Vec<Step>,
    /// Whether parameters of version 0 are the initial ones. They are not before the device has
    /// read those, nor while a checkpoint is awaited.
    has_initial: bool,
    /// The optimizer's code is running.
    in_optimizer: bool,
    /// A planted bug: the device does not check gradients.
    #[cfg(feature = "planted")]
    pub(super) believes_gradients: bool,
}

impl ShardStore {
    /// The store of a device that is made of these parts.
    pub fn of(parts: &DeviceParts, layout: Layout) -> Self {
        let DeviceParts { run, initial, optimizer, pool, threads, .. } = parts;
        let threads = threads.clone();
        let store = Self::new(run, initial.clone(), layout, optimizer.clone(), pool.clone());
        Self { threads, ..store }
    }

    /// Holds no shard yet. The model has version 0 of all parameters if they are at hand.
    pub fn new(
        run: &RunSpec,
        initial: InitialParameters,
        layout: Layout,
        optimizer: Optimizer,
        pool: Pool,
    ) -> Self {
        Self {
            has_initial: initial.is_at_hand(),
            initial,
            rounding: Rounding::of(run),
            clip_norm: run.optimizer.clip_norm,
            rates: optimize::rates(run, optimizer.rates()),
            optimizer,
            pool,
            threads: Threads::default(),
            copies: BTreeMap::new(),
            awaited: BTreeMap::new(),
            saved: SavedStates::default(),
            versions: vec![Step(0); reduce::shard_count(layout.count())],
            layout,
            in_optimizer: false,
            #[cfg(feature = "planted")]
            believes_gradients: false,
        }
    }

    /// As [`Self::handle`]. Takes the updates that wait next with an update.
    pub fn handle_with_next(
        &mut self,
        job: Job,
        channel: &mut dyn DeviceChannel,
        write: &mut Write<'_>,
    ) -> Result<(), ShardError> {
        let Job::Update { step, .. } = job else { return self.handle(job, channel, write) };
        let at_once = UPDATES_A_THREAD * (self.threads.count() - 1);
        let fit = MAX_UPDATED / reduce::shard_length(self.layout.count());
        let others = channel.next_updates(step, at_once.min(fit));
        self.update(step, iter::once(job).chain(others), channel, write)
    }

    /// Does a job on parameter shards. The device does all other jobs elsewhere.
    pub fn handle(
        &mut self,
        job: Job,
        channel: &mut dyn DeviceChannel,
        write: &mut Write<'_>,
    ) -> Result<(), ShardError> {
        match job {
            Job::Enter { generation, origin, owned, syncing } => {
                match origin {
                    ShardOrigin::Seed => self.begin(&owned, write)?,
                    ShardOrigin::Checkpoint => self.begin_to_restore(&owned),
                    ShardOrigin::Held => self.keep(&owned, &syncing),
                }
                let owned = self.owned().map(|(shard, copy)| (shard, copy.version, copy.digest));
                channel.report(Report::Entered { generation, owned: owned.collect() });
            }
            Job::Load { shard, version, values } => self.load(shard, version, &values, write),
            Job::Update { step, .. } => self.update(step, iter::once(job), channel, write)?,
            Job::Skip { step } => self.skip(step),
            Job::Share { to, shards } => {
                for shard in shards {
                    let shared = self.shared(to, shard)?;
                    channel.report(shared);
                }
            }
            Job::Export { to, shards } => {
                shards.into_iter().for_each(|shard| channel.report(self.state(to, shard)));
            }
            Job::Save { commit, shards } => {
                let shards = shards.into_iter().map(|shard| self.to_save(shard, commit.step));
                let shards = shards.collect();
                channel.report(Report::Saving { commit, shards });
            }
            Job::Restore { shard, version, digest, parts } => {
                let intact = self.restore(shard, version, digest, &parts);
                if intact {
                    self.follow(shard, write);
                }
                channel.report(Report::Restored { version, shard, digest, intact });
            }
            Job::Gradient { .. } | Job::Finish { .. } | Job::Masters { .. } => {
                unreachable!("these are not about the state of shards")
            }
        }
        Ok(())
    }

    /// Whether the optimizer's code is running, which may be the user's own.
    pub fn in_optimizer(&self) -> bool {
        self.in_optimizer
    }

    /// The version of each shard of the parameters to compute with.
    pub fn versions(&self) -> &[Step] {
        &self.versions
    }

    /// The layout of the flat parameter vector.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The shards of which this worker is primary, with copies of their master weights. An item is
    /// an error if the shard has changed in memory since its last update. No digest goes with these
    /// values, so no receiver could notice later.
    pub fn masters(&self) -> impl Iterator<Item = Result<(Shard, Shared), ShardError>> {
        let primaries = self.owned().filter(|(_, copy)| copy.role == ShardRole::Primary);
        primaries.map(|(shard, copy)| {
            copy.verify(shard)?;
            Ok((shard, Shared::new(copied(&copy.state.master, &self.pool))))
        })
    }

    /// BLAKE3 of each owned shard's step, master weights and moments, little-endian, in this order.
    /// Returns an error if a shard has changed in memory since its last update.
    pub fn seal(&self) -> Result<Vec<(Shard, [u8; 32])>, ShardError> {
        let seal = |(shard, copy): (Shard, &StoredShard)| {
            copy.verify(shard)?;
            Ok((shard, copy.seal()))
        };
        self.owned().map(seal).collect()
    }

    /// Bytes of master weights and moments of the owned shards.
    pub fn bytes(&self) -> u64 {
        let parameters: usize = self.owned().map(|(_, copy)| copy.state.master.len()).sum();
        (parameters * self.optimizer.bytes_per_parameter()) as u64
    }

    // A generation begins.

    /// Begins from the beginning: all parameters, and the states of these shards.
    fn begin(&mut self, owned: &[(Shard, bool)], write: &mut Write<'_>) -> Result<(), ShardError> {
        self.awaited.clear();
        self.copies.clear();
        let is_loaded = self.has_initial && self.versions.iter().all(|it| *it == Step(0));
        let shards = owned.iter().map(|(shard, _)| *shard);
        let (initial, rounding) = (&self.initial, self.rounding);
        let read = match is_loaded {
            true => initial.read_shards(&self.layout, shards.clone()),
            false => None,
        };
        let read = read.unwrap_or_else(|| {
            initial.read_all_and_keep(&self.layout, shards, &mut |start, values| {
                rounding.round(start, values);
                write(start, values);
            })
        });
        let mut states = read?;
        for &(shard, primary) in owned {
            let state = self.optimizer.state(states.remove(&shard).expect("all of them are read"));
            let copy = StoredShard::new(state, Step(0), ShardRole::of_owner(primary));
            self.copies.insert(shard, copy);
        }
        self.versions.fill(Step(0));
        self.has_initial = true;
        Ok(())
    }

    /// Begins from a checkpoint, which will bring the states of these shards. Until then the model
    /// has parameters of no history, and the device computes nothing with them.
    fn begin_to_restore(&mut self, owned: &[(Shard, bool)]) {
        self.copies.clear();
        let roles = owned.iter().map(|&(shard, primary)| (shard, ShardRole::of_owner(primary)));
        self.awaited = roles.collect();
        self.versions.fill(Step(0));
        self.has_initial = false;
    }

    /// Keeps these copies and drops all others. Invariant I16: a listed owner holds its shards.
    fn keep(&mut self, owned: &[(Shard, bool)], syncing: &[Shard]) {
        let mut held = std::mem::take(&mut self.copies);
        self.awaited.clear();
        self.saved.free();
        for &(shard, primary) in owned {
            let copy = held.remove(&shard).expect("I16: a listed owner holds its shards");
            self.copies.insert(shard, StoredShard { role: ShardRole::of_owner(primary), ..copy });
        }
        for &shard in syncing {
            let copy =
                held.remove(&shard).map(|copy| StoredShard { role: ShardRole::Syncing, ..copy });
            self.copies.extend(copy.map(|copy| (shard, copy)));
        }
    }

    // A step has committed.

    /// Makes the next version of the shards of these jobs, computes with it, and reports each.
    /// Returns an error if the old version's bits have changed since it was made, or if the
    /// gradient is not what its primary made. Then the device ends, and the store is of no use.
    fn update(
        &mut self,
        step: Step,
        jobs: impl Iterator<Item = Job>,
        channel: &mut dyn DeviceChannel,
        write: &mut Write<'_>,
    ) -> Result<(), ShardError> {
        let _span = trace_span!(target: STAGES, "update", step = step.0).entered();
        let mut updates = Vec::new();
        for job in jobs {
            let Job::Update { shard, norm, factor, update, gradient, .. } = job else {
                unreachable!("these are updates");
            };
            let clip = clip_factor(norm, self.clip_norm) * factor;
            let Some(gradient) = gradient else {
                self.relabel(shard, step, write)?;
                channel.report(self.updated(shard, None));
                continue;
            };
            let copy = self.copies.remove(&shard).expect("only what is held is updated");
            let change = ShardChange { shard, update, clip, gradient };
            updates.push(ShardUpdate::new(change, copy, &mut self.saved));
        }
        for update in self.make(step, updates) {
            let shard = update.shard;
            let computing = &mut self.versions[shard.0 as usize];
            let start = reduce::shard_range(self.layout.count(), shard.0 as usize).start;
            let (copy, parameters) = update.end(step, &mut self.saved, |values| {
                if step >= *computing {
                    *computing = step;
                    // At once: on a GPU each call is a copy of its own.
                    write(start, values);
                }
            })?;
            self.copies.insert(shard, copy);
            channel.report(self.updated(shard, parameters));
        }
        Ok(())
    }

    /// Makes these updates, on all threads.
    fn make(&mut self, step: Step, updates: Vec<ShardUpdate>) -> Vec<MadeUpdate> {
        let context = UpdateContext {
            optimizer: &self.optimizer,
            layout: &self.layout,
            pool: &self.pool,
            rounding: self.rounding,
            step,
            learning_rate: self.rates.rate(step.0),
        };
        self.in_optimizer = true;
        let made = self.threads.results(updates, |update| update.make(&context));
        self.in_optimizer = false;
        #[cfg(feature = "planted")]
        let made = {
            let mut made = made;
            made.iter_mut().filter(|_| self.believes_gradients).for_each(MadeUpdate::believe);
            made
        };
        made
    }

    fn updated(&self, shard: Shard, parameters: Option<Shared>) -> Report {
        let StoredShard { version, digest, .. } = self.copies[&shard];
        Report::Updated { version, shard, digest, parameters }
    }

    /// Turns a held shard, unchanged, into its next version, and computes with it.
    fn relabel(
        &mut self,
        shard: Shard,
        step: Step,
        write: &mut Write<'_>,
    ) -> Result<(), ShardError> {
        let copy = self.copies.get_mut(&shard).expect("only what is held is updated");
        let [before, after] = copy.versions_to(step).map(|version| copy.state.digest(version));
        copy.check(shard, before)?;
        (copy.version, copy.digest) = (step, after);
        self.follow(shard, write);
        Ok(())
    }

    /// Gives parameters of the version before this step's version. Other parameters are still to
    /// come.
    fn skip(&mut self, step: Step) {
        let before = self.versions.iter_mut().filter(|version| version.next() == step);
        before.for_each(|version| *version = step);
    }

    // Parameters.

    fn load(&mut self, shard: Shard, version: Step, values: &[f32], write: &mut Write<'_>) {
        write(self.range(shard).start, values);
        self.versions[shard.0 as usize] = version;
    }

    /// Computes with a held shard, unless newer parameters have come from its primary.
    fn follow(&mut self, shard: Shard, write: &mut Write<'_>) {
        let StoredShard { state, version, .. } = &self.copies[&shard];
        let computing = &mut self.versions[shard.0 as usize];
        if *version < *computing {
            return;
        }
        *computing = *version;
        let start = self.range(shard).start;
        if self.rounding == Rounding::None {
            write(start, &state.master);
        } else {
            write(start, &self.computing(shard));
        }
    }

    fn computing(&self, shard: Shard) -> Buffer {
        let mut values = copied(&self.copies[&shard].state.master, &self.pool);
        self.rounding.round(self.range(shard).start, &mut values);
        values
    }

    // For others.

    /// The parameters of a shard, for another worker. The core says whether this worker is the
    /// primary, since the device may not have entered the generation yet. No digest goes with the
    /// values, so the device compares them with the digest of their version here.
    fn shared(&self, to: WorkerId, shard: Shard) -> Result<Report, ShardError> {
        let copy = &self.copies[&shard];
        copy.verify(shard)?;
        let (version, values) = (copy.version, Shared::new(self.computing(shard)));
        Ok(Report::Shared { to, version, shard, values })
    }

    /// The state of a shard for a checkpoint of this version. From now on the state does not
    /// change: the next update makes another one.
    fn to_save(&self, shard: Shard, version: Step) -> ShardToSave {
        let copy = &self.copies[&shard];
        assert_eq!(copy.version, version, "I12: a checkpoint has one version of every shard");
        ShardToSave { shard, state: copy.state.clone(), digest: copy.digest }
    }

    fn state(&self, to: WorkerId, shard: Shard) -> Report {
        let StoredShard { state, version, digest, .. } = &self.copies[&shard];
        let parts = std::iter::once(&state.master).chain(&state.moments);
        let parts = parts.map(|part| Shared::new(copied(part, &self.pool))).collect();
        Report::State { to, version: *version, shard, digest: *digest, parts }
    }

    /// Takes over a shard's state from another owner. `false` if it does not fit, and then nothing
    /// has changed.
    fn restore(&mut self, shard: Shard, version: Step, digest: u64, parts: &[Buffer]) -> bool {
        let length = self.range(shard).len();
        let wanted = self.optimizer.bytes_per_parameter() / size_of::<f32>();
        if parts.len() != wanted || parts.iter().any(|part| part.len() != length) {
            return false;
        }
        let [master, moments @ ..] = parts else { return false };
        let moments = moments.iter().map(|moment| moment.to_vec()).collect();
        let state = ShardState { master: master.to_vec(), moments };
        let role = self.awaited.get(&shard).copied().unwrap_or(ShardRole::Syncing);
        let copy = StoredShard::new(state, version, role);
        let intact = copy.digest == digest;
        if intact {
            self.awaited.remove(&shard);
            self.copies.insert(shard, copy);
        }
        intact
    }

    fn owned(&self) -> impl Iterator<Item = (Shard, &StoredShard)> {
        let owned = self.copies.iter().filter(|(_, copy)| copy.role != ShardRole::Syncing);
        owned.map(|(shard, copy)| (*shard, copy))
    }

    fn range(&self, shard: Shard) -> Range<usize> {
        reduce::shard_range(self.layout.count(), shard.0 as usize)
    }
}

pub(super) fn copied(values: &[f32], pool: &Pool) -> Buffer {
    let mut copy = pool.take(values.len());
    copy.copy_from_slice(values);
    copy
}

#[cfg(test)]
mod tests;
