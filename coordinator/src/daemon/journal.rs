//! The journal: the history of the cluster, in `history.log` in the coordinator's directory.
//!
//! In: the events of the log's entries, each frame with its entry's index. The journal skips a
//! frame that it has already, since a restarted coordinator goes through its log again. Out: all
//! frames when a coordinator starts, and pages of them for another coordinator.
//!
//! The [ledger](Ledger) decides which records to write, and knows which are missing. The file need
//! not be durable before an answer: the log restores whatever a crash takes from its end.
//!
//! The file is a head and records, each with its length and two checksums over place and content. A
//! start cuts away a record at the end that differs from what was written. If the log lacks the
//! events that are missing then, the file is damaged, and the start fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{Frame, codec};
use rkyv::rancor;
use rkyv::util::AlignedVec;

use crate::ledger::{Ledger, Record};

use crate::log::Beside;

/// The first bytes. The last of them is the version.
const MAGIC: [u8; 8] = *b"eshistr\x03";
/// [`MAGIC`], the vocabulary's layout, the cluster.
const HEAD: usize = 16 + 32;
/// The length of the body (u32), a checksum of the length (u32), a checksum of the body (u64).
const RECORD_HEAD: usize = 16;
/// About how many bytes of the file one page has.
const PAGE_BYTES: u64 = 32 << 10;

/// Why there is no journal, or none any more.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct JournalError {
    path: PathBuf,
    #[source]
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("it was written by another version of Everstep")]
    OtherVersion,
    #[error("it is of another cluster")]
    OtherCluster,
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

/// The journal, open for writing at its end. The caller drops it after an error.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    ledger: Ledger,
    /// The place of each entry's frame, in order of the entries. Frames of other coordinators come
    /// later in the file.
    places: Vec<(u64, u64)>,
}

impl Journal {
    /// Makes an empty journal for the cluster with this digest.
    pub(super) fn create(path: &Path, cluster: [u8; 32]) -> Result<(), JournalError> {
        let made = File::create(path).and_then(|mut file| {
            file.write_all(&head(cluster))?;
            file.sync_all()
        });
        made.map_err(|error| JournalError { path: path.to_path_buf(), problem: error.into() })
    }

    /// Opens the cluster's journal beside a log that begins behind this entry. Returns the frames
    /// in the file, in order.
    pub(super) fn open(
        path: &Path,
        cluster: [u8; 32],
        log_begins: u64,
    ) -> Result<(Self, Vec<Frame>), JournalError> {
        let opened = Self::read(path.to_path_buf(), cluster, log_begins).and_then(|opened| {
            // A predecessor may have been killed before it made the file durable.
            opened.0.file.sync_data()?;
            Ok(opened)
        });
        opened.map_err(|problem| JournalError { path: path.to_path_buf(), problem })
    }

    /// Takes the events of an entry.
    pub(super) fn take(&mut self, frame: Frame) -> Result<(), JournalError> {
        let record = self.ledger.take(frame);
        self.append(record)
    }

    /// The log will begin behind this entry. First the log's thread has to make the file durable.
    pub(super) fn seal(&mut self, index: u64) -> Result<(), JournalError> {
        self.append(self.ledger.seal(index))
    }

    /// The log lacks the entries up to this one, and the journal lacks their events.
    pub(super) fn lack(&mut self, index: u64) -> Result<(), JournalError> {
        self.append(self.ledger.lack(index))
    }

    /// The first entry of the first missing part.
    pub(super) fn wanted(&self) -> Option<u64> {
        self.ledger.wanted()
    }

    /// Takes frames of the missing part from another coordinator.
    pub(super) fn fill(&mut self, frames: Vec<Frame>) -> Result<(), JournalError> {
        frames.into_iter().try_for_each(|frame| self.append(self.ledger.fill(frame)))
    }

    /// A page of frames from this entry on, in order, for a coordinator that lacks them. `applied`
    /// is the newest entry applied here. The last page ends with a frame without news, which tells
    /// how far it goes.
    pub(super) fn page(&self, from: u64, applied: u64) -> Result<Vec<Frame>, JournalError> {
        self.read_page(from, applied)
            .map_err(|problem| JournalError { path: self.path.clone(), problem })
    }

    /// All frames of the journal, in order.
    pub(super) fn all(&self) -> Result<Vec<Frame>, JournalError> {
        self.read_all().map_err(|problem| JournalError { path: self.path.clone(), problem })
    }

    /// The journal's file, for another thread to make it durable.
    pub(super) fn file(&self) -> Result<Beside, JournalError> {
        let path = self.path.clone();
        match self.file.try_clone() {
            Ok(file) => Ok(Beside { path, file }),
            Err(error) => Err(JournalError { path, problem: error.into() }),
        }
    }

    fn append(&mut self, record: Option<Record>) -> Result<(), JournalError> {
        let Some(record) = record else { return Ok(()) };
        let bytes = encode(self.length, &record);
        let written = self.file.write_all(&bytes);
        written.map_err(|e| JournalError { path: self.path.clone(), problem: e.into() })?;
        self.note(&record, self.length);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// A record stands at this place.
    fn note(&mut self, record: &Record, place: u64) {
        self.ledger.note(record);
        if let Record::Frame(Frame { index, .. }) = record {
            let at = self.places.partition_point(|(before, _)| before < index);
            self.places.insert(at, (*index, place));
        }
    }

    fn read_page(&self, from: u64, applied: u64) -> Result<Vec<Frame>, Problem> {
        let whole = self.ledger.whole();
        let known = &self.places[..self.places.partition_point(|(index, _)| *index <= whole)];
        let (mut frames, mut size) = (Vec::new(), 0);
        let first = known.partition_point(|(index, _)| *index < from);
        for (_, place) in &known[first..] {
            if size > PAGE_BYTES {
                return Ok(frames);
            }
            let (frame, length) = self.read_frame(*place)?;
            frames.push(frame);
            size += length;
        }
        frames.extend(self.ledger.last_word(from, applied));
        Ok(frames)
    }

    fn read_all(&self) -> Result<Vec<Frame>, Problem> {
        let bytes = std::fs::read(&self.path)?;
        let (mut frames, mut at) = (Vec::with_capacity(self.places.len()), HEAD);
        while let Some((record, end)) = decode(&bytes, at, 0) {
            if let Record::Frame(frame) = record {
                frames.push(frame);
            }
            at = end;
        }
        if (at as u64) < self.length {
            return Err(Problem::Damaged(format!("byte {at} is not as written")));
        }
        frames.sort_by_key(|frame: &Frame| frame.index);
        Ok(frames)
    }

    /// The frame at this place, and how many bytes it takes.
    fn read_frame(&self, place: u64) -> Result<(Frame, u64), Problem> {
        let damaged = || Problem::Damaged(format!("byte {place} is not as written"));
        let mut head = [0; RECORD_HEAD];
        self.file.read_exact_at(&mut head, place)?;
        let length = RECORD_HEAD as u64 + u64::from(length_of(&head, place).ok_or_else(damaged)?);
        if length > self.length - place {
            return Err(damaged());
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, place)?;
        match decode(&bytes, 0, place) {
            Some((Record::Frame(frame), _)) => Ok((frame, length)),
            _ => Err(damaged()),
        }
    }

    fn read(
        path: PathBuf,
        cluster: [u8; 32],
        log_begins: u64,
    ) -> Result<(Self, Vec<Frame>), Problem> {
        let (bytes, expected) = (std::fs::read(&path)?, head(cluster));
        match bytes.get(..HEAD) {
            Some(found) if found == expected => {}
            Some(found) if found[..16] == expected[..16] => return Err(Problem::OtherCluster),
            Some(found) if found.starts_with(&MAGIC[..7]) => return Err(Problem::OtherVersion),
            _ => return Err(Problem::Damaged("it does not begin as it should".into())),
        }
        let file = OpenOptions::new().read(true).append(true).open(&path)?;
        let (ledger, places) = (Ledger::default(), Vec::new());
        let mut journal = Self { path, file, length: HEAD as u64, ledger, places };
        let (mut frames, mut at) = (Vec::new(), HEAD);
        while let Some((record, end)) = decode(&bytes, at, 0) {
            if !journal.ledger.is_followed_by(&record) {
                let problem = format!("byte {at} tells what was told before");
                return Err(Problem::Damaged(problem));
            }
            journal.note(&record, at as u64);
            if let Record::Frame(frame) = record {
                frames.push(frame);
            }
            at = end;
        }
        frames.sort_by_key(|frame: &Frame| frame.index);
        journal.length = at as u64;
        if journal.ledger.reach() < log_begins {
            let whole = journal.ledger.whole();
            let problem =
                format!("it ends after entry {whole}, and the log begins at {log_begins}");
            return Err(Problem::Damaged(problem));
        }
        journal.file.set_len(journal.length)?;
        Ok((journal, frames))
    }
}

fn head(cluster: [u8; 32]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&codec::schema().to_le_bytes());
    head[16..].copy_from_slice(&cluster);
    head
}

/// Encodes a record for this place in the file.
fn encode(place: u64, record: &Record) -> Vec<u8> {
    let body = rkyv::to_bytes::<rancor::Error>(record).expect("news are finite");
    let length = (body.len() as u32).to_le_bytes();
    let [short, _] = checksum(place, &length);
    let [low, high] = checksum(place, &body);
    [&length[..], &short, &low, &high, &body].concat()
}

/// Decodes the record that begins at `at` in these bytes, which stand at `origin` in the file.
/// Returns it with its end. None without a record, or if it differs from what was written.
fn decode(bytes: &[u8], at: usize, origin: u64) -> Option<(Record, usize)> {
    let place = origin + at as u64;
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<RECORD_HEAD>()?;
    let checksums = &head[4..];
    let length = length_of(head, place)? as usize;
    let body = rest.get(..length)?;
    if checksum(place, body).as_flattened() != &checksums[4..] {
        return None;
    }
    let mut aligned = AlignedVec::<16>::with_capacity(length);
    aligned.extend_from_slice(body);
    let record = rkyv::from_bytes::<Record, rancor::Error>(&aligned).ok()?;
    Some((record, at + RECORD_HEAD + length))
}

/// The length of the body after this head. None if the head differs from what was written.
fn length_of(head: &[u8; RECORD_HEAD], place: u64) -> Option<u32> {
    let (length, checksums) = head.split_first_chunk::<4>()?;
    (checksum(place, length)[0] == checksums[..4]).then(|| u32::from_le_bytes(*length))
}

fn checksum(place: u64, content: &[u8]) -> [[u8; 4]; 2] {
    let mut hasher = blake3::Hasher::new();
    let digest = hasher.update(&place.to_le_bytes()).update(content).finalize();
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    [[a, b, c, d], [e, f, g, h]]
}

#[cfg(test)]
mod tests;
