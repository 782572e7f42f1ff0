//! The file of metrics lines of format 1, whose records have no evaluation of held-out samples and
//! no scalars.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use everstep_transport::protocol::{Decision, Generation, MetricsLine, Step};
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize, rancor};

use super::record::{CHECKSUM, RecordLayout};
use super::{BLOCK, FIRST_HEAD, HEAD, LineRecords, rewritten};
use crate::format::LINES_FILE_FORMAT;
use crate::lines::{LineRecord, LineSums};

/// The bytes of one record.
const RECORD: usize = CHECKSUM + size_of::<rkyv::Archived<LineRecordV1>>();

#[derive(Archive, Serialize, Deserialize)]
struct LineRecordV1 {
    line: MetricsLineV1,
    sums: LineSums,
}

impl From<LineRecordV1> for LineRecord {
    fn from(record: LineRecordV1) -> Self {
        Self { line: record.line.into(), sums: record.sums }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct MetricsLineV1 {
    step: Step,
    generation: Generation,
    world_size: u32,
    loss: f64,
    grad_norm: f64,
    decision: Decision,
    loss_scale: u32,
    learning_rate: f64,
    tokens: u64,
    seconds: f64,
    unix_ms: u64,
    compute_seconds: f64,
    commit_seconds: f64,
    samples_lost: u64,
    samples_repeated: u64,
}

impl From<MetricsLineV1> for MetricsLine {
    fn from(line: MetricsLineV1) -> Self {
        Self {
            step: line.step,
            generation: line.generation,
            world_size: line.world_size,
            loss: line.loss,
            grad_norm: line.grad_norm,
            decision: line.decision,
            loss_scale: line.loss_scale,
            learning_rate: line.learning_rate,
            tokens: line.tokens,
            seconds: line.seconds,
            unix_ms: line.unix_ms,
            compute_seconds: line.compute_seconds,
            commit_seconds: line.commit_seconds,
            samples_lost: line.samples_lost,
            samples_repeated: line.samples_repeated,
            validation_loss: None,
            metric: None,
            scalars: Vec::new(),
        }
    }
}

/// Whether a file is of format 1. Its head has no names, and is else as `head`.
pub(super) fn is_of(file: &File, head: &[u8; HEAD]) -> bool {
    let mut found = [0; FIRST_HEAD];
    if file.read_exact_at(&mut found, 0).is_err() {
        return false;
    }
    let stated = u64::from_le_bytes(*found[8..].first_chunk().expect("a head"));
    let mut expected: [u8; FIRST_HEAD] = *head.first_chunk().expect("a longer head");
    expected[8..16].copy_from_slice(&found[8..16]);
    expected[24..32].copy_from_slice(&(RECORD as u64).to_le_bytes());
    LINES_FILE_FORMAT.number(stated) == Ok(1) && found == expected
}

/// Writes the file anew behind today's head, and puts it in the place of `file`. The record of a
/// lost line, or of one that differs from what was written, is zero.
pub(super) fn upgraded(path: &Path, file: &File, head: &[u8; HEAD]) -> io::Result<File> {
    let count = file.metadata()?.len().saturating_sub(FIRST_HEAD as u64) / RECORD as u64;
    rewritten(path, head, |new| {
        let today = LineRecords { file: new.try_clone()?, layout: RecordLayout::default() };
        for begin in (0..count).step_by(BLOCK as usize) {
            let mut bytes = vec![0; BLOCK.min(count - begin) as usize * RECORD];
            file.read_exact_at(&mut bytes, FIRST_HEAD as u64 + begin * RECORD as u64)?;
            let records = bytes.chunks_exact(RECORD).zip(begin + 1..);
            let records: Vec<Option<LineRecord>> =
                records.map(|(bytes, step)| decode(bytes, Step(step))).collect();
            new.write_all_at(&today.bytes_of(&records), today.place(Step(begin)))?;
        }
        Ok(today.file)
    })
}

fn decode(bytes: &[u8], step: Step) -> Option<LineRecord> {
    let body = RecordLayout::default().opened(bytes, step)?;
    let mut aligned = AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<LineRecordV1, rancor::Error>(&aligned).ok().map(Into::into)
}
