//! The files of metrics lines in a coordinator's directory: `metrics/RUN.log`, one for each run.
//!
//! A file is a head and records of one size. A record's place follows from its step. So one call
//! reads a page, and memory does not grow with the file. If a line has a scalar with a new name, as
//! the first line may, the file is written anew with larger records. Records of lost lines are
//! zero. An opened file is verified at its end only, as far back as records may not have been
//! durable when the process before ended. A record that differs from what was written is cut away
//! there, with all behind it, and other processes tell the lines again.

mod format_1;
mod record;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{Lineage, MetricsLine, RunId, Step};

use crate::format::LINES_FILE_FORMAT;
use crate::lines::{LineRecord, LinesFound, RECENT, UNSURE};
use crate::log::SyncFile;
use crate::state::{LineHistory, Undone};
use record::{RecordLayout, TABLE};

/// The first bytes of a file.
const MAGIC: [u8; 8] = *b"eslines\x01";
/// [`MAGIC`], the number of the format, the run, the size of a record, and the cluster.
const FIRST_HEAD: usize = 32 + 32;
/// The same, and the names of scalars.
const HEAD: usize = FIRST_HEAD + TABLE;
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
    records: LineRecords,
    lineage: Lineage,
    /// How many steps have their record, or are skipped.
    reach: Step,
}

/// A file as a sequence of records, the first of them that of step 1.
#[derive(Debug)]
struct LineRecords {
    file: File,
    layout: RecordLayout,
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
        let (path, mut head) = (files.path(run), [0; FIRST_HEAD]);
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
        let cluster = self.cluster;
        let open = self.open.as_mut().expect("lines come for a file that is open");
        if let Some(layout) = open.records.layout.grown(records) {
            let head = head(open.lineage.run, &layout, &cluster);
            let grown = open.records.grown(layout, &open.path, &head, open.reach);
            open.records = grown.map_err(|problem| open.failed(problem))?;
        }
        let layout = &open.records.layout;
        let mut bytes = Vec::with_capacity(records.len() * layout.size());
        let begins = open.reach;
        for record in records {
            assert_eq!(record.line.step, open.reach.next(), "I13: each step once, in order");
            open.reach = record.line.step;
            bytes.extend_from_slice(&layout.encode(record));
        }
        let written = open.records.file.write_all_at(&bytes, open.records.place(begins));
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
        let end = open.records.place(open.reach);
        open.records.file.set_len(end).map_err(|problem| open.failed(problem))
    }

    /// The lines that follow each other after this step: at most `most`, and none behind a lost
    /// one.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn page(&self, after: Step, most: usize) -> Result<Vec<MetricsLine>, LineFileError> {
        let Some(open) = &self.open else { return Ok(Vec::new()) };
        let most = (most as u64).min(open.reach.0.saturating_sub(after.0));
        let records = open.records.read(after, most).map_err(|problem| open.failed(problem))?;
        Ok(records.into_iter().map_while(|record| Some(record?.line)).collect())
    }

    /// The lines after one step, up to another. It leaves out those that are lost.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn between(&self, after: Step, to: Step) -> Result<Vec<MetricsLine>, LineFileError> {
        let Some(open) = &self.open else { return Ok(Vec::new()) };
        let count = open.reach.min(to).0.saturating_sub(after.0);
        let records = open.records.read(after, count).map_err(|problem| open.failed(problem))?;
        Ok(records.into_iter().flatten().map(|record| record.line).collect())
    }

    /// The open file, for another thread to make it durable, with its history and its last step.
    ///
    /// # Errors
    /// [`LineFileError`] if the disk fails.
    pub fn file(&self) -> Result<Option<(SyncFile, Lineage, Step)>, LineFileError> {
        let Some(open) = &self.open else { return Ok(None) };
        let file = open.records.file.try_clone().map_err(|problem| open.failed(problem))?;
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
            let run = name.and_then(|name| name.strip_suffix(".log")).map(str::parse::<u64>);
            if let Some(Ok(run)) = run
                && !runs.contains(&RunId(run))
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
        let run = history.lineage.run;
        let mut layout = RecordLayout::default();
        let first_head = head(run, &layout, &self.cluster);
        if format_1::is_of(&file, &first_head) {
            file = format_1::upgraded(path, &file, &first_head)?;
        } else if let Some(known) = self.layout_of(&file, run) {
            layout = known;
        } else {
            set_aside(path, &file)?;
            file.set_len(0)?;
            file.write_all_at(&first_head, 0)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
        }
        let records = LineRecords { file, layout };
        let reach = records.cut(history, records.verified(history)?)?;
        records.file.set_len(records.place(reach))?;
        // A predecessor may have been killed before it made the file durable.
        records.file.sync_data()?;
        let first = records.read(Step(0), reach.0.min(1))?.pop().flatten();
        let recent = reach.0.min(RECENT as u64);
        let recent = records.read(Step(reach.0 - recent), recent)?.into_iter().flatten().collect();
        let first_loss = first.map(|record| record.line.loss);
        let open = OpenLineFile { path: path.into(), records, lineage: history.lineage, reach };
        Ok((open, LinesFound { reach, first_loss, recent }))
    }

    /// The layout that a file's head states. None if it is no head of today's format, this run and
    /// this cluster.
    fn layout_of(&self, file: &File, run: RunId) -> Option<RecordLayout> {
        let mut found = [0; HEAD];
        file.read_exact_at(&mut found, 0).ok()?;
        let size = u64::from_le_bytes(*found[24..].first_chunk()?);
        let layout = RecordLayout::of(size, found.last_chunk()?)?;
        (found == head(run, &layout, &self.cluster)).then_some(layout)
    }
}

/// The head of a file.
fn head(run: RunId, layout: &RecordLayout, cluster: &[u8; 32]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&LINES_FILE_FORMAT.newest.to_le_bytes());
    head[16..24].copy_from_slice(&run.0.to_le_bytes());
    head[24..32].copy_from_slice(&(layout.size() as u64).to_le_bytes());
    head[32..FIRST_HEAD].copy_from_slice(cluster);
    head[FIRST_HEAD..].copy_from_slice(&layout.table());
    head
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

impl LineRecords {
    /// How far the file goes: up to the first of the newest records that differs from what was
    /// written.
    fn verified(&self, history: &LineHistory) -> io::Result<Step> {
        let bytes = self.file.metadata()?.len().saturating_sub(HEAD as u64);
        let whole = bytes / self.layout.size() as u64;
        let mut end = whole;
        loop {
            let begin = end.saturating_sub(UNSURE);
            let mut good = begin;
            while good < end {
                let block = self.read(Step(good), BLOCK.min(end - good))?;
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
                    let step = good;
                    tracing::warn!(records, step, "metrics lines at the end of a file were cut");
                }
                return Ok(Step(good));
            }
            end = begin;
        }
    }

    /// Where the lines of this history end.
    fn cut(&self, history: &LineHistory, reach: Step) -> io::Result<Step> {
        let mut undone = history.undone.iter();
        undone.try_fold(reach, |reach, undone| self.cut_at(history, undone, reach))
    }

    /// Where the lines end that a rollback has left. Behind the rollback's step, either all lines
    /// are of its history, or all are of the one before: generations ascend in a file.
    fn cut_at(&self, history: &LineHistory, undone: &Undone, reach: Step) -> io::Result<Step> {
        let back_to = undone.after.min(reach);
        let mut next = back_to;
        while let Some(gap) = history.gap_at(next.next()) {
            next = gap.to.min(reach);
        }
        if next >= reach {
            return Ok(reach);
        }
        let line = self.read(next, 1)?.pop().flatten().map(|record| record.line);
        let is_own = line.is_some_and(|line| history.admits(line.step, line.generation));
        Ok(if is_own { reach } else { back_to })
    }

    /// Where the record of the step after this one begins.
    fn place(&self, step: Step) -> u64 {
        HEAD as u64 + step.0 * self.layout.size() as u64
    }

    /// Reads `count` records after this step. None stands for a record that differs from what was
    /// written.
    fn read(&self, after: Step, count: u64) -> io::Result<Vec<Option<LineRecord>>> {
        let size = self.layout.size();
        let mut bytes = vec![0; count as usize * size];
        self.file.read_exact_at(&mut bytes, self.place(after))?;
        let records = bytes.chunks_exact(size).zip(after.0 + 1..);
        Ok(records.map(|(bytes, step)| self.layout.decode(bytes, Step(step))).collect())
    }

    /// The file with these records, up to `reach`, in another layout and behind its head. It is
    /// durable, and in the place of the other one.
    fn grown(
        &self,
        layout: RecordLayout,
        path: &Path,
        head: &[u8; HEAD],
        reach: Step,
    ) -> io::Result<Self> {
        rewritten(path, head, |new| {
            let grown = Self { file: new.try_clone()?, layout: layout.clone() };
            for begin in (0..reach.0).step_by(BLOCK as usize) {
                let block = self.read(Step(begin), BLOCK.min(reach.0 - begin))?;
                new.write_all_at(&grown.bytes_of(&block), grown.place(Step(begin)))?;
            }
            Ok(grown)
        })
    }

    /// The bytes of records. One that is lost is zero.
    fn bytes_of(&self, records: &[Option<LineRecord>]) -> Vec<u8> {
        let lost = || vec![0; self.layout.size()];
        let bytes = |record: &Option<LineRecord>| {
            record.as_ref().map_or_else(lost, |record| self.layout.encode(record))
        };
        records.iter().flat_map(bytes).collect()
    }
}

/// Writes a file anew beside `path`, with this head and what `write` writes, and puts it there once
/// it is durable.
fn rewritten<T>(
    path: &Path,
    head: &[u8; HEAD],
    write: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    let partial = path.with_extension("log.partial");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&partial)?;
    file.write_all_at(head, 0)?;
    let written = write(&file)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    let folder = path.parent().expect("a file in a folder");
    File::open(folder)?.sync_all()?;
    Ok(written)
}

#[cfg(test)]
mod tests;
