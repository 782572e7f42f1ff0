//! What a store tells of a run: its specification, and the checkpoints from which it can go on.
//!
//! In: the listing of a store, and a way to read manifests. Out: a [`StoredRun`]. A checkpoint that
//! is damaged, as far as listing and manifests show it, is passed over, and the user hears of it.
//! If a step was asked for, damage is an error. Shards are not read here: the workers do that.

use everstep_checkpoint::choose::{self, Choice, PassedOver, ReadManifest, Wanted};
use everstep_checkpoint::manifest::{Manifest, ManifestError};
use everstep_checkpoint::origin;
use everstep_checkpoint::store::StoredObject;
use everstep_transport::protocol::{RunOrigin, RunSpec, Step};

use crate::checkpoint::{choose_failure, store_failure};
use crate::failure::{Exit, Failure};

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
    let Some(manifest) = manifest else { return Err(nothing(place, &passed_over)) };
    let origin = origin::of(listing, &manifest, step.is_none(), manifests);
    let Some(origin) = origin.map_err(store_failure)? else {
        return Err(nothing(place, &passed_over));
    };
    let run = manifest.run_spec().map_err(|error| unreadable(place, &manifest, error))?;
    Ok(StoredRun { run, origin, manifest, passed_over })
}

fn nothing(place: &str, passed_over: &[PassedOver]) -> Failure {
    let failure = Failure::new(Exit::Usage, "there is no checkpoint that the run could go on from");
    let failure = failure.at(place);
    match passed_over.first() {
        None => failure
            .because("the store is empty, or no store of checkpoints")
            .next("name the folder that has folders such as step-000500"),
        Some(newest) => failure
            .because(format!("each of its checkpoints is damaged. The newest: {}", newest.damage))
            .next(
                "bring the files back. `everstep checkpoint verify` names all damage, and \
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

#[cfg(test)]
mod tests {
    use everstep_checkpoint::digest::Digest;
    use everstep_checkpoint::manifest::{CommitRecord, Facts};
    use everstep_checkpoint::names::{ObjectName, PartName};
    use everstep_checkpoint::part::PartSummary;
    use everstep_checkpoint::slots::Slots;
    use everstep_kernels::layout::{Init, Layout};
    use everstep_transport::protocol::message::Fingerprint;
    use everstep_transport::protocol::{CheckpointId, Generation, Shard, WorkerId, exemplars};

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
