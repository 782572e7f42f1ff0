//! A directory as a store: on a disk, or on a file system that several machines share.

use std::io::{self, ErrorKind as IoKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::durable::{DurableFiles, PartialFile, StageHook, folder_of};
use super::file_system::{FileMetadata, FileSystem, FolderEntry, LocalFiles, OpenFile};
use super::{
    Created, ErrorKind, MAX_OBJECTS, MAX_SMALL_BYTES, Store, StoreError, StoredObject, Upload,
    UploadSize,
};
use crate::names::{ObjectName, PARTIAL};

/// A store in a directory.
pub struct DirectoryStore {
    root: PathBuf,
    place: String,
    within: DurableFiles,
}

impl DirectoryStore {
    /// The store in this directory, which is created if it is not there.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        Self::within(root, DurableFiles::local())
    }

    /// The same, with a hook that is called at each stage of each file. Tests end the process
    /// there.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn with_hook(root: &Path, hook: StageHook) -> Result<Self, StoreError> {
        Self::within(root, DurableFiles { files: Arc::new(LocalFiles), hook })
    }

    /// The store in this directory of a file system, which is created if it is not there.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn within(root: &Path, within: DurableFiles) -> Result<Self, StoreError> {
        let place = root.display().to_string();
        let store = Self { root: root.into(), place, within };
        store.make_root().map_err(|error| store.error(None, &error))?;
        Ok(store)
    }

    /// Creates the directory if it is not there, durably with the folders above it. A folder of
    /// weights may be one that this process can only read, and stays as it is.
    fn make_root(&self) -> io::Result<()> {
        let is_missing = |folder: &&Path| {
            let is_folder = self.files().metadata(folder).is_ok_and(|it| it.is_folder);
            !is_folder && !folder.as_os_str().is_empty()
        };
        let missing: Vec<&Path> = self.root.ancestors().take_while(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.files().create_folders(&self.root)?;
        missing.iter().rev().try_for_each(|made| self.files().sync_folder(folder_of(made)))
    }

    fn files(&self) -> &dyn FileSystem {
        &*self.within.files
    }

    fn path(&self, name: &ObjectName) -> PathBuf {
        self.root.join(name.to_string())
    }

    /// Begins a file, and makes its folder if need be.
    fn begin(&self, name: &ObjectName, bytes: u64) -> io::Result<PartialFile> {
        let path = self.path(name);
        let begun = match self.within.begin(&path, bytes) {
            Err(error) if error.kind() == IoKind::NotFound => {
                self.files().create_folders(folder_of(&path))?;
                self.within.begin(&path, bytes)
            }
            begun => begun,
        }?;
        // Another process may have made the folder, and ended before the folder's name was durable.
        if !name.folder().is_empty() {
            self.files().sync_folder(&self.root)?;
        }
        Ok(begun)
    }

    /// An object to read. A pipe or a device of that name is none, and would never end.
    fn file(&self, name: &ObjectName) -> Result<(Box<dyn OpenFile>, u64), StoreError> {
        let error = |error: io::Error| self.error(Some(name), &error);
        let file = self.files().open(&self.path(name)).map_err(error)?;
        let Some(bytes) = file.bytes().map_err(error)? else {
            let why = "it is not a regular file";
            return Err(StoreError::new(ErrorKind::Damaged, &self.place, name, why));
        };
        Ok((file, bytes))
    }

    fn put(&self, name: &ObjectName, bytes: &[u8]) -> io::Result<Created> {
        let mut file = self.begin(name, bytes.len() as u64)?;
        file.write(bytes)?;
        match file.create_new() {
            Ok(()) => Ok(Created::Mine),
            Err(error) if error.kind() == IoKind::AlreadyExists => Ok(Created::Theirs),
            Err(error) => Err(error),
        }
    }

    /// The entries of the root, and of the folders of objects with these names.
    fn entries(&self, is_wanted: fn(&str) -> bool) -> io::Result<Vec<FolderEntry>> {
        let mut found = Vec::new();
        for entry in self.files().entries(&self.root)? {
            let name = entry.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !(holds_objects(&name) && entry.is_folder) {
                found.push(entry);
                continue;
            }
            if !is_wanted(&name) {
                continue;
            }
            found.extend(self.inside(&entry.path)?);
            if found.len() > MAX_OBJECTS {
                let many = format!("it has more than {MAX_OBJECTS} files. Use another directory");
                return Err(io::Error::other(many));
            }
        }
        Ok(found)
    }

    /// The entries of a folder. None if there is no such folder: another process may have just
    /// removed it.
    fn inside(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        match self.files().entries(folder) {
            Err(error) if error.kind() == IoKind::NotFound => Ok(Vec::new()),
            inside => inside,
        }
    }

    fn objects(
        &self,
        entries: io::Result<Vec<FolderEntry>>,
    ) -> Result<Vec<StoredObject>, StoreError> {
        let entries = entries.map_err(|error| self.error(None, &error))?;
        let mut found = Vec::new();
        for entry in entries {
            let object = self.object(&entry.path).map_err(|error| self.error(None, &error))?;
            found.extend(object);
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// The object at a path. None if it is no object, or if another process has just removed it. A
    /// disk that does not answer says nothing: a listing never lacks an object for that.
    fn object(&self, path: &Path) -> io::Result<Option<StoredObject>> {
        let relative = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        let Some(name) = relative.and_then(|name| name.parse().ok()) else { return Ok(None) };
        match self.files().metadata(path) {
            Ok(FileMetadata { is_file: true, bytes, changed, .. }) => {
                Ok(Some(StoredObject { name, bytes, changed }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == IoKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the directory itself is gone, as an unmounted one is.
    fn is_gone(&self) -> bool {
        self.files().metadata(&self.root).is_err()
    }

    fn error(&self, name: Option<&ObjectName>, error: &io::Error) -> StoreError {
        let kind = match error.kind() {
            // A directory that is gone, as an unmounted one is, says nothing of its objects.
            IoKind::NotFound if name.is_none() || self.is_gone() => ErrorKind::Retry,
            IoKind::NotFound => ErrorKind::Missing,
            IoKind::PermissionDenied
            | IoKind::AlreadyExists
            | IoKind::Unsupported
            | IoKind::NotADirectory
            | IoKind::IsADirectory
            | IoKind::InvalidInput
            | IoKind::Other => ErrorKind::Refuse,
            IoKind::UnexpectedEof => ErrorKind::Damaged,
            // A full disk, a disk that went read-only, a network's disk that is away.
            _ => ErrorKind::Retry,
        };
        let object = name.map_or_else(|| "the store".into(), ObjectName::to_string);
        StoreError { kind, place: self.place.clone(), object, why: error.to_string() }
    }
}

/// Whether a folder of this name at the top has objects in it.
fn holds_objects(folder: &str) -> bool {
    folder.starts_with("step-") || ["claims", "history", "probes"].contains(&folder)
}

impl Store for DirectoryStore {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
        assert!(bytes.len() as u64 <= MAX_SMALL_BYTES, "only small objects are put");
        match self.put(name, bytes) {
            Ok(Created::Theirs) => {
                let created = super::compare(self, name, bytes)?;
                // Its writer may have ended before it was durable, and the caller relies on it.
                self.make_durable(name)?;
                Ok(created)
            }
            Ok(Created::Mine) => Ok(Created::Mine),
            Err(error) => Err(self.write_error(name, &error)),
        }
    }

    fn upload(&self, name: &ObjectName, size: UploadSize) -> Result<Box<dyn Upload>, StoreError> {
        let error = |error: io::Error| self.write_error(name, &error);
        let mut file = self.begin(name, size.total).map_err(error)?;
        file.skip(size.head);
        let (place, name) = (self.place.clone(), name.clone());
        Ok(Box::new(DirectoryUpload { file, size, written: size.head, place, name }))
    }

    fn read(&self, name: &ObjectName, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let (file, bytes) = self.file(name)?;
        if range.end > bytes {
            return Err(super::too_short(&self.place, name, bytes, range.end));
        }
        let mut read = vec![0; (range.end.saturating_sub(range.start)) as usize];
        let filled = file.read_exact_at(&mut read, range.start);
        filled.map(|()| read).map_err(|error| self.error(Some(name), &error))
    }

    fn size(&self, name: &ObjectName) -> Result<u64, StoreError> {
        self.file(name).map(|(_, bytes)| bytes)
    }

    fn list(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.objects(self.entries(|_| true))
    }

    fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError> {
        let is_there = self.files().metadata(&self.root);
        self.objects(is_there.and_then(|_| self.inside(&self.root.join("claims"))))
    }

    fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError> {
        let found = self.objects(self.entries(|name| name != "claims" && name != "history"))?;
        Ok(found.into_iter().filter(|object| !object.name.folder().is_empty()).collect())
    }

    fn make_durable(&self, name: &ObjectName) -> Result<(), StoreError> {
        let (mut file, _) = self.file(name)?;
        let synced =
            file.sync().and_then(|()| self.files().sync_folder(folder_of(&self.path(name))));
        let synced = synced.and_then(|()| self.files().sync_folder(&self.root));
        synced.map_err(|error| self.write_error(name, &error))
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.path(name);
        // A part that comes back when power fails is of no manifest: the next sweep takes it.
        let may_come_back = matches!(name, ObjectName::Part(..) | ObjectName::Probe(_));
        let removed = self.files().remove(&path);
        let durably = |()| match may_come_back {
            true => Ok(()),
            false => self.files().sync_folder(folder_of(&path)),
        };
        match removed.and_then(durably) {
            Err(error) if error.kind() != IoKind::NotFound => Err(self.write_error(name, &error)),
            _ => {
                // A folder that still has files stays, which is no error.
                if !name.folder().is_empty() {
                    let _ = self.files().remove_folder(folder_of(&path));
                }
                Ok(())
            }
        }
    }

    fn sweep(&self, before: u64) -> Result<u64, StoreError> {
        let mut removed = 0;
        for entry in self.entries(|_| true).map_err(|error| self.error(None, &error))? {
            let is_partial = is_of_an_object(&entry.path, &self.root);
            let metadata = self.files().metadata(&entry.path).ok();
            let is_old = metadata.is_some_and(|it| it.is_file && it.changed < before);
            if is_partial && is_old && self.files().remove(&entry.path).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl DirectoryStore {
    /// The error of a write. A folder that is gone is a place that is away, not a missing object.
    fn write_error(&self, name: &ObjectName, error: &io::Error) -> StoreError {
        match error.kind() {
            IoKind::NotFound => {
                let why = format!("{error}: the directory is gone. Bring it back");
                StoreError::new(ErrorKind::Retry, &self.place, name, why)
            }
            _ => self.error(Some(name), error),
        }
    }
}

/// A file of a directory under way.
struct DirectoryUpload {
    file: PartialFile,
    size: UploadSize,
    written: u64,
    place: String,
    name: ObjectName,
}

impl DirectoryUpload {
    fn error(place: &str, name: &ObjectName, error: &io::Error) -> StoreError {
        let kind = match error.kind() {
            IoKind::PermissionDenied | IoKind::Unsupported => ErrorKind::Refuse,
            _ => ErrorKind::Retry,
        };
        StoreError::new(kind, place, name, error.to_string())
    }
}

impl Upload for DirectoryUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.written += bytes.len() as u64;
        let written = self.file.write(bytes);
        written.map_err(|error| Self::error(&self.place, &self.name, &error))
    }

    fn finish(self: Box<Self>, head: &[u8]) -> Result<(), StoreError> {
        let Self { mut file, size, written, place, name } = *self;
        assert_eq!((head.len() as u64, written), (size.head, size.total), "as many as announced");
        let placed = file.write_head(head).and_then(|()| file.replace());
        placed.map_err(|error| Self::error(&place, &name, &error))
    }
}

/// Whether this is the unfinished file of an object: an object's name, a nonce and an ending.
fn is_of_an_object(path: &Path, root: &Path) -> bool {
    let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
    let object = relative.and_then(|name| name.strip_suffix(PARTIAL)?.rsplit_once('.'));
    object.is_some_and(|(name, nonce)| {
        nonce.len() == 16
            && u64::from_str_radix(nonce, 16).is_ok()
            && name.parse::<ObjectName>().is_ok()
    })
}
