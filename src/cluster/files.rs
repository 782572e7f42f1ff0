//! The files of a run as the launcher keeps them. It owes them what a disk has not taken yet.
//!
//! In: whole texts, and lists of lines that grow at their end. Out: the same on the disk, sooner or
//! later. An error of the place (a full disk, a read-only file system, a missing folder) ends no
//! run. The caller states the lines again, so memory holds nothing twice. The user hears when the
//! trouble begins and when it ends. A missing folder or file is made again, whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Directory;
use super::directory::text_of;
use super::error::ClusterError;

/// How often the launcher tries a troubled disk again.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// How often the launcher checks that all files are still there.
const FILES_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The files of a run: see the module.
#[derive(Debug, Default)]
pub(super) struct Files {
    wholes: BTreeMap<&'static str, ReplacedFile>,
    lines: BTreeMap<&'static str, LineFile>,
    /// The kinds of error that the user has heard of, while files lack something.
    trouble: Vec<io::ErrorKind>,
    tried_at: Option<Instant>,
    looked_at: Option<Instant>,
}

/// A file that is replaced as a whole.
#[derive(Debug)]
struct ReplacedFile {
    text: String,
    is_written: bool,
}

/// What is in a file of lines.
#[derive(Debug, Default)]
struct LineFile {
    lines: usize,
    bytes: u64,
    /// The file is not a beginning of what it should be.
    is_stale: bool,
    /// The file lacks stated lines.
    is_owed: bool,
}

impl LineFile {
    /// Appends the lines of `all` that the file lacks. If the file has changed since the last
    /// write, writes all of it again. Returns its new length in bytes.
    fn bring<T: Serialize>(
        &self,
        directory: &Directory,
        name: &str,
        all: &[T],
    ) -> Result<u64, ClusterError> {
        if let Some(new) = all.get(self.lines..).filter(|_| !self.is_stale) {
            let new = text_of(new);
            if directory.append_text(name, &new, self.bytes)? {
                return Ok(self.bytes + new.len() as u64);
            }
        }
        let whole = text_of(all);
        directory.write(name, whole.as_bytes()).map(|()| whole.len() as u64)
    }
}

impl Files {
    /// Brings a file of lines of JSON up to date. `all` has the lines of the last call first.
    pub(super) fn append<T: Serialize>(
        &mut self,
        directory: &Directory,
        name: &'static str,
        all: &[T],
    ) {
        let rests = self.rests();
        let written = self.lines.entry(name).or_default();
        written.is_owed = written.lines != all.len() || written.is_stale;
        if !written.is_owed || rests {
            return;
        }
        match written.bring(directory, name, all) {
            Ok(bytes) => *written = LineFile { lines: all.len(), bytes, ..LineFile::default() },
            Err(error) => self.note(directory, &error),
        }
    }

    /// The lines of this file have changed: the next write replaces the whole file.
    pub(super) fn rewrite(&mut self, name: &'static str) {
        self.lines.entry(name).or_default().is_stale = true;
    }

    /// Writes a whole file, atomically.
    pub(super) fn write(&mut self, directory: &Directory, name: &'static str, text: String) {
        let known = self.wholes.get(name).filter(|whole| whole.text == text);
        if known.is_some_and(|whole| whole.is_written) {
            return;
        }
        self.wholes.insert(name, ReplacedFile { text, is_written: false });
        if !self.rests() {
            self.write_wholes(directory);
        }
    }

    /// Checks that all files are there, and writes what is owed if a disk takes it by now. The
    /// caller states all lines first.
    pub(super) fn settle(&mut self, directory: &Directory) {
        if self.rests() {
            return;
        }
        self.look(directory);
        self.write_wholes(directory);
        let owes_lines = self.lines.values().any(|written| written.is_owed);
        let owes = owes_lines || self.wholes.values().any(|whole| !whole.is_written);
        if !owes && !self.trouble.is_empty() {
            self.trouble.clear();
            let directory = directory.path().display();
            tracing::warn!(%directory, "the disk takes the run's files again: they lack nothing");
        }
    }

    /// Lets the next write try at once, even after a recent failure.
    pub(super) fn insist(&mut self) {
        self.tried_at = None;
    }

    /// Whether all stated content is written.
    pub(super) fn is_settled(&self) -> bool {
        self.trouble.is_empty()
    }

    fn write_wholes(&mut self, directory: &Directory) {
        for name in self.wholes.keys().copied().collect::<Vec<_>>() {
            let Some(whole) = self.wholes.get_mut(name).filter(|whole| !whole.is_written) else {
                continue;
            };
            match directory.write(name, whole.text.as_bytes()) {
                Ok(()) => whole.is_written = true,
                Err(error) => return self.note(directory, &error),
            }
        }
    }

    /// A file that was removed, moved away or replaced is owed as a whole.
    fn look(&mut self, directory: &Directory) {
        if self.looked_at.is_some_and(|at| at.elapsed() < FILES_CHECK_INTERVAL) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let length = |name: &str| {
            let found = fs::metadata(directory.path().join(name));
            found.map_or(0, |found| found.len())
        };
        for (name, whole) in &mut self.wholes {
            whole.is_written &= length(name) == whole.text.len() as u64;
        }
        for (name, written) in &mut self.lines {
            written.is_stale |= length(name) != written.bytes;
            written.is_owed |= written.is_stale;
        }
    }

    /// Whether to leave a disk alone for a moment that has just taken nothing.
    fn rests(&self) -> bool {
        !self.trouble.is_empty()
            && self.tried_at.is_some_and(|at| at.elapsed() < DISK_RETRY_INTERVAL)
    }

    fn note(&mut self, directory: &Directory, error: &ClusterError) {
        self.tried_at = Some(Instant::now());
        let kind = kind(error);
        let path = directory.path();
        if kind == io::ErrorKind::NotFound {
            let _ = fs::create_dir_all(path.join("logs")); // if not, the next try says why
            self.looked_at = None;
        }
        if !self.trouble.contains(&kind) {
            self.trouble.push(kind);
            let directory = path.display();
            tracing::warn!(
                %directory, %error,
                "the run's files cannot be written: the run goes on, and they are written as soon \
                 as the disk takes them"
            );
        }
    }
}

fn kind(error: &ClusterError) -> io::ErrorKind {
    match error {
        ClusterError::File { source, .. } | ClusterError::Unusable { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    }
}

/// Whether it is an error of a place, which may pass, and not of the process: a full or read-only
/// disk, a missing directory, or a file that this process cannot write. An input/output error of a
/// coordinator is none: nothing tells which part of its log that disk has.
pub(super) fn is_of_a_place(error: &ClusterError) -> bool {
    const SIGNS: [&str; 5] = [
        "No space left on device",
        "quota exceeded",
        "Read-only file system",
        MISSING,
        "nothing to start from in",
    ];
    match error {
        ClusterError::File { .. } | ClusterError::Unusable { .. } => true,
        ClusterError::Process { why: Some(why), .. } => SIGNS.iter().any(|sign| why.contains(sign)),
        _ => false,
    }
}

/// Whether a process has ended for a missing file or directory.
pub(super) fn is_of_missing_file(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Process { why: Some(why), .. } if why.contains(MISSING))
}

/// The system's words for a missing file.
const MISSING: &str = "No such file or directory";

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use everstep_transport::protocol::exemplars;

    use super::*;

    fn directory(path: &Path) -> Directory {
        Directory::claim(path, &exemplars::run()).expect("a directory")
    }

    fn text(path: &Path, name: &str) -> String {
        fs::read_to_string(path.join(name)).expect("a file")
    }

    #[test]
    fn what_a_disk_did_not_take_is_written_in_order_when_it_takes_it_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let (directory, mut files) = (directory(&path), Files::default());
        files.append(&directory, "metrics.jsonl", &[1]);
        assert_eq!(text(&path, "metrics.jsonl"), "1\n");
        // A folder in the place of a file is a good example of an error of the place.
        for name in ["metrics.jsonl", "cluster.json"] {
            let _ = fs::remove_file(path.join(name));
            fs::create_dir(path.join(name)).expect("made");
        }
        files.append(&directory, "metrics.jsonl", &[1, 2]);
        assert!(!files.is_settled(), "it is owed");
        files.append(&directory, "metrics.jsonl", &[1, 2, 3, 4]);
        files.write(&directory, "cluster.json", "old".into());
        files.write(&directory, "cluster.json", "new".into());
        files.insist();
        files.settle(&directory);
        assert!(!files.is_settled(), "nothing has changed");
        for name in ["metrics.jsonl", "cluster.json"] {
            fs::remove_dir(path.join(name)).expect("removed");
        }
        files.insist();
        files.append(&directory, "metrics.jsonl", &[1, 2, 3, 4]);
        files.settle(&directory);
        let both = ["metrics.jsonl", "cluster.json"].map(|name| text(&path, name));
        assert_eq!((both, files.is_settled()), (["1\n2\n3\n4\n".into(), "new".into()], true));
    }

    #[test]
    fn a_folder_that_is_moved_away_is_made_again_with_all_that_it_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, away) = (folder.path().join("run"), folder.path().join("away"));
        let (directory, mut files) = (directory(&path), Files::default());
        files.append(&directory, "metrics.jsonl", &[1, 2]);
        files.write(&directory, "cluster.json", "view".into());
        fs::rename(&path, &away).expect("moved away");
        for _ in 0..3 {
            files.append(&directory, "metrics.jsonl", &[1, 2, 3]);
            files.settle(&directory);
            files.insist();
        }
        assert_eq!((text(&path, "metrics.jsonl"), files.is_settled()), ("1\n2\n3\n".into(), true));
        assert_eq!(text(&path, "cluster.json"), "view");
        assert!(path.join("logs").is_dir());
        // The old folder comes back. It lacks the later lines.
        fs::remove_dir_all(&path).expect("removed");
        fs::rename(&away, &path).expect("moved back");
        files.append(&directory, "metrics.jsonl", &[1, 2, 3, 4]);
        assert_eq!(text(&path, "metrics.jsonl"), "1\n2\n3\n4\n");
    }

    #[test]
    fn lines_that_a_rollback_has_replaced_are_written_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, mut files) = (directory(folder.path()), Files::default());
        files.append(&directory, "metrics.jsonl", &[1, 2, 3]);
        files.rewrite("metrics.jsonl");
        files.append(&directory, "metrics.jsonl", &[1, 7, 8, 9]);
        assert_eq!(text(folder.path(), "metrics.jsonl"), "1\n7\n8\n9\n");
    }

    #[test]
    fn an_error_of_a_place_is_told_from_one_of_a_process() {
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ReadOnlyFilesystem] {
            let (path, source) = (PathBuf::from("logs/worker-1.log"), io::Error::from(kind));
            assert!(is_of_a_place(&ClusterError::File { path, source }));
        }
        for (why, of_a_place) in [
            ("coordinator-1/log.redb: No space left on device (os error 28)", true),
            ("coordinator-1/coordinators: Read-only file system (os error 30)", true),
            ("nothing to start from in coordinator-1; use --bootstrap to found a cluster", true),
            ("the actor met a broken invariant", false),
            ("coordinator-1/log.redb: Input/output error (os error 5)", false),
        ] {
            let (process, how, log) = ("coordinator".into(), "ended".into(), PathBuf::new());
            let error = ClusterError::Process { process, how, why: Some(why.into()), log };
            assert_eq!(is_of_a_place(&error), of_a_place, "{why}");
        }
    }
}
