//! The text that this process has read last, as long as some data set holds it.
//!
//! A worker builds a run's data anew whenever it begins again, and the next run often has the data
//! of the one before. The cache knows a text by the state of its files, and does not read them
//! again. It keeps no text alive itself. The worker does, through
//! [`Dataset::reusable`](super::Dataset::reusable).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::text::{Text, TextError};

/// The newest text, with the state of its files before it was read. A file that changes meanwhile
/// has another state the next time.
#[derive(Debug, Default)]
pub struct TextCache(Mutex<Option<KnownText>>);

#[derive(Debug)]
struct KnownText {
    key: TextKey,
    text: Weak<Text>,
}

/// What a text follows from.
#[derive(Debug, PartialEq)]
struct TextKey {
    files: Vec<FileState>,
    /// The share of each file that is held out.
    validation: f64,
}

/// What changes when a file does, or when another file takes its path.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    /// The device and the inode.
    file: (u64, u64),
    size_bytes: u64,
    /// When the content, and then when the content or the owner, were changed last: seconds and
    /// nanoseconds of Unix time.
    changed: [(i64, i64); 2],
}

impl TextCache {
    /// As [`Text::load`], but for a text that is here.
    pub fn load(&self, files: &[PathBuf], validation: f64) -> Result<Arc<Text>, TextError> {
        let key = TextKey::of(files, validation).ok();
        let known = self.newest().take_if(|known| Some(&known.key) == key.as_ref());
        let text = match known.and_then(|known| known.text.upgrade()) {
            Some(text) => text,
            None => Arc::new(Text::load(files, validation)?),
        };
        *self.newest() = key.map(|key| KnownText { key, text: Arc::downgrade(&text) });
        Ok(text)
    }

    fn newest(&self) -> MutexGuard<'_, Option<KnownText>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // each change is one assignment
    }
}

impl TextKey {
    fn of(files: &[PathBuf], validation: f64) -> io::Result<Self> {
        let state = |path| fs::metadata(path).map(|found| FileState::of(&found));
        let files: io::Result<Vec<_>> = files.iter().map(state).collect();
        Ok(Self { files: files?, validation })
    }
}

impl FileState {
    fn of(found: &fs::Metadata) -> Self {
        Self {
            file: (found.dev(), found.ino()),
            size_bytes: found.size(),
            changed: [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_once_as_long_as_it_is_held_and_its_files_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = ["a", "b"].map(|name| directory.path().join(name));
        files.iter().for_each(|path| fs::write(path, "some text").expect("a file"));
        let cache = TextCache::default();
        let load = |files: &[PathBuf], validation| cache.load(files, validation).expect("text");
        let first = load(&files, 0.5);
        assert!(Arc::ptr_eq(&first, &load(&files, 0.5)));

        assert_eq!(load(&files, 0.0).held_out(), b"", "another share is held out");
        assert_eq!(load(&files[1..], 0.5).training(), b"some ", "another list of files");
        assert_eq!(load(&files, 0.5).training(), first.training(), "and the first again");

        let held = load(&files, 0.5);
        fs::write(&files[1], "same size").expect("a file");
        let changed = load(&files, 0.5);
        assert_eq!(changed.training(), b"some same ");
        assert!(Arc::ptr_eq(&changed, &load(&files, 0.5)));
        fs::remove_file(&files[0]).expect("a file");
        assert!(matches!(cache.load(&files, 0.5), Err(TextError::Missing { .. })));
        drop((first, held, changed));
    }

    #[test]
    fn the_cache_keeps_no_text_alive() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "some text").expect("a file");
        let cache = TextCache::default();
        let files = [file.path().to_path_buf()];
        let text = Arc::downgrade(&cache.load(&files, 0.0).expect("text"));
        assert_eq!(text.strong_count(), 0);
        assert_eq!(cache.load(&files, 0.0).expect("text").training(), b"some text");
    }
}
