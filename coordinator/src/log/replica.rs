//! A replica's disk: everything that Raft must not forget, in one file. Batches in, the same
//! content out.
//!
//! One transaction with one fsync writes a batch, whatever its content. So the file always holds
//! the state after one of the batches. Batches that come while the disk is busy go together. A
//! digest seals every row: it covers the row's place, its content and the row before. The header
//! holds the seal of the last dropped entry, from which the chain goes on. The header also proves
//! the rest: the newest seal, the digest of the snapshot, Raft's hard state, and the owner of the
//! file.
//!
//! This is needed because redb proves its content only in part. It looks at its checksums when it
//! recovers from a crash. After a clean stop it reads without them, and gives flipped bits out, or
//! panics over them. And redb takes a damaged commit for one that a crash interrupted, and falls
//! back to the one before. So the store commits everything once more when there is time
//! ([`ReplicaStore::confirm`]), and the fallback has all that the replica acknowledged.
//!
//! An error ends the process, which never tries again: only the next opening can tell what the disk
//! holds after one. The store does not know what an entry means.

use everstep_transport::protocol::Term;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};
use redb::{StorageBackend, Table, TableDefinition, WriteTransaction};
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::error::{ReplicaStoreError, guarded};
use crate::format::LOG_FILE_FORMAT;
use crate::raft::{
    DurableState, EntryKind, HardState, LogPosition, RaftEntry, ReplicaId, Snapshot, WriteBatch,
};

/// Half of a BLAKE3 digest.
type Digest = [u8; 16];
/// By index: the term, whether the entry changes the members, the seal, the entry.
type Entries = TableDefinition<'static, u64, (u64, bool, &'static Digest, &'static [u8])>;
const ENTRIES: Entries = TableDefinition::new("replica entries");
/// The header's numbers, the cluster, the digests of base, log and snapshot, and the digest of
/// these.
type HeaderRow = ([u64; 8], &'static [u8; 32], [Digest; 3], &'static Digest);
const HEADER: TableDefinition<(), HeaderRow> = TableDefinition::new("replica header");
/// One row: the encoded snapshot.
const SNAPSHOT: TableDefinition<(), &[u8]> = TableDefinition::new("replica snapshot");

/// The size of redb's cache. Small, since a process reads the log once.
const CACHE_BYTES: usize = 4 << 20;

/// The owner of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOwner {
    /// A digest of the certificate of the cluster's authority. No other cluster has the same.
    pub cluster: [u8; 32],
    /// The replica that the log belongs to.
    pub replica: ReplicaId,
}

/// A replica's file, held open. The caller drops it after an error.
pub struct ReplicaStore {
    database: Database,
    header: Header,
    /// Whether the newest commit repeats the one before.
    confirmed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    /// The format that the file states.
    format: u64,
    owner: DiskOwner,
    hard_state: HardState,
    /// The place of the last dropped entry. Its seal is next.
    base: LogPosition,
    base_seal: Digest,
    /// The index of the last entry, or the base's. Its seal is next.
    last: u64,
    seal: Digest,
    snapshot: Digest,
}

impl ReplicaStore {
    /// Makes a replica's file on an empty disk, with the content of a new replica:
    /// [`DurableState::founded_by`] for the first of a cluster, the default for a joiner.
    ///
    /// # Errors
    /// [`ReplicaStoreError::Disk`], [`ReplicaStoreError::Database`].
    pub fn create(
        disk: impl StorageBackend,
        owner: DiskOwner,
        kept: &DurableState,
    ) -> Result<(), ReplicaStoreError> {
        guarded(|| {
            let (base, none) = (kept.base, Digest::default());
            let header = Header {
                format: LOG_FILE_FORMAT.newest,
                owner,
                hard_state: kept.hard_state,
                base,
                base_seal: none,
                last: base.index,
                seal: none,
                snapshot: none,
            };
            let mut store = Self { database: database(disk)?, header, confirmed: false };
            let content = WriteBatch {
                number: 0,
                hard_state: kept.hard_state,
                snapshot: Some(kept.snapshot.clone()),
                base,
                entries: kept.entries.iter().cloned().collect(),
            };
            store.commit(&[content])
        })
    }

    /// Opens a replica's file, and returns its whole content.
    ///
    /// # Errors
    /// [`ReplicaStoreError`], also where redb would panic.
    pub fn open(
        disk: impl StorageBackend,
        owner: DiskOwner,
    ) -> Result<(Self, DurableState), ReplicaStoreError> {
        guarded(|| {
            let mut database = database(disk)?;
            // Also where redb finds no fault: it would overwrite pages that it mistook for free.
            database.check_integrity()?;
            let (header, kept) = read(&database, owner)?;
            Ok((Self { database, header, confirmed: false }, kept))
        })
    }

    /// Writes batches, in this order and together. They are durable when this returns.
    ///
    /// # Errors
    /// [`ReplicaStoreError`]. All of the batches may be on the disk nevertheless.
    ///
    /// # Panics
    /// If a batch's entries leave a gap.
    pub fn persist(&mut self, batches: &[WriteBatch]) -> Result<(), ReplicaStoreError> {
        guarded(|| self.commit(batches))
    }

    /// Commits the present content once more, unless that was done. Then no damage to a single
    /// commit takes anything away. The caller does this when no batch waits.
    ///
    /// # Errors
    /// [`ReplicaStoreError`] if the disk fails.
    pub fn confirm(&mut self) -> Result<(), ReplicaStoreError> {
        if self.confirmed {
            return Ok(());
        }
        guarded(|| {
            let transaction = self.database.begin_write()?;
            self.header.write(&transaction)?;
            Ok(transaction.commit()?)
        })?;
        self.confirmed = true;
        Ok(())
    }

    fn commit(&mut self, batches: &[WriteBatch]) -> Result<(), ReplicaStoreError> {
        let transaction = self.database.begin_write()?;
        let mut header = self.header;
        {
            let mut log = transaction.open_table(ENTRIES)?;
            let mut snapshots = transaction.open_table(SNAPSHOT)?;
            for batch in batches {
                header.hard_state = batch.hard_state;
                header.begin_behind(&mut log, batch.base)?;
                header.append(&mut log, &batch.entries)?;
                if let Some(snapshot) = &batch.snapshot {
                    let bytes = encode(snapshot);
                    header.snapshot = half(blake3::Hasher::new().update(&bytes));
                    snapshots.insert((), bytes.as_slice())?;
                }
            }
        }
        header.write(&transaction)?;
        transaction.commit()?;
        self.header = header;
        self.confirmed = false;
        Ok(())
    }
}

type EntriesTable<'t> = Table<'t, u64, (u64, bool, &'static Digest, &'static [u8])>;

impl Header {
    /// Drops the entries up to a place. Drops all entries if the one at that index has another
    /// term.
    fn begin_behind(
        &mut self,
        table: &mut EntriesTable<'_>,
        base: LogPosition,
    ) -> Result<(), ReplicaStoreError> {
        if base == self.base {
            return Ok(());
        }
        let there = table.get(base.index)?.map(|row| (row.value().0, *row.value().2));
        match there.filter(|(term, _)| Term(*term) == base.term) {
            Some((_, seal)) => {
                table.retain_in(..=base.index, |_, _| false)?;
                self.base_seal = seal;
            }
            None => {
                table.retain(|_, _| false)?;
                (self.base_seal, self.seal) = (Digest::default(), Digest::default());
                self.last = base.index;
            }
        }
        self.base = base;
        Ok(())
    }

    /// Appends entries. Older entries at the first one's index and behind it go.
    fn append(
        &mut self,
        table: &mut EntriesTable<'_>,
        entries: &[RaftEntry],
    ) -> Result<(), ReplicaStoreError> {
        let Some(first) = entries.first() else { return Ok(()) };
        if first.position.index <= self.last {
            table.retain_in(first.position.index.., |_, _| false)?;
            self.last = first.position.index - 1;
            self.seal = match self.last == self.base.index {
                true => self.base_seal,
                false => *table.get(self.last)?.ok_or_else(|| lacks("an entry"))?.value().2,
            };
        }
        for entry in entries {
            assert_eq!(entry.position.index, self.last + 1, "a batch leaves a gap");
            *self = self.followed_by(entry);
            let row = (entry.position.term.0, changes(entry), &self.seal, entry.bytes.as_slice());
            table.insert(self.last, row)?;
        }
        Ok(())
    }

    /// The header after one more entry, with that entry's seal.
    fn followed_by(self, entry: &RaftEntry) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seal);
        hasher.update(&entry.position.index.to_le_bytes());
        hasher.update(&entry.position.term.0.to_le_bytes());
        hasher.update(&[u8::from(changes(entry))]);
        Self { last: entry.position.index, seal: half(hasher.update(&entry.bytes)), ..self }
    }

    /// The number of the file's format.
    fn number(&self) -> Result<u64, ReplicaStoreError> {
        LOG_FILE_FORMAT.number(self.format).map_err(ReplicaStoreError::OtherFormat)
    }

    fn write(&self, transaction: &WriteTransaction) -> Result<(), ReplicaStoreError> {
        let mut table = transaction.open_table(HEADER)?;
        let row = (self.numbers(), &self.owner.cluster, self.seals(), &self.digest());
        table.insert((), row)?;
        Ok(())
    }

    fn numbers(&self) -> [u64; 8] {
        let HardState { term, vote, commit } = self.hard_state;
        let vote = vote.map_or(0, |id| id.0);
        let LogPosition { index: base, term: base_term } = self.base;
        let replica = self.owner.replica.0;
        [self.format, replica, base, base_term.0, self.last, term.0, vote, commit]
    }

    fn seals(&self) -> [Digest; 3] {
        [self.base_seal, self.seal, self.snapshot]
    }

    fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for number in self.numbers() {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&self.owner.cluster);
        half(hasher.update(self.seals().as_flattened()))
    }

    fn read(transaction: &ReadTransaction) -> Result<Self, ReplicaStoreError> {
        let table = match transaction.open_table(HEADER) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Err(lacks("header")),
            table => table?,
        };
        let row = table.get(())?.ok_or_else(|| lacks("header"))?;
        let (numbers, cluster, seals, digest) = row.value();
        let [format, replica, base, base_term, last, term, vote, commit] = numbers;
        let [base_seal, seal, snapshot] = seals;
        let vote = (vote != 0).then_some(ReplicaId(vote));
        let header = Self {
            format,
            owner: DiskOwner { cluster: *cluster, replica: ReplicaId(replica) },
            hard_state: HardState { term: Term(term), vote, commit },
            base: LogPosition { index: base, term: Term(base_term) },
            base_seal,
            last,
            seal,
            snapshot,
        };
        match header.digest() == *digest {
            true => Ok(header),
            false => Err(ReplicaStoreError::Damaged("its header is not as written".into())),
        }
    }

    /// Whether this build reads the file's format, and the file belongs to this owner.
    fn check(&self, owner: DiskOwner) -> Result<(), ReplicaStoreError> {
        self.number()?;
        if self.owner.cluster != owner.cluster {
            return Err(ReplicaStoreError::OtherCluster);
        }
        let (found, ours) = (self.owner.replica.0, owner.replica.0);
        if found == ours { Ok(()) } else { Err(ReplicaStoreError::OtherReplica { found, ours }) }
    }
}

fn database(disk: impl StorageBackend) -> Result<Database, ReplicaStoreError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    Ok(builder.create_with_backend(disk)?)
}

fn half(hasher: &blake3::Hasher) -> Digest {
    *hasher.finalize().as_bytes().first_chunk().expect("32 bytes")
}

/// Reads everything, and proves that it is the same as written.
fn read(
    database: &Database,
    owner: DiskOwner,
) -> Result<(Header, DurableState), ReplicaStoreError> {
    let transaction = database.begin_read()?;
    let header = Header::read(&transaction)?;
    header.check(owner)?;
    let Header { hard_state, base, .. } = header;
    let snapshot = snapshot(&transaction, &header)?;
    let mut kept = DurableState { hard_state, snapshot, base, entries: Default::default() };
    let mut seen = Header { last: base.index, seal: header.base_seal, ..header };
    let table = transaction.open_table(ENTRIES)?;
    for row in table.iter()? {
        let (index, row) = row?;
        let (term, changes, seal, bytes) = row.value();
        let position = LogPosition { index: index.value(), term: Term(term) };
        let kind = if changes { EntryKind::Members } else { EntryKind::Command };
        let entry = RaftEntry { position, kind, bytes: bytes.to_vec() };
        let expected = seen.last.checked_add(1);
        seen = seen.followed_by(&entry);
        if Some(position.index) != expected || *seal != seen.seal {
            return Err(ReplicaStoreError::Damaged(format!(
                "entry {} is not as written",
                position.index
            )));
        }
        kept.entries.push_back(entry);
    }
    if (seen.last, seen.seal) != (header.last, header.seal) {
        let (last, found) = (header.last, seen.last);
        return Err(ReplicaStoreError::Damaged(format!(
            "of the entries up to {last}, {found} is the last"
        )));
    }
    match kept.validate() {
        Ok(()) => Ok((header, kept)),
        Err(problem) => Err(ReplicaStoreError::Damaged(problem.to_string())),
    }
}

fn snapshot(transaction: &ReadTransaction, header: &Header) -> Result<Snapshot, ReplicaStoreError> {
    let table = transaction.open_table(SNAPSHOT)?;
    let row = table.get(())?.ok_or_else(|| lacks("snapshot"))?;
    let garbled = || ReplicaStoreError::Damaged("its snapshot is not as written".into());
    if half(blake3::Hasher::new().update(row.value())) != header.snapshot {
        return Err(garbled());
    }
    let mut aligned = AlignedVec::<16>::with_capacity(row.value().len());
    aligned.extend_from_slice(row.value());
    rkyv::from_bytes::<Snapshot, rancor::Error>(&aligned).map_err(|_| garbled())
}

fn encode(snapshot: &Snapshot) -> AlignedVec {
    let bytes = rkyv::to_bytes::<rancor::Error>(snapshot);
    bytes.expect("a snapshot is finite and needs no shared pointers")
}

fn changes(entry: &RaftEntry) -> bool {
    entry.kind == EntryKind::Members
}

fn lacks(what: &str) -> ReplicaStoreError {
    ReplicaStoreError::Damaged(format!("it has no {what}"))
}

#[cfg(test)]
mod tests;
