//! Text in memory: the bytes to train on and the bytes held out.
//!
//! Files come in a given order ([`super::text_files`]). Each file has a training part and a
//! held-out tail. The parts are concatenated, and so are the tails. A byte is a token. This file
//! does not know what a sample is ([`super::text_samples`] does).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The bytes of a list of files.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    training: Vec<u8>,
    held_out: Vec<u8>,
    fingerprint: [u8; 32],
}

impl Text {
    /// Reads `files` in order and holds out the last `floor(bytes * validation)` bytes of each.
    pub fn load(files: &[PathBuf], validation: f64) -> Result<Self, TextError> {
        let (mut training, mut held_out) = (Vec::new(), Vec::new());
        let mut hasher = blake3::Hasher::new();
        for path in files {
            let begin = training.len();
            read(path, &mut training).map_err(|source| TextError::unreadable(path, source))?;
            let file = &training[begin..];
            // The cast maps a value that is no share of the file to the nearest share.
            let tail = ((file.len() as f64 * validation) as usize).min(file.len());
            let kept = file.len() - tail;
            // The lengths come first, so that no two lists of files hash the same bytes.
            hasher.update(&(kept as u64).to_le_bytes());
            hasher.update(&(tail as u64).to_le_bytes());
            hasher.update(file);
            held_out.extend_from_slice(&file[kept..]);
            training.truncate(begin + kept);
        }
        Ok(Self { training, held_out, fingerprint: hasher.finalize().into() })
    }

    /// The training parts of all files.
    pub fn training(&self) -> &[u8] {
        &self.training
    }

    /// The held-out tails of all files.
    pub fn held_out(&self) -> &[u8] {
        &self.held_out
    }

    /// The BLAKE3 hash over each file's two lengths and its content, in order. The places of the
    /// files do not matter.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut file = File::open(path)?;
    // A device or a pipe may never end, and gives every worker other bytes.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.read_to_end(bytes)
}

/// Why there is no text, or no text that a run could train on.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// There is nothing at a path.
    #[error(
        "there is no {}: name a file, a directory or @LIST that every worker sees", path.display()
    )]
    Missing {
        /// The path that the user gave.
        path: PathBuf,
    },
    /// The system does not let this process read a file or directory.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// What the system says of it.
        source: io::Error,
    },
    /// A directory or a list has no files.
    #[error("no file in {}: name files to train on (hidden files do not count)", path.display())]
    NoFiles {
        /// The directory or list.
        path: PathBuf,
    },
    /// The training text is shorter than one sample.
    #[error(
        "the training text has {bytes} bytes, and one sample of context {context} takes {}: \
         name more text, hold out less of it, or make model.context smaller", context + 1
    )]
    TooShort {
        /// The length of the training text.
        bytes: usize,
        /// The tokens of a sample.
        context: usize,
    },
    /// The default text, the sources of Everstep's dependencies, is not here.
    #[error(
        "there is no text by default: the sources of Everstep's dependencies are not in {} (they \
         are where cargo built it). Name a text with --data", path.display()
    )]
    NoDefault {
        /// The folder in which cargo keeps them.
        path: PathBuf,
    },
    /// The `Cargo.lock` that names the sources cannot be parsed.
    #[error("cannot read the Cargo.lock that names the default text: {0}")]
    Lockfile(#[from] toml::de::Error),
}

impl TextError {
    /// Whether another machine, or this one later, may well read the same text. If a path has
    /// content that is not text, this is so on every machine.
    pub(crate) fn is_of_place(&self) -> bool {
        let Self::Unreadable { source, .. } = self else { return false };
        !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other)
    }

    /// The error for an unreadable `path`.
    pub(crate) fn unreadable(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(contents: &[&[u8]]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |(number, content): (usize, &&[u8])| {
            let path = directory.path().join(format!("{number}"));
            fs::write(&path, content).expect("a file");
            path
        };
        let files = contents.iter().enumerate().map(file).collect();
        (directory, files)
    }

    fn fingerprint(contents: &[&[u8]], validation: f64) -> [u8; 32] {
        let (_directory, files) = written(contents);
        Text::load(&files, validation).expect("text").fingerprint()
    }

    #[test]
    fn each_file_holds_out_its_own_tail() {
        let (_directory, files) = written(&[b"abcdefghij", b"", b"vwxyz"]);
        let text = Text::load(&files, 0.25).expect("text");
        assert_eq!(text.training(), b"abcdefghvwxy");
        assert_eq!(text.held_out(), b"ijz");
    }

    #[test]
    fn nothing_need_be_held_out() {
        let (_directory, files) = written(&[b"abc", b"de"]);
        let text = Text::load(&files, 0.0).expect("text");
        assert_eq!((text.training(), text.held_out()), (&b"abcde"[..], &b""[..]));
    }

    #[test]
    fn the_fingerprint_tells_content_order_files_and_split() {
        let all = [
            fingerprint(&[b"abcd", b"efgh"], 0.25),
            fingerprint(&[b"abcd", b"efgx"], 0.25),
            fingerprint(&[b"efgh", b"abcd"], 0.25),
            fingerprint(&[b"abcdefgh"], 0.25),
            fingerprint(&[b"abcd", b"efgh"], 0.5),
            fingerprint(&[b"abcd", b"efgh", b""], 0.25),
        ];
        for (at, left) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|right| right != left), "{at} repeats");
        }
        assert_eq!(all[0], fingerprint(&[b"abcd", b"efgh"], 0.25));
    }

    #[test]
    fn what_is_missing_and_what_is_no_file_are_named() {
        let (directory, _) = written(&[]);
        let missing = directory.path().join("nowhere");
        let error = Text::load(&[missing], 0.1).err().expect("an error");
        assert!(matches!(&error, TextError::Missing { path } if path.ends_with("nowhere")));

        let error = Text::load(&[directory.path().to_path_buf()], 0.1).err().expect("an error");
        assert!(matches!(error, TextError::Unreadable { .. }), "{error}");
    }
}
