//! The rows of the log on a disk: bytes in; the same bytes in the same order out, or an error.
//!
//! Every row is sealed by a digest over its place, its content and the row before, and the header
//! holds the newest of them: which rows there are, and what is in them, is proved at every opening.
//! For redb proves it only in part. It looks at its checksums when it recovers from a crash; after
//! a clean stop it reads without, and gives flipped bits out, or panics over them. And a commit
//! that is damaged, redb takes for one that a crash interrupted, and falls back to the one before.
//! So what was committed is committed once more when there is time ([`Store::confirm`]), and the
//! fallback has all that was acknowledged.
//!
//! It does not know what an entry is.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use everstep_transport::protocol::Term;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

/// Half of a BLAKE3 digest.
pub(super) type Digest = [u8; 16];

/// By index, from 1: the term, the seal, the entry.
const ENTRIES: TableDefinition<u64, (u64, &Digest, &[u8])> = TableDefinition::new("entries");
/// One row: schema, term and last index; the last row's seal; the digest of all these.
const HEADER: TableDefinition<(), ([u64; 3], &Digest, &Digest)> = TableDefinition::new("header");

/// redb's cache: the log is read once.
const CACHE_BYTES: usize = 4 << 20;

/// A log on a disk, held open. After an error it is to be dropped: what the disk holds then, only
/// the next opening can tell.
pub struct Store {
    database: Database,
    header: Header,
    /// The newest commit repeats the one before.
    confirmed: bool,
}

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place, from 1, without gaps.
    pub index: u64,
    /// The term in which it was appended.
    pub term: Term,
    /// The entry, encoded.
    pub bytes: Vec<u8>,
}

/// Why there is no log, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("another process has it open: does a coordinator run in this directory already?")]
    InUse,
    /// The disk has failed, is full, or holds no database.
    #[error("{0}")]
    Database(redb::Error),
    /// The file is damaged in a way that the database's code did not foresee.
    #[error("the file is damaged: reading it broke off ({0})")]
    Panicked(String),
    /// The file is not as it was written.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// It was written by a build that lays entries out differently.
    #[error("it was written by another version of Everstep ({found:016x}, this is {ours:016x})")]
    OtherVersion {
        /// The layout that was found.
        found: u64,
        /// This build's.
        ours: u64,
    },
    /// It was written in another cluster.
    #[error("it is of another cluster")]
    OtherCluster,
    /// It was written by another replica of the cluster.
    #[error("it is replica {found}'s, and this is replica {ours}")]
    OtherReplica {
        /// Whose it is.
        found: u64,
        /// Who asked.
        ours: u64,
    },
}

/// What there is besides entries.
#[derive(Clone, Copy, Debug)]
struct Header {
    schema: u64,
    /// Of the newest opening.
    term: Term,
    /// How many rows there are, which is the index of the last.
    last: u64,
    seal: Digest,
}

impl Store {
    /// Makes an empty log on an empty disk. `schema` is a digest of how entries are laid out.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn create(disk: impl StorageBackend, schema: u64) -> Result<(), StoreError> {
        guarded(|| {
            let (database, seal) = (database(disk)?, Digest::default());
            let header = Header { schema, term: Term(0), last: 0, seal };
            Self { database, header, confirmed: false }.commit(&[])
        })
    }

    /// Opens the log for a new term, which is durable when this returns; gives every row.
    ///
    /// # Errors
    /// [`StoreError`], also where redb would panic.
    pub fn open(disk: impl StorageBackend, schema: u64) -> Result<(Self, Vec<Row>), StoreError> {
        guarded(|| {
            let mut database = database(disk)?;
            // Also where redb thinks well of the file: pages that it mistook for free it would
            // write over.
            database.check_integrity()?;
            let (header, rows) = read(&database, schema)?;
            let header = Header { term: Term(header.term.0 + 1), ..header };
            let mut store = Self { database, header, confirmed: false };
            store.commit(&[])?;
            Ok((store, rows))
        })
    }

    /// The term of this opening: above all before.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// The index of the last row; 0 for none.
    pub fn last(&self) -> u64 {
        self.header.last
    }

    /// Appends entries in one transaction: when this returns they are durable.
    ///
    /// # Errors
    /// [`StoreError`]. They may be there nevertheless, some first of them or all.
    pub fn append(&mut self, entries: &[Vec<u8>]) -> Result<(), StoreError> {
        guarded(|| self.commit(entries))
    }

    /// Commits what is there once more, unless that was done: then no damage to a single commit
    /// takes an entry away. To be called when nothing waits.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn confirm(&mut self) -> Result<(), StoreError> {
        if self.confirmed {
            return Ok(());
        }
        guarded(|| self.commit(&[]))?;
        self.confirmed = true;
        Ok(())
    }

    fn commit(&mut self, entries: &[Vec<u8>]) -> Result<(), StoreError> {
        let transaction = self.database.begin_write()?;
        let mut header = self.header;
        {
            let mut table = transaction.open_table(ENTRIES)?;
            for bytes in entries {
                header = header.followed_by(header.term, bytes);
                let row = (header.term.0, &header.seal, bytes.as_slice());
                table.insert(header.last, row)?;
            }
            let mut table = transaction.open_table(HEADER)?;
            let row = (header.numbers(), &header.seal, &header.digest());
            table.insert((), row)?;
        }
        transaction.commit()?;
        self.header = header;
        self.confirmed = false;
        Ok(())
    }
}

impl Header {
    /// The header when one more row is there, sealed.
    fn followed_by(self, term: Term, bytes: &[u8]) -> Self {
        let last = self.last + 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seal).update(&last.to_le_bytes()).update(&term.0.to_le_bytes());
        Self { last, seal: half(hasher.update(bytes)), ..self }
    }

    fn numbers(&self) -> [u64; 3] {
        [self.schema, self.term.0, self.last]
    }

    fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for number in self.numbers() {
            hasher.update(&number.to_le_bytes());
        }
        half(hasher.update(&self.seal))
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            error => Self::Database(error),
        }
    }
}

pub(super) fn half(hasher: &blake3::Hasher) -> Digest {
    *hasher.finalize().as_bytes().first_chunk().expect("32 bytes")
}

pub(super) fn database(disk: impl StorageBackend) -> Result<Database, StoreError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    Ok(builder.create_with_backend(disk)?)
}

/// Reads the log, and proves that it is the one that was written.
fn read(database: &Database, schema: u64) -> Result<(Header, Vec<Row>), StoreError> {
    let transaction = database.begin_read()?;
    let header = header(&transaction)?;
    if header.schema != schema {
        return Err(StoreError::OtherVersion { found: header.schema, ours: schema });
    }
    let table = transaction.open_table(ENTRIES)?;
    let mut rows = Vec::new();
    let mut seen = Header { last: 0, seal: Digest::default(), ..header };
    for row in table.iter()? {
        let (index, row) = row?;
        let (index, (term, seal, bytes)) = (index.value(), row.value());
        seen = seen.followed_by(Term(term), bytes);
        if (index, seal) != (seen.last, &seen.seal) {
            return Err(StoreError::Damaged(format!("entry {} is not as written", seen.last)));
        }
        rows.push(Row { index, term: Term(term), bytes: bytes.to_vec() });
    }
    if (seen.last, seen.seal) != (header.last, header.seal) {
        let (last, found) = (header.last, seen.last);
        return Err(StoreError::Damaged(format!("of {last} entries, {found} are there")));
    }
    Ok((header, rows))
}

fn header(transaction: &redb::ReadTransaction) -> Result<Header, StoreError> {
    let lacks = || StoreError::Damaged("it has no header".into());
    let table = match transaction.open_table(HEADER) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Err(lacks()),
        table => table?,
    };
    let row = table.get(())?.ok_or_else(lacks)?;
    let ([schema, term, last], seal, digest) = row.value();
    let header = Header { schema, term: Term(term), last, seal: *seal };
    match header.digest() == *digest {
        true => Ok(header),
        false => Err(StoreError::Damaged("its header is not as written".into())),
    }
}

/// redb asserts what a damaged file may not fulfil: its panics are errors of the file.
pub(super) fn guarded<T>(
    operation: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let words = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("without a word").into(),
    };
    let done = catch_unwind(AssertUnwindSafe(operation));
    done.unwrap_or_else(|panic| Err(StoreError::Panicked(words(panic))))
}
