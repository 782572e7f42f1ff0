//! Folders and files, as processes see them and as a power failure leaves them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};
use std::path::{Component, Path};

use everstep_checkpoint::store::file_system::FolderEntry;

use crate::random::Random;

/// The folder at the top.
const TOP: u64 = 0;

/// All folders and files, by number.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: BTreeMap<u64, SimNode>,
    made: u64,
    /// How many accesses may have changed something.
    accesses: u64,
    /// The newest of these accesses to each node.
    changed: BTreeMap<u64, u64>,
}

#[derive(Debug)]
pub(super) enum SimNode {
    File(Content),
    Folder(SimFolder),
}

/// What a file contains.
#[derive(Debug, Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    is_synced: bool,
    changed: u64,
}

/// The names in a folder, twice.
#[derive(Debug, Default)]
pub(super) struct SimFolder {
    /// The names that processes see.
    cached: BTreeMap<String, u64>,
    /// The names that are safe.
    stored: BTreeMap<String, u64>,
    /// The changes that lead from the stored to the cached names, in order.
    unsynced: Vec<NameChange>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Add { name: String, node: u64 },
    Remove { name: String },
    Rename { from: String, to: String },
}

impl Default for Nodes {
    fn default() -> Self {
        let top = SimNode::Folder(SimFolder::default());
        let nodes = BTreeMap::from([(TOP, top)]);
        Self { nodes, made: TOP, accesses: 0, changed: BTreeMap::new() }
    }
}

// To look at.
impl Nodes {
    /// The number of what has this path.
    pub(super) fn number(&self, path: &Path) -> Result<u64> {
        let mut at = TOP;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let SimNode::Folder(folder) = &self.nodes[&at] else {
                return Err(ErrorKind::NotADirectory.into());
            };
            at = *folder.cached.get(&*name.to_string_lossy()).ok_or(ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    pub(super) fn find(&self, path: &Path) -> Result<&SimNode> {
        Ok(&self.nodes[&self.number(path)?])
    }

    pub(super) fn find_mut(&mut self, path: &Path) -> Result<&mut SimNode> {
        let number = self.number(path)?;
        self.note_change(number);
        self.nodes.get_mut(&number).ok_or(ErrorKind::NotFound.into())
    }

    pub(super) fn content(&self, node: u64) -> Option<&Content> {
        match self.nodes.get(&node)? {
            SimNode::File(content) => Some(content),
            SimNode::Folder(_) => None,
        }
    }

    pub(super) fn content_mut(&mut self, node: u64) -> Option<&mut Content> {
        self.note_change(node);
        match self.nodes.get_mut(&node)? {
            SimNode::File(content) => Some(content),
            SimNode::Folder(_) => None,
        }
    }

    pub(super) fn entries(&self, path: &Path) -> Result<Vec<FolderEntry>> {
        let SimNode::Folder(folder) = self.find(path)? else {
            return Err(ErrorKind::NotADirectory.into());
        };
        let entry = |(name, node): (&String, &u64)| FolderEntry {
            path: path.join(name),
            is_folder: matches!(self.nodes[node], SimNode::Folder(_)),
        };
        Ok(folder.cached.iter().map(entry).collect())
    }
}

// To change.
impl Nodes {
    /// The newest access that may have changed a folder or the files in it.
    pub(super) fn newest_change(&self, folder: &Path) -> Option<u64> {
        let number = self.number(folder).ok()?;
        let SimNode::Folder(SimFolder { cached, .. }) = &self.nodes[&number] else { return None };
        let all = cached.values().chain([&number]);
        all.filter_map(|node| self.changed.get(node).copied()).max()
    }

    fn note_change(&mut self, node: u64) {
        self.accesses += 1;
        self.changed.insert(node, self.accesses);
    }

    pub(super) fn create(&mut self, path: &Path, clock: u64) -> Result<u64> {
        self.add(path, SimNode::File(Content { changed: clock, ..Content::default() }))
    }

    pub(super) fn create_folder(&mut self, path: &Path) -> Result<u64> {
        self.add(path, SimNode::Folder(SimFolder::default()))
    }

    /// Gives a file a second name.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> Result<()> {
        let node = self.number(from)?;
        self.name(to, node)
    }

    /// Gives a file another name in the same folder.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.number(from)?;
        let change = NameChange::Rename { from: name_of(from)?, to: name_of(to)? };
        self.folder_of(from)?.change(change);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<()> {
        match self.find(path)? {
            SimNode::Folder(_) => return Err(ErrorKind::IsADirectory.into()),
            SimNode::File(_) => {}
        }
        let name = name_of(path)?;
        self.folder_of(path)?.change(NameChange::Remove { name });
        Ok(())
    }

    pub(super) fn remove_folder(&mut self, path: &Path) -> Result<()> {
        match self.find(path)? {
            SimNode::Folder(folder) if folder.cached.is_empty() => {}
            SimNode::Folder(_) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            SimNode::File(_) => return Err(ErrorKind::NotADirectory.into()),
        }
        let name = name_of(path)?;
        self.folder_of(path)?.change(NameChange::Remove { name });
        Ok(())
    }

    pub(super) fn sync_folder(&mut self, path: &Path) -> Result<()> {
        let SimNode::Folder(folder) = self.find_mut(path)? else {
            return Err(ErrorKind::NotADirectory.into());
        };
        folder.keep(usize::MAX);
        Ok(())
    }

    /// The power fails. Each folder keeps some of its unsynced changes, from the first on, and each
    /// file that is not synced is whole or torn.
    pub(super) fn cut(&mut self, random: &mut Random) {
        for number in 0..=self.made {
            self.note_change(number);
        }
        for node in self.nodes.values_mut() {
            match node {
                SimNode::Folder(folder) => {
                    folder.keep(random.below(folder.unsynced.len() as u64 + 1) as usize);
                }
                SimNode::File(content) => {
                    if !content.is_synced && random.below(3) > 0 {
                        content.tear(random);
                    }
                    content.is_synced = true;
                }
            }
        }
    }

    fn add(&mut self, path: &Path, node: SimNode) -> Result<u64> {
        let number = self.made + 1;
        self.name(path, number)?;
        self.nodes.insert(number, node);
        self.note_change(number);
        self.made = number;
        Ok(number)
    }

    fn name(&mut self, path: &Path, node: u64) -> Result<()> {
        let name = name_of(path)?;
        let folder = self.folder_of(path)?;
        if folder.cached.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        folder.change(NameChange::Add { name, node });
        Ok(())
    }

    fn folder_of(&mut self, path: &Path) -> Result<&mut SimFolder> {
        match self.find_mut(path.parent().unwrap_or(Path::new("/")))? {
            SimNode::Folder(folder) => Ok(folder),
            SimNode::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }
}

fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    Ok(name.to_string_lossy().into_owned())
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize, clock: u64) {
        let end = offset + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset..end].copy_from_slice(bytes);
        (self.is_synced, self.changed) = (false, clock);
    }

    pub(super) fn sync(&mut self) {
        self.is_synced = true;
    }

    /// The end of the content is gone, or is zeros.
    pub(super) fn tear(&mut self, random: &mut Random) {
        let length = self.bytes.len();
        self.bytes.truncate(random.below(length.max(1) as u64) as usize);
        if random.below(2) == 0 {
            self.bytes.resize(length, 0);
        }
    }
}

impl SimFolder {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.cached);
        self.unsynced.push(change);
    }

    /// Keeps the first of the unsynced changes, and loses the others.
    fn keep(&mut self, changes: usize) {
        for change in self.unsynced.drain(..).take(changes) {
            change.apply(&mut self.stored);
        }
        self.cached.clone_from(&self.stored);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Add { name, node } => _ = names.insert(name.clone(), *node),
            Self::Remove { name } => _ = names.remove(name),
            Self::Rename { from, to } => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}
