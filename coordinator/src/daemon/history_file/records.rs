//! Reads records of the history file one after another, through a buffer of bounded size.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{RECORD_HEAD, decode, length_of};
use crate::history_coverage::HistoryRecord;

/// How many bytes one read takes, unless a record is longer.
const BUFFER: u64 = 256 << 10;

/// The records in a part of a file.
pub(super) struct StoredRecords<'a> {
    file: &'a File,
    /// Where the next record begins.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The place of the buffer in the file.
    origin: u64,
}

impl<'a> StoredRecords<'a> {
    /// The records from a place on, up to an end.
    pub(super) fn between(file: &'a File, place: u64, end: u64) -> Self {
        Self { file, at: place, end, buffer: Vec::new(), origin: place }
    }

    /// The next record, and where it begins. None at the end, and if the bytes differ from what was
    /// written.
    pub(super) fn next(&mut self) -> io::Result<Option<(HistoryRecord, u64)>> {
        let place = self.at;
        let Some(head) = self.bytes(RECORD_HEAD as u64)? else { return Ok(None) };
        let Some(length) = head.first_chunk().and_then(|head| length_of(head, place)) else {
            return Ok(None);
        };
        let Some(bytes) = self.bytes(RECORD_HEAD as u64 + u64::from(length))? else {
            return Ok(None);
        };
        let Some((record, length)) = decode(bytes, 0, place) else { return Ok(None) };
        self.at += length as u64;
        Ok(Some((record, place)))
    }

    /// Where the next record begins, or would.
    pub(super) fn place(&self) -> u64 {
        self.at
    }

    /// So many bytes from the next record on. None if the part ends before.
    fn bytes(&mut self, count: u64) -> io::Result<Option<&[u8]>> {
        let rest = self.end.saturating_sub(self.at);
        if count > rest {
            return Ok(None);
        }
        if self.at + count > self.origin + self.buffer.len() as u64 {
            self.buffer.resize(count.max(BUFFER).min(rest) as usize, 0);
            self.origin = self.at;
            self.file.read_exact_at(&mut self.buffer, self.at)?;
        }
        let begin = (self.at - self.origin) as usize;
        Ok(Some(&self.buffer[begin..begin + count as usize]))
    }
}
