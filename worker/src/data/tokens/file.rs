//! One file of tokens: its header, and its tokens by their places.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::run::TokenType;

use super::error::{TokenFileError, bytes};
use crate::data::DataError;
use crate::data::text::TextError;

/// Bytes of a header: 256 numbers of 32 bits. The first three are the format's own number, its
/// version, and the number of tokens.
const HEADER_BYTES: u64 = 1024;
/// Bytes that the scan reads at once.
const SCAN_BYTES: usize = 1 << 20;

/// The formats with a header: the number that a file begins with, its version, and its tokens'
/// type. llm.c writes both (`dev/data/data_common.py`), for GPT-2 and for LLaMA 3.
const FORMATS: [(i32, i32, TokenType); 2] =
    [(20240520, 1, TokenType::U16), (20240801, 7, TokenType::U32)];

/// The first bytes of files that have tokens beside them, or the same ending.
const OTHERS: [(&[u8], &str); 7] = [
    (&20240326_i32.to_le_bytes(), "a model of llm.c"),
    (&20240327_i32.to_le_bytes(), "a debugging state of llm.c"),
    (&20240328_i32.to_le_bytes(), "a tokenizer of llm.c"),
    (&20240522_i32.to_le_bytes(), "a multiple-choice test of llm.c"),
    (b"MMIDIDX\0", "an index of Megatron's, not its tokens"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"PK\x03\x04", "a ZIP archive, as PyTorch writes"),
];

/// An open file of tokens.
pub(super) struct TokenFile {
    path: PathBuf,
    file: File,
    dtype: TokenType,
    /// Where the tokens begin, bytes.
    begin: u64,
    tokens: u64,
}

impl TokenFile {
    /// Opens a file. `stated` is the type of a file without a header.
    pub(super) fn open(path: &Path, stated: Option<TokenType>) -> Result<Self, TokenFileError> {
        let unreadable = |source| TokenFileError::File(TextError::unreadable(path, source));
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(unreadable(io::Error::other("it is not a regular file")));
        }
        let length = metadata.len();
        let mut head = [0; 12];
        let read = (length as usize).min(head.len());
        file.read_exact_at(&mut head[..read], 0).map_err(unreadable)?;
        if let Some((_, kind)) = OTHERS.iter().find(|(first, _)| head.starts_with(first)) {
            return Err(TokenFileError::OtherKind { path: path.into(), kind });
        }
        let [magic, version, tokens] = [0, 4, 8]
            .map(|at| i32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let path = path.to_path_buf();
        let Some((_, known, dtype)) = FORMATS.into_iter().find(|(first, ..)| *first == magic)
        else {
            return Self::bare(path, file, length, stated);
        };
        if version != known {
            return Err(TokenFileError::Version { path, found: version, known });
        }
        if let Some(stated) = stated.filter(|stated| *stated != dtype) {
            return Err(TokenFileError::Contradiction { path, found: dtype, stated });
        }
        let tokens = u64::try_from(tokens).unwrap_or(0);
        let expected = HEADER_BYTES + tokens * bytes(dtype);
        if length != expected {
            let expected = format!("its header states {tokens} tokens, which take {expected}");
            return Err(TokenFileError::Length { path, found: length, expected });
        }
        Ok(Self { path, file, dtype, begin: HEADER_BYTES, tokens })
    }

    /// A file without a header.
    fn bare(
        path: PathBuf,
        file: File,
        length: u64,
        stated: Option<TokenType>,
    ) -> Result<Self, TokenFileError> {
        let Some(dtype) = stated else { return Err(TokenFileError::Untyped { path }) };
        let size = bytes(dtype);
        if !length.is_multiple_of(size) {
            let expected = format!("a token takes {size}");
            return Err(TokenFileError::Length { path, found: length, expected });
        }
        Ok(Self { path, file, dtype, begin: 0, tokens: length / size })
    }

    /// The number of tokens.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Bytes of a token.
    pub(super) fn token_bytes(&self) -> u64 {
        bytes(self.dtype)
    }

    /// Shows the bytes of all tokens, in order, and checks that each is below `vocabulary`.
    pub(super) fn scan(
        &self,
        vocabulary: u32,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TokenFileError> {
        let at_once = SCAN_BYTES as u64 / self.token_bytes();
        let mut buffer = vec![0; SCAN_BYTES];
        let mut first = 0;
        while first < self.tokens {
            let count = at_once.min(self.tokens - first);
            let bytes = &mut buffer[..(count * self.token_bytes()) as usize];
            self.read_bytes(first, bytes)
                .map_err(|source| TextError::unreadable(&self.path, source))?;
            show(bytes);
            self.check(first, bytes, vocabulary)?;
            first += count;
        }
        Ok(())
    }

    /// Appends the tokens of this range to `tokens`.
    pub(super) fn read(
        &self,
        range: Range<u64>,
        vocabulary: u32,
        tokens: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        let mut bytes = vec![0; ((range.end - range.start) * self.token_bytes()) as usize];
        self.read_bytes(range.start, &mut bytes).map_err(|error| {
            let path = self.path.display();
            match error.kind() {
                io::ErrorKind::UnexpectedEof => DataError::Refuse(format!(
                    "{path} has become shorter: tokens {} to {} are gone",
                    range.start, range.end
                )),
                _ => DataError::Retry(format!("cannot read {path}: {error}")),
            }
        })?;
        self.check(range.start, &bytes, vocabulary)
            .map_err(|error| DataError::Refuse(error.to_string()))?;
        match self.dtype {
            TokenType::U16 => tokens.extend(shorts(&bytes)),
            TokenType::U32 => tokens.extend(longs(&bytes)),
        }
        Ok(())
    }

    fn read_bytes(&self, first: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.begin + first * self.token_bytes())
    }

    /// Checks the bytes of tokens from the place `first` on.
    fn check(&self, first: u64, bytes: &[u8], vocabulary: u32) -> Result<(), TokenFileError> {
        let greatest = match self.dtype {
            TokenType::U16 => shorts(bytes).max(),
            TokenType::U32 => longs(bytes).max(),
        };
        if greatest.is_none_or(|token| token < vocabulary) {
            return Ok(());
        }
        let is_wrong = |(_, token): &(usize, u32)| *token >= vocabulary;
        let wrong = match self.dtype {
            TokenType::U16 => shorts(bytes).enumerate().find(is_wrong),
            TokenType::U32 => longs(bytes).enumerate().find(is_wrong),
        };
        let (place, token) = wrong.expect("the greatest is one");
        let (path, position) = (self.path.clone(), first + place as u64);
        Err(TokenFileError::Vocabulary { path, position, token, vocabulary })
    }
}

fn shorts(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|token| u32::from(u16::from_le_bytes(*token)))
}

fn longs(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token))
}
