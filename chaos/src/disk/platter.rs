//! The stored content, the cached content, and what a crash leaves of the difference.
//!
//! Lengths are a file system's metadata. The file system journals them, so a crash keeps the
//! changes of length before some moment, in order. Data has no order at all until it is synced. A
//! crash loses data beyond the file's length.

use super::{DiskFaults, SECTOR, Survival, chance};
use crate::random::Random;

/// The content of a file, twice.
#[derive(Debug, Default)]
pub(super) struct Platter {
    /// The content that reads see.
    cached: Vec<u8>,
    /// The content that is safe.
    stored: Vec<u8>,
    /// The changes that lead from the stored to the cached content, in order.
    unsynced: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Length(usize),
    Write { offset: usize, bytes: Vec<u8> },
}

impl Platter {
    pub(super) fn cached(&self) -> &[u8] {
        &self.cached
    }

    pub(super) fn resize(&mut self, len: usize) {
        self.change(Change::Length(len));
    }

    /// Writes inside the file's length.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.change(Change::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.stored);
        }
    }

    /// A sync has failed. Readers still see what was cached, but no later sync writes it
    /// ("fsyncgate": the kernel takes the pages for clean).
    pub(super) fn forget(&mut self, faults: &DiskFaults, random: &mut Random) -> Survival {
        let mut changes = std::mem::take(&mut self.unsynced);
        reorder(&mut changes, faults, random);
        let mut survival = Survival::default();
        let mut journal_ended = false;
        for change in changes {
            let lost = chance(random, faults.lost_ppm);
            journal_ended |= lost && change.is_length();
            match change {
                Change::Length(_) if journal_ended => survival.lost += 1,
                Change::Write { .. } if lost => survival.lost += 1,
                Change::Write { offset, bytes } if chance(random, faults.torn_ppm) => {
                    survival.torn += 1;
                    tear(&mut self.stored, offset, &bytes, random);
                }
                whole => {
                    survival.kept += 1;
                    whole.apply(&mut self.stored);
                }
            }
        }
        survival
    }

    /// Loses all but the stored content, and perhaps parts of that.
    pub(super) fn crash(&mut self, faults: &DiskFaults, random: &mut Random) -> Survival {
        let mut survival = self.forget(faults, random);
        if chance(random, faults.flipped_ppm) {
            survival.flipped = u32::from(flip(&mut self.stored, random));
        }
        if chance(random, faults.wiped_ppm) {
            survival.wiped = true;
            self.stored.clear();
        }
        self.cached.clone_from(&self.stored);
        survival
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.cached);
        self.unsynced.push(change);
    }
}

impl Change {
    fn is_length(&self) -> bool {
        matches!(self, Self::Length(_))
    }

    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Length(len) => content.resize(*len, 0),
            Self::Write { offset, bytes } => overwrite(content, *offset, bytes),
        }
    }
}

/// Writes the bytes that lie inside the content's length.
fn overwrite(content: &mut [u8], offset: usize, bytes: &[u8]) {
    let inside = content.get_mut(offset..).unwrap_or_default();
    let len = inside.len().min(bytes.len());
    inside[..len].copy_from_slice(&bytes[..len]);
}

/// Lets writes trade places with earlier ones. Changes of length keep their places.
fn reorder(changes: &mut [Change], faults: &DiskFaults, random: &mut Random) {
    let writes: Vec<usize> = (0..changes.len()).filter(|at| !changes[*at].is_length()).collect();
    for later in 1..writes.len() {
        if chance(random, faults.reordered_ppm) {
            let earlier = random.below(later as u64) as usize;
            changes.swap(writes[earlier], writes[later]);
        }
    }
}

/// Writes some sectors, chosen at random.
fn tear(content: &mut [u8], offset: usize, bytes: &[u8], random: &mut Random) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done;
        let end = bytes.len().min(done + SECTOR - at % SECTOR);
        if random.below(2) == 0 {
            overwrite(content, at, &bytes[done..end]);
        }
        done = end;
    }
}

/// Flips a bit of a sector that is not empty: a flip in a hole of a file would not be noticed.
/// Returns false if there is no such sector.
fn flip(content: &mut [u8], random: &mut Random) -> bool {
    let used = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    let sectors: Vec<&mut [u8]> = content.chunks_mut(SECTOR).filter(|s| used(s)).collect();
    let chosen = (!sectors.is_empty()).then(|| random.below(sectors.len() as u64) as usize);
    let Some(sector) = chosen.and_then(|at| sectors.into_iter().nth(at)) else { return false };
    let bit = random.below(8 * sector.len() as u64) as usize;
    sector[bit / 8] ^= 1 << (bit % 8);
    true
}
