//! Where a run's model file goes: each run has its own file in a worker's directory.
//!
//! Input: the directory, and a digest of everything that decides a run's weights. Output: the path
//! of the file. A model file states the digest in its metadata, so a worker recognises the file of
//! its own run, and never replaces the file of another one. This module does not know which worker
//! writes it.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::message::Fingerprint;
use serde_json::Value;

/// The metadata key of the run's digest.
pub const RUN_KEY: &str = "everstep.run";

/// The longest head of a safetensors file that this module reads, bytes: the format's own limit.
const MAX_HEAD_BYTES: u64 = 100_000_000;

/// How the names of files begin that a worker keeps only until the store has them.
const PASSING: &str = "everstep-passing-";

/// A hexadecimal digest of everything that decides the bits of a run's weights. It leaves out the
/// run's name, the places of its data and its initial weights, its time-outs, its checkpoints, and
/// the numbers of workers and copies. `probe` is the digest of this worker's results for the first
/// micro-batch: another kind of device computes other bits. Two runs with one digest train the same
/// weights, so either may write the other's file.
pub fn run_digest(run: &RunSpec, fingerprint: &Fingerprint, probe: u64) -> String {
    let mut decides = RunSpec { name: String::new(), give_up_after_ms: None, ..run.clone() };
    decides.hang_after_ms = Default::default();
    decides.checkpoint = None;
    if let Some(init) = &mut decides.model.init {
        init.path.clear();
    }
    decides.data.path.clear();
    (decides.min_workers, decides.start_workers, decides.copies) = (1, 1, 1);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&serde_json::to_vec(&decides).expect("a specification is plain data"));
    hasher.update(&fingerprint.model).update(&fingerprint.data).update(&probe.to_le_bytes());
    hasher.finalize().to_hex()[..16].to_string()
}

/// The file of the run with this digest in `folder`. It is `model.safetensors`, or, if that file
/// belongs to another run, the first of `model-2.safetensors`, `model-3.safetensors`, … that does
/// not.
pub fn model_path(folder: &Path, digest: &str) -> PathBuf {
    let names = (2_u64..).map(|number| format!("model-{number}.safetensors"));
    let mut names = std::iter::once("model.safetensors".to_string()).chain(names);
    let free = names.find_map(|name| Some(folder.join(name)).filter(|path| may_take(path, digest)));
    free.expect("the numbers do not end")
}

/// Where a worker without a directory gathers the model on its way to the run's store. The store's
/// thread removes this file once the store has it.
pub fn passing_path(incarnation: u64) -> PathBuf {
    std::env::temp_dir().join(format!("{PASSING}{incarnation:016x}.safetensors"))
}

/// Removes what a worker that ends, or begins another run, may have gathered on its way to a store.
pub fn remove_passing(incarnation: u64) {
    let _ = std::fs::remove_file(passing_path(incarnation)); // mostly there is none
}

/// Removes the file at a path that is one of [`passing_path`]: no store waits for it any more.
pub fn remove_if_passing(path: &Path) {
    if is_passing(path) {
        let _ = std::fs::remove_file(path); // it does no harm where it is
    }
}

/// Whether a file is one of [`passing_path`].
pub fn is_passing(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PASSING))
}

/// Returns an error if the model of another run has appeared at the path meanwhile.
pub fn check(path: &Path, digest: &str) -> io::Result<()> {
    if may_take(path, digest) {
        return Ok(());
    }
    let words = "another run's model is there. Move that file elsewhere";
    Err(io::Error::new(ErrorKind::AlreadyExists, words))
}

/// Whether the path is free, or has a model of the run with this digest.
fn may_take(path: &Path, digest: &str) -> bool {
    match File::open(path) {
        Ok(file) => stated_digest(file).is_some_and(|stated| stated == digest),
        // The later write reports a directory that cannot be read.
        Err(_) => !path.exists(),
    }
}

/// The digest in the metadata of a model file. `None` for any other file.
fn stated_digest(mut file: File) -> Option<String> {
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD_BYTES.min(file.metadata().ok()?.len()) {
        return None;
    }
    let mut head = vec![0; 8];
    file.take(length).read_to_end(&mut head).ok()?;
    stated_in(&head)
}

/// The digest in the metadata of a model file's head, its length included. `None` for any other
/// bytes.
pub fn stated_in(head: &[u8]) -> Option<String> {
    let head: Value = serde_json::from_slice(head.get(8..)?).ok()?;
    head["__metadata__"][RUN_KEY].as_str().map(str::to_string)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;

    fn model_of(digest: &str) -> Vec<u8> {
        let head = serde_json::json!({ "__metadata__": { RUN_KEY: digest } }).to_string();
        [&(head.len() as u64).to_le_bytes()[..], head.as_bytes()].concat()
    }

    #[test]
    fn a_digest_depends_on_what_decides_the_weights_and_on_nothing_else() {
        let (model, data) = ([1; 32], [2; 32]);
        let same = Fingerprint { model, data, parameters: 9, shards: 1, samples: 9 };
        let run = exemplars::run();
        let digest = run_digest(&run, &same, 1);
        let more = run.copies + 1;
        let larger =
            RunSpec { name: "other".into(), start_workers: 9, copies: more, ..run.clone() };
        assert_eq!(run_digest(&larger, &same, 1), digest);
        assert_ne!(run_digest(&RunSpec { seed: run.seed + 1, ..run.clone() }, &same, 1), digest);
        assert_ne!(run_digest(&run, &same, 2), digest, "another kind of device");
        assert_ne!(run_digest(&run, &Fingerprint { data: [3; 32], ..same }, 1), digest);
    }

    #[test]
    fn each_run_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        assert_eq!(model_path(folder.path(), "aa"), at("model.safetensors"));
        std::fs::write(at("model.safetensors"), model_of("aa")).expect("written");
        assert_eq!(model_path(folder.path(), "aa"), at("model.safetensors"), "its own");
        assert_eq!(model_path(folder.path(), "bb"), at("model-2.safetensors"));
        std::fs::write(at("model-2.safetensors"), model_of("bb")).expect("written");
        assert_eq!(model_path(folder.path(), "cc"), at("model-3.safetensors"));
        assert_eq!(model_path(folder.path(), "bb"), at("model-2.safetensors"));
        assert!(check(&at("model-2.safetensors"), "bb").is_ok());
        let told = check(&at("model-2.safetensors"), "aa").expect_err("of another run");
        assert!(told.to_string().contains("another run's model"), "{told}");
    }

    #[test]
    fn a_file_that_is_no_model_is_kept_whatever_its_bytes_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, next) = (folder.path().join("model.safetensors"), "model-2.safetensors");
        for bytes in [&b""[..], b"short", &[255; 64], b"\x02\0\0\0\0\0\0\0{]", b"\0\0\0\0\0\0\0\0"]
        {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(model_path(folder.path(), "aa"), folder.path().join(next), "{bytes:?}");
        }
    }
}
