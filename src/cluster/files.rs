//! The files of a run as the launcher keeps them. It owes them what a disk has not taken yet.
//!
//! In: whole texts, and lists of records that grow at their end. Out: the same on the disk, sooner
//! or later. An error of the place (a full disk, a read-only file system, a missing folder) ends no
//! run. The caller states texts and records again, so memory holds nothing twice. A file may need
//! records that the caller no longer has ([`Files::lacks`]): the coordinators have them. The user
//! hears when the trouble begins and when it ends. A missing folder or file is made again, whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Directory;
use super::directory::text_of;
use super::error::ClusterError;
use super::marks::Marks;
use super::recent::{Numbered, Recent};

/// How often the launcher tries a troubled disk again.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// How often the launcher checks that all files are still there.
const FILES_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a file on a troubled disk may ask for records that the caller no longer has.
const REFETCH_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a run: see the module.
#[derive(Debug, Default)]
pub(super) struct Files {
    wholes: BTreeMap<&'static str, ReplacedFile>,
    lines: BTreeMap<&'static str, LineFile>,
    /// The kinds of error that the user has heard of, while files lack something.
    trouble: Vec<io::ErrorKind>,
    tried_at: Option<Instant>,
    looked_at: Option<Instant>,
    refetched_at: Option<Instant>,
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
    /// The number of the newest record in the file. 0 before the first.
    newest: u64,
    bytes: u64,
    /// The file's length after some of its records.
    marks: Marks<u64>,
    /// The file is not a beginning of what it should be.
    is_stale: bool,
    /// The file lacks records.
    is_owed: bool,
    /// The records come from the first on, into a file beside the old one. That stays as it is
    /// until the new one has all of them.
    is_rebuilt: bool,
    /// The number after which records are missing that the caller no longer has.
    lacks_after: Option<u64>,
}

impl LineFile {
    /// Brings the file up to date, as far as the records that it lacks are there.
    fn bring<T: Serialize + Numbered>(
        &mut self,
        directory: &Directory,
        name: &str,
        all: &Recent<T>,
    ) -> Result<(), ClusterError> {
        if !self.is_stale {
            let Some(new) = all.after(self.newest) else {
                self.lacks_after = Some(self.newest);
                return Ok(());
            };
            let text = text_of(new);
            if directory.append_text(&self.path(name), &text, self.bytes)? {
                self.bytes += text.len() as u64;
                self.newest = all.newest();
                self.marks.push(self.newest, self.bytes);
                self.is_owed = false;
                return Ok(());
            }
            self.is_stale = true;
        }
        if !all.is_whole() {
            self.lacks_after = Some(0);
            return Ok(());
        }
        let text = text_of(all);
        directory.write(&self.path(name), text.as_bytes())?;
        let (newest, bytes) = (all.newest(), text.len() as u64);
        *self = Self { newest, bytes, is_rebuilt: self.is_rebuilt, ..Self::default() };
        self.marks.push(newest, bytes);
        Ok(())
    }

    /// Where the records go.
    fn path(&self, name: &str) -> String {
        if self.is_rebuilt { rebuilt(name) } else { name.into() }
    }
}

/// The file beside `name` that is to replace it.
fn rebuilt(name: &str) -> String {
    format!("{name}.rebuilt")
}

impl Files {
    /// Brings a file of lines of JSON up to date.
    pub(super) fn append<T: Serialize + Numbered>(
        &mut self,
        directory: &Directory,
        name: &'static str,
        all: &Recent<T>,
    ) {
        let rests = self.rests();
        let file = self.lines.entry(name).or_default();
        file.is_owed = file.newest < all.newest() || file.is_stale;
        if !file.is_owed || rests {
            return;
        }
        if let Err(error) = file.bring(directory, name, all) {
            self.note(directory, &error);
        }
    }

    /// Adds a last record, which is in no list, to a file that has all others.
    pub(super) fn close(
        &mut self,
        directory: &Directory,
        name: &'static str,
        record: &impl Serialize,
    ) {
        let file = self.lines.entry(name).or_default();
        let text = text_of(std::slice::from_ref(record));
        match directory.append_text(&file.path(name), &text, file.bytes) {
            Ok(true) => file.bytes += text.len() as u64,
            Ok(false) => file.is_stale = true,
            Err(error) => self.note(directory, &error),
        }
    }

    /// The last records of a list were taken back: `all` ends with those that are left. The file
    /// loses them, and some before them, which come again.
    pub(super) fn cut<T: Numbered>(
        &mut self,
        directory: &Directory,
        name: &'static str,
        all: &Recent<T>,
    ) {
        let file = self.lines.entry(name).or_default();
        if file.newest <= all.newest() {
            return;
        }
        let (newest, bytes) = file.marks.back_to(all.newest()).unwrap_or_default();
        // A list that is whole replaces its file at once.
        if all.is_whole() || !directory.truncate(&file.path(name), bytes) {
            file.is_stale = true;
        } else {
            (file.newest, file.bytes) = (newest, bytes);
        }
    }

    /// Writes this file anew from the first record on.
    pub(super) fn rebuild(&mut self, directory: &Directory, name: &'static str) {
        directory.remove(&rebuilt(name));
        self.lines.insert(name, LineFile { is_rebuilt: true, ..LineFile::default() });
    }

    /// The number after which this file needs records that the caller has not stated.
    pub(super) fn lacks(&mut self, name: &'static str) -> Option<u64> {
        let waits = !self.trouble.is_empty()
            && self.refetched_at.is_some_and(|at| at.elapsed() < REFETCH_INTERVAL);
        let file = self.lines.get_mut(name).filter(|_| !waits)?;
        let after = file.lacks_after.take()?;
        self.refetched_at = Some(Instant::now());
        Some(after)
    }

    /// The records after this number come next, since the file lacks some of them.
    pub(super) fn refetch(&mut self, directory: &Directory, name: &'static str, after: u64) {
        if self.lines.get(name).is_some_and(|file| file.is_stale) {
            self.rebuild(directory, name);
        }
        let file = self.lines.entry(name).or_default();
        file.newest = file.newest.max(after);
    }

    /// All records of all lists were stated: rebuilt files that have them replace the old ones.
    pub(super) fn complete(&mut self, directory: &Directory) {
        let is_whole = |file: &LineFile| file.is_rebuilt && file.bytes > 0 && !file.is_owed;
        let mut whole = self.lines.iter_mut().filter(|(_, file)| is_whole(file));
        let replaced = whole.try_for_each(|(name, file)| {
            directory.replace(name, &rebuilt(name)).map(|()| file.is_rebuilt = false)
        });
        if let Err(error) = replaced {
            self.note(directory, &error);
        }
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
    /// caller states all records first.
    pub(super) fn settle(&mut self, directory: &Directory) {
        if self.rests() {
            return;
        }
        self.look(directory);
        self.write_wholes(directory);
        let owes_lines = self.lines.values().any(|file| file.is_owed);
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
        self.trouble.is_empty() && !self.lines.values().any(|file| file.is_owed)
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
        for (name, file) in &mut self.lines {
            file.is_stale |= length(&file.path(name)) != file.bytes;
            file.is_owed |= file.is_stale;
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
            let _ = super::directory::make_logs(path); // if not, the next try says why
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
    use crate::cluster::recent::tests::recent;

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
        files.append(&directory, "metrics.jsonl", &recent(0, &[1]));
        assert_eq!(text(&path, "metrics.jsonl"), "1\n");
        // A folder in the place of a file is a good example of an error of the place.
        for name in ["metrics.jsonl", "cluster.json"] {
            let _ = fs::remove_file(path.join(name));
            fs::create_dir(path.join(name)).expect("made");
        }
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2]));
        assert!(!files.is_settled(), "it is owed");
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3, 4]));
        files.write(&directory, "cluster.json", "old".into());
        files.write(&directory, "cluster.json", "new".into());
        files.insist();
        files.settle(&directory);
        assert!(!files.is_settled(), "nothing has changed");
        for name in ["metrics.jsonl", "cluster.json"] {
            fs::remove_dir(path.join(name)).expect("removed");
        }
        files.insist();
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3, 4]));
        files.settle(&directory);
        let both = ["metrics.jsonl", "cluster.json"].map(|name| text(&path, name));
        assert_eq!((both, files.is_settled()), (["1\n2\n3\n4\n".into(), "new".into()], true));
    }

    #[test]
    fn a_folder_that_is_moved_away_is_made_again_with_all_that_it_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, away) = (folder.path().join("run"), folder.path().join("away"));
        let (directory, mut files) = (directory(&path), Files::default());
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2]));
        files.write(&directory, "cluster.json", "view".into());
        fs::rename(&path, &away).expect("moved away");
        for _ in 0..3 {
            files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3]));
            files.settle(&directory);
            files.insist();
        }
        assert_eq!((text(&path, "metrics.jsonl"), files.is_settled()), ("1\n2\n3\n".into(), true));
        assert_eq!(text(&path, "cluster.json"), "view");
        assert!(path.join("logs").is_dir());
        // The old folder comes back. It lacks the later lines.
        fs::remove_dir_all(&path).expect("removed");
        fs::rename(&away, &path).expect("moved back");
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3, 4]));
        assert_eq!(text(&path, "metrics.jsonl"), "1\n2\n3\n4\n");
    }

    #[test]
    fn lines_that_a_rollback_has_replaced_are_written_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, mut files) = (directory(folder.path()), Files::default());
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3]));
        files.cut(&directory, "metrics.jsonl", &recent(0, &[1]));
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 7, 8, 9]));
        assert_eq!(text(folder.path(), "metrics.jsonl"), "1\n7\n8\n9\n");
    }

    #[test]
    fn a_file_that_lost_records_which_are_gone_from_memory_is_made_again_beside_what_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let (directory, mut files) = (directory(path), Files::default());
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2, 3]));
        fs::write(path.join("metrics.jsonl"), "1\n").expect("a user cuts it");
        files.append(&directory, "metrics.jsonl", &recent(2, &[3, 4]));
        assert_eq!(files.lacks("metrics.jsonl"), Some(0));
        files.refetch(&directory, "metrics.jsonl", 0);
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2]));
        files.append(&directory, "metrics.jsonl", &recent(1, &[2, 3, 4]));
        assert_eq!(text(path, "metrics.jsonl"), "1\n", "as long as the other one lacks records");
        files.complete(&directory);
        assert_eq!(
            (text(path, "metrics.jsonl"), files.is_settled()),
            ("1\n2\n3\n4\n".into(), true)
        );
        files.append(&directory, "metrics.jsonl", &recent(9, &[10]));
        assert_eq!(files.lacks("metrics.jsonl"), Some(4));
        files.refetch(&directory, "metrics.jsonl", 3);
        files.append(&directory, "metrics.jsonl", &recent(3, &[4, 5]));
        assert_eq!(text(path, "metrics.jsonl"), "1\n2\n3\n4\n5\n");
        assert!(!path.join("metrics.jsonl.rebuilt").exists());
    }

    #[test]
    fn lines_that_a_rollback_took_back_leave_the_file_with_some_before_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, mut files) = (directory(folder.path()), Files::default());
        files.append(&directory, "metrics.jsonl", &recent(0, &[1, 2]));
        files.append(&directory, "metrics.jsonl", &recent(1, &[2, 3, 4]));
        files.cut(&directory, "metrics.jsonl", &recent(3, &[]));
        assert_eq!(text(folder.path(), "metrics.jsonl"), "1\n2\n");
        files.append(&directory, "metrics.jsonl", &recent(3, &[7]));
        assert_eq!(files.lacks("metrics.jsonl"), Some(2), "3 has to come again");
        files.refetch(&directory, "metrics.jsonl", 2);
        files.append(&directory, "metrics.jsonl", &recent(2, &[3, 7]));
        files.close(&directory, "metrics.jsonl", &9);
        assert_eq!(text(folder.path(), "metrics.jsonl"), "1\n2\n3\n7\n9\n");
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
            ("nothing to start from in coordinator-1: use --bootstrap to found a cluster", true),
            ("the actor met a broken invariant", false),
            ("coordinator-1/log.redb: Input/output error (os error 5)", false),
        ] {
            let (process, how, log) = ("coordinator".into(), "ended".into(), PathBuf::new());
            let error = ClusterError::Process { process, how, why: Some(why.into()), log };
            assert_eq!(is_of_a_place(&error), of_a_place, "{why}");
        }
    }
}
