//! The log's formats: each entry, and each snapshot of the state, begins with the number of its
//! format.
//!
//! The state knows the newest format of each coordinator's build. The state's own format is the
//! newest that all of them read, and never goes back: entries of it may be in the log. Leaders
//! propose entries, and all coordinators take snapshots, in the state's format. So a cluster is
//! upgraded one coordinator after the other, and the new format begins with the last of them.

use std::ops::RangeInclusive;

use everstep_transport::protocol::format::LogFormat;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::{CommandEntry, State};

/// The formats of the log that this build reads and writes. A build that changes the bytes of an
/// entry or of the state, or what an entry does to the state, raises the end, once a release has
/// written that format. It goes on reading and writing the format before: the state's own format is
/// the earlier one until the last coordinator is upgraded.
pub const LOG_FORMATS: RangeInclusive<LogFormat> = LogFormat(2)..=LogFormat(2);

/// Bytes that are not an entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// A later build wrote the entry.
    #[error(
        "it has format {found}, and this build of Everstep reads formats {} to {newest}: start a \
         later build", LOG_FORMATS.start()
    )]
    OtherFormat {
        /// The number that the entry states.
        found: LogFormat,
        /// The newest format that this build reads.
        newest: LogFormat,
    },
    /// The bytes end within the number of the format.
    #[error("it cannot be read: it is too short")]
    Short,
    /// The bytes have no such layout.
    #[error("it cannot be read: {0}")]
    Garbled(Box<rancor::Error>),
}

impl CommandEntry {
    /// The entry as bytes of this format.
    ///
    /// # Panics
    /// If this build does not write the format.
    pub fn encode(&self, format: LogFormat) -> Vec<u8> {
        assert!(format >= *LOG_FORMATS.start(), "this build writes no entries of format {format}");
        let entry = rkyv::to_bytes::<rancor::Error>(self);
        let entry = entry.expect("an entry is finite and needs no shared pointers");
        [&format.0.to_le_bytes(), entry.as_slice()].concat()
    }

    /// The entry in these bytes. `newest` is the newest format that the reader knows.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn decode(bytes: &[u8], newest: LogFormat) -> Result<Self, EntryError> {
        let (format, entry) = bytes.split_first_chunk().ok_or(EntryError::Short)?;
        let found = LogFormat(u16::from_le_bytes(*format));
        if !(*LOG_FORMATS.start()..=newest).contains(&found) {
            return Err(EntryError::OtherFormat { found, newest });
        }
        let mut aligned = AlignedVec::<16>::with_capacity(entry.len());
        aligned.extend_from_slice(entry);
        rkyv::from_bytes::<Self, rancor::Error>(&aligned)
            .map_err(|error| EntryError::Garbled(error.into()))
    }
}

impl State {
    /// The format in which leaders propose entries: the newest that all coordinators read.
    pub fn log_format(&self) -> LogFormat {
        self.coordinators.log_format
    }
}
