//! Manifests: what is written is read, and nothing else is.

use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::manifest::{AssembleError, Manifest, ManifestError};
use everstep_checkpoint::part::PartSummary;
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::{Generation, Shard, Step, WorkerId};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{COMMIT, RUN, Run};

/// Summaries of two parts that were never written.
fn parts(run: &Run) -> Vec<PartSummary> {
    let part = |worker: u32| {
        let shards = (0..run.shards()).filter(|shard| shard % 2 == worker).map(Shard);
        let digests: Vec<_> = shards.map(|shard| (shard, Digest([shard.0 as u8; 32]))).collect();
        let elements: usize = digests
            .iter()
            .map(|(shard, _)| {
                everstep_kernels::reduce::shard_range(run.layout.count(), shard.0 as usize).len()
            })
            .sum();
        PartSummary {
            name: run.plan(Step(500), worker.into(), &[]).name,
            bytes: 800 + elements as u64 * run.slots.bytes_per_parameter(),
            head_bytes: 800,
            head_blake3: Digest([9; 32]),
            shards: digests,
        }
    };
    vec![part(0), part(1)]
}

fn manifest() -> Manifest {
    let run = Run::with_moments(2);
    run.manifest(Step(500), &parts(&run))
}

/// A manifest's bytes with another value, sealed anew: a writer that errs, or means harm.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Manifest, ManifestError> {
    let mut value = serde_json::to_value(manifest()).expect("plain data");
    change(&mut value);
    Manifest::parse(&sealed(&value))
}

fn sealed(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    let body = text.strip_suffix('}').expect("a map");
    format!("{body},\"seal\":\"{}\"}}\n", Digest::of(body.as_bytes())).into_bytes()
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let written = manifest();
    let bytes = written.to_bytes();
    let read = Manifest::parse(&bytes).expect("its own");
    assert_eq!(read, written);
    assert_eq!(read.run_spec(), Ok(Run::with_moments(2).spec));
    assert_eq!((read.step, read.generation), (Step(500), Generation(7)));
    let commit = read.commit.expect("of step 500");
    assert_eq!(commit.norm.to_bits(), COMMIT.norm.to_bits(), "to the last bit");
    let value: Value = serde_json::from_slice(&bytes).expect("JSON for anything");
    assert_eq!(value["files"][0]["name"], "g0007-w0.safetensors");
    assert_eq!(value["slots"], json!(["master", "m", "v"]));
}

#[test]
fn numbers_that_json_lacks_are_written_as_text() {
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut written = manifest();
        let commit = written.commit.as_mut().expect("of step 500");
        (commit.norm, commit.applied) = (number, false);
        let read = Manifest::parse(&written.to_bytes()).expect("read");
        assert_eq!(read.commit.expect("there").norm.total_cmp(&number), std::cmp::Ordering::Equal);
    }
}

#[test]
fn the_state_hash_does_not_depend_on_the_parts() {
    let run = Run::with_moments(2);
    let all = parts(&run);
    let mut one = all[0].clone();
    one.shards.extend(&all[1].shards);
    one.bytes = 800 + run.layout.count() as u64 * 12;
    let (two, alone) = (run.manifest(Step(500), &all), run.manifest(Step(500), &[one]));
    assert_eq!(two.state_hash, alone.state_hash);
    assert_ne!(two.state_hash, run.manifest(Step(501), &all).state_hash);
}

#[test]
fn a_manifest_that_was_cut_or_changed_anywhere_is_damaged() {
    let bytes = manifest().to_bytes();
    for length in 0..bytes.len() {
        assert_eq!(Manifest::parse(&bytes[..length]), Err(ManifestError::Seal), "{length} bytes");
    }
    for at in 0..bytes.len() {
        for bit in [1, 32] {
            let mut other = bytes.clone();
            other[at] ^= bit;
            let error = Manifest::parse(&other).expect_err("changed");
            assert!(error.is_damage(), "byte {at}: {error}");
        }
    }
}

#[test]
fn another_format_is_refused_by_its_number_with_what_to_do() {
    let newer = json!({ "format": 2, "everstep": "0.9.1", "anything": [] });
    let error = Manifest::parse(&sealed(&newer)).expect_err("newer");
    assert!(!error.is_damage(), "an older checkpoint must not replace it in silence");
    let words = error.to_string();
    assert!(words.contains("format is 2") && words.contains("(0.9.1)"), "{words}");
    assert!(words.contains("Use a program of the version"), "{words}");
}

#[test]
fn keys_that_are_not_known_are_skipped() {
    let read = changed(|value| value["note"] = json!({ "by": "a later program" }));
    assert_eq!(read, Ok(manifest()));
    let read = changed(|value| value["shards"][0]["note"] = json!(1));
    assert_eq!(read, Ok(manifest()));
}

#[test]
fn a_manifest_that_does_not_agree_with_itself_is_refused() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 24] = [
        ("no parameters", |it| it["parameters"] = json!(0)),
        ("absurdly many", |it| it["parameters"] = json!(u64::MAX)),
        ("another cut", |it| it["shard_length"] = json!(2_048)),
        ("a shard less", |it| drop(it["shards"].as_array_mut().map(Vec::pop))),
        ("a shard more", |it| {
            let shards = it["shards"].as_array_mut().expect("a list");
            shards.push(shards[0].clone());
        }),
        ("a file that is not listed", |it| it["shards"][0]["file"] = json!(2)),
        ("a shard of another file", |it| it["shards"][0]["file"] = json!(1)),
        ("another digest", |it| it["shards"][0]["blake3"] = json!("aa".repeat(32))),
        ("no digest", |it| it["shards"][0]["blake3"] = json!("zz")),
        ("two shards changed", |it| {
            let shards = it["shards"].as_array_mut().expect("a list");
            shards.swap(0, 2);
        }),
        ("a path", |it| it["files"][0]["name"] = json!("../../etc/passwd")),
        ("one file twice", |it| it["files"][1]["name"] = it["files"][0]["name"].clone()),
        ("a longer file", |it| it["files"][0]["bytes"] = json!(u64::MAX)),
        ("a long head", |it| it["files"][0]["head_bytes"] = json!(1_u64 << 40)),
        ("no files", |it| it["files"] = json!([])),
        ("a gap between tensors", |it| it["tensors"][1]["offset"] = json!(4_001)),
        ("tensors that overflow", |it| {
            it["tensors"][0]["shape"] = json!([1_u64 << 33, 1_u64 << 33]);
        }),
        ("one name twice", |it| it["tensors"][1]["name"] = json!("wte.weight")),
        ("a long name", |it| it["tensors"][1]["name"] = json!("x".repeat(257))),
        ("other slots", |it| it["slots"] = json!(["master"])),
        ("slots without weights", |it| it["slots"] = json!(["m", "v"])),
        ("another run's specification", |it| it["spec"]["seed"] = json!(2)),
        ("step 0 with a commit", |it| it["step"] = json!(0)),
        ("a negative step", |it| it["step"] = json!(-1)),
    ];
    for (what, change) in changes {
        let error = changed(change).expect_err(what);
        assert!(error.is_damage(), "{what}: {error}");
    }
}

#[test]
fn a_specification_of_a_newer_version_says_which_version_wrote_it() {
    let mut newer = manifest();
    newer.spec["new_key"] = json!(1);
    newer.spec_digest = Digest::of(&serde_json::to_vec(&newer.spec).expect("plain data"));
    let read = Manifest::parse(&newer.to_bytes()).expect("the manifest is whole");
    let words = read.run_spec().expect_err("unknown key").to_string();
    assert!(words.contains("new_key") && words.contains("Everstep 0."), "{words}");
}

#[test]
fn a_checkpoint_of_another_model_names_the_tensor_that_differs() {
    let manifest = manifest();
    assert_eq!(manifest.check_layout(&Run::with_moments(2).layout), Ok(()));
    let mut other = Layout::new();
    other.push("wte.weight", &[100, 40], Init::Constant(0.0));
    let words = manifest.check_layout(&other).expect_err("another shape").to_string();
    assert!(words.contains("wte.weight [40, 100] where ours has wte.weight [100, 40]"), "{words}");
    let mut shorter = Layout::new();
    shorter.push("wte.weight", &[40, 100], Init::Constant(0.0));
    let words = manifest.check_layout(&shorter).expect_err("a tensor less").to_string();
    assert!(words.contains("ln_f.bias [1000] where ours has nothing"), "{words}");
}

#[test]
fn parts_that_are_no_whole_checkpoint_are_told_apart() {
    let run = Run::with_moments(2);
    let assemble = |parts: &[PartSummary]| {
        let (whole, fingerprint) = (
            manifest(),
            everstep_transport::protocol::message::Fingerprint {
                model: [1; 32],
                data: [2; 32],
                parameters: 5_000,
                shards: 5,
                samples: 1,
            },
        );
        let facts = everstep_checkpoint::manifest::Facts {
            run: RUN,
            spec: &run.spec,
            fingerprint: &fingerprint,
            layout: &run.layout,
            slots: &run.slots,
            step: whole.step,
            generation: whole.generation,
            commit: whole.commit,
            bitwise: true,
        };
        Manifest::assemble(&facts, parts)
    };
    let [even, odd] = <[PartSummary; 2]>::try_from(parts(&run)).expect("two");
    assert_eq!(assemble(std::slice::from_ref(&even)), Err(AssembleError::Lacks(Shard(1))));
    assert_eq!(assemble(&[]), Err(AssembleError::Lacks(Shard(0))));
    // A backup hands in what the primary has handed in: the same bits, or somebody erred.
    let name = run.plan(Step(500), WorkerId(9).0, &[]).name;
    let mut again = PartSummary { name, ..odd.clone() };
    let both = assemble(&[even.clone(), odd.clone(), again.clone()]).expect("whole");
    assert_eq!(both.files.len(), 2);
    again.shards[0].1 = Digest([200; 32]);
    assert_eq!(assemble(&[even, odd, again]), Err(AssembleError::Differs(Shard(1))));
}

proptest! {
    #[test]
    fn any_bytes_are_a_manifest_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::parse(&bytes).is_err());
    }

    #[test]
    fn any_value_in_place_of_another_gives_a_whole_manifest_or_an_error(
        key in 0_usize..20,
        value in prop_oneof![
            Just(Value::Null),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z0-9./]{0,70}".prop_map(Value::from),
            prop::collection::vec(any::<u64>(), 0..4).prop_map(Value::from),
        ],
    ) {
        let read = changed(|it| {
            let keys = it.as_object_mut().expect("a map");
            let name = keys.keys().nth(key % keys.len()).cloned().expect("a key");
            keys.insert(name, value);
        });
        if let Ok(read) = read {
            prop_assert_eq!(read.shards.len(), 5);
            prop_assert_eq!(read.parameters, 5_000);
        }
    }
}
