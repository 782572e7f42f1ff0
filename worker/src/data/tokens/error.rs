//! Why files are no tokens that a run could train on.

use std::path::PathBuf;

use everstep_transport::protocol::run::TokenType;

use crate::data::text::TextError;

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// A file cannot be found or read.
    #[error(transparent)]
    File(#[from] TextError),
    /// A directory has no files of tokens.
    #[error("no file in {} has a name that ends in .bin: name the files of tokens", path.display())]
    NoFiles {
        /// The directory that was searched.
        path: PathBuf,
    },
    /// The file is of another kind.
    #[error("{} is {kind}, and not a file of tokens", path.display())]
    OtherKind {
        /// The file that has no tokens.
        path: PathBuf,
        /// The kind of file that its first bytes state.
        kind: &'static str,
    },
    /// The header is of a version that this build does not know.
    #[error(
        "{} has version {found} of its format, and this build of Everstep reads version {known}",
        path.display()
    )]
    Version {
        /// The file with the unknown version.
        path: PathBuf,
        /// The version in its header.
        found: i32,
        /// The version that this build reads.
        known: i32,
    },
    /// Neither the file nor the run says how a token is stored.
    #[error(
        "{} has no header, so it does not say how it stores a token: set data.dtype to \"u16\", as \
         nanoGPT writes, or to \"u32\"", path.display()
    )]
    Untyped {
        /// The file without a header.
        path: PathBuf,
    },
    /// The run says another type than the file.
    #[error(
        "the header of {} says that a token has {} bytes, and data.dtype says {}: leave data.dtype \
         out", path.display(), bytes(*found), bytes(*stated)
    )]
    Contradiction {
        /// The file that contradicts the run.
        path: PathBuf,
        /// The type in the file.
        found: TokenType,
        /// The type in the run.
        stated: TokenType,
    },
    /// The file has another length than its tokens.
    #[error("{} has {found} bytes where {expected}: it is damaged or incomplete", path.display())]
    Length {
        /// The file with the wrong length.
        path: PathBuf,
        /// The bytes that the file has.
        found: u64,
        /// The bytes that it should have, in words.
        expected: String,
    },
    /// A token is outside the vocabulary.
    #[error(
        "token {position} of {} is {token}, and model.vocabulary is {vocabulary}: tokens are below \
         it", path.display()
    )]
    Vocabulary {
        /// The file with the token.
        path: PathBuf,
        /// The place of the token in the file, from 0.
        position: u64,
        /// The number of the token.
        token: u32,
        /// The number of tokens of the model.
        vocabulary: u32,
    },
    /// There are fewer tokens than one sample has.
    #[error(
        "there are {tokens} tokens to train on, and one sample of context {context} takes {}: name \
         more files, hold out less of them, or make model.context smaller", context + 1
    )]
    TooShort {
        /// The number of tokens to train on.
        tokens: u64,
        /// The tokens of a sample.
        context: usize,
    },
}

impl TokenFileError {
    /// Whether another machine, or this one later, may well read the same files.
    pub(crate) fn is_of_place(&self) -> bool {
        matches!(self, Self::File(error) if error.is_of_place())
    }
}

/// Bytes of a token.
pub(super) fn bytes(of: TokenType) -> u64 {
    match of {
        TokenType::U16 => 2,
        TokenType::U32 => 4,
    }
}
