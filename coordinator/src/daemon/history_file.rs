//! The history file: the history of the cluster, in `history.log` in the coordinator's directory.
//!
//! In: what each entry of the log adds to the history, with the index of that entry. The file skips
//! what it has already, since a restarted coordinator goes through its log again. Out: all history
//! entries, one after another, when a coordinator starts, and pages of them for another coordinator
//! and for readers of events. Memory holds an [index](HistoryIndex) of bounded size, and no entry.
//!
//! The [coverage](HistoryCoverage) decides which records to write, and knows which are missing. The
//! file need not be durable before an answer: the log restores whatever a crash takes from its end.
//!
//! The file is a head and records, each with its length and two checksums over place and content. A
//! start cuts away a record at the end that differs from what was written. If the log lacks the
//! events that are missing then, the file is damaged, and the start fails.

mod index;
mod records;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{HistoryEntry, HistoryEvent};
use rkyv::rancor;
use rkyv::util::AlignedVec;

use self::index::{HistoryIndex, Stretch};
use self::records::StoredRecords;
use crate::core::EventRange;
use crate::format::{HISTORY_FILE_FORMAT, UnknownFormat};
use crate::history_coverage::{HistoryCoverage, HistoryRecord};
use crate::log::SyncFile;

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"eshistr\x03";
/// [`MAGIC`], the number of the format, the cluster.
const HEAD: usize = 16 + 32;
/// The length of the body (u32), a checksum of the length (u32), a checksum of the body (u64).
const RECORD_HEAD: usize = 16;
/// About how many bytes of the file one page has.
const PAGE_BYTES: u64 = 32 << 10;

/// Why there is no history file, or none any more.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct HistoryFileError {
    path: PathBuf,
    #[source]
    problem: HistoryFileProblem,
}

#[derive(Debug, thiserror::Error)]
enum HistoryFileProblem {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    OtherFormat(#[from] UnknownFormat),
    #[error("it is of another cluster")]
    OtherCluster,
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

/// The history file, open for writing at its end. The caller drops it after an error.
pub(crate) struct HistoryFile {
    path: PathBuf,
    file: File,
    length: u64,
    coverage: HistoryCoverage,
    index: HistoryIndex,
}

impl HistoryFile {
    /// Makes an empty history file for the cluster with this digest.
    pub(super) fn create(path: &Path, cluster: [u8; 32]) -> Result<(), HistoryFileError> {
        let made = File::create(path).and_then(|mut file| {
            file.write_all(&head(cluster))?;
            file.sync_all()
        });
        made.map_err(|error| HistoryFileError { path: path.to_path_buf(), problem: error.into() })
    }

    /// Opens the cluster's history file beside a log that begins behind this entry.
    pub(super) fn open(
        path: &Path,
        cluster: [u8; 32],
        log_begins: u64,
    ) -> Result<Self, HistoryFileError> {
        let opened = Self::read(path.to_path_buf(), cluster, log_begins).and_then(|opened| {
            // A predecessor may have been killed before it made the file durable.
            opened.file.sync_data()?;
            Ok(opened)
        });
        opened.map_err(|problem| HistoryFileError { path: path.to_path_buf(), problem })
    }

    /// Takes the events of an entry.
    pub(super) fn take(&mut self, entry: HistoryEntry) -> Result<(), HistoryFileError> {
        let record = self.coverage.take(entry);
        self.append(record)
    }

    /// The log will begin behind this entry. First the log's thread has to make the file durable.
    pub(super) fn seal(&mut self, index: u64) -> Result<(), HistoryFileError> {
        self.append(self.coverage.seal(index))
    }

    /// The log lacks the entries up to this one, and the history file lacks their events.
    pub(super) fn lack(&mut self, index: u64) -> Result<(), HistoryFileError> {
        self.append(self.coverage.lack(index))
    }

    /// The first entry of the first missing part.
    pub(super) fn wanted(&self) -> Option<u64> {
        self.coverage.wanted()
    }

    /// Takes history entries of the missing part from another coordinator.
    pub(super) fn fill(&mut self, entries: Vec<HistoryEntry>) -> Result<(), HistoryFileError> {
        entries.into_iter().try_for_each(|entry| self.append(self.coverage.fill(entry)))
    }

    /// A page of the history from this entry on, in order, for a coordinator that lacks them.
    /// `applied` is the newest entry applied here. The last page ends with an entry without events,
    /// which tells how far it goes.
    pub(super) fn page(
        &self,
        from: u64,
        applied: u64,
    ) -> Result<Vec<HistoryEntry>, HistoryFileError> {
        self.read_page(from, applied)
            .map_err(|problem| HistoryFileError { path: self.path.clone(), problem })
    }

    /// Visits all entries of the file, in order.
    pub(super) fn visit(
        &self,
        mut visit: impl FnMut(&HistoryEntry),
    ) -> Result<(), HistoryFileError> {
        let read = self.read_entries(self.index.since_entry(0), |entry, _| {
            visit(&entry);
            true
        });
        read.map_err(|problem| HistoryFileError { path: self.path.clone(), problem })
    }

    /// The events of a range that are in the file, in order: at most `most`.
    pub(crate) fn events(
        &self,
        range: EventRange,
        most: usize,
    ) -> Result<Vec<Event>, HistoryFileError> {
        let mut events = Vec::new();
        let read = self.read_entries(self.index.after_event(range.after), |entry, _| {
            for event in entry.events {
                let HistoryEvent::Event(event) = event else { continue };
                if event.number > range.to || events.len() == most {
                    return false;
                }
                if event.number > range.after {
                    events.push(event);
                }
            }
            true
        });
        match read {
            Ok(()) => Ok(events),
            Err(problem) => Err(HistoryFileError { path: self.path.clone(), problem }),
        }
    }

    /// The open file, for another thread to make it durable.
    pub(super) fn file(&self) -> Result<SyncFile, HistoryFileError> {
        let path = self.path.clone();
        match self.file.try_clone() {
            Ok(file) => Ok(SyncFile { path, file }),
            Err(error) => Err(HistoryFileError { path, problem: error.into() }),
        }
    }

    fn append(&mut self, record: Option<HistoryRecord>) -> Result<(), HistoryFileError> {
        let Some(record) = record else { return Ok(()) };
        let bytes = encode(self.length, &record);
        let written = self.file.write_all(&bytes);
        written.map_err(|e| HistoryFileError { path: self.path.clone(), problem: e.into() })?;
        self.note(&record, self.length + bytes.len() as u64);
        Ok(())
    }

    /// A record stands at the end of the file, and makes it this long.
    fn note(&mut self, record: &HistoryRecord, length: u64) {
        if let HistoryRecord::Entry(entry) = record {
            self.index.note(entry, self.length..length, &self.coverage);
        }
        self.coverage.note(record);
        self.length = length;
    }

    fn read_page(&self, from: u64, applied: u64) -> Result<Vec<HistoryEntry>, HistoryFileProblem> {
        let (whole, mut entries) = (self.coverage.whole(), Vec::new());
        let (mut size, mut is_full) = (0, false);
        self.read_entries(self.index.since_entry(from), |entry, length| {
            if entry.index > whole {
                return false;
            }
            is_full = size > PAGE_BYTES;
            if !is_full && entry.index >= from {
                entries.push(entry);
                size += length;
            }
            !is_full
        })?;
        if !is_full {
            entries.extend(self.coverage.last_word(from, applied));
        }
        Ok(entries)
    }

    /// Reads the entries of these stretches in order, each with the length of its record, until
    /// `visit` returns false.
    fn read_entries(
        &self,
        stretches: &[Stretch],
        mut visit: impl FnMut(HistoryEntry, u64) -> bool,
    ) -> Result<(), HistoryFileProblem> {
        for stretch in stretches {
            let mut records = StoredRecords::between(&self.file, stretch.place, stretch.end);
            while let Some((record, place)) = records.next()? {
                if let HistoryRecord::Entry(entry) = record
                    && stretch.has(entry.index)
                    && !visit(entry, records.place() - place)
                {
                    return Ok(());
                }
            }
            let end = records.place();
            if end < stretch.end {
                let problem = format!("byte {end} is not as written");
                return Err(HistoryFileProblem::Damaged(problem));
            }
        }
        Ok(())
    }

    fn read(path: PathBuf, cluster: [u8; 32], log_begins: u64) -> Result<Self, HistoryFileProblem> {
        let file = OpenOptions::new().read(true).append(true).open(&path)?;
        let mut found = Vec::new();
        (&file).take(HEAD as u64).read_to_end(&mut found)?;
        check(&found, cluster)?;
        let end = file.metadata()?.len();
        let (coverage, index) = (HistoryCoverage::default(), HistoryIndex::default());
        let mut history_file = Self { path, file, length: HEAD as u64, coverage, index };
        let file = history_file.file.try_clone()?;
        let mut records = StoredRecords::between(&file, HEAD as u64, end);
        while let Some((record, at)) = records.next()? {
            if !history_file.coverage.is_followed_by(&record) {
                let problem = format!("byte {at} tells what was told before");
                return Err(HistoryFileProblem::Damaged(problem));
            }
            history_file.note(&record, records.place());
        }
        check_reach(&history_file.coverage, log_begins)?;
        history_file.file.set_len(history_file.length)?;
        Ok(history_file)
    }
}

/// The file and a log that begins behind this entry have all events, or know which they lack.
fn check_reach(coverage: &HistoryCoverage, log_begins: u64) -> Result<(), HistoryFileProblem> {
    let (reach, whole) = (coverage.reach(), coverage.whole());
    if reach >= log_begins {
        return Ok(());
    }
    let problem = format!("it ends after entry {whole}, and the log begins at {log_begins}");
    Err(HistoryFileProblem::Damaged(problem))
}

/// Whether this build reads the file's format, and the file is the cluster's.
fn check(bytes: &[u8], cluster: [u8; 32]) -> Result<(), HistoryFileProblem> {
    let Some((magic, rest)) = bytes.split_first_chunk().filter(|(magic, _)| **magic == MAGIC)
    else {
        return Err(HistoryFileProblem::Damaged("it does not begin as it should".into()));
    };
    let [format, found] = [rest.get(..8), rest.get(8..HEAD - magic.len())];
    let (Some(format), Some(found)) = (format, found) else {
        return Err(HistoryFileProblem::Damaged("it ends within its head".into()));
    };
    let format = u64::from_le_bytes(format.try_into().expect("eight bytes"));
    HISTORY_FILE_FORMAT.number(format)?;
    if found == cluster { Ok(()) } else { Err(HistoryFileProblem::OtherCluster) }
}

fn head(cluster: [u8; 32]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&HISTORY_FILE_FORMAT.newest.to_le_bytes());
    head[16..].copy_from_slice(&cluster);
    head
}

/// Encodes a record for this place in the file.
fn encode(place: u64, record: &HistoryRecord) -> Vec<u8> {
    let body = rkyv::to_bytes::<rancor::Error>(record).expect("news are finite");
    let length = (body.len() as u32).to_le_bytes();
    let [short, _] = checksum(place, &length);
    let [low, high] = checksum(place, &body);
    [&length[..], &short, &low, &high, &body].concat()
}

/// Decodes the record that begins at `at` in these bytes, which stand at `origin` in the file.
/// Returns it with its end. None without a record, or if it differs from what was written.
fn decode(bytes: &[u8], at: usize, origin: u64) -> Option<(HistoryRecord, usize)> {
    let (body, end) = body(bytes, at, origin)?;
    let record = rkyv::from_bytes::<HistoryRecord, rancor::Error>(&body).ok()?;
    Some((record, end))
}

/// The body of the record that begins at `at`, at an address from which an archive can be read, and
/// the record's end. None if it differs from what was written.
fn body(bytes: &[u8], at: usize, origin: u64) -> Option<(AlignedVec, usize)> {
    let place = origin + at as u64;
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<RECORD_HEAD>()?;
    let checksums = &head[4..];
    let length = length_of(head, place)? as usize;
    let body = rest.get(..length)?;
    if checksum(place, body).as_flattened() != &checksums[4..] {
        return None;
    }
    let mut aligned = AlignedVec::with_capacity(length);
    aligned.extend_from_slice(body);
    Some((aligned, at + RECORD_HEAD + length))
}

/// The length of the body after this head. None if the head differs from what was written.
fn length_of(head: &[u8; RECORD_HEAD], place: u64) -> Option<u32> {
    let (length, checksums) = head.split_first_chunk::<4>()?;
    (checksum(place, length)[0] == checksums[..4]).then(|| u32::from_le_bytes(*length))
}

fn checksum(place: u64, membership: &[u8]) -> [[u8; 4]; 2] {
    let mut hasher = blake3::Hasher::new();
    let digest = hasher.update(&place.to_le_bytes()).update(membership).finalize();
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    [[a, b, c, d], [e, f, g, h]]
}

#[cfg(test)]
mod tests;
