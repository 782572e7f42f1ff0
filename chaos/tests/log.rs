//! The coordinator's log on a disk that fails as disks do: it has all acknowledged entries, in
//! order, and no others. It detects a damaged file.

mod dice;

use std::slice;

use everstep_chaos::disk::{DiskFaults, File, SimDisk};
use everstep_coordinator::log::ReplicaStoreError;
use everstep_coordinator::log::replica::{DiskOwner, ReplicaStore};
use everstep_coordinator::raft::{
    DurableState, EntryKind, HardState, LogPosition, RaftEntry, ReplicaId, Snapshot, WriteBatch,
};
use everstep_transport::protocol::Term;
use redb::StorageBackend;

use self::dice::Dice;

const OWNER: DiskOwner = DiskOwner { cluster: [7; 32], replica: ReplicaId(1) };

/// A coordinator that only keeps a log, and the promises to its users.
struct NodeId {
    disk: SimDisk,
    dice: Dice,
    /// The acknowledged content.
    acknowledged: DurableState,
    /// The batch that was under way when the node stopped.
    attempted: Option<WriteBatch>,
    /// How many entries were acknowledged, with those that are gone since.
    entries: usize,
}

impl NodeId {
    fn new(seed: u64) -> Self {
        let (disk, acknowledged) =
            (SimDisk::new(seed, DiskFaults::default()), DurableState::founded_by(ReplicaId(1)));
        ReplicaStore::create(disk.open(), OWNER, &acknowledged).expect("an honest disk");
        Self { disk, dice: Dice::of(seed), acknowledged, attempted: None, entries: 0 }
    }

    /// Writes batches until an operation fails.
    fn work(&mut self, batches: u64) -> Result<ReplicaStore, ReplicaStoreError> {
        let (mut store, found) = ReplicaStore::open(self.disk.open(), OWNER)?;
        self.recover(found);
        for _ in 0..batches {
            let batch = self.batch();
            self.attempted = Some(batch.clone());
            store.persist(slice::from_ref(&batch))?;
            self.acknowledge(&batch);
            if self.dice.below(2) == 0 {
                store.confirm()?;
            }
        }
        Ok(store)
    }

    fn acknowledge(&mut self, batch: &WriteBatch) {
        self.acknowledged.absorb(batch);
        self.entries += batch.entries.len();
        self.attempted = None;
    }

    /// Some entries, which may replace the last ones, a vote, and now and then a snapshot, which
    /// removes a part of the log.
    fn batch(&mut self) -> WriteBatch {
        let DurableState { hard_state, snapshot, base, entries } = &self.acknowledged;
        let last = self.acknowledged.last();
        let term = Term(hard_state.term.0 + self.dice.below(2));
        let after = last.index - u64::from(last.index > hard_state.commit) * self.dice.below(2);
        let (commit, vote) = (after, Some(ReplicaId(1 + self.dice.below(3))));
        let position =
            LogPosition { index: after, term: self.acknowledged.term(after).expect("there") };
        let taken = (self.dice.below(4) == 0 && after > snapshot.position.index).then(|| {
            Snapshot { position, members: snapshot.members.clone(), bytes: bytes(&mut self.dice) }
        });
        let dropped = entries.get(entries.len() / 2).filter(|it| it.position < position);
        let base = dropped.filter(|_| taken.is_some()).map_or(*base, |entry| entry.position);
        let count = 1 + self.dice.below(4);
        let entry = |number| RaftEntry {
            position: LogPosition { index: after + number, term },
            kind: if self.dice.below(9) == 0 { EntryKind::Members } else { EntryKind::Command },
            bytes: bytes(&mut self.dice),
        };
        let entries = (1..=count).map(entry).collect();
        let hard_state = HardState { term, vote, commit };
        WriteBatch { number: 1, hard_state, snapshot: taken, base, entries }
    }

    /// Checks the content against the promises. The batch that was only attempted may be there too.
    fn recover(&mut self, found: DurableState) {
        if found != self.acknowledged {
            let attempted = self.attempted.take().expect("what was not promised is not there");
            self.acknowledge(&attempted);
            assert!(found == self.acknowledged, "neither what was promised nor what was tried");
        }
        self.attempted = None;
    }
}

fn bytes(dice: &mut Dice) -> Vec<u8> {
    let length = 1 << dice.below(14);
    (0..length).map(|_| dice.below(256) as u8).collect()
}

/// Crashes again and again, at random writes. Then checks what survived.
fn survive(seed: u64, faults: DiskFaults, crashes: u32) -> NodeId {
    let mut node = NodeId::new(seed);
    for _ in 0..crashes {
        node.disk.suffer(faults);
        node.disk.cut_power_after(node.dice.below(250));
        let _ = node.work(10); // it does not get to the end, or does
        node.disk.crash();
        node.disk.suffer(DiskFaults::default());
        node.work(0).expect("what a crash leaves can be opened");
    }
    node
}

#[test]
fn i9_every_acknowledged_entry_survives_every_crash_in_its_order() {
    let nodes = (0..30).map(|seed| survive(seed, DiskFaults::of_an_honest_disk(), 20));
    let entries: usize = nodes.map(|node| node.entries).sum();
    println!("600 crashes, {entries} entries");
    assert!(entries > 1_000);
}

#[test]
fn errors_of_the_disk_lose_nothing_that_was_acknowledged() {
    let faults = DiskFaults { error_ppm: 10_000, ..DiskFaults::of_an_honest_disk() };
    for seed in 100..110 {
        survive(seed, faults, 20);
    }
}

#[test]
fn a_full_disk_is_an_error_in_words_and_keeps_what_was_acknowledged() {
    let mut node = NodeId::new(2);
    let store = node.work(10).expect("an honest disk");
    let capacity_bytes = content(&node.disk.open()).len() as u64;
    drop(store);
    node.disk.suffer(DiskFaults { capacity_bytes, ..DiskFaults::default() });
    let full = node.work(10_000).map(drop).expect_err("the disk is full");
    assert!(full.to_string().contains("no storage space"), "{full}");
    node.disk.crash();
    node.disk.suffer(DiskFaults::default());
    node.work(10).expect("there is room again");
}

#[test]
fn a_killed_process_leaves_what_it_has_written() {
    let mut node = NodeId::new(1);
    for _ in 0..20 {
        let killed = node.work(3).expect("an honest disk");
        node.work(0).expect("its file is taken over while it lives");
        drop(killed); // what it still does changes nothing
    }
    assert!(node.entries >= 60);
}

/// Opens a copy of the file with one flipped bit, writes to it, and opens it again. Content that
/// was taken for sound once stays so.
fn open_flipped(content: &[u8], bit: usize) -> Result<DurableState, ReplicaStoreError> {
    let mut content = content.to_vec();
    content[bit / 8] ^= 1 << (bit % 8);
    let disk = SimDisk::new(0, DiskFaults::default());
    let file = disk.open();
    file.set_len(content.len() as u64).expect("an honest disk");
    file.write(0, &content).expect("an honest disk");
    let (mut store, found) = ReplicaStore::open(disk.open(), OWNER)?;
    let LogPosition { index, term } = found.last();
    let position = LogPosition { index: index + 1, term };
    let entry = RaftEntry { position, kind: EntryKind::Command, bytes: vec![1; 9_000] };
    let (hard_state, base) = (found.hard_state, found.base);
    let batch = WriteBatch { number: 1, hard_state, snapshot: None, base, entries: vec![entry] };
    store.persist(slice::from_ref(&batch)).expect("an honest disk");
    drop(store);
    let (_, again) = ReplicaStore::open(disk.open(), OWNER).expect("a sound file");
    let mut both = found.clone();
    both.absorb(&batch);
    assert!(again == both, "bit {bit}");
    Ok(found)
}

/// Flips single bits all over the file, one at a time: in every byte of redb's own header, in every
/// thirtieth that is not zero, in some that are. Returns how many flips were errors.
fn flip_bits(content: &[u8], expected: &DurableState) -> usize {
    let mut dice = Dice::of(1);
    let mut noticed = 0;
    for (place, &byte) in content.iter().enumerate() {
        let one_in = match (place, byte) {
            (..400, _) => 1,
            (_, 0) => 5_000,
            _ => 30,
        };
        if dice.below(one_in) > 0 {
            continue;
        }
        let bit = place * 8 + dice.below(8) as usize;
        match open_flipped(content, bit) {
            Err(_) => noticed += 1,
            Ok(found) => assert!(found == *expected, "bit {bit}"),
        }
    }
    noticed
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for clean_stop in [true, false] {
        let mut node = NodeId::new(3);
        let mut store = node.work(6).expect("an honest disk");
        store.confirm().expect("an honest disk");
        let mut running = Some(store);
        if clean_stop {
            running = None; // closes the file
        }
        let content = content(&node.disk.open());
        let noticed = flip_bits(&content, &node.acknowledged);
        println!("clean stop: {clean_stop}, {} bytes, {noticed} noticed", content.len());
        assert!(noticed > 100);
        drop(running);
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.len().expect("an honest disk") as usize];
    file.read(0, &mut content).expect("an honest disk");
    content
}
