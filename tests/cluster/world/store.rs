//! A store of checkpoints in a directory, as a test looks at it and damages it.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the complete checkpoints in a store, oldest first. None while it is not there.
pub fn complete_checkpoints(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store).into_iter().flatten().map(|entry| entry.expect("one").path());
    let mut folders: Vec<_> =
        entries.filter(|folder| folder.join("manifest.json").is_file()).collect();
    folders.sort();
    folders
}

/// The step of a checkpoint with this folder.
pub fn step_of(checkpoint: &Path) -> u64 {
    let name = checkpoint.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    name.strip_prefix("step-").and_then(|step| step.parse().ok()).expect("a step")
}

/// A part of a checkpoint.
pub fn part_of(checkpoint: &Path) -> PathBuf {
    let files = fs::read_dir(checkpoint).expect("files").map(|file| file.expect("one").path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|it| it == "safetensors");
    files.filter(is_part).min().expect("a part")
}

/// Flips the last bit of a part of a checkpoint. Returns the name of the part.
pub fn flip_a_bit(checkpoint: &Path) -> String {
    let part = part_of(checkpoint);
    let mut bytes = fs::read(&part).expect("read");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&part, bytes).expect("written");
    part.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_string()
}
