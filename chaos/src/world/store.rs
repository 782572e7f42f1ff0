//! The run's store: one directory for all workers, on a file system that may lose its power.
//!
//! A worker's job takes effect at one moment, some time after the core gave it. What the job does
//! there is the code of production. A process that ends before that moment may have done any part
//! of the job all the same, without a word. The store keeps what it has over rollbacks, crashes and
//! the end of all processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everstep_checkpoint::claims;
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::{MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::{FileName, ObjectName, step_folder};
use everstep_checkpoint::part::reader::verify;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::durable::DurableFiles;
use everstep_checkpoint::store::{ErrorKind, Store, StoreError, StoredObject};
use everstep_transport::protocol::{CheckpointId, ModelPlace, RunSpec, SavedPart, Step};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, StoreJob, StoreReport};
use everstep_worker::store_work::{Attempt, ClusterIdentity, StoreWork};

use super::types::Event;
use super::{UNIX_MS_AT_ZERO, World};
use crate::check::{Invariant, Observation, Violation};
use crate::files::{SimFiles, SyncFlaws};
use crate::random::{Random, mix};

/// A job takes at most this long while the store is there.
const LONGEST_JOB: Duration = Duration::from_millis(600);
/// Of so many jobs, one finds the store away.
const AWAY_ONE_IN: u64 = 24;
/// The store is away for at most this long.
const LONGEST_AWAY: Duration = Duration::from_secs(3);
/// How soon a worker tries again what the store has failed to do.
const STORE_BACKOFF: Duration = Duration::from_secs(1);
/// A process that ends in a job has changed or synced something fewer times than this.
const MOST_OPERATIONS: u64 = 40;
/// How many seconds of the store's clock pass in a virtual millisecond, so that what it has becomes
/// old enough to be swept.
const SECONDS_IN_A_MS: u64 = 600;
/// Sets the draws of the store apart from others of the same seed.
const STORE: u64 = 0x5704E;

/// The run's store, and the threads of all workers that use it.
pub(super) struct SimStore {
    pub(super) files: SimFiles,
    /// The path of the directory.
    root: String,
    /// The cluster that uses it now.
    pub(super) cluster: ClusterIdentity,
    /// Where the trained model goes.
    model_place: ModelPlace,
    /// Whether the log has given up lines.
    lacks_lines: bool,
    away_until: Time,
    /// Until when a fault keeps the store from every worker.
    pub(super) outage_until: Time,
    /// When each worker's thread has done its jobs: it does them in order.
    busy_until: BTreeMap<usize, Time>,
    threads: BTreeMap<StoreThreadId, SimStoreThread>,
    /// The checkpoints that the log lists, as far as any coordinator has applied it.
    pub(super) listed: BTreeSet<CheckpointId>,
    /// Those that a fault has damaged.
    torn: BTreeSet<CheckpointId>,
    /// How many changes the files had when the listed checkpoints were last checked.
    checked: u64,
    /// The newest change in the folder of each checkpoint that was whole after that change.
    found_whole: BTreeMap<CheckpointId, u64>,
    pub(super) random: Random,
}

/// The thread of a worker for the store, by the worker's place and the number of its build.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreThreadId {
    pub place: usize,
    pub builds: u64,
}

/// What a worker's thread for the store has to do.
struct SimStoreThread {
    work: StoreWork,
    /// Jobs that are due. The store has failed to do the first of them.
    jobs: VecDeque<StoreJob>,
    /// Whether a report has said that the store fails.
    is_failing: bool,
}

/// What a try of a job has come to: the shards that it gave, and its end.
struct Tried {
    given: Vec<StoreReport>,
    end: Result<Attempt<Option<StoreReport>>, StoreError>,
}

impl SimStore {
    /// The empty store of a run, for the first cluster of a seed that uses one.
    pub(super) fn of(run: &RunSpec, seed: u64, flaws: SyncFlaws) -> Self {
        let root = run.checkpoint.as_ref().map_or_else(String::new, |spec| spec.path.clone());
        let path = run.checkpoint.as_ref().map_or_else(String::new, |spec| spec.model_path());
        Self {
            files: SimFiles::new(mix(seed ^ STORE), flaws),
            root,
            cluster: identity(seed, 1),
            model_place: ModelPlace { host: String::new(), path },
            lacks_lines: false,
            away_until: Time(0),
            outage_until: Time(0),
            busy_until: BTreeMap::new(),
            threads: BTreeMap::new(),
            listed: BTreeSet::new(),
            torn: BTreeSet::new(),
            checked: 0,
            found_whole: BTreeMap::new(),
            random: Random::new(mix(seed ^ STORE ^ 1)),
        }
    }

    /// The same store, as another cluster finds it.
    pub(super) fn of_another_cluster(&self, seed: u64, number: u64) -> Self {
        Self {
            files: self.files.clone(),
            root: self.root.clone(),
            cluster: identity(seed, number),
            model_place: self.model_place.clone(),
            lacks_lines: self.lacks_lines,
            away_until: self.away_until,
            outage_until: self.outage_until,
            busy_until: BTreeMap::new(),
            threads: BTreeMap::new(),
            listed: BTreeSet::new(),
            torn: self.torn.clone(),
            checked: 0,
            found_whole: BTreeMap::new(),
            random: Random::new(mix(seed ^ STORE ^ mix(number))),
        }
    }

    /// The thread of a worker begins.
    pub(super) fn begin_thread(&mut self, thread: StoreThreadId, work: StoreWork) {
        let begun = SimStoreThread { work, jobs: VecDeque::new(), is_failing: false };
        self.threads.insert(thread, begun);
    }

    /// The directory, as a process opens it that ends when it has changed or synced something so
    /// many times.
    pub(super) fn open(&self, operations: Option<u64>) -> Result<DirectoryStore, StoreError> {
        let files = Arc::new(self.files.process(operations));
        DirectoryStore::within(Path::new(&self.root), DurableFiles::on(files))
    }

    /// Whether a fault keeps the store from every worker.
    pub(super) fn is_away(&self, now: Time) -> bool {
        self.outage_until > now
    }

    /// As [`SimStore::open`], if workers reach the store.
    fn reach(&self, now: Time, operations: Option<u64>) -> Result<DirectoryStore, StoreError> {
        if !self.is_away(now) {
            return self.open(operations);
        }
        let (object, why) = ("the store".into(), "it does not answer".into());
        Err(StoreError { kind: ErrorKind::Retry, place: self.root.clone(), object, why })
    }

    /// Tries the next job of a thread. A process that ends leaves the job half done.
    fn attempt(
        &mut self,
        now: Time,
        thread: StoreThreadId,
        operations: Option<u64>,
    ) -> Option<Tried> {
        let opened = self.reach(now, operations);
        let SimStoreThread { work, jobs, .. } = self.threads.get_mut(&thread)?;
        let job = jobs.front_mut()?;
        let mut given = Vec::new();
        let end = opened.and_then(|store| match job {
            StoreJob::Model { generation } => {
                work.insist(&store)?;
                store.put_new(&ObjectName::File(FileName::weights()), b"weights")?;
                let (generation, place) = (*generation, self.model_place.clone());
                Ok(Attempt::Done(Some(StoreReport::Stored { generation, place })))
            }
            job => work.attempt(&store, job, &mut |report| {
                given.push(report);
                true
            }),
        });
        Some(Tried { given, end })
    }

    /// As [`SimStore::damage_of`]. Reads the bytes of a whole checkpoint again only if anything in
    /// its folder may have changed.
    fn check(&mut self, id: CheckpointId) -> Option<String> {
        let folder = Path::new(&self.root).join(step_folder(id.step));
        let newest = self.files.newest_change(&folder);
        if newest.is_some() && self.found_whole.get(&id).copied() == newest {
            return None;
        }
        let damage = self.damage_of(id);
        match newest.filter(|_| damage.is_none()) {
            Some(newest) => _ = self.found_whole.insert(id, newest),
            None => _ = self.found_whole.remove(&id),
        }
        damage
    }

    /// What is wrong with a checkpoint that the log lists, by all of its bytes.
    fn damage_of(&self, id: CheckpointId) -> Option<String> {
        let found = self.open(None).and_then(|store| {
            let bytes = store.read_whole(&ObjectName::Manifest(id.step), MAX_MANIFEST_BYTES)?;
            let manifest = match Manifest::parse(&bytes) {
                Ok(manifest) if manifest.generation == id.generation => manifest,
                Ok(other) => return Ok(Some(format!("its manifest is of {}", other.generation))),
                Err(error) => return Ok(Some(error.to_string())),
            };
            let damage = verify(&store, &manifest, &mut |_| {})?;
            Ok(damage.first().map(ToString::to_string))
        });
        found.unwrap_or_else(|error| Some(error.to_string()))
    }

    /// Whether another cluster has claimed the store since this one did.
    pub(super) fn is_outdone(&self) -> bool {
        let Ok(store) = self.open(None) else { return false };
        let Ok(listing) = store.list_claims() else { return false };
        let is_own = |object: &StoredObject| {
            let ObjectName::Claim(number) = object.name else { return false };
            claims::read(&store, number).is_ok_and(|claim| claim.nonce == self.cluster.nonce)
        };
        let newest_is_own = listing.last().is_none_or(is_own);
        !newest_is_own && listing.iter().any(is_own)
    }

    /// No process has some lines any more.
    pub(super) fn lose_lines(&mut self) {
        self.lacks_lines = true;
    }

    /// The first step of which a reader of this checkpoint would find no line.
    fn first_missing_line(&self, id: CheckpointId) -> Option<Step> {
        let found = self.open(None).and_then(|store| {
            let listing = store.list()?;
            history::lines(&store, &listing, id, &mut |_| {})
        });
        let there: BTreeSet<Step> = found.iter().flatten().map(|line| line.step).collect();
        let mut steps = (1..=id.step.0).map(Step).filter(|_| !self.lacks_lines);
        steps.find(|step| !there.contains(step))
    }

    /// Damages the newest listed checkpoint, if an older one would do, and only once. Returns which
    /// one it is.
    fn tear(&mut self) -> Option<CheckpointId> {
        let newest = self.listed.last().copied().filter(|_| self.listed.len() >= 2)?;
        if !self.torn.is_empty() {
            return None;
        }
        let store = self.open(None).ok()?;
        let bytes =
            store.read_whole(&ObjectName::Manifest(newest.step), MAX_MANIFEST_BYTES).ok()?;
        let manifest = Manifest::parse(&bytes).ok()?;
        let file = self.random.below(manifest.files.len() as u64) as u32;
        let path = Path::new(&self.root).join(manifest.file_name(file).to_string());
        if !self.files.tear(&path) {
            return None;
        }
        self.torn.insert(newest);
        self.damage_of(newest).map(|_| newest)
    }
}

/// The identity of a cluster, by its number among those of a seed.
fn identity(seed: u64, number: u64) -> ClusterIdentity {
    ClusterIdentity { nonce: format!("{seed}-{number}"), words: format!("cluster {number}") }
}

// Jobs.
impl World {
    /// A worker's thread gets a job. The store may be away, and then the thread says so.
    pub(super) fn give_store(&mut self, place: usize, job: StoreJob) {
        if self.random.below(AWAY_ONE_IN) == 0 {
            let away = Duration::from_millis(self.random.below(LONGEST_AWAY.as_millis() as u64));
            self.store.away_until = self.store.away_until.max(self.now + away);
        }
        let is_away = self.store.away_until > self.now;
        if is_away {
            let failing = StoreReport::Failing(Some("the store is away".into()));
            self.queue.put(self.now, Event::Worker(place, Input::Store(failing).into()));
        }
        let takes = Duration::from_millis(self.random.below(LONGEST_JOB.as_millis() as u64));
        let builds = self.workers[place].builds;
        let busy_until = self.store.busy_until.entry(place).or_default();
        let at = self.now.max(self.store.away_until).max(*busy_until) + takes;
        *busy_until = at;
        self.queue.put(at, Event::Store { place, builds, was_away: is_away, job: Box::new(job) });
    }

    /// A job of a worker's thread takes effect.
    pub(super) fn on_store_job(
        &mut self,
        id: StoreThreadId,
        was_away: bool,
        job: StoreJob,
    ) -> Result<(), Violation> {
        let has_ended = !self.has_thread(id);
        // A process that has ended, or begun anew, may have done a part of the job before.
        let is_begun = !has_ended || self.random.below(2) == 0;
        let Some(thread) = self.store.threads.get_mut(&id).filter(|_| is_begun) else {
            return Ok(());
        };
        let is_due = thread.jobs.is_empty();
        let replaced = thread.jobs.pop_front_if(|first| first.is_replaced_by(&job));
        thread.jobs.push_back(job);
        if has_ended {
            let operations = self.store.random.below(MOST_OPERATIONS);
            self.try_job(id, Some(operations))?;
            self.store.threads.remove(&id);
            return Ok(());
        }
        if was_away {
            self.step_worker(id.place, Input::Store(StoreReport::Failing(None)))?;
        }
        if let Some(report) = replaced.as_ref().and_then(|it| it.given_up("it fails".into())) {
            self.step_worker(id.place, Input::Store(report))?;
        }
        match is_due || replaced.is_some() {
            true => self.work_in_store(id),
            false => Ok(()),
        }
    }

    /// A worker's thread does its jobs that are due, until the store fails.
    pub(super) fn work_in_store(&mut self, id: StoreThreadId) -> Result<(), Violation> {
        while self.has_thread(id) {
            let Some(Tried { given, end }) = self.try_job(id, None)? else {
                return Ok(());
            };
            for report in given {
                self.reported_of_store(id, report)?;
            }
            let (report, failing) = match end {
                Err(error) => {
                    self.tell_of_store(id, Some(error.to_string()))?;
                    let again = Event::StoreAgain(id.place, id.builds);
                    self.queue.put(self.now + STORE_BACKOFF, again);
                    return Ok(());
                }
                Ok(Attempt::Done(report)) => (Ok(report), None),
                Ok(Attempt::Refused(reason)) => (Err(reason), None),
                Ok(Attempt::MayNot(reason)) => (Err(reason.clone()), Some(reason)),
            };
            self.tell_of_store(id, failing)?;
            let thread = self.store.threads.get_mut(&id);
            let Some(job) = thread.and_then(|thread| thread.jobs.pop_front()) else {
                return Ok(());
            };
            if let Some(report) = report.unwrap_or_else(|reason| job.given_up(reason)) {
                self.reported_of_store(id, report)?;
            }
        }
        Ok(())
    }

    /// Tries the next job of a thread. A cluster that another one has outdone changes nothing, and
    /// every listed checkpoint stays whole (I12).
    fn try_job(
        &mut self,
        thread: StoreThreadId,
        operations: Option<u64>,
    ) -> Result<Option<Tried>, Violation> {
        let seconds = UNIX_MS_AT_ZERO / 1_000 + self.now.0 / 1_000_000 * SECONDS_IN_A_MS;
        self.store.files.set_clock(seconds);
        let (is_outdone, before) = (self.store.is_outdone(), self.store.files.changes());
        let cuts = self.store.files.cuts();
        let tried = self.store.attempt(self.now, thread, operations);
        if is_outdone {
            self.observe(Observation::Outdone)?;
        }
        let is_cut = self.store.files.cuts() > cuts;
        if is_outdone && !is_cut && self.store.files.changes() > before {
            let seen = "a cluster writes into a store that another one has claimed since".into();
            return Err(Violation { invariant: Invariant::I12, at: self.now, seen });
        }
        if is_cut {
            self.note(format_args!("the store's machine has lost its power"));
        }
        self.check_listed()?;
        Ok(tried)
    }

    /// Says whether the store fails a worker, if that is news.
    fn tell_of_store(&mut self, id: StoreThreadId, error: Option<String>) -> Result<(), Violation> {
        let Some(thread) = self.store.threads.get_mut(&id) else { return Ok(()) };
        let was_failing = std::mem::replace(&mut thread.is_failing, error.is_some());
        match was_failing || error.is_some() {
            true => self.reported_of_store(id, StoreReport::Failing(error)),
            false => Ok(()),
        }
    }

    /// Whether a worker still uses this thread. A worker that begins anew has another one.
    fn has_thread(&self, id: StoreThreadId) -> bool {
        self.workers[id.place].builds == id.builds && !self.workers[id.place].ended()
    }

    /// A worker hears a report of its thread.
    fn reported_of_store(
        &mut self,
        id: StoreThreadId,
        report: StoreReport,
    ) -> Result<(), Violation> {
        if !self.has_thread(id) {
            return Ok(());
        }
        let report = match report {
            // The time that a part takes on the real machine is no part of the simulation.
            StoreReport::Saved(part) => StoreReport::Saved(SavedPart { write_ms: 1, ..part }),
            report => report,
        };
        // The store keeps what it has: the log lists what was never whole, or is deleted. A worker
        // that stood still may read a checkpoint that the others have deleted since.
        if let StoreReport::Damaged { id, reason, .. } = &report
            && self.store.listed.contains(id)
            && !self.store.torn.contains(id)
            && !self.store.is_outdone()
        {
            return Err(self.not_whole(*id, reason));
        }
        if let StoreReport::Stored { place, .. } = &report {
            self.observe(Observation::Durable(place))?;
        }
        self.step_worker(id.place, Input::Store(report))
    }
}

// Faults, and what the checkers see.
impl World {
    /// The power of the store's machine fails, mostly in the middle of a job to come.
    pub(super) fn cut_store(&mut self) -> Result<(), Violation> {
        match self.store.random.below(MOST_OPERATIONS) {
            0 => self.store.files.cut(),
            after => self.store.files.cut_after(Some(after)),
        }
        self.check_listed()
    }

    /// A disk of the store damages the newest checkpoint, if another one would do.
    pub(super) fn tear_checkpoint(&mut self) -> Result<(), Violation> {
        let Some(id) = self.store.tear() else { return Ok(()) };
        self.note(format_args!("the checkpoint of step {} is damaged", id.step));
        self.observe(Observation::Torn(id))
    }

    /// A coordinator has applied more of the log than any other one: the log lists these now.
    pub(super) fn witness_listed(&mut self, place: usize) {
        let Some(node) = self.coordinators[place].node() else { return };
        let listed = node.core().state().checkpoints().listed();
        let whole = listed.filter(|listed| listed.damage.is_none());
        self.store.listed = whole.map(|listed| listed.id()).collect();
        self.store.checked = 0;
    }

    /// The log lists a checkpoint: the store has every shard of it, and the line of each step up to
    /// it (I12).
    pub(super) fn witness_listing(&mut self, id: CheckpointId) -> Result<(), Violation> {
        self.checkers.liveness.tally.checkpoints += 1;
        if self.store.is_outdone() {
            return Ok(());
        }
        self.observe(Observation::Checkpoint(id))?;
        if let Some(damage) = self.store.check(id).filter(|_| !self.store.torn.contains(&id)) {
            return Err(self.not_whole(id, &damage));
        }
        let Some(missing) = self.store.first_missing_line(id) else { return Ok(()) };
        Err(self.not_whole(id, &format!("the store has no line of step {missing}")))
    }

    /// Every listed checkpoint is whole (I12). A cluster that another one has outdone lists what it
    /// had, and the other one may delete it.
    fn check_listed(&mut self) -> Result<(), Violation> {
        let changes = self.store.files.changes();
        if changes == self.store.checked || self.store.is_outdone() {
            return Ok(());
        }
        let whole: Vec<_> = self.store.listed.difference(&self.store.torn).copied().collect();
        let found = whole.into_iter().find_map(|id| Some((id, self.store.check(id)?)));
        self.store.checked = changes;
        found.map_or(Ok(()), |(id, damage)| Err(self.not_whole(id, &damage)))
    }

    fn not_whole(&self, id: CheckpointId, why: &str) -> Violation {
        let CheckpointId { step, generation } = id;
        let seen =
            format!("the checkpoint of step {step}, generation {generation}, is listed: {why}");
        Violation { invariant: Invariant::I12, at: self.now, seen }
    }
}
