//! The numbers of the formats of a coordinator's files.
//!
//! Each file states the number of its format in its head, and a build reads the formats from 1 to
//! the one that it writes. A file of another format is refused by name and number. Builds before
//! these numbers stated a digest of their message layouts instead. The digest of the last of them
//! means format 1.
//!
//! A change of a file's bytes needs a new number here and a way to read the old one. Golden files
//! in the tests fail if the bytes change without that. A file's format says nothing about the
//! formats of other files, of the log's entries, or of messages.

use everstep_transport::protocol::DeviceName;

/// The digest of the message layouts of format 1, in all files but the log.
const LAYOUT_1: u64 = 0xbff5_2c02_7448_12bf;

/// The replicated log, `log.redb`. Format 2 states a format with each entry and snapshot.
pub(crate) const LOG_FILE_FORMAT: FileFormat =
    FileFormat { newest: 2, layout_1: 0xa1a3_b780_4701_769b };
/// The list of coordinators, `coordinators`.
pub(crate) const MEMBERSHIP_FILE_FORMAT: FileFormat = FileFormat { newest: 2, layout_1: LAYOUT_1 };
/// The history, `history.log`.
pub(crate) const HISTORY_FILE_FORMAT: FileFormat = FileFormat { newest: 2, layout_1: LAYOUT_1 };
/// The metrics lines of a run, `metrics/RUN.log`.
pub(crate) const LINES_FILE_FORMAT: FileFormat = FileFormat { newest: 2, layout_1: LAYOUT_1 };

/// The formats of one kind of file that this build reads: from 1 to the newest, which it writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileFormat {
    pub(crate) newest: u64,
    /// What files of format 1 state in place of the number.
    layout_1: u64,
}

/// A file of a format that this build does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// A later build wrote the file.
    #[error(
        "it has format {stated}, and this build of Everstep reads formats 1 to {newest}: start the \
         build that wrote it, or a later one"
    )]
    Later {
        /// The file's format.
        stated: u64,
        /// The newest format that this build reads.
        newest: u64,
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

impl FileFormat {
    /// The number of the format that a file states.
    ///
    /// # Errors
    /// [`UnknownFormat`]: this build does not read it.
    pub(crate) fn number(&self, stated: u64) -> Result<u64, UnknownFormat> {
        let newest = self.newest;
        match stated {
            _ if stated == self.layout_1 => Ok(1),
            2.. if stated <= newest => Ok(stated),
            2.. if stated <= u64::from(u32::MAX) => Err(UnknownFormat::Later { stated, newest }),
            _ => Err(UnknownFormat::Unnumbered { stated }),
        }
    }
}

/// The capability of a device, which format 1 has as two numbers.
pub(crate) fn capability((major, minor): (u32, u32)) -> DeviceName {
    DeviceName::of(&format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i23_a_file_is_read_by_its_number_or_refused_by_it() {
        let format = FileFormat { newest: 3, layout_1: 0xfeed_0000_0000 };
        assert_eq!(format.number(0xfeed_0000_0000), Ok(1));
        assert_eq!((format.number(2), format.number(3)), (Ok(2), Ok(3)));
        assert_eq!(format.number(4), Err(UnknownFormat::Later { stated: 4, newest: 3 }));
        for stated in [0, 1, 0xfeed_0000_0001, u64::MAX] {
            assert_eq!(format.number(stated), Err(UnknownFormat::Unnumbered { stated }));
        }
        let words = format.number(4).unwrap_err().to_string();
        assert!(words.contains("format 4") && words.contains("formats 1 to 3"), "{words}");
    }
}
