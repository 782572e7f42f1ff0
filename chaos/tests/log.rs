//! The coordinator's log on a disk that fails as disks do: what was acknowledged is there, in
//! order, and nothing else; a damaged file is found out.

mod dice;

use everstep_chaos::disk::{Disk, Faults, File};
use everstep_coordinator::log::{Row, Store, StoreError};
use redb::StorageBackend;

use self::dice::Dice;

const SCHEMA: u64 = 7;

/// A coordinator whose only work is to keep a log, and what its users were promised.
struct Node {
    disk: Disk,
    dice: Dice,
    /// What was acknowledged, by index.
    acknowledged: Vec<Vec<u8>>,
    /// The batch that was under way when the node stopped.
    attempted: Vec<Vec<u8>>,
    /// The newest term that an opening returned.
    term: u64,
}

impl Node {
    fn new(seed: u64) -> Self {
        let disk = Disk::new(seed, Faults::default());
        Store::create(disk.open(), SCHEMA).expect("an honest disk");
        let (acknowledged, attempted) = (Vec::new(), Vec::new());
        Self { disk, dice: Dice::of(seed), acknowledged, attempted, term: 0 }
    }

    /// Appends batches until something fails.
    fn work(&mut self, batches: u64) -> Result<Store, StoreError> {
        let (mut store, rows) = Store::open(self.disk.open(), SCHEMA)?;
        self.recover(&store, rows);
        for _ in 0..batches {
            self.attempted = (0..1 + self.dice.below(4)).map(|_| self.entry()).collect();
            store.append(&self.attempted)?;
            self.acknowledged.append(&mut self.attempted);
            if self.dice.below(2) == 0 {
                store.confirm()?;
            }
        }
        Ok(store)
    }

    fn entry(&mut self) -> Vec<u8> {
        let length = 1 << self.dice.below(14);
        (0..length).map(|_| self.dice.below(256) as u8).collect()
    }

    /// Checks what is there against what was promised; what was only attempted may be there too.
    fn recover(&mut self, store: &Store, rows: Vec<Row>) {
        assert!(store.term().0 > self.term, "terms grow");
        self.term = store.term().0;
        assert_eq!(store.last(), rows.len() as u64);
        assert!(rows.iter().zip(1..).all(|(row, index)| row.index == index));
        assert!(rows.is_sorted_by_key(|row| row.term) && rows.iter().all(|r| r.term.0 < self.term));
        let found: Vec<_> = rows.into_iter().map(|row| row.bytes).collect();
        let with_attempt = [&self.acknowledged[..], &self.attempted].concat();
        assert!(found == self.acknowledged || found == with_attempt, "{} found", found.len());
        self.acknowledged = found;
        self.attempted.clear();
    }
}

/// Crashes again and again, at every write there is; then looks at what survived.
fn survive(seed: u64, faults: Faults, crashes: u32) -> Node {
    let mut node = Node::new(seed);
    for _ in 0..crashes {
        node.disk.suffer(faults);
        node.disk.cut_power_after(node.dice.below(250));
        let _ = node.work(10); // it does not get to the end, or does
        node.disk.crash();
        node.disk.suffer(Faults::default());
        node.work(0).expect("what a crash leaves can be opened");
    }
    node
}

#[test]
fn i9_every_acknowledged_entry_survives_every_crash_in_its_order() {
    let nodes = (0..30).map(|seed| survive(seed, Faults::of_an_honest_disk(), 20));
    let entries: usize = nodes.map(|node| node.acknowledged.len()).sum();
    println!("600 crashes, {entries} entries");
    assert!(entries > 1_000);
}

#[test]
fn errors_of_the_disk_lose_nothing_that_was_acknowledged() {
    let faults = Faults { error_ppm: 10_000, ..Faults::of_an_honest_disk() };
    for seed in 100..110 {
        survive(seed, faults, 20);
    }
}

#[test]
fn a_full_disk_is_an_error_in_words_and_keeps_what_was_acknowledged() {
    let mut node = Node::new(2);
    let store = node.work(10).expect("an honest disk");
    let capacity_bytes = content(&node.disk.open()).len() as u64;
    drop(store);
    node.disk.suffer(Faults { capacity_bytes, ..Faults::default() });
    let full = node.work(10_000).map(drop).expect_err("the disk is full");
    assert!(full.to_string().contains("no storage space"), "{full}");
    node.disk.crash();
    node.disk.suffer(Faults::default());
    node.work(10).expect("there is room again");
}

#[test]
fn a_killed_process_leaves_what_it_has_written() {
    let mut node = Node::new(1);
    for _ in 0..20 {
        let killed = node.work(3).expect("an honest disk");
        node.work(0).expect("its file is taken over while it lives");
        drop(killed); // what it still does changes nothing
    }
    assert!(node.acknowledged.len() >= 60);
}

/// Opens a copy of the file with one bit flipped, goes on, and opens it again: what is taken for
/// sound once stays so.
fn open_flipped(content: &[u8], bit: usize) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut content = content.to_vec();
    content[bit / 8] ^= 1 << (bit % 8);
    let disk = Disk::new(0, Faults::default());
    let file = disk.open();
    file.set_len(content.len() as u64).expect("an honest disk");
    file.write(0, &content).expect("an honest disk");
    let (mut store, rows) = Store::open(disk.open(), SCHEMA)?;
    store.append(&[vec![1; 9_000]]).expect("an honest disk");
    drop(store);
    let (_, again) = Store::open(disk.open(), SCHEMA).expect("a sound file");
    assert_eq!(again[..rows.len()], rows, "bit {bit}");
    Ok(rows.into_iter().map(|row| row.bytes).collect())
}

/// Flips single bits all over the file, one at a time: in every byte of redb's own header, in every
/// thirtieth that is not zero, in some that are. Returns how many were errors.
fn flip_bits(content: &[u8], expected: &[Vec<u8>]) -> usize {
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
            Ok(found) => assert_eq!(found, expected, "bit {bit}"),
        }
    }
    noticed
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for clean_stop in [true, false] {
        let mut node = Node::new(3);
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
