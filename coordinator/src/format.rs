//! The numbers of the formats of a coordinator's files.
//!
//! Each file states the number of its format in its head, and a build reads a range of formats of
//! each kind of file, up to the one that it writes. A file of another format is refused by name and
//! number. Builds before these numbers stated a digest of their message layouts instead. The digest
//! of the last of them means format 1.
//!
//! A change of a file's bytes needs a new number here and a way to read the old one. Golden files
//! in the tests fail if the bytes change without that. A file's format says nothing about the
//! formats of other files, of the log's entries, or of messages.

use std::ops::RangeInclusive;

/// The digest of the message layouts of format 1, in all files but the log.
const LAYOUT_1: u64 = 0xbff5_2c02_7448_12bf;

/// The replicated log, `log.redb`. Format 2 states a format with each entry and snapshot.
pub(crate) const LOG_FILE_FORMAT: FileFormat =
    FileFormat { oldest: 2, newest: 2, layout_1: 0xa1a3_b780_4701_769b };
/// The list of coordinators, `coordinators`.
pub(crate) const MEMBERSHIP_FILE_FORMAT: FileFormat =
    FileFormat { oldest: 2, newest: 2, layout_1: LAYOUT_1 };
/// The history of events, `history.log`.
pub(crate) const HISTORY_FILE_FORMAT: FileFormat =
    FileFormat { oldest: 2, newest: 2, layout_1: LAYOUT_1 };
/// The metrics lines of a run, `metrics/RUN.log`.
pub(crate) const LINES_FILE_FORMAT: FileFormat =
    FileFormat { oldest: 1, newest: 2, layout_1: LAYOUT_1 };

/// The formats of one kind of file that this build reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileFormat {
    /// The oldest format that this build reads.
    pub(crate) oldest: u64,
    /// The newest format that this build reads, and the one that it writes.
    pub(crate) newest: u64,
    /// What files of format 1 state in place of the number.
    layout_1: u64,
}

/// A file of a format that this build does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// A later build wrote the file.
    #[error(
        "it has format {stated}, and this build of Everstep reads {}: start the build that wrote \
         it, or a later one", formats(.read)
    )]
    Later {
        /// The number that the file states.
        stated: u64,
        /// The formats that this build reads.
        read: RangeInclusive<u64>,
    },
    /// An earlier build wrote the file, and this one no longer reads it.
    #[error(
        "it has format {stated}, and this build of Everstep reads {}: start an earlier build, \
         which reads it", formats(.read)
    )]
    Earlier {
        /// The number that the file states.
        stated: u64,
        /// The formats that this build reads.
        read: RangeInclusive<u64>,
    },
    /// The file states no number that a build has ever written.
    #[error(
        "its format has no number ({stated:016x}): a development build of Everstep wrote it, and \
         only that build reads it"
    )]
    Unnumbered {
        /// What stands in place of the number.
        stated: u64,
    },
}

/// A range of formats, in words.
fn formats(range: &RangeInclusive<u64>) -> String {
    match (range.start(), range.end()) {
        (oldest, newest) if oldest == newest => format!("format {newest}"),
        (oldest, newest) => format!("formats {oldest} to {newest}"),
    }
}

impl FileFormat {
    /// The number of the format that a file states.
    ///
    /// # Errors
    /// [`UnknownFormat`]: this build does not read it.
    pub(crate) fn number(&self, stated: u64) -> Result<u64, UnknownFormat> {
        let read = self.oldest..=self.newest;
        let stated = match stated {
            _ if stated == self.layout_1 => 1,
            2.. if stated <= u64::from(u32::MAX) => stated,
            _ => return Err(UnknownFormat::Unnumbered { stated }),
        };
        match stated {
            _ if stated < self.oldest => Err(UnknownFormat::Earlier { stated, read }),
            _ if stated > self.newest => Err(UnknownFormat::Later { stated, read }),
            _ => Ok(stated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: u64 = 0xfeed_0000_0000;

    #[test]
    fn i23_a_file_is_read_by_its_number_or_refused_by_it() {
        let format = FileFormat { oldest: 1, newest: 3, layout_1: LAYOUT };
        assert_eq!(format.number(LAYOUT), Ok(1));
        assert_eq!((format.number(2), format.number(3)), (Ok(2), Ok(3)));
        assert_eq!(format.number(4), Err(UnknownFormat::Later { stated: 4, read: 1..=3 }));
        for stated in [0, 1, 0xfeed_0000_0001, u64::MAX] {
            assert_eq!(format.number(stated), Err(UnknownFormat::Unnumbered { stated }));
        }
        let words = format.number(4).unwrap_err().to_string();
        assert!(words.contains("format 4") && words.contains("formats 1 to 3"), "{words}");
    }

    #[test]
    fn i23_a_file_older_than_the_oldest_readable_format_is_refused_by_its_number() {
        let format = FileFormat { oldest: 3, newest: 3, layout_1: LAYOUT };
        for (stated, number) in [(LAYOUT, 1), (2, 2)] {
            let refused = format.number(stated).expect_err("an older format");
            assert_eq!(refused, UnknownFormat::Earlier { stated: number, read: 3..=3 });
            let words = refused.to_string();
            let expected =
                format!("it has format {number}, and this build of Everstep reads format 3:");
            assert!(words.starts_with(&expected) && words.contains("an earlier build"), "{words}");
        }
        assert_eq!(format.number(3), Ok(3));
    }
}
