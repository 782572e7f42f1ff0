//! Compiled kernels on disk, so that only a first start compiles.
//!
//! A file's name depends on everything that its machine code depends on. The file begins with a
//! digest of the code, so a damaged file counts as none. An attacker that may write there could as
//! well replace the program, so the folder is the user's own.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use twox_hash::XxHash3_64;

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// What the cache has for a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The code that was kept.
    Kept(Vec<u8>),
    /// The cache has no readable file for it.
    Nothing,
    /// A file that differs from what was written.
    Damaged,
}

impl Cache {
    /// The user's cache: in `$XDG_CACHE_HOME` or `~/.cache`. `None` if neither is known.
    pub fn of_user() -> Option<Self> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(Self::at(base.join("everstep").join("kernels")))
    }

    /// The cache in this folder.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The path of a key's code, present or not.
    pub fn path(&self, key: &[&str]) -> PathBuf {
        // A length stands before each part, so no two keys are the same bytes.
        let bytes: Vec<u8> = key.iter().flat_map(|part| frame(part)).collect();
        let digest = |seed| XxHash3_64::oneshot_with_seed(seed, &bytes);
        self.folder.join(format!("{:016x}{:016x}.cubin", digest(0), digest(1)))
    }

    /// The cache's code for a key.
    pub fn find(&self, key: &[&str]) -> Found {
        let Ok(file) = fs::read(self.path(key)) else { return Found::Nothing };
        match file.split_first_chunk() {
            Some((digest, code)) if *digest == digest_of(code) => Found::Kept(code.to_vec()),
            _ => Found::Damaged,
        }
    }

    /// Keeps code for a key, whole or not at all.
    ///
    /// # Errors
    /// The folder cannot be made, or a file cannot be written in it.
    pub fn keep(&self, key: &[&str], code: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut file = NamedTempFile::new_in(&self.folder)?;
        file.write_all(&digest_of(code))?;
        file.write_all(code)?;
        file.persist(self.path(key))?;
        Ok(())
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn frame(part: &str) -> impl Iterator<Item = u8> + '_ {
    (part.len() as u64).to_le_bytes().into_iter().chain(part.bytes())
}

fn digest_of(code: &[u8]) -> [u8; 8] {
    XxHash3_64::oneshot(code).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_by_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("new"));
        let key = ["source", "sm_90a"];
        assert_eq!(cache.find(&key), Found::Nothing);
        cache.keep(&key, b"code").unwrap();
        assert_eq!(cache.find(&key), Found::Kept(b"code".into()));
        assert_eq!(cache.find(&["source", "sm_80"]), Found::Nothing);
        assert_eq!(cache.find(&["sources", "m_90a"]), Found::Nothing);
        cache.keep(&key, b"newer").unwrap();
        assert_eq!(cache.find(&key), Found::Kept(b"newer".into()));
    }

    #[test]
    fn a_damaged_file_is_noticed_whatever_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().into());
        let key = ["source"];
        cache.keep(&key, b"code").unwrap();
        let whole = fs::read(cache.path(&key)).unwrap();
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            fs::write(cache.path(&key), damaged).unwrap();
            assert_eq!(cache.find(&key), Found::Damaged, "byte {byte}");
            fs::write(cache.path(&key), &whole[..byte]).unwrap();
            assert_eq!(cache.find(&key), Found::Damaged, "cut at {byte}");
        }
    }
}
