//! The files of metrics lines in a coordinator's directory: `metrics/RUN.log`, one for each run.
//!
//! A file is a head and records of one size. A record's place follows from its step. So one call
//! reads a page, and memory does not grow with the file. Records of lost lines are zero. An opened
//! file is verified at its end only, as far back as records may not have been durable when the
//! process before ended. A record that differs from what was written is cut away there, with all
//! behind it, and other processes tell the lines again.

mod format_1;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{Lineage, MetricsLine, RunId, Step};
use rkyv::rancor;
use rkyv::util::AlignedVec;

use crate::format::LINES_FILE_FORMAT;
use crate::lines::{LineRecord, LinesFound, RECENT, UNSURE};
use crate::log::SyncFile;
use crate::state::{LineHistory, Undone};

/// The first bytes of a file.
const MAGIC: [u8; 8] = *b"eslines\x01";
/// [`MAGIC`], the number of the format, the run, the size of a record, and the cluster.
const HEAD: usize = 32 + 32;
/// A checksum of the record's content and of its place.
const CHECKSUM: usize = 8;
/// The bytes of one record.
const RECORD: usize = CHECKSUM + size_of::<rkyv::Archived<LineRecord>>();
/// How many records one call reads.
const BLOCK: u64 = 1 << 10;

/// A file of metrics lines that the process cannot read or write.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct LineFileError {
    path: PathBuf,
    #[source]
    problem: io::Error,
}

/// The folder with the files, and the open file.
#[derive(Debug)]
pub struct LineFiles {
    folder: PathBuf,
    cluster: [u8; 32],
    open: Option<OpenLineFile>,
}

/// The file of the current run.
#[derive(Debug)]
struct OpenLineFile {
    path: PathBuf,
    file: File,
    lineage: Lineage,
    /// How many steps have their record, or are skipped.
    reach: Step,
}

impl LineFiles {
    /// The files in this folder, of the cluster with this digest. The call reads and makes nothing
    /// yet.
    pub fn new(folder: PathBuf, cluster: [u8; 32]) -> Self {
        Self { folder, cluster, open: None }
    }

    /// The files in this folder. The file of this run names the cluster.
    ///
    /// # Errors
    /// [`LineFileError`]: there is no such file.
    pub fn beside(folder: &Path, run: RunId) -> Result<Self, LineFileError> {
        let files = Self::new(folder.to_path_buf(), [0; 32]);
        let (path, mut head) = (files.path(run), [0; HEAD]);
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut head, 0));
        read.map_err(|problem| LineFileError { path, problem })?;
        let cluster = *head.last_chunk().expect("the head ends with 32 bytes of the cluster");
        Ok(Self { cluster, ..files })
    }

    /// Opens the file of a run, or makes it. After this the file has only lines of this history.
    /// The file that was open before is closed.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn open(&mut self, history: &LineHistory) -> Result<LinesFound, LineFileError> {
        self.open = None;
        let path = self.path(history.lineage.run);
        let opened = self.open_at(&path, history);
        let (open, found) = opened.map_err(|problem| LineFileError { path, problem })?;
        self.open = Some(open);
        Ok(found)
    }

    /// Writes records behind the present ones.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    ///
    /// # Panics
    /// If no file is open, or the records do not follow the newest.
    pub fn append(&mut self, records: &[LineRecord]) -> Result<(), LineFileError> {
        let open = self.open.as_mut().expect("lines come for a file that is open");
        let mut bytes = Vec::with_capacity(records.len() * RECORD);
        let begins = open.reach;
        for record in records {
            assert_eq!(record.line.step, open.reach.next(), "I13: each step once, in order");
            open.reach = record.line.step;
            bytes.extend_from_slice(&encode(record));
        }
        let written = open.file.write_all_at(&bytes, place(begins));
        written.map_err(|problem| open.failed(problem))
    }

    /// Notes that the lines up to this step are lost.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    ///
    /// # Panics
    /// If no file is open.
    pub fn skip(&mut self, to: Step) -> Result<(), LineFileError> {
        let open = self.open.as_mut().expect("lines are skipped in a file that is open");
        open.reach = open.reach.max(to);
        open.file.set_len(place(open.reach)).map_err(|problem| open.failed(problem))
    }

    /// The lines that follow each other after this step: at most `most`, and none behind a lost
    /// one.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn page(&self, after: Step, most: usize) -> Result<Vec<MetricsLine>, LineFileError> {
        let Some(open) = &self.open else { return Ok(Vec::new()) };
        let most = (most as u64).min(open.reach.0.saturating_sub(after.0));
        let records = read(&open.file, after, most).map_err(|problem| open.failed(problem))?;
        Ok(records.into_iter().map_while(|record| Some(record?.line)).collect())
    }

    /// The lines after one step, up to another. It leaves out those that are lost.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn between(&self, after: Step, to: Step) -> Result<Vec<MetricsLine>, LineFileError> {
        let Some(open) = &self.open else { return Ok(Vec::new()) };
        let count = open.reach.min(to).0.saturating_sub(after.0);
        let records = read(&open.file, after, count).map_err(|problem| open.failed(problem))?;
        Ok(records.into_iter().flatten().map(|record| record.line).collect())
    }

    /// The open file, for another thread to make it durable, with its history and its last step.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn file(&self) -> Result<Option<(SyncFile, Lineage, Step)>, LineFileError> {
        let Some(open) = &self.open else { return Ok(None) };
        let file = open.file.try_clone().map_err(|problem| open.failed(problem))?;
        Ok(Some((SyncFile { path: open.path.clone(), file }, open.lineage, open.reach)))
    }

    /// Removes the files of all runs but these.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn keep_only(&self, runs: &[RunId]) -> Result<(), LineFileError> {
        let failed = |problem| LineFileError { path: self.folder.clone(), problem };
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let run = name.and_then(|name| name.strip_suffix(".log")).map(str::parse::<RunId>);
            if let Some(Ok(run)) = run
                && !runs.contains(&run)
            {
                fs::remove_file(&path).map_err(|problem| LineFileError { path, problem })?;
            }
        }
        Ok(())
    }

    fn path(&self, run: RunId) -> PathBuf {
        self.folder.join(format!("{run}.log"))
    }

    fn open_at(
        &self,
        path: &Path,
        history: &LineHistory,
    ) -> io::Result<(OpenLineFile, LinesFound)> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        let head = self.head(history.lineage.run);
        let mut found = [0; HEAD];
        let is_read = file.read_exact_at(&mut found, 0).is_ok();
        if is_read && format_1::is_head(&found, &head) {
            file = format_1::upgraded(path, &file, &head)?;
        } else if !is_read || found != head {
            set_aside(path, &file)?;
            file.set_len(0)?;
            file.write_all_at(&head, 0)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
        }
        let reach = verified(&file, history)?;
        let reach = cut(&file, history, reach)?;
        file.set_len(place(reach))?;
        // A predecessor may have been killed before it made the file durable.
        file.sync_data()?;
        let first = read(&file, Step(0), reach.0.min(1))?.pop().flatten();
        let recent = reach.0.min(RECENT as u64);
        let recent = read(&file, Step(reach.0 - recent), recent)?.into_iter().flatten().collect();
        let first_loss = first.map(|record| record.line.loss);
        let open = OpenLineFile { path: path.into(), file, lineage: history.lineage, reach };
        Ok((open, LinesFound { reach, first_loss, recent }))
    }

    fn head(&self, run: RunId) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&LINES_FILE_FORMAT.newest.to_le_bytes());
        head[16..24].copy_from_slice(&run.to_le_bytes());
        head[24..32].copy_from_slice(&(RECORD as u64).to_le_bytes());
        head[32..].copy_from_slice(&self.cluster);
        head
    }
}

impl OpenLineFile {
    fn failed(&self, problem: io::Error) -> LineFileError {
        LineFileError { path: self.path.clone(), problem }
    }
}

/// Keeps a file of another build or cluster under another name: a copy, since `file` is written
/// anew. An empty file needs no copy.
fn set_aside(path: &Path, file: &File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let aside = path.with_extension("log.unusable");
    tracing::warn!(path = %path.display(), aside = %aside.display(), "metrics lines set aside");
    fs::copy(path, aside).map(drop)
}

/// How far the file goes: up to the first of the newest records that differs from what was written.
fn verified(file: &File, history: &LineHistory) -> io::Result<Step> {
    let whole = file.metadata()?.len().saturating_sub(HEAD as u64) / RECORD as u64;
    let mut end = whole;
    loop {
        let begin = end.saturating_sub(UNSURE);
        let mut good = begin;
        while good < end {
            let block = read(file, Step(good), BLOCK.min(end - good))?;
            let is_good = |(record, step): &(Option<LineRecord>, u64)| {
                record.is_some() || history.gap_at(Step(*step)).is_some()
            };
            let count = block.len() as u64;
            let all = block.into_iter().zip(good + 1..);
            let counted = all.take_while(is_good).count() as u64;
            good += counted;
            if counted < count {
                break;
            }
        }
        if good > begin || begin == 0 {
            if good < whole {
                let records = whole - good;
                tracing::warn!(records, step = good, "metrics lines at the end of a file were cut");
            }
            return Ok(Step(good));
        }
        end = begin;
    }
}

/// Where the lines of this history end.
fn cut(file: &File, history: &LineHistory, reach: Step) -> io::Result<Step> {
    history.undone.iter().try_fold(reach, |reach, undone| cut_at(file, history, undone, reach))
}

/// Where the lines end that a rollback has left. Behind the rollback's step, either all lines are
/// of its history, or all are of the one before: generations ascend in a file.
fn cut_at(file: &File, history: &LineHistory, undone: &Undone, reach: Step) -> io::Result<Step> {
    let back_to = undone.after.min(reach);
    let mut next = back_to;
    while let Some(gap) = history.gap_at(next.next()) {
        next = gap.to.min(reach);
    }
    if next >= reach {
        return Ok(reach);
    }
    let line = read(file, next, 1)?.pop().flatten().map(|record| record.line);
    let is_own = line.is_some_and(|line| history.admits(line.step, line.generation));
    Ok(if is_own { reach } else { back_to })
}

/// Where the record of the step after this one begins.
fn place(step: Step) -> u64 {
    HEAD as u64 + step.0 * RECORD as u64
}

/// Reads `count` records after this step. None stands for a record that differs from what was
/// written.
fn read(file: &File, after: Step, count: u64) -> io::Result<Vec<Option<LineRecord>>> {
    let mut bytes = vec![0; count as usize * RECORD];
    file.read_exact_at(&mut bytes, place(after))?;
    let records = bytes.chunks_exact(RECORD).zip(after.0 + 1..);
    Ok(records.map(|(bytes, step)| decode(bytes, Step(step))).collect())
}

fn encode(record: &LineRecord) -> [u8; RECORD] {
    let body = rkyv::to_bytes::<rancor::Error>(record).expect("a record is finite");
    let mut bytes = [0; RECORD];
    bytes[..CHECKSUM].copy_from_slice(&checksum(record.line.step, &body));
    bytes[CHECKSUM..].copy_from_slice(&body);
    bytes
}

fn decode(bytes: &[u8], step: Step) -> Option<LineRecord> {
    rkyv::from_bytes::<LineRecord, rancor::Error>(&open_record(bytes, step)?).ok()
}

/// The content of a step's record, of any format. None if it differs from what was written.
fn open_record(bytes: &[u8], step: Step) -> Option<AlignedVec> {
    let (found, body) = bytes.split_first_chunk::<CHECKSUM>()?;
    if *found != checksum(step, body) {
        return None;
    }
    let mut aligned = AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    Some(aligned)
}

fn checksum(step: Step, body: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    let digest = hasher.update(&step.0.to_le_bytes()).update(body).finalize();
    *digest.as_bytes().first_chunk().expect("32 bytes")
}

#[cfg(test)]
mod tests;
