//! The records of a file of metrics lines: their size and their bytes.
//!
//! A record has a fixed part, and a number for each name of a scalar that the file's head has. So
//! all records of a file have one size. A file gets the names from its lines, the newest last.

use everstep_transport::protocol::Step;
use everstep_transport::protocol::scalar::{MAX_NAME, MAX_SCALARS, Scalar, ScalarName};
use rkyv::rancor;
use rkyv::util::AlignedVec;

use crate::lines::LineRecord;

/// A checksum of the record's content, of the names and of its place.
pub(super) const CHECKSUM: usize = 8;
/// The bytes of a record without scalars. Their list is empty in its archive.
const FIXED: usize = CHECKSUM + size_of::<rkyv::Archived<LineRecord>>();
/// The bytes of all names that a head has room for.
pub(super) const TABLE: usize = MAX_SCALARS * MAX_NAME;
/// A scalar that a line lacks: a NaN that no sum makes.
const ABSENT: u64 = u64::MAX;

/// The scalars that the records of a file have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordLayout {
    names: Vec<ScalarName>,
}

impl RecordLayout {
    /// The bytes of one record.
    pub(super) fn size(&self) -> usize {
        FIXED + size_of::<u64>() * self.names.len()
    }

    /// The layout of records of this size, with the names in this table of a head. None if no
    /// record has this size.
    pub(super) fn of(size: u64, table: &[u8; TABLE]) -> Option<Self> {
        let numbers = size.checked_sub(FIXED as u64)?;
        let count = usize::try_from(numbers / 8).ok().filter(|count| *count <= MAX_SCALARS)?;
        let name = |bytes: &[u8]| ScalarName::of_bytes(bytes.try_into().expect("a name's bytes"));
        let names = table.chunks_exact(MAX_NAME).take(count).map(name).collect();
        Some(Self { names }).filter(|layout| layout.size() as u64 == size)
    }

    /// The names, for a head.
    pub(super) fn table(&self) -> [u8; TABLE] {
        let mut table = [0; TABLE];
        for (bytes, name) in table.chunks_exact_mut(MAX_NAME).zip(&self.names) {
            bytes.copy_from_slice(name.bytes());
        }
        table
    }

    /// The layout that also has the names of these records, as long as there is room. None if this
    /// one has them.
    pub(super) fn grown(&self, records: &[LineRecord]) -> Option<Self> {
        let mut names = self.names.clone();
        for scalar in records.iter().flat_map(|record| &record.line.scalars) {
            if names.len() < MAX_SCALARS && !names.contains(&scalar.name) {
                names.push(scalar.name);
            }
        }
        (names.len() > self.names.len()).then_some(Self { names })
    }

    /// The bytes of a record. A scalar whose name has found no room is left out.
    pub(super) fn encode(&self, record: &LineRecord) -> Vec<u8> {
        let mut fixed = record.clone();
        let scalars = std::mem::take(&mut fixed.line.scalars);
        let archive = rkyv::to_bytes::<rancor::Error>(&fixed).expect("a record is finite");
        let mut bytes = vec![0; CHECKSUM];
        bytes.extend_from_slice(&archive);
        for name in &self.names {
            let found = scalars.iter().find(|scalar| scalar.name == *name);
            let number = found.map_or(ABSENT, |scalar| canonical(scalar.value));
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        assert_eq!(bytes.len(), self.size(), "an archive of one size");
        let sum = self.checksum(record.line.step, &bytes[CHECKSUM..]);
        bytes[..CHECKSUM].copy_from_slice(&sum);
        bytes
    }

    /// The record of a step in these bytes. None if they differ from what was written.
    pub(super) fn decode(&self, bytes: &[u8], step: Step) -> Option<LineRecord> {
        let body = self.opened(bytes, step)?;
        let (archive, numbers) = body.split_at_checked(FIXED - CHECKSUM)?;
        let mut aligned = AlignedVec::<16>::with_capacity(archive.len());
        aligned.extend_from_slice(archive);
        let mut record = rkyv::from_bytes::<LineRecord, rancor::Error>(&aligned).ok()?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let present = self.names.iter().zip(numbers.chunks_exact(8).map(number));
        let present = present.filter(|(_, number)| *number != ABSENT);
        let scalar =
            |(name, bits): (&ScalarName, u64)| Scalar { name: *name, value: f64::from_bits(bits) };
        record.line.scalars = present.map(scalar).collect();
        record.line.scalars.sort_by_key(|scalar| scalar.name);
        Some(record)
    }

    /// The content of a step's record, of any format. None if it differs from what was written.
    pub(super) fn opened<'a>(&self, bytes: &'a [u8], step: Step) -> Option<&'a [u8]> {
        let (found, body) = bytes.split_first_chunk::<CHECKSUM>()?;
        (*found == self.checksum(step, body)).then_some(body)
    }

    fn checksum(&self, step: Step, body: &[u8]) -> [u8; CHECKSUM] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&step.0.to_le_bytes());
        for name in &self.names {
            hasher.update(name.bytes());
        }
        *hasher.update(body).finalize().as_bytes().first_chunk().expect("32 bytes")
    }
}

/// The bits of a value. All values that are no numbers have one pattern.
fn canonical(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
}
