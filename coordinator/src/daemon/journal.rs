//! The journal of metrics lines: `metrics.log` in the coordinator's directory.
//!
//! In: the lines of settled steps, each batch written before anything that follows from it is said:
//! workers forget what was acknowledged. Out, when a coordinator starts again: the same lines.
//!
//! Lines are on the disk when the call returns: a line that was acknowledged and then lost would be
//! missed for ever, since the next ones follow only on it. That is an fsync for each heartbeat with
//! lines, some four a second.
//!
//! The file is a head and frames, each with its length and two checksums over place and content. A
//! process that was killed leaves a frame that breaks off: it is cut away, nobody was told of it.
//! Whatever else does not fit is damage, and an error. Whether a line is still part of history, the
//! journal does not know: it is told.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{MetricsLine, Step, codec};
use rkyv::rancor;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

/// The first bytes; the last of them is the version.
const MAGIC: [u8; 8] = *b"esmetrc\x01";
/// [`MAGIC`] and the vocabulary's layout.
const HEAD: usize = 16;
/// The length of what follows (u32), a checksum of it (u32), a checksum of what follows (u64).
const FRAME_HEAD: usize = 16;

/// What a frame says.
#[derive(Archive, Serialize, Deserialize, Debug)]
enum News {
    /// The lines of the steps that follow.
    Lines(Vec<MetricsLine>),
    /// Steps after this one are no longer part of history.
    Forget { after: Step },
}

/// Why there is no journal, or none any more.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct JournalError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("it was written by another version of Everstep")]
    OtherVersion,
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

/// The journal, open for writing at its end. After an error it is to be dropped.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Journal {
    /// Makes an empty journal.
    pub(super) fn create(path: &Path) -> Result<(), JournalError> {
        let made = File::create_new(path).and_then(|mut file| {
            file.write_all(&head())?;
            file.sync_all()
        });
        made.map_err(|error| JournalError { path: path.to_path_buf(), problem: error.into() })
    }

    /// Opens a journal, and gives the lines that are there: one for each step from the first.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<MetricsLine>), JournalError> {
        let opened = Self::read(path.to_path_buf());
        opened.map_err(|problem| JournalError { path: path.to_path_buf(), problem })
    }

    /// Writes the lines of the steps that follow.
    pub(super) fn record(&mut self, lines: Vec<MetricsLine>) -> Result<(), JournalError> {
        self.append(&News::Lines(lines))
    }

    /// Writes that steps after this one are no longer part of history.
    pub(super) fn forget(&mut self, after: Step) -> Result<(), JournalError> {
        self.append(&News::Forget { after })
    }

    fn append(&mut self, news: &News) -> Result<(), JournalError> {
        let bytes = encode(self.length, news);
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        written.map_err(|e| JournalError { path: self.path.clone(), problem: e.into() })?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn read(path: PathBuf) -> Result<(Self, Vec<MetricsLine>), Problem> {
        let bytes = std::fs::read(&path)?;
        match bytes.get(..HEAD) {
            Some(found) if found == head() => {}
            Some(found) if found.starts_with(&MAGIC) => return Err(Problem::OtherVersion),
            _ => return Err(Problem::Damaged("it does not begin as it should".into())),
        }
        let (mut length, mut lines) = (HEAD, Vec::new());
        while let Some((news, end)) = decode(&bytes, length).map_err(Problem::Damaged)? {
            replay(&mut lines, news)?;
            length = end;
        }
        let file = OpenOptions::new().append(true).open(&path)?;
        let length = length as u64;
        file.set_len(length)?;
        Ok((Self { path, file, length }, lines))
    }
}

fn replay(lines: &mut Vec<MetricsLine>, news: News) -> Result<(), Problem> {
    match news {
        News::Forget { after } => lines.retain(|line| line.step <= after),
        News::Lines(more) => {
            for line in more {
                let wanted = lines.last().map_or(Step(1), |last| last.step.next());
                let found = line.step;
                if found != wanted {
                    return Err(Problem::Damaged(format!("step {found} follows before {wanted}")));
                }
                lines.push(line);
            }
        }
    }
    Ok(())
}

fn head() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..].copy_from_slice(&codec::schema().to_le_bytes());
    head
}

/// A frame for this place in the file.
fn encode(place: u64, news: &News) -> Vec<u8> {
    let body = rkyv::to_bytes::<rancor::Error>(news).expect("news are finite");
    let length = (body.len() as u32).to_le_bytes();
    let [short, _] = checksum(place, &length);
    let [low, high] = checksum(place, &body);
    [&length[..], &short, &low, &high, &body].concat()
}

/// The frame that begins at `start`, and where it ends; none if it breaks off there.
fn decode(bytes: &[u8], start: usize) -> Result<Option<(News, usize)>, String> {
    let damaged = || format!("byte {start} begins what was not written");
    let place = start as u64;
    let Some((head, rest)) = bytes[start..].split_at_checked(FRAME_HEAD) else { return Ok(None) };
    let (length, checksums) = head.split_at(4);
    if checksum(place, length)[0] != checksums[..4] {
        return Err(damaged());
    }
    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    let Some(body) = rest.get(..length) else { return Ok(None) };
    if checksum(place, body).as_flattened() != &checksums[4..] {
        return Err(damaged());
    }
    let mut aligned = AlignedVec::<16>::with_capacity(length);
    aligned.extend_from_slice(body);
    let news = rkyv::from_bytes::<News, rancor::Error>(&aligned).map_err(|e| e.to_string())?;
    Ok(Some((news, start + FRAME_HEAD + length)))
}

fn checksum(place: u64, content: &[u8]) -> [[u8; 4]; 2] {
    let mut hasher = blake3::Hasher::new();
    let digest = hasher.update(&place.to_le_bytes()).update(content).finalize();
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    [[a, b, c, d], [e, f, g, h]]
}

#[cfg(test)]
mod tests;
