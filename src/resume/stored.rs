//! Goes on with a run from the store of its checkpoints, on a new local cluster.
//!
//! The store is read and the run is checked before a process starts. So bad input is one error, and
//! leaves no directory.

use everstep_checkpoint::choose::PassedOver;
use everstep_checkpoint::claims::{self, Claim, Standing};
use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::{MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::origin;
use everstep_checkpoint::store::{Place, Store, StoredObject};
use everstep_transport::protocol::{CheckpointId, MetricsLine, RunOrigin, RunSpec, Step};
use everstep_worker::registry::Registry;
use everstep_worker::store_work::ClusterIdentity;

use super::stored_run::{self, StoredRun};
use super::{check, notes, seeing};
use crate::checkpoint::{self, ReadProgress, store_failure};
use crate::cli::ResumeFlags;
use crate::cluster::{self, ClusterError, ClusterOptions, ContinuedHistory};
use crate::config;
use crate::failure::{Exit, Failure};
use crate::store_check::{self, StoreUse};
use crate::text::RunText;
use crate::train::{self, Trained};
use crate::{output, progress, script};

pub(super) fn run(flags: &ResumeFlags, place: &Place, registry: &Registry) -> Result<(), Failure> {
    train::check_coordinators(flags.local.start.coordinators)?;
    let store = checkpoint::open(place)?;
    let listing = store.list().map_err(store_failure)?;
    let stored = read_stored(&*store, &listing, flags.step)?;
    let StoredRun { mut run, manifest, passed_over, .. } = stored;
    passed_over.iter().for_each(pass_over);
    go_on_here(&mut run, flags, place)?;
    let script = script::of_kept_run(&run, &flags.from, &flags.script)?;
    let script =
        script.map(|script| seeing(script, flags.local.device.as_ref(), registry)).transpose()?;
    if script.is_none() {
        check(&flags.from, &flags.local.device(), &run, registry)?;
        check_stored(&run, &manifest, registry)?;
    }
    // Before the store is claimed: nothing is undone if it is damaged.
    if flags.step.is_some() {
        checkpoint::must_be_whole(&*store, manifest.step)?;
    }
    if let Some(spec) = &run.checkpoint {
        store_check::check(spec, StoreUse::Resume)?;
    }
    let workers = flags.workers.unwrap_or(run.start_workers);
    for note in notes(workers, &run) {
        output::say(format_args!("note: {note}"));
    }
    let step = manifest.step;
    output::say(format_args!("goes on from the checkpoint of step {step} in {place}"));
    run.start_workers = workers.max(run.min_workers);
    let stored = ClaimedRun::new(place, flags.step, &manifest);
    let options = ClusterOptions { script, ..train::options(&flags.local, workers, registry) };
    train_on(flags, &run, &options, stored, registry)
}

/// A store that the cluster has claimed, and what it has from then on.
struct ClaimedStore {
    store: Box<dyn Store>,
    listing: Vec<StoredObject>,
    stored: StoredRun,
}

/// A run in a store that a cluster is to claim.
pub(crate) struct ClaimedRun {
    place: Place,
    /// The step that the user asked for.
    step: Option<u64>,
    /// The identity of the run.
    run: String,
    /// The step of the newest checkpoint before the claim, or the one that was asked for.
    known: Step,
}

impl ClaimedRun {
    /// The run of which the store at `place` has this manifest. It is the newest one that is
    /// usable, or that of `step`.
    pub(crate) fn new(place: &Place, step: Option<u64>, manifest: &Manifest) -> Self {
        Self { place: place.clone(), step, run: manifest.run.clone(), known: manifest.step }
    }

    /// Claims the store for a cluster, so that a cluster which had it before writes nothing any
    /// more, and reads where the run goes on.
    pub(crate) fn origin(self, cluster: &ClusterIdentity) -> Result<RunOrigin, Failure> {
        Ok(self.claim(cluster)?.stored.origin)
    }

    /// The same, with the metrics lines of the steps that the run has trained.
    fn read(self, cluster: &ClusterIdentity) -> Result<ContinuedHistory, Failure> {
        let ClaimedStore { store, listing, stored } = self.claim(cluster)?;
        let lines = lines(&*store, &listing, &stored.manifest)?;
        Ok(ContinuedHistory { origin: stored.origin, lines })
    }

    fn claim(self, cluster: &ClusterIdentity) -> Result<ClaimedStore, Failure> {
        let store = checkpoint::open(&self.place)?;
        let ClusterIdentity { nonce, words } = cluster.clone();
        let claim = Claim { run: self.run, nonce, cluster: words };
        let claims = store.list_claims().map_err(store_failure)?;
        let standing = claims::hold(&*store, &claims, &claim, None).map_err(store_failure)?;
        if let Standing::Outdone(why) = standing {
            let failure = Failure::new(Exit::Usage, "the run cannot go on from its store");
            return Err(failure.at(&self.place).because(why));
        }
        let listing = store.list().map_err(store_failure)?;
        let stored = read_stored(&*store, &listing, self.step)?;
        let durable = origin::make_durable(&*store, &listing, &stored.origin);
        durable.map_err(store_failure)?;
        if stored.manifest.step != self.known {
            let step = stored.manifest.step;
            output::say(format_args!("note: the store has changed: goes on from step {step}"));
        }
        Ok(ClaimedStore { store, listing, stored })
    }
}

/// Opens a store, and reads the run in it. The user hears of checkpoints that are passed over.
pub(crate) fn read_run(place: &Place, step: Option<u64>) -> Result<StoredRun, Failure> {
    let store = checkpoint::open(place)?;
    let listing = store.list().map_err(store_failure)?;
    let stored = read_stored(&*store, &listing, step)?;
    stored.passed_over.iter().for_each(pass_over);
    Ok(stored)
}

/// Reads the run in a store. With `step`, it goes on from the checkpoint of that step.
pub(crate) fn read_stored(
    store: &dyn Store,
    listing: &[StoredObject],
    step: Option<u64>,
) -> Result<StoredRun, Failure> {
    if step == Some(0) {
        return Err(Failure::new(Exit::Usage, "the initial state is no checkpoint")
            .at("--step")
            .because("a store has what the run has trained")
            .next("`everstep train` begins at the first step, and ends with the same bits"));
    }
    let mut read = |step| store.read_whole(&ObjectName::Manifest(step), MAX_MANIFEST_BYTES);
    stored_run::read(store.place(), listing, step.map(Step), &mut read)
}

/// The metrics lines of the steps that the run has trained. The user hears if some are missing.
fn lines(
    store: &dyn Store,
    listing: &[StoredObject],
    manifest: &Manifest,
) -> Result<Vec<MetricsLine>, Failure> {
    let is_lines = |object: &&StoredObject| matches!(object.name, ObjectName::Lines(_));
    let total = listing.iter().filter(is_lines).map(|object| object.bytes).sum();
    let mut progress = ReadProgress::new("metrics".into(), total);
    let (step, generation) = (manifest.step, manifest.generation);
    let id = CheckpointId { step, generation };
    let lines = history::lines(store, listing, id, &mut |bytes| progress.add(bytes));
    let lines = lines.map_err(store_failure)?;
    let missing = step.0 - lines.len() as u64;
    if missing > 0 {
        output::say(format_args!("note: the store has no metrics of {missing} of {step} steps"));
    }
    Ok(lines)
}

fn pass_over(passed: &PassedOver) {
    let (step, damage) = (passed.step, output::plain(&passed.damage.to_string()));
    output::say(format_args!("note: the checkpoint of step {step} is passed over: {damage}"));
}

/// The run as it goes on: it writes to the same store, wherever that is by now.
fn go_on_here(run: &mut RunSpec, flags: &ResumeFlags, place: &Place) -> Result<(), Failure> {
    use_data(run, flags.data.as_deref())?;
    let Some(checkpoint) = &mut run.checkpoint else {
        return Err(Failure::new(Exit::Usage, "the run cannot go on from its store")
            .at(place)
            .because("its specification has no section [checkpoint]")
            .next("`everstep checkpoint export` makes weights for a new run of it"));
    };
    checkpoint.path = place.to_string();
    Ok(())
}

/// Lets the run use data that have moved, if the user says where they are.
pub(crate) fn use_data(run: &mut RunSpec, data: Option<&str>) -> Result<(), Failure> {
    let Some(data) = data else { return Ok(()) };
    run.data.path = config::locate(data).map_err(|problem| {
        Failure::new(Exit::Usage, "the data cannot be used")
            .at("--data")
            .because(format!("it {problem}"))
            .next("name what the run was trained on")
    })?;
    Ok(())
}

/// Checks that this program has the model and the data of a checkpoint's run, before any worker
/// looks for them.
pub(crate) fn check_stored(
    run: &RunSpec,
    manifest: &Manifest,
    registry: &Registry,
) -> Result<(), Failure> {
    check_model(run, manifest, registry)?;
    check_data(run, manifest, registry)
}

/// Checks that this program's model is the one that the run has trained.
fn check_model(run: &RunSpec, manifest: &Manifest, registry: &Registry) -> Result<(), Failure> {
    let refused = |why: String| {
        Failure::new(Exit::Usage, "this program cannot train the run")
            .at(format!("its model, {}", run.model.kind))
            .because(why)
            .next("resume it with the program that began it")
    };
    let plan = registry.plan_model(run).map_err(|error| refused(error.to_string()))?;
    manifest.check_layout(&plan.layout).map_err(|error| refused(error.to_string()))
}

/// Checks that the data are those that the run was trained on.
fn check_data(run: &RunSpec, manifest: &Manifest, registry: &Registry) -> Result<(), Failure> {
    let refused = |why: String| {
        Failure::new(Exit::Usage, "the run's data are not here")
            .at(&run.data.path)
            .because(why)
            .next("name with --data where they are now")
    };
    let dataset = registry.build_dataset(run).map_err(|error| refused(error.to_string()))?;
    let (theirs, ours) = (manifest.data, Digest(dataset.fingerprint()));
    if theirs == ours && manifest.samples == dataset.len() {
        return Ok(());
    }
    Err(refused(format!(
        "the run was trained on {} samples with the digest {}, and these are {} with {}",
        manifest.samples,
        short(theirs),
        dataset.len(),
        short(ours)
    )))
}

fn short(digest: Digest) -> String {
    digest.to_string()[..12].into()
}

fn train_on(
    flags: &ResumeFlags,
    run: &RunSpec,
    options: &ClusterOptions,
    stored: ClaimedRun,
    registry: &Registry,
) -> Result<(), Failure> {
    let (directory, report_file) = train::claim(&flags.local.start, run)?;
    if let Some(script) = &options.script {
        script::keep(&directory, script)?;
    }
    let (step, home) = (stored.known, directory.path().to_path_buf());
    let mut display = progress::Display::new(run, options.workers, &home);
    let mut reached = step;
    let read = move |cluster: &ClusterIdentity| stored.read(cluster);
    let report = cluster::resume_stored(run, read, directory, options, |progress| {
        reached = progress.step();
        display.show(progress);
    });
    display.end();
    match report {
        Err(ClusterError::Failed { process: None, reason }) if reached <= step => {
            Err(Failure::new(Exit::Failed, "the run cannot go on from its store")
                .at(flags.from.display())
                .because(reason)
                .next("`everstep checkpoint verify` names all damage in the store"))
        }
        report => {
            let trained = Trained { run, home: &home, text: &RunText::of(run) };
            trained.conclude(report, report_file, registry)
        }
    }
}
