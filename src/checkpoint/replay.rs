//! `everstep checkpoint verify --replay N`: trains the steps after a checkpoint again, and compares
//! them with what was recorded.
//!
//! In: the store, and the lines of the run's directory or of the store. The checkpoint is copied
//! into a temporary directory, where a local cluster of one worker goes on from it: with the run's
//! script, if it has one. The store is only read. Out: each step whose loss, norm or decision
//! differs, and each later checkpoint whose state hash does.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use everstep_checkpoint::choose::{self, Wanted};
use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::{MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::{REQUEST_BYTES, Store, StoreError, StoredObject, UploadSize};
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{CheckpointId, MetricsLine, RunSpec, Step};
use everstep_worker::registry::Registry;
use serde_json::{Value, json};

use super::read_progress::ReadProgress;
use super::source::CheckpointSource;
use super::{choose_failure, deleted, store_failure};
use crate::cli::{LocalFlags, StartFlags, VerifyFlags};
use crate::cluster::{
    self, Cluster, ClusterError, ClusterOptions, ContinuedHistory, Directory, Progress, Script,
};
use crate::failure::{Exit, Failure};
use crate::resume::{check, check_stored, read_stored, use_data};
use crate::{output, scratch, script, train};

/// What a cluster has done, or a run has recorded, after a checkpoint.
#[derive(Debug, Default)]
struct TrainedSteps {
    lines: BTreeMap<Step, MetricsLine>,
    /// The state hashes of later checkpoints.
    hashes: BTreeMap<Step, String>,
}

pub(super) fn run(flags: &VerifyFlags, steps: u64, registry: &Registry) -> Result<(), Failure> {
    let source = CheckpointSource::find(&flags.store)?;
    let store = source.open()?;
    let listing = store.list().map_err(store_failure)?;
    let lines = recorded_lines(&source, &*store, &listing)?;
    let manifest = checkpoint(&*store, &listing, flags.step, lines.last_key_value())?;
    let last = Step(manifest.step.0.saturating_add(steps));
    let is_later = |step: &Step| *step > manifest.step && *step <= last;
    let lines: BTreeMap<_, _> = lines.into_iter().filter(|(step, _)| is_later(step)).collect();
    let Some(last) = lines.last_key_value().map(|(step, _)| *step) else {
        return Err(nothing(&*store, &manifest));
    };
    let later = choose::steps(&listing).into_iter().filter(|step| *step <= last);
    let hash = |step: Step| match choose::exactly(&*store, step, Some(&manifest.run)) {
        Ok(later) => Some((step, later.state_hash.to_string())),
        Err(error) => {
            output::say(format_args!(
                "note: the checkpoint of step {step} is not compared: {error}"
            ));
            None
        }
    };
    let hashes = later.filter(is_later).filter_map(hash).collect();
    let recorded = TrainedSteps { lines, hashes };
    let mut run = read_stored(&*store, &listing, Some(manifest.step.0))?.run;
    let script = script::of_kept_run(&run, source.run_dir(), &flags.script)?;
    let script = script.map(|script| Script { to_stderr: true, ..script });
    use_data(&mut run, flags.data.as_deref())?;
    // Before the checkpoint is copied.
    if script.is_none() {
        check(Path::new(store.place()), &flags.device, &run, registry)?;
        check_stored(&run, &manifest, registry)?;
    }
    let options = ClusterOptions { script, keeps_history: true, ..options(flags, registry) };
    let replay = Replay { manifest: &manifest, recorded: &recorded, last, run };
    let replayed = replay.run(&*store, &listing, &options)?;
    conclude(flags, manifest.step, &recorded, &replayed)
}

/// The lines of the run's directory, or those that lie in the store.
fn recorded_lines(
    source: &CheckpointSource,
    store: &dyn Store,
    listing: &[StoredObject],
) -> Result<BTreeMap<Step, MetricsLine>, Failure> {
    let lines: Vec<MetricsLine> = match source {
        CheckpointSource::Store { run: Some(dir), .. } => {
            let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap_or_default();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        }
        _ => {
            let newest = choose::newest(store, Wanted::default()).map_err(choose_failure)?.manifest;
            let id = |it: Manifest| CheckpointId { step: it.step, generation: it.generation };
            let id = newest.map(id).unwrap_or_default();
            history::lines(store, listing, id, &mut |_| {}).map_err(store_failure)?
        }
    };
    Ok(lines.into_iter().map(|line| (line.step, line)).collect())
}

/// The checkpoint of a step, or the newest one with a recorded step after it.
fn checkpoint(
    store: &dyn Store,
    listing: &[StoredObject],
    step: Option<u64>,
    newest: Option<(&Step, &MetricsLine)>,
) -> Result<Manifest, Failure> {
    if let Some(step) = step {
        return choose::exactly(store, Step(step), None).map_err(choose_failure);
    }
    let mut read = |step| store.read_whole(&ObjectName::Manifest(step), MAX_MANIFEST_BYTES);
    let wanted = Wanted { run: None, below: newest.map(|(step, _)| *step) };
    let chosen = choose::newest_of(listing, wanted, &mut read).map_err(choose_failure)?;
    chosen.manifest.ok_or_else(|| {
        Failure::new(Exit::Usage, "there is no checkpoint to replay from")
            .at(store.place())
            .because("none that is whole has a recorded step after it")
            .next("name one with --step, or the run's directory with --dir")
    })
}

fn nothing(store: &dyn Store, manifest: &Manifest) -> Failure {
    Failure::new(Exit::Usage, "there is nothing to compare a replay with")
        .at(store.place())
        .because(format!("no step after step {} is recorded", manifest.step))
        .next("name an older checkpoint with --step, or the run's directory with --dir")
}

/// The steps to train again.
struct Replay<'a> {
    /// The checkpoint to begin with.
    manifest: &'a Manifest,
    recorded: &'a TrainedSteps,
    /// The last step to train and to compare.
    last: Step,
    /// The run, with its data where they are now.
    run: RunSpec,
}

impl Replay<'_> {
    /// Trains the steps again, and at most so many more as the saving of a checkpoint takes.
    fn run(
        &self,
        store: &dyn Store,
        listing: &[StoredObject],
        options: &ClusterOptions,
    ) -> Result<TrainedSteps, Failure> {
        let folder = scratch::folder()?;
        let place = folder.path().join("store");
        copy(store, listing, self.manifest, &place).map_err(|error| {
            let is_gone = error.is_missing() && choose::is_gone(store, self.manifest) == Ok(true);
            if is_gone { deleted(store, self.manifest.step) } else { store_failure(error) }
        })?;
        let copied = DirectoryStore::open(&place).map_err(store_failure)?;
        let found = copied.list().map_err(store_failure)?;
        let origin = read_stored(&copied, &found, Some(self.manifest.step.0))?.origin;
        let run = alone(self.run.clone(), &place);
        let directory = Directory::claim(&folder.path().join("run"), &run)?;
        let history = ContinuedHistory { origin, lines: Vec::new() };
        self.train(directory, &run, options, history)
    }

    fn train(
        &self,
        directory: Directory,
        run: &RunSpec,
        options: &ClusterOptions,
        history: ContinuedHistory,
    ) -> Result<TrainedSteps, Failure> {
        let Self { manifest: Manifest { step, .. }, recorded, last, .. } = self;
        let mut progress = ReadProgress::new(format!("replay from step {step}"), last.0 - step.0);
        let trained = cluster::block_on(async {
            let mut cluster = Cluster::start(directory, options).await?;
            cluster.resume_stored(run, history).await?;
            loop {
                let is_over = cluster.advance().await?;
                let trained = trained(cluster.progress());
                progress.reach(trained.lines.len() as u64);
                let saved =
                    recorded.hashes.keys().all(|step| is_settled(cluster.progress(), *step));
                if is_over || trained.lines.contains_key(last) && saved {
                    return Ok::<_, ClusterError>(trained);
                }
            }
        });
        Ok(trained?)
    }
}

/// A cluster of one worker on the device that the user names.
fn options(flags: &VerifyFlags, registry: &Registry) -> ClusterOptions {
    let wait = Duration::from_secs(600);
    let start = StartFlags { coordinators: 1, wait, ..StartFlags::default() };
    let local = LocalFlags { start, device: Some(flags.device.clone()), ..LocalFlags::default() };
    train::options(&local, 1, registry)
}

/// The run on one worker, with its checkpoints in this place.
fn alone(mut run: RunSpec, place: &Path) -> RunSpec {
    (run.min_workers, run.start_workers, run.copies) = (1, 1, 1);
    if let Some(checkpoint) = &mut run.checkpoint {
        checkpoint.path = place.display().to_string();
    }
    run
}

/// Copies a checkpoint into a directory.
fn copy(
    store: &dyn Store,
    listing: &[StoredObject],
    manifest: &Manifest,
    place: &Path,
) -> Result<(), StoreError> {
    let target = DirectoryStore::open(place)?;
    let mut progress = ReadProgress::of_bytes(format!("step {}", manifest.step), manifest.bytes());
    let of_step = listing.iter().filter(|object| object.name.step() == Some(manifest.step));
    for StoredObject { name, bytes, .. } in of_step {
        let mut upload = target.upload(name, UploadSize { head: 0, total: *bytes })?;
        for start in (0..*bytes).step_by(REQUEST_BYTES) {
            let piece = store.read(name, start..(start + REQUEST_BYTES as u64).min(*bytes))?;
            progress.add(piece.len() as u64);
            upload.write(&piece)?;
        }
        upload.finish(&[])?;
    }
    Ok(())
}

fn trained(progress: &Progress) -> TrainedSteps {
    let lines = progress.lines.iter().map(|line| (line.step, line.clone())).collect();
    let hash = |kind: &EventKind| match kind {
        EventKind::Checkpoint { step, state_hash, .. } => {
            Some((*step, Digest(*state_hash).to_string()))
        }
        _ => None,
    };
    let hashes = progress.events.iter().filter_map(|event| hash(&event.kind)).collect();
    TrainedSteps { lines, hashes }
}

/// Whether the checkpoint of a step is there, or will not be.
fn is_settled(progress: &Progress, of: Step) -> bool {
    progress.events.iter().any(|event| match &event.kind {
        EventKind::Checkpoint { step, .. }
        | EventKind::CheckpointFailed { step, .. }
        | EventKind::CheckpointSkipped { step, .. } => *step == of,
        _ => false,
    })
}

/// What differs in a step, in words. None if nothing does.
fn difference(recorded: &MetricsLine, replayed: Option<&MetricsLine>) -> Option<String> {
    let Some(replayed) = replayed else { return Some("it was not reached".into()) };
    // JSON has no number that is not finite.
    let same = |one: f64, other: f64| {
        one.to_bits() == other.to_bits() || !one.is_finite() && !other.is_finite()
    };
    let rows = [
        ("loss", recorded.loss, replayed.loss),
        ("norm", recorded.grad_norm, replayed.grad_norm),
        ("learning rate", recorded.learning_rate, replayed.learning_rate),
        (
            "validation loss",
            recorded.validation_loss.unwrap_or(f64::NAN),
            replayed.validation_loss.unwrap_or(f64::NAN),
        ),
    ];
    let numbers = rows.iter().filter(|(_, recorded, replayed)| !same(*recorded, *replayed));
    let numbers = numbers.map(|(what, was, is)| format!("{what} {was}, and again {is}"));
    let (was, is) = (recorded.decision, replayed.decision);
    let decision = (was != is).then(|| format!("decision {was:?}, and again {is:?}"));
    let words: Vec<String> = numbers.chain(decision).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// The differences, by step.
fn differences(recorded: &TrainedSteps, replayed: &TrainedSteps) -> BTreeMap<Step, String> {
    let of_line = |(step, line): (&Step, &MetricsLine)| {
        Some((*step, difference(line, replayed.lines.get(step))?))
    };
    let mut found: BTreeMap<_, _> = recorded.lines.iter().filter_map(of_line).collect();
    for (step, was) in &recorded.hashes {
        // A checkpoint that was not written again tells nothing.
        let other = replayed.hashes.get(step).filter(|is| *is != was);
        if let Some(is) = other {
            found.entry(*step).or_insert_with(|| format!("state hash {was}, and again {is}"));
        }
    }
    found
}

/// How many state hashes were compared, in words.
fn compared(hashes: usize) -> String {
    match hashes {
        0 => {
            "no state hash was compared, since no later checkpoint is among them: a larger number \
              of steps would reach one"
                .into()
        }
        1 => "1 state hash was compared".into(),
        _ => format!("{hashes} state hashes were compared"),
    }
}

fn conclude(
    flags: &VerifyFlags,
    from: Step,
    recorded: &TrainedSteps,
    replayed: &TrainedSteps,
) -> Result<(), Failure> {
    let differ = differences(recorded, replayed);
    let hashes = recorded.hashes.keys().filter(|step| replayed.hashes.contains_key(step)).count();
    let steps = recorded.lines.len();
    if flags.store.json {
        let differ: Vec<Value> =
            differ.iter().map(|(step, what)| json!({ "step": step, "difference": what })).collect();
        output::print(json!({
            "checkpoint": from, "steps": steps, "state_hashes": hashes, "differences": differ,
        }))?;
    } else {
        for (step, what) in &differ {
            output::print(format_args!("step {step} differs: {what}"))?;
        }
        let same = steps - differ.keys().filter(|step| recorded.lines.contains_key(step)).count();
        output::print(format_args!(
            "{same} of {steps} steps after step {from} are as recorded, and {}",
            compared(hashes)
        ))?;
    }
    if differ.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "the replay differs from what was recorded")
        .at(format!("the checkpoint of step {from}"))
        .because(format!("{} steps differ", differ.len()))
        .next("compare the devices (--device): another kind than the run's computes other bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, loss: f64) -> (Step, MetricsLine) {
        (Step(step), MetricsLine { step: Step(step), loss, ..MetricsLine::default() })
    }

    fn trained(lines: &[(u64, f64)], hashes: &[(u64, &str)]) -> TrainedSteps {
        TrainedSteps {
            lines: lines.iter().map(|(step, loss)| line(*step, *loss)).collect(),
            hashes: hashes.iter().map(|(step, hash)| (Step(*step), (*hash).into())).collect(),
        }
    }

    #[test]
    fn each_step_that_differs_is_told_with_both_values() {
        let recorded = trained(&[(6, 2.5), (7, f64::NAN), (8, 2.0)], &[(8, "ab"), (10, "cd")]);
        assert!(differences(&recorded, &recorded).is_empty());
        let replayed = trained(&[(6, 2.25), (7, f64::INFINITY), (8, 2.0)], &[(8, "ef")]);
        let told: Vec<_> = differences(&recorded, &replayed).into_iter().collect();
        let expected = [
            (Step(6), "loss 2.5, and again 2.25".to_string()),
            (Step(8), "state hash ab, and again ef".to_string()),
        ];
        assert_eq!(told, expected);
        let short = trained(&[(6, 2.5)], &[]);
        assert_eq!(differences(&recorded, &short)[&Step(8)], "it was not reached");
    }
}
