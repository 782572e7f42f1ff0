//! Damage of every kind is named by file and shard, and an older whole checkpoint is taken. Never
//! does a run begin from scratch in silence.

use std::fs;
use std::path::{Path, PathBuf};

use everstep_checkpoint::choose::{ChooseError, Wanted, exactly, newest, newest_of};
use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError, verify};
use everstep_checkpoint::store::directory::DirectoryStore;
use everstep_checkpoint::store::{ErrorKind, Store, StoreError};
use everstep_transport::protocol::{Shard, Step};

use crate::fixture::{RUN, Run};

const PART: &str = "step-000010/g0007-w12.safetensors";
const MANIFEST: &str = "step-000010/manifest.json";
const OTHER_RUN: &str = "fedcba9876543210";

/// A store with checkpoints of steps 5 and 10.
struct World {
    _folder: tempfile::TempDir,
    root: PathBuf,
    store: DirectoryStore,
    newer: Manifest,
}

fn world() -> World {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_path_buf();
    let store = DirectoryStore::open(&root).expect("a store");
    let run = Run::with_moments(2);
    run.write(&store, Step(5));
    let newer = run.write(&store, Step(10));
    World { _folder: folder, root, store, newer }
}

impl World {
    /// The damage that the listing and the manifest show, in words. The older checkpoint is taken.
    fn passed_over(&self) -> String {
        let wanted = Wanted { run: Some(RUN), below: None };
        let choice = newest(&self.store, wanted).expect("an answer");
        assert_eq!(choice.manifest.expect("the older one").step, Step(5));
        let [passed] = &choice.passed_over[..] else { panic!("{:?}", choice.passed_over) };
        assert_eq!(passed.step, Step(10));
        let asked = exactly(&self.store, Step(10), Some(RUN)).expect_err("asked for by its step");
        assert!(matches!(asked, ChooseError::Damaged { .. }), "{asked}");
        assert!(asked.to_string().contains(&passed.damage.to_string()), "{asked}");
        passed.damage.to_string()
    }

    /// The damage that shows when all is read, in words.
    fn found(&self) -> Vec<String> {
        let found = verify(&self.store, &self.newer, &mut |_| {}).expect("an answer");
        found.iter().map(|damage| damage.to_string()).collect()
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("read");
    bytes[at] ^= 4;
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_flipped_bit_of_a_shard_names_the_file_and_the_shard() {
    let world = world();
    let length = world.newer.files[1].bytes as usize;
    let head = world.newer.files[1].head_bytes as usize;
    // Shards 3 and 1 are in this part, in this order, each with three slots of 1,024 values.
    for (at, shard) in [(head, 3), (head + 12_287, 3), (head + 12_288, 1), (length - 1, 1)] {
        flip(&world.root.join(PART), at);
        let found = world.found();
        assert_eq!(found.len(), 1, "{found:?}");
        let begins = format!("{PART}: parameter shard {shard}: its digest is ");
        assert!(found[0].starts_with(&begins), "{found:?}");
        let mut reader = CheckpointReader::new(&world.store, &world.newer);
        assert!(matches!(reader.read(Shard(shard)), Err(ReadError::Damaged(_))));
        assert!(reader.read(Shard(4 - shard)).is_ok(), "another shard of the same file");
        flip(&world.root.join(PART), at);
        assert!(world.found().is_empty(), "mended");
    }
}

#[test]
fn any_flipped_bit_of_a_head_names_the_file() {
    let world = world();
    for at in 0..world.newer.files[1].head_bytes as usize {
        flip(&world.root.join(PART), at);
        let found = world.found();
        let is_named = found.len() == 1 && found[0].starts_with(&format!("{PART}: it"));
        assert!(is_named, "byte {at}: {found:?}");
        flip(&world.root.join(PART), at);
    }
}

#[test]
fn a_part_of_another_length_is_noticed_before_it_is_read() {
    let world = world();
    let path = world.root.join(PART);
    let whole = fs::read(&path).expect("read");
    let longer = [&whole[..], b"x"].concat();
    for bytes in [&whole[..0], &whole[..7], &whole[..whole.len() - 1], &longer] {
        fs::write(&path, bytes).expect("written");
        let told = format!("{PART}: it has {} bytes, and had {} when", bytes.len(), whole.len());
        assert!(world.passed_over().starts_with(&told), "{}", world.passed_over());
        assert!(world.found()[0].starts_with(&told));
    }
}

#[test]
fn a_part_that_is_gone_is_named() {
    let world = world();
    fs::remove_file(world.root.join(PART)).expect("removed");
    assert_eq!(world.passed_over(), format!("{PART}: it is gone"));
    let mut reader = CheckpointReader::new(&world.store, &world.newer);
    assert!(reader.read(Shard(1)).is_err() && reader.read(Shard(2)).is_ok());
}

#[test]
fn a_manifest_that_is_gone_or_cut_is_named() {
    let world = world();
    let path = world.root.join(MANIFEST);
    let whole = fs::read(&path).expect("read");
    for bytes in [&whole[..0], &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
        fs::write(&path, bytes).expect("written");
        assert!(world.passed_over().starts_with(&format!("{MANIFEST}: it was cut or changed")));
    }
    fs::remove_file(&path).expect("removed");
    assert!(world.passed_over().starts_with(&format!("{MANIFEST}: it is not there")));
}

#[test]
fn an_absurdly_large_manifest_is_damage_and_takes_no_memory() {
    let world = world();
    let file = fs::File::options().write(true).open(world.root.join(MANIFEST)).expect("opened");
    file.set_len(1 << 40).expect("sparse");
    assert!(world.passed_over().contains("such an object has at most"));
}

#[test]
fn files_of_another_run_or_step_in_their_place_are_named() {
    let world = world();
    let elsewhere = tempfile::tempdir().expect("a folder");
    let other = Run { identity: OTHER_RUN.into(), seed: 9, ..Run::with_moments(2) };
    let store = DirectoryStore::open(elsewhere.path()).expect("a store");
    other.write(&store, Step(10));
    let put = |from: &Path| {
        fs::copy(from, world.root.join(PART)).expect("copied");
    };

    put(&elsewhere.path().join(PART));
    let found = world.found();
    let told = format!("it is a file of another run, {OTHER_RUN}");
    assert!(found.len() == 1 && found[0].contains(&told), "{found:?}");
    // The sizes of two steps' parts may agree: only then does the listing show nothing.
    put(&world.root.join(PART.replace("10", "05")));
    let found = world.found();
    assert!(found.len() == 1 && found[0].starts_with(&format!("{PART}: it ")), "{found:?}");

    put(&world.root.join("step-000010/g0007-w11.safetensors"));
    let found = world.found();
    assert!(found.len() == 1 && found[0].starts_with(PART), "{found:?}");

    fs::copy(elsewhere.path().join(MANIFEST), world.root.join(MANIFEST)).expect("copied");
    assert_eq!(
        world.passed_over(),
        format!("{MANIFEST}: it is the manifest of another run, {OTHER_RUN}")
    );
    let older = world.root.join("step-000005/manifest.json");
    fs::copy(older, world.root.join(MANIFEST)).expect("copied");
    assert_eq!(world.passed_over(), format!("{MANIFEST}: it is the manifest of another step, 5"));
}

#[test]
fn a_manifest_of_a_newer_format_is_never_passed_over() {
    let world = world();
    let body = "{\"format\":3,\"everstep\":\"9\"";
    let sealed = format!("{body},\"seal\":\"{}\"}}\n", Digest::of(body.as_bytes()));
    fs::write(world.root.join(MANIFEST), sealed).expect("written");
    for error in [
        newest(&world.store, Wanted::default()).expect_err("refused"),
        exactly(&world.store, Step(10), None).expect_err("refused"),
    ] {
        let words = error.to_string();
        assert!(words.contains(MANIFEST) && words.contains("its format is 3"), "{words}");
    }
}

#[test]
fn an_error_of_the_store_is_never_taken_for_damage() {
    let world = world();
    let listing = world.store.list().expect("listed");
    let away = |step: Step| {
        let name = everstep_checkpoint::names::ObjectName::Manifest(step);
        Err(StoreError::new(ErrorKind::Retry, "s3://bucket", &name, "503"))
    };
    let error = newest_of(&listing, Wanted::default(), &mut { away }).expect_err("no answer");
    assert!(matches!(error, ChooseError::Store(ref it) if it.kind == ErrorKind::Retry), "{error}");
}

#[test]
fn without_a_whole_checkpoint_there_is_none_and_each_reason() {
    let world = world();
    fs::remove_file(world.root.join(MANIFEST)).expect("removed");
    fs::write(world.root.join("step-000005/manifest.json"), "{}").expect("written");
    let choice = newest(&world.store, Wanted::default()).expect("an answer");
    assert_eq!(choice.manifest, None);
    let steps: Vec<_> = choice.passed_over.iter().map(|passed| passed.step.0).collect();
    assert_eq!(steps, [10, 5]);
}
