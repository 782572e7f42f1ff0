//! The files of a run as the launcher keeps them: what a full disk does not take is owed.
//!
//! In: lines and whole files, in order. Out: the same on the disk, sooner or later. A disk that is
//! full ends no run: what it did not take is kept in memory and written when there is room, and
//! the user is told when that begins and when it ends. Every other error is the caller's.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Directory;
use super::directory::text_of;
use super::error::ClusterError;

/// How often it is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Files {
    owed: BTreeMap<&'static str, Owed>,
    tried_at: Option<Instant>,
}

/// What a file lacks.
#[derive(Debug)]
enum Owed {
    /// At its end.
    Lines(String),
    /// All of it.
    Whole(String),
}

impl Files {
    /// Appends whole lines of JSON.
    pub(super) fn append<T: Serialize>(
        &mut self,
        directory: &Directory,
        name: &'static str,
        lines: &[T],
    ) -> Result<(), ClusterError> {
        if lines.is_empty() {
            return Ok(());
        }
        let text = text_of(lines);
        match self.owed.get_mut(name) {
            Some(Owed::Lines(owed) | Owed::Whole(owed)) => owed.push_str(&text),
            None => {
                let written = directory.append_text(name, &text);
                return self.note(directory, name, Owed::Lines(text), written);
            }
        }
        Ok(())
    }

    /// Writes a whole file, atomically.
    pub(super) fn write(
        &mut self,
        directory: &Directory,
        name: &'static str,
        text: String,
    ) -> Result<(), ClusterError> {
        self.owed.remove(name);
        let written = directory.write(name, text.as_bytes());
        self.note(directory, name, Owed::Whole(text), written)
    }

    /// Writes a whole file of lines of JSON.
    pub(super) fn rewrite<T: Serialize>(
        &mut self,
        directory: &Directory,
        name: &'static str,
        lines: &[T],
    ) -> Result<(), ClusterError> {
        self.write(directory, name, text_of(lines))
    }

    /// Writes what is owed, if there is room by now.
    pub(super) fn settle(&mut self, directory: &Directory) -> Result<(), ClusterError> {
        if self.owed.is_empty() || self.tried_at.is_some_and(|at| at.elapsed() < AGAIN) {
            return Ok(());
        }
        self.tried_at = Some(Instant::now());
        while let Some((name, owed)) = self.owed.first_key_value() {
            let written = match owed {
                Owed::Lines(text) => directory.append_text(name, text),
                Owed::Whole(text) => directory.write(name, text.as_bytes()),
            };
            match written {
                Ok(()) => drop(self.owed.pop_first()),
                Err(error) if is_full(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let directory = directory.path().display();
        tracing::warn!(%directory, "there is room again: the run's files lack nothing");
        Ok(())
    }

    fn note(
        &mut self,
        directory: &Directory,
        name: &'static str,
        owed: Owed,
        written: Result<(), ClusterError>,
    ) -> Result<(), ClusterError> {
        match written {
            Err(error) if is_full(&error) => {
                if self.owed.is_empty() {
                    let directory = directory.path().display();
                    tracing::warn!(
                        %directory, %error,
                        "the disk is full: the run goes on, and its files are written when there \
                         is room"
                    );
                }
                self.owed.insert(name, owed);
                Ok(())
            }
            other => other,
        }
    }
}

/// Whether a file could not be written, or a process not run, for want of room on a disk.
pub(super) fn is_full(error: &ClusterError) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match error {
        ClusterError::File { source, .. } | ClusterError::Unusable { source, .. } => {
            matches!(source.kind(), StorageFull | QuotaExceeded)
        }
        ClusterError::Process { why: Some(why), .. } => {
            why.contains("No space left on device") || why.contains("quota exceeded")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use everstep_transport::protocol::exemplars;

    use super::*;

    fn full() -> Result<(), ClusterError> {
        let source = io::Error::from(io::ErrorKind::StorageFull);
        Err(ClusterError::File { path: PathBuf::from("metrics.jsonl"), source })
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_written_in_order_when_there_is_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let directory = Directory::claim(&path, &exemplars::run()).expect("a directory");
        let mut files = Files::default();
        files.append(&directory, "metrics.jsonl", &[1]).expect("written");
        let owed = Owed::Lines("2\n".into());
        files.note(&directory, "metrics.jsonl", owed, full()).expect("it is owed");
        files.append(&directory, "metrics.jsonl", &[3, 4]).expect("it waits behind that");
        let whole = Owed::Whole("old".into());
        files.note(&directory, "cluster.json", whole, full()).expect("it is owed");
        let text = |name: &str| fs::read_to_string(path.join(name)).expect("read");
        assert_eq!(text("metrics.jsonl"), "1\n");
        files.write(&directory, "cluster.json", "new".into()).expect("the newest counts");
        files.settle(&directory).expect("there is room");
        assert_eq!(
            (text("metrics.jsonl"), text("cluster.json")),
            ("1\n2\n3\n4\n".into(), "new".into())
        );
        assert!(files.owed.is_empty());
    }

    #[test]
    fn other_errors_than_a_full_disk_are_the_callers() {
        let gone = io::Error::from(io::ErrorKind::NotFound);
        let error = ClusterError::File { path: PathBuf::from("metrics.jsonl"), source: gone };
        assert!(!is_full(&error));
        let why = Some("coordinator-1/log.redb: No space left on device (os error 28)".into());
        let (process, how, log) = ("coordinator".into(), "exited with 1".into(), PathBuf::new());
        assert!(is_full(&ClusterError::Process { process, how, why, log }));
    }
}
