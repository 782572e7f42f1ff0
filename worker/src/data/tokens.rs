//! Files of tokens, read in place: no file is ever in memory as a whole.
//!
//! A file is what llm.c writes, with a header that says how a token is stored, or what nanoGPT
//! writes, bare tokens. All numbers are little-endian. Each file has a training part and a held-out
//! tail. The parts are concatenated, and so are the tails. This file does not know what a sample is
//! ([`super::token_samples`] does).

mod error;
mod file;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use everstep_transport::protocol::run::DataSpec;

use super::DataError;
use super::text_files;
pub use error::TokenFileError;
use file::TokenFile;

/// The tokens of a list of files.
pub struct Tokens {
    training: TokenRow,
    held_out: TokenRow,
    vocabulary: u32,
    fingerprint: [u8; 32],
}

/// Parts of files, one after the other.
#[derive(Default)]
pub struct TokenRow {
    parts: Vec<FilePart>,
    length: u64,
}

/// A part of a file.
struct FilePart {
    /// The place of the part's first token in the row.
    begin: u64,
    file: Arc<TokenFile>,
    /// The tokens of the file that belong to the part.
    tokens: Range<u64>,
}

/// The files that `path` stands for. Of a directory these are the files below it whose names end in
/// `.bin`. Other paths stand for what [`text_files::resolve`] says.
pub fn files(path: &str) -> Result<Vec<PathBuf>, TokenFileError> {
    let mut files = text_files::resolve(path)?;
    if Path::new(path).is_dir() {
        files.retain(|file| file.extension().is_some_and(|extension| extension == "bin"));
        if files.is_empty() {
            return Err(TokenFileError::NoFiles { path: path.into() });
        }
    }
    Ok(files)
}

impl Tokens {
    /// Opens `files` in order, and holds out the last `floor(tokens * validation)` tokens of each.
    /// Reads each of them once, for the fingerprint and to check every token.
    pub fn open(
        files: &[PathBuf],
        data: &DataSpec,
        vocabulary: u32,
    ) -> Result<Self, TokenFileError> {
        let (mut training, mut held_out) = (TokenRow::default(), TokenRow::default());
        let mut hasher = blake3::Hasher::new();
        for path in files {
            let file = Arc::new(TokenFile::open(path, data.dtype)?);
            // The cast maps a value that is no share of the file to the nearest share.
            let tail = ((file.tokens() as f64 * data.validation) as u64).min(file.tokens());
            let kept = file.tokens() - tail;
            // The lengths come first, so that no two lists of files hash the same bytes.
            hasher.update(&kept.to_le_bytes());
            hasher.update(&tail.to_le_bytes());
            hasher.update(&[file.token_bytes() as u8]);
            file.scan(vocabulary, &mut |bytes| {
                hasher.update(bytes);
            })?;
            training.push(&file, 0..kept);
            held_out.push(&file, kept..kept + tail);
        }
        Ok(Self { training, held_out, vocabulary, fingerprint: hasher.finalize().into() })
    }

    /// The training parts of all files.
    pub fn training(&self) -> &TokenRow {
        &self.training
    }

    /// The held-out tails of all files.
    pub fn held_out(&self) -> &TokenRow {
        &self.held_out
    }

    /// The BLAKE3 hash over each file's two lengths, its bytes a token and its tokens, in order.
    /// Headers and the places of the files do not matter.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Reads a range of one of the two rows, which must be as long.
    ///
    /// # Errors
    ///
    /// [`DataError::Retry`] if the system cannot read a file, [`DataError::Refuse`] if a file is
    /// not what it was when it was opened.
    pub fn read(&self, row: &TokenRow, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        assert!(range.end <= row.length, "{range:?} of {} tokens", row.length);
        let mut tokens = Vec::with_capacity((range.end - range.start) as usize);
        let first = row.parts.partition_point(|part| part.end() <= range.start);
        for part in &row.parts[first..] {
            if part.begin >= range.end {
                break;
            }
            let start = part.tokens.start + range.start.max(part.begin) - part.begin;
            let end = part.tokens.start + range.end.min(part.end()) - part.begin;
            part.file.read(start..end, self.vocabulary, &mut tokens)?;
        }
        Ok(tokens)
    }
}

impl TokenRow {
    /// The number of tokens.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn push(&mut self, file: &Arc<TokenFile>, tokens: Range<u64>) {
        let length = tokens.end - tokens.start;
        if length > 0 {
            self.parts.push(FilePart { begin: self.length, file: file.clone(), tokens });
            self.length += length;
        }
    }
}

impl FilePart {
    fn end(&self) -> u64 {
        self.begin + self.tokens.end - self.tokens.start
    }
}

#[cfg(test)]
pub(super) mod tests;
