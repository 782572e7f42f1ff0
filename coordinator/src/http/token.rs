//! The secret that a client must show for a change.
//!
//! In: a file. Out: a digest of its content, to compare with the digest of the client's token. The
//! process does not keep the secret itself.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::HttpError;

/// Least bytes of a token: half of one that is made here.
const MIN_BYTES: usize = 32;
/// Most bytes of a token, so that it fits into a header.
const MAX_BYTES: usize = 1024;

/// A token, as its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token(blake3::Hash);

impl Token {
    /// Reads the token in a file that the operator has made.
    pub(super) fn read(path: &Path) -> Result<Self, HttpError> {
        let text = fs::read_to_string(path).map_err(|source| failed(path, source))?;
        let text = text.trim();
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || !(MIN_BYTES..=MAX_BYTES).contains(&text.len()) {
            return Err(HttpError::Token(path.to_path_buf()));
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    /// The same, unless users other than the file's owner and group may read it, or write it.
    pub(super) fn read_private(path: &Path) -> Result<Self, HttpError> {
        let mode = fs::metadata(path).map_err(|source| failed(path, source))?.permissions().mode();
        match mode & 0o006 {
            0 => Self::read(path),
            _ => Err(HttpError::Public(path.to_path_buf())),
        }
    }

    /// Reads the token in a file. Makes the file if it does not exist.
    pub(super) fn read_or_make(path: &Path) -> Result<Self, HttpError> {
        if !path.exists() {
            make(path).map_err(|source| failed(path, source))?;
        }
        Self::read(path)
    }

    /// Whether a client has shown this token. A wrong token takes as long as the right one, because
    /// this compares digests in constant time.
    pub(super) fn is(&self, shown: &[u8]) -> bool {
        self.0 == blake3::hash(shown)
    }
}

/// Makes a token that only this user can read. Writes it under another name first, so that no
/// reader sees half of it.
fn make(path: &Path) -> io::Result<()> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
    let unfinished: PathBuf = path.with_extension("token.tmp");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "{}", blake3::Hash::from_bytes(secret).to_hex())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}

fn failed(path: &Path, source: io::Error) -> HttpError {
    HttpError::File { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("api.token");
        let token = Token::read_or_make(&path).expect("made");
        let text = fs::read_to_string(&path).expect("written");
        let again = Token::read_or_make(&path).expect("read");
        for known in [&token, &again] {
            assert!(known.is(text.trim().as_bytes()));
            assert!(!known.is(text.as_bytes()) && !known.is(b"") && !known.is(b"guessed"));
        }
        let mode = path.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left");
    }

    #[test]
    fn a_token_that_is_short_or_no_word_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        for text in ["", "\n", "short", &"two words ".repeat(8), &"a".repeat(MAX_BYTES + 1)] {
            fs::write(&path, text).expect("written");
            assert!(matches!(Token::read(&path), Err(HttpError::Token(_))), "{text:?}");
        }
        fs::write(&path, format!("{}\n", "a".repeat(MIN_BYTES))).expect("written");
        assert!(Token::read(&path).expect("long enough").is("a".repeat(MIN_BYTES).as_bytes()));
        fs::remove_file(&path).expect("removed");
        assert!(matches!(Token::read(&path), Err(HttpError::File { .. })));
    }
}
