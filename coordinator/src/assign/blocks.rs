//! Data shards in blocks of the reduction tree.
//!
//! A worker sends one sum for each greatest subtree that lies wholly inside its data shards. So the
//! cost of an assignment in bytes and in memory is its number of *blocks*: ranges of `1 << level`
//! data shards that begin at a multiple of their length, cut off at the end of the batch.
//!
//! Intuition: a share of 10 data shards is a block of 8 and a block of 2. Blocks that are laid out
//! side by side, the longest first, all begin at multiples of their length. So every worker has as
//! few blocks as its share has binary ones. [`fresh`] does that, and gives each layout to the
//! worker that has most of it already. [`hand_on`] is for a loss: the survivors keep what they
//! have, and get the orphaned data shards in blocks that are as long as possible.
//!
//! The module knows ranks and data shards. It does not know workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use super::pace;

/// A block of the tree over `count` data shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    level: u32,
    first: u32,
    count: u32,
}

impl Block {
    /// The block over all data shards.
    fn root(count: u32) -> Self {
        Self { level: u32::BITS - (count - 1).leading_zeros(), first: 0, count }
    }

    fn range(self) -> Range<u32> {
        let end = u64::from(self.first) + (1u64 << self.level);
        self.first.min(self.count)..end.min(u64::from(self.count)) as u32
    }

    fn len(self) -> u32 {
        self.range().len() as u32
    }

    fn halves(self) -> [Self; 2] {
        let level = self.level - 1;
        [self.first, self.first.saturating_add(1 << level)].map(|first| Self {
            level,
            first,
            ..self
        })
    }

    /// The greatest blocks that lie wholly inside `leaves`, which ascend.
    fn inside(self, leaves: &[u32], found: &mut Vec<Self>) {
        if leaves.is_empty() {
            return;
        }
        if leaves.len() as u32 == self.len() {
            return found.push(self);
        }
        let [left, right] = self.halves();
        let (low, high) = leaves.split_at(leaves.partition_point(|leaf| *leaf < right.first));
        left.inside(low, found);
        right.inside(high, found);
    }
}

/// How many sums a worker sends that computes these of `count` data shards, ascending.
pub(super) fn sums(count: u32, leaves: &[u32]) -> usize {
    let mut found = Vec::new();
    if count > 0 {
        Block::root(count).inside(leaves, &mut found);
    }
    found.len()
}

/// The data shards of each of `members`, ascending, in as few blocks as their shares allow.
/// `holders[shard]` is the rank that has the shard now. `shares` has the share of each rank, or
/// none if shares are equal within one data shard, no matter which members have one more.
pub(super) fn fresh(
    holders: &[Option<usize>],
    members: usize,
    shares: Option<&[usize]>,
) -> Vec<Vec<u32>> {
    let shapes = match shares {
        Some(shares) => shapes(shares),
        None => shapes(&equal(holders.len(), members)),
    };
    let fits =
        |index: usize, rank: usize| shares.is_none_or(|shares| shapes[index].len() == shares[rank]);
    let mut common = BTreeMap::<(usize, usize), usize>::new();
    for (index, shape) in shapes.iter().enumerate() {
        let holders = shape.iter().filter_map(|leaf| holders[*leaf as usize]);
        for rank in holders.filter(|rank| fits(index, *rank)) {
            *common.entry((index, rank)).or_default() += 1;
        }
    }
    let mut pairs: Vec<_> = common.into_iter().collect();
    pairs.sort_by_key(|(pair, common)| (Reverse(*common), *pair));
    let (mut of_rank, mut is_taken) = (vec![None; members], vec![false; members]);
    for ((index, rank), _) in pairs {
        if of_rank[rank].is_none() && !is_taken[index] {
            (of_rank[rank], is_taken[index]) = (Some(index), true);
        }
    }
    for (rank, of_rank) in of_rank.iter_mut().enumerate().filter(|(_, index)| index.is_none()) {
        let free = |index: &usize| !is_taken[*index] && fits(*index, rank);
        let index = (0..members).find(free).expect("a shape for each member");
        (*of_rank, is_taken[index]) = (Some(index), true);
    }
    of_rank.into_iter().flatten().map(|index| shapes[index].clone()).collect()
}

/// Shares that are equal within one.
pub(super) fn equal(count: usize, members: usize) -> Vec<usize> {
    let (share, more) = (count / members, count % members);
    (0..members).map(|index| share + usize::from(index < more)).collect()
}

/// The layouts of these shares, which have all data shards.
pub(super) fn shapes(shares: &[usize]) -> Vec<Vec<u32>> {
    let (mut shapes, mut next) = (vec![Vec::new(); shares.len()], 0);
    for length in (0..u32::BITS).rev().map(|level| 1usize << level) {
        for (shape, share) in shapes.iter_mut().zip(shares) {
            if share & length != 0 {
                shape.extend(next..next + length as u32);
                next += length as u32;
            }
        }
    }
    shapes
}

/// The data shards of each of `members`, ascending, after a loss. A survivor keeps what it has. The
/// rest goes to those that compute it soonest, in blocks as long as possible.
pub(super) fn hand_on(holders: &[Option<usize>], paces: &[Option<u64>]) -> Vec<Vec<u32>> {
    let (count, members) = (holders.len() as u32, paces.len());
    let mut held = vec![Vec::new(); members];
    let mut orphans = Vec::new();
    for (holder, leaf) in holders.iter().zip(0..) {
        holder.map_or(&mut orphans, |rank| &mut held[rank]).push(leaf);
    }
    let each = held.iter().map(Vec::len).collect();
    let shares = pace::handed_on(each, orphans.len(), paces);
    let mut free = Free::new(count, &orphans);
    let mut by_room: Vec<_> = (0..members).collect();
    by_room.sort_by_key(|rank| Reverse(shares[*rank] - held[*rank].len()));
    for rank in by_room {
        let given = free.take(shares[rank] - held[rank].len());
        held[rank].extend(given);
        held[rank].sort_unstable();
    }
    held
}

/// Blocks to give away.
struct Free {
    /// The blocks, by length and first data shard.
    blocks: BTreeMap<(u32, u32), Block>,
}

impl Free {
    fn new(count: u32, leaves: &[u32]) -> Self {
        let mut found = Vec::new();
        Block::root(count).inside(leaves, &mut found);
        Self { blocks: found.into_iter().map(|block| (Self::key(block), block)).collect() }
    }

    fn key(block: Block) -> (u32, u32) {
        (block.len(), block.first)
    }

    /// Takes this many data shards. Each next block is the greatest that still fits: a part of the
    /// shortest free block that contains one, or the longest free block where none does.
    fn take(&mut self, mut room: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        while room > 0 {
            let wanted = 1 << room.ilog2();
            let fits = self.blocks.range((wanted, 0)..).next().map(|(key, _)| *key);
            let longest = || *self.blocks.last_key_value().expect("shares add up").0;
            let block = self.blocks.remove(&fits.unwrap_or_else(longest)).expect("it is free");
            if block.len() as usize <= room {
                room -= block.len() as usize;
                taken.extend(block.range());
            } else {
                let halves = block.halves().into_iter().filter(|half| half.len() > 0);
                self.blocks.extend(halves.map(|half| (Self::key(half), half)));
            }
        }
        taken
    }
}
