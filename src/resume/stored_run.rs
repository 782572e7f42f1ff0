//! What a store tells of a run: its specification, and the checkpoints from which it can go on.
//!
//! In: the listing of a store, and a way to read manifests. Out: a [`StoredRun`]. A checkpoint that
//! is damaged, as far as listing and manifests show it, is passed over, and the user hears of it.
//! If a step was asked for, damage is an error. Shards are not read here: the workers do that.

use std::collections::BTreeSet;

use everstep_checkpoint::choose::{self, Choice, ChooseError, PassedOver, ReadManifest, Wanted};
use everstep_checkpoint::manifest::{Manifest, ManifestError};
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::StoredObject;
use everstep_transport::protocol::{
    CheckpointId, Commit, Decision, Generation, ListedCheckpoint, LossScale, MetricsLine,
    RunOrigin, RunSpec, Step,
};

use crate::checkpoint::choose_failure;
use crate::failure::{Exit, Failure};

/// Most checkpoints that a run knows when it goes on. Older ones stay in the store.
const MAX_LISTED: usize = 1_000;

/// What a store has of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct StoredRun {
    /// The run's specification, from its manifests.
    pub(crate) run: RunSpec,
    /// The checkpoints that the store has.
    pub(crate) origin: RunOrigin,
    /// The manifest of the checkpoint from which the run goes on.
    pub(crate) manifest: Manifest,
    /// Newer checkpoints that are damaged.
    pub(crate) passed_over: Vec<PassedOver>,
}

/// Reads the run in the store at `place`. With `step`, it goes on from the checkpoint of that step.
pub(super) fn read(
    place: &str,
    listing: &[StoredObject],
    step: Option<Step>,
    manifests: &mut ReadManifest<'_>,
) -> Result<StoredRun, Failure> {
    let Choice { manifest, passed_over } = match step {
        None => choose::newest_of(listing, Wanted::default(), manifests).map_err(choose_failure)?,
        Some(step) => {
            let manifest = choose::exactly_of(listing, step, None, manifests);
            let manifest = manifest.map_err(|error| choose_failure(error).at(place))?;
            Choice { manifest: Some(manifest), passed_over: Vec::new() }
        }
    };
    let newest = manifest.as_ref().and_then(|manifest| Some((manifest, listed(manifest)?)));
    let Some((manifest, newest)) = newest else { return Err(nothing(place, &passed_over)) };
    let run = manifest.run_spec().map_err(|error| unreadable(place, manifest, error))?;
    let mut checkpoints = older(listing, manifest, manifests)?;
    checkpoints.push(newest);
    let undone = undone(listing, manifest.step, manifests);
    let of_parts = listing.iter().filter_map(generation);
    let of_manifests = checkpoints.iter().map(|listed| listed.commit.generation);
    let of_undone = undone.iter().map(|id| id.generation);
    let generation = of_parts.chain(of_manifests).chain(of_undone).max().unwrap_or_default();
    let manifest = manifest.clone();
    let origin = RunOrigin { checkpoints, undone, generation, falls_back: step.is_none() };
    Ok(StoredRun { run, origin, manifest, passed_over })
}

/// The usable checkpoints of the run before this one, ascending by step.
fn older(
    listing: &[StoredObject],
    newest: &Manifest,
    manifests: &mut ReadManifest<'_>,
) -> Result<Vec<ListedCheckpoint>, Failure> {
    let (run, mut below, mut found) = (Some(newest.run.as_str()), newest.step, Vec::new());
    while found.len() < MAX_LISTED {
        let wanted = Wanted { run, below: Some(below) };
        let manifest = match choose::newest_of(listing, wanted, manifests) {
            Err(ChooseError::Store(error)) => return Err(choose_failure(error.into())),
            // Another version wrote it. The run does not go on from it, and leaves it alone.
            Err(_) => None,
            Ok(choice) => choice.manifest,
        };
        let listed = manifest.as_ref().and_then(listed);
        let Some(listed) = listed else { break };
        below = listed.commit.step;
        found.push(listed);
    }
    found.reverse();
    Ok(found)
}

fn nothing(place: &str, passed_over: &[PassedOver]) -> Failure {
    let failure = Failure::new(Exit::Usage, "there is no checkpoint that the run could go on from");
    let failure = failure.at(place);
    match passed_over.first() {
        None => failure
            .because("the store is empty, or no store of checkpoints")
            .next("name the folder that has folders such as step-000500"),
        Some(newest) => failure
            .because(format!("each of its checkpoints is damaged; the newest: {}", newest.damage))
            .next(
                "bring the files back; `everstep checkpoint verify` names all damage, and \
                 `everstep train` begins a new run from its first step",
            ),
    }
}

fn unreadable(place: &str, manifest: &Manifest, error: ManifestError) -> Failure {
    Failure::new(Exit::Usage, "this program cannot train the run")
        .at(format!("{place}: {}", manifest.name()))
        .because(error)
        .next(format!("resume it with Everstep {}, or a newer version", manifest.everstep))
}

/// What the names of an object tell of the generation that wrote it.
fn generation(object: &StoredObject) -> Option<Generation> {
    match &object.name {
        ObjectName::Part(_, part) => Some(part.generation),
        ObjectName::Lines(id) | ObjectName::Events(id) => Some(id.generation),
        _ => None,
    }
}

/// What is in the store of later steps. A manifest that cannot be read counts for generation 0.
fn undone(
    listing: &[StoredObject],
    after: Step,
    manifests: &mut ReadManifest<'_>,
) -> Vec<CheckpointId> {
    let mut undone = BTreeSet::new();
    for object in listing {
        let Some(step) = object.name.step().filter(|step| *step > after) else { continue };
        let generation = match &object.name {
            ObjectName::Manifest(_) => manifests(step)
                .ok()
                .and_then(|bytes| Manifest::parse(&bytes).ok())
                .map_or(Generation(0), |manifest| manifest.generation),
            _ => generation(object).unwrap_or_default(),
        };
        undone.insert(CheckpointId { step, generation });
    }
    undone.into_iter().collect()
}

/// A checkpoint as the log lists it. None for step 0, which needs none.
fn listed(manifest: &Manifest) -> Option<ListedCheckpoint> {
    let Manifest { step, generation, .. } = *manifest;
    let said = manifest.commit?;
    let decision = if said.applied { Decision::Apply } else { Decision::Skip };
    let (loss, norm) = (said.loss, said.norm);
    let loss_scale = LossScale { exponent: said.loss_scale_exponent, good: said.loss_scale_good };
    // The manifest has no line: this is what is known of it.
    let line =
        MetricsLine { step, generation, loss, grad_norm: norm, decision, ..MetricsLine::default() };
    let (updates, hold) = (said.updates, false);
    let commit = Commit { step, generation, norm, loss, decision, updates, loss_scale, hold, line };
    let (bytes, state_hash) = (manifest.bytes(), manifest.state_hash.0);
    Some(ListedCheckpoint { commit, bytes, write_ms: 0, state_hash, damage: None })
}

#[cfg(test)]
mod tests {
    use everstep_checkpoint::digest::Digest;
    use everstep_checkpoint::manifest::{CommitRecord, Facts};
    use everstep_checkpoint::names::PartName;
    use everstep_checkpoint::part::PartSummary;
    use everstep_checkpoint::slots::Slots;
    use everstep_kernels::layout::{Init, Layout};
    use everstep_transport::protocol::message::Fingerprint;
    use everstep_transport::protocol::{Shard, WorkerId, exemplars};

    use super::*;

    /// The manifest of a step that this generation committed.
    fn manifest(step: u64, generation: u64) -> Manifest {
        let mut layout = Layout::new();
        layout.push("w", &[8], Init::Constant(0.0));
        let fingerprint =
            Fingerprint { model: [1; 32], data: [2; 32], parameters: 8, shards: 1, samples: 9 };
        let commit = CommitRecord {
            norm: 1.5,
            loss: 2.5,
            applied: true,
            updates: step,
            loss_scale_exponent: 3,
            loss_scale_good: 4,
        };
        let facts = Facts {
            run: "0123456789abcdef",
            spec: &exemplars::resumed_run().1,
            fingerprint: &fingerprint,
            layout: &layout,
            slots: &Slots::of_moments(0),
            step: Step(step),
            generation: Generation(generation),
            commit: Some(commit),
            bitwise: true,
        };
        let name = part_name(generation);
        let (bytes, head_bytes, digest) = (132, 100, Digest([5; 32]));
        let shards = vec![(Shard(0), digest)];
        let part = PartSummary { name, bytes, head_bytes, head_blake3: digest, shards };
        Manifest::assemble(&facts, &[part]).expect("whole")
    }

    fn part_name(generation: u64) -> PartName {
        PartName { claim: 1, generation: Generation(generation), worker: WorkerId(5) }
    }

    fn object(name: ObjectName, bytes: u64) -> StoredObject {
        StoredObject { name, bytes, changed: 0 }
    }

    /// A store with these checkpoints. The bytes of a manifest may be damaged.
    struct Stored {
        listing: Vec<StoredObject>,
        manifests: Vec<(Step, Vec<u8>)>,
    }

    impl Stored {
        fn of(checkpoints: &[(u64, u64)]) -> Self {
            let (mut listing, mut manifests) = (Vec::new(), Vec::new());
            for (step, generation) in checkpoints.iter().copied() {
                let bytes = manifest(step, generation).to_bytes();
                let step = Step(step);
                listing.push(object(ObjectName::Part(step, part_name(generation)), 132));
                listing.push(object(ObjectName::Manifest(step), bytes.len() as u64));
                manifests.push((step, bytes));
            }
            Self { listing, manifests }
        }

        fn read(&self, step: Option<u64>) -> Result<StoredRun, String> {
            let mut manifests = |step: Step| {
                let found = self.manifests.iter().find(|(of, _)| *of == step);
                Ok(found.expect("it is listed").1.clone())
            };
            let read = super::read("/srv", &self.listing, step.map(Step), &mut manifests);
            read.map_err(|failure| failure.to_string())
        }
    }

    fn steps(run: &StoredRun) -> Vec<u64> {
        run.origin.checkpoints.iter().map(|listed| listed.commit.step.0).collect()
    }

    #[test]
    fn a_run_goes_on_from_the_newest_checkpoint_and_knows_the_older_ones() {
        let mut stored = Stored::of(&[(4, 1), (8, 2)]);
        stored.listing.push(object(ObjectName::Part(Step(9), part_name(6)), 132));
        let run = stored.read(None).expect("a run");
        assert_eq!((steps(&run), run.origin.falls_back), (vec![4, 8], true));
        let undone = CheckpointId { step: Step(9), generation: Generation(6) };
        assert_eq!(run.origin.undone, [undone], "it was never complete");
        assert_eq!(run.origin.generation, Generation(6), "above every name in the store");
        assert_eq!(run.origin.validate(&run.run), Ok(()));
        let commit = &run.origin.checkpoints[1].commit;
        assert_eq!((commit.updates, commit.loss_scale.exponent, commit.loss), (8, 3, 2.5));
    }

    #[test]
    fn a_step_that_was_asked_for_undoes_the_later_ones() {
        let stored = Stored::of(&[(4, 1), (8, 2)]);
        let run = stored.read(Some(4)).expect("a run");
        assert_eq!((steps(&run), run.origin.falls_back), (vec![4], false));
        let undone = CheckpointId { step: Step(8), generation: Generation(2) };
        assert_eq!((run.origin.undone, run.origin.generation), (vec![undone], Generation(2)));
        let told = stored.read(Some(5)).expect_err("there is none");
        assert!(told.contains("no checkpoint of step 5") && told.contains("8, 4"), "{told}");
    }

    #[test]
    fn what_is_damaged_is_passed_over_unless_it_was_asked_for() {
        let mut stored = Stored::of(&[(4, 1), (8, 2)]);
        stored.manifests[1].1[20] ^= 1;
        let run = stored.read(None).expect("a run");
        assert_eq!((steps(&run), run.passed_over[0].step), (vec![4], Step(8)));
        let cut = CheckpointId { step: Step(8), generation: Generation(0) };
        assert_eq!(run.origin.undone[0], cut, "its manifest is in the way of the new one");
        let told = stored.read(Some(8)).expect_err("it is damaged");
        assert!(told.contains("the checkpoint of step 8 is damaged"), "{told}");
        stored.manifests[0].1[20] ^= 1;
        let told = stored.read(None).expect_err("both are damaged");
        assert!(told.contains("each of its checkpoints is damaged"), "{told}");
    }

    #[test]
    fn what_is_no_store_of_a_run_is_refused() {
        let told = Stored::of(&[]).read(None).expect_err("it is empty");
        assert!(told.contains("the store is empty"), "{told}");
    }
}
