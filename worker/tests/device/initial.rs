//! Runs that begin with weights from elsewhere, which may be gone later.

use std::fs;
use std::path::Path;

use everstep_checkpoint::import::{InitialWeights, WeightsPlace};
use everstep_checkpoint::store::Environment;
use everstep_kernels::layout::Layout;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::run::InitSpec;
use everstep_worker::builtin;
use everstep_worker::step::event::ShardOrigin;

use crate::support::{SHARDS, TestDevice, bits, enter, run};

fn layout() -> Layout {
    builtin::registry().plan_model(&run()).expect("a plan").layout
}

/// Writes weights into a file: those of this seed.
fn write_weights(file: &Path, seed: u64) {
    let layout = layout();
    let mut values = vec![0.0; layout.count()];
    layout.init(seed, 0..layout.count(), &mut values);
    let head: Vec<String> = layout
        .tensors()
        .iter()
        .map(|tensor| {
            let (name, shape, range) = (&tensor.name, &tensor.shape, tensor.range());
            let [first, last] = [range.start, range.end].map(|at| at * size_of::<f32>());
            format!(
                r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{first},{last}]}}"#
            )
        })
        .collect();
    let head = format!("{{{}}}", head.join(","));
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend(head.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs::write(file, bytes).expect("written");
}

/// A run that begins with the weights in a file.
fn begun_with(file: &Path) -> RunSpec {
    let path = file.to_str().expect("UTF-8").to_string();
    let place: WeightsPlace = path.parse().expect("a place");
    let weights = InitialWeights::open(&place, &Environment::default(), &layout());
    let digest = weights.expect("weights").digest(&mut |_, _| {}).expect("a digest").to_string();
    let mut run = run();
    run.model.init = Some(InitSpec { path, digest });
    run
}

#[test]
fn a_run_begins_with_the_bits_of_its_weights_and_goes_back_to_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.safetensors");
    write_weights(&file, 1);
    // The weights of the file are those that follow from the seed of the plain run.
    let mut plain = TestDevice::of(&run());
    plain.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
    let begun = plain.digests(0..SHARDS);
    let mut tuned = TestDevice::of(&RunSpec { seed: 7, ..begun_with(&file) });
    tuned.give(enter(1, ShardOrigin::Seed, 2..4));
    assert_eq!(tuned.digests(2..4), begun[2..4]);
    tuned.give(enter(2, ShardOrigin::Seed, 0..SHARDS));
    assert_eq!(tuned.digests(0..SHARDS), begun);
    let first = bits(&tuned.reduced(1));
    tuned.train(1, 0..SHARDS);
    tuned.give(enter(3, ShardOrigin::Seed, 0..SHARDS));
    assert_eq!(tuned.digests(0..SHARDS), begun);
    assert_eq!(bits(&tuned.reduced(1)), first, "it computes with the first parameters again");
}

#[test]
fn a_worker_without_the_weights_joins_and_says_so_only_where_a_run_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.safetensors");
    write_weights(&file, 2);
    let run = begun_with(&file);
    write_weights(&file, 3);
    let begin = || enter(1, ShardOrigin::Seed, 0..SHARDS);
    let told = TestDevice::of(&run).attempt(begin()).expect_err("other weights");
    assert!(told.contains("are not those that the run was submitted with"), "{told}");
    fs::remove_file(&file).expect("removed");
    let mut device = TestDevice::of(&run);
    device.give(enter(1, ShardOrigin::Checkpoint, 0..SHARDS));
    let told = device.attempt(begin()).expect_err("no weights");
    assert!(told.contains("(model.init) cannot be used"), "{told}");
    assert!(told.contains("bring them back"), "{told}");
}

/// Otherwise the worker would take part in one generation after the other, and do nothing there.
#[test]
fn the_build_after_a_device_that_lacked_the_weights_looks_for_them_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.safetensors");
    write_weights(&file, 2);
    let run = begun_with(&file);
    fs::remove_file(&file).expect("removed");
    let lacked = run.model.init.clone();
    let Err(error) = TestDevice::try_after(&run, lacked.clone()) else { panic!("it is built") };
    assert_eq!(error.inability(), Inability::Place, "{error}");
    write_weights(&file, 2);
    assert!(TestDevice::try_after(&run, lacked).is_ok());
}
