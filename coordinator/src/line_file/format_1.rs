//! The file of metrics lines of format 1, whose records have no evaluation of held-out samples.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use everstep_transport::protocol::Step;
use rkyv::{Archive, Deserialize, Serialize};

use super::{BLOCK, CHECKSUM, HEAD, RECORD, encode, open_record};
use crate::format::LINES_FILE_FORMAT;
use crate::lines::{LineRecord, LineSums};
use crate::state::format_1::MetricsLineV1;

/// The bytes of one record.
const RECORD_1: usize = CHECKSUM + size_of::<rkyv::Archived<LineRecordV1>>();

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

/// Whether a file's head is that of format 1, and else as today's.
pub(super) fn is_head(found: &[u8; HEAD], head: &[u8; HEAD]) -> bool {
    let mut expected = *head;
    expected[8..16].copy_from_slice(&found[8..16]);
    expected[24..32].copy_from_slice(&(RECORD_1 as u64).to_le_bytes());
    let stated = u64::from_le_bytes(*found[8..].first_chunk().expect("a head"));
    LINES_FILE_FORMAT.number(stated) == Ok(1) && *found == expected
}

/// Writes the file anew behind today's head, and puts it in the place of `file`. The record of a
/// lost line, or of one that differs from what was written, is zero.
pub(super) fn upgraded(path: &Path, file: &File, head: &[u8; HEAD]) -> io::Result<File> {
    let partial = path.with_extension("log.partial");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let new = options.open(&partial)?;
    new.write_all_at(head, 0)?;
    let count = file.metadata()?.len().saturating_sub(HEAD as u64) / RECORD_1 as u64;
    for begin in (0..count).step_by(BLOCK as usize) {
        let records = BLOCK.min(count - begin);
        let mut bytes = vec![0; records as usize * RECORD_1];
        file.read_exact_at(&mut bytes, HEAD as u64 + begin * RECORD_1 as u64)?;
        let mut upgraded = Vec::with_capacity(records as usize * RECORD);
        for (bytes, step) in bytes.chunks_exact(RECORD_1).zip(begin + 1..) {
            let record: Option<LineRecord> = decode(bytes, Step(step)).map(Into::into);
            upgraded.extend(record.map_or([0; RECORD], |record| encode(&record)));
        }
        new.write_all_at(&upgraded, HEAD as u64 + begin * RECORD as u64)?;
    }
    new.sync_all()?;
    fs::rename(&partial, path)?;
    let folder = path.parent().expect("a file in a folder");
    File::open(folder)?.sync_all()?;
    Ok(new)
}

fn decode(bytes: &[u8], step: Step) -> Option<LineRecordV1> {
    rkyv::from_bytes::<LineRecordV1, rkyv::rancor::Error>(&open_record(bytes, step)?).ok()
}
