//! The behaviour of the simulated disk, and of redb on it: the ground that the Raft log stands on.

mod dice;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use everstep_chaos::disk::{DiskFaults, File, SimDisk, Survival};
use proptest::prelude::*;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};

use self::dice::Dice;

const ALWAYS: u32 = 1_000_000;
const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
/// One row: all but the entries.
const HEADER: TableDefinition<(), &[u8]> = TableDefinition::new("header");

/// A log like Raft's. Every row is stored with a checksum over its place and its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Log {
    /// How many transactions the log took.
    commits: u64,
    entries: BTreeMap<u64, Vec<u8>>,
}

/// Why no log can be read.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("redb says: {0}")]
    Reported(redb::Error),
    #[error("a checksum does not fit, or an entry is missing")]
    Noticed,
}

impl<E: Into<redb::Error>> From<E> for Damage {
    fn from(error: E) -> Self {
        Self::Reported(error.into())
    }
}

/// A node that only keeps a log, and the promises to its users.
struct NodeId {
    disk: SimDisk,
    dice: Dice,
    /// After the last commit that returned Ok.
    acknowledged: Log,
    /// After the commit that was under way when the node stopped.
    attempted: Log,
    /// A planted bug: its file claims to sync, and does not.
    lies: bool,
}

/// A history of crashes, for comparison.
#[derive(Debug, Default, PartialEq, Eq)]
struct History {
    digests: Vec<[u8; 32]>,
    survivals: Vec<Survival>,
    /// Commits that returned before a crash.
    acknowledged: u64,
    /// Commits that did not return, and are there all the same.
    unexpected: u64,
    delay: Duration,
}

impl NodeId {
    fn new(seed: u64, faults: DiskFaults) -> Self {
        let log = Log::default();
        let dice = Dice::of(seed);
        let disk = SimDisk::new(seed, faults);
        Self { disk, dice, acknowledged: log.clone(), attempted: log, lies: false }
    }

    fn open(&self) -> Result<Database, redb::Error> {
        let mut builder = Database::builder();
        builder.set_cache_size(1 << 20);
        let file = self.disk.open();
        Ok(match self.lies {
            true => builder.create_with_backend(Liar(file))?,
            false => builder.create_with_backend(file)?,
        })
    }

    /// Commits transactions until one fails.
    fn work(&mut self, transactions: u64) -> Result<(), redb::Error> {
        let database = self.open()?;
        for _ in 0..transactions {
            self.attempted = self.next();
            store(&database, &self.acknowledged, &self.attempted)?;
            self.acknowledged = self.attempted.clone();
        }
        Ok(())
    }

    /// The next state of the log: with new entries at its end. Or first cut at its end, as by a new
    /// leader, or at its beginning, as by a snapshot.
    fn next(&mut self) -> Log {
        let Log { commits, mut entries } = self.acknowledged.clone();
        let end = entries.last_key_value().map_or(1, |(last, _)| last + 1);
        let some = self.dice.below(8);
        let kept = match self.dice.below(8) {
            0 => 0..end.saturating_sub(some).max(1),
            1 => end.saturating_sub(some)..end,
            _ => 0..end,
        };
        entries.retain(|at, _| kept.contains(at));
        for at in kept.end..=kept.end + some {
            let length = 1 << self.dice.below(14);
            entries.insert(at, vec![self.dice.below(255) as u8; length]);
        }
        Log { commits: commits + 1, entries }
    }

    /// The machine loses power at some moment in the middle, and starts again.
    fn crash(&mut self) -> Survival {
        self.disk.cut_power_after(self.dice.below(150));
        let _ = self.work(12); // it does not get to the end, or does
        self.disk.crash()
    }

    /// The log on the disk.
    fn read(&self) -> Result<Log, Damage> {
        let database = self.open()?;
        let transaction = database.begin_read()?;
        let header = match transaction.open_table(HEADER) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Log::default()),
            table => table?.get(())?.ok_or(Damage::Noticed)?,
        };
        let header = unseal(0, header.value())?;
        let mut log = Log { commits: number(&header), ..Log::default() };
        for entry in transaction.open_table(ENTRIES)?.iter()? {
            let (at, bytes) = entry?;
            log.entries.insert(at.value(), unseal(at.value(), bytes.value())?);
        }
        if log.header() == header { Ok(log) } else { Err(Damage::Noticed) }
    }
}

impl Log {
    /// Tells a log from one that lacks an entry.
    fn header(&self) -> Vec<u8> {
        let first = self.entries.keys().next().copied().unwrap_or_default();
        let numbers = [self.commits, first, self.entries.len() as u64];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}

/// One transaction: the changes from one log to another.
fn store(database: &Database, before: &Log, after: &Log) -> Result<(), redb::Error> {
    let (before, entries) = (&before.entries, &after.entries);
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    {
        let mut table = transaction.open_table(ENTRIES)?;
        for at in before.keys().filter(|at| !entries.contains_key(at)) {
            table.remove(at)?;
        }
        for (at, bytes) in entries.iter().filter(|(at, bytes)| before.get(at) != Some(bytes)) {
            table.insert(at, seal(*at, bytes).as_slice())?;
        }
        let header = seal(0, &after.header());
        transaction.open_table(HEADER)?.insert((), header.as_slice())?;
    }
    Ok(transaction.commit()?)
}

/// The stored form of a row: a checksum over place and content, then the content.
fn seal(at: u64, content: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&at.to_le_bytes()).update(content);
    [&hasher.finalize().as_bytes()[..8], content].concat()
}

fn unseal(at: u64, stored: &[u8]) -> Result<Vec<u8>, Damage> {
    let content = stored.get(8..).ok_or(Damage::Noticed)?;
    if seal(at, content) == stored { Ok(content.to_vec()) } else { Err(Damage::Noticed) }
}

fn number(header: &[u8]) -> u64 {
    header.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A planted bug: a file that is never synced.
#[derive(Debug)]
struct Liar(File);

impl StorageBackend for Liar {
    fn len(&self) -> Result<u64, Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.0.write(offset, data)
    }
}

/// Crashes again and again. After each crash no acknowledged commit may be missing.
fn survive(seed: u64, faults: DiskFaults, crashes: u32) -> History {
    let mut node = NodeId::new(seed, faults);
    let mut history = History::default();
    for crash in 0..crashes {
        history.survivals.push(node.crash());
        history.digests.push(node.disk.digest());
        node.disk.suffer(DiskFaults::default());
        let found = node.read().unwrap_or_else(|damage| panic!("{seed}, {crash}: {damage}"));
        let is_known = found == node.acknowledged || found == node.attempted;
        let (promised, found_commits) = (node.acknowledged.commits, found.commits);
        assert!(is_known, "seed {seed}, crash {crash}: of {promised} commits, {found_commits}");
        history.unexpected += found_commits - promised;
        node.acknowledged = found;
        node.disk.suffer(faults);
    }
    history.acknowledged = node.acknowledged.commits;
    history.delay = node.disk.take_delay();
    history
}

#[test]
fn every_commit_that_returned_survives_every_crash_and_no_half_of_one_is_seen() {
    let mut total = Survival::default();
    let (mut commits, mut unexpected) = (0, 0);
    for seed in 0..25 {
        let history = survive(seed, DiskFaults::of_an_honest_disk(), 20);
        commits += history.acknowledged;
        unexpected += history.unexpected;
        for survival in history.survivals {
            total.kept += survival.kept;
            total.torn += survival.torn;
            total.lost += survival.lost;
        }
    }
    println!("500 crashes, {commits} commits ({unexpected} unexpected), writes: {total:?}");
    assert!(commits > 1_000 && unexpected > 0);
    assert!(total.kept > 100 && total.torn > 100 && total.lost > 100);
}

#[test]
fn a_file_that_is_not_synced_is_found_out() {
    let mut found = 0;
    for seed in 0..10 {
        let mut node = NodeId::new(seed, DiskFaults::of_an_honest_disk());
        node.lies = true;
        node.crash();
        node.disk.suffer(DiskFaults::default());
        let read = catch_unwind(AssertUnwindSafe(|| node.read()));
        found += u32::from(!matches!(read, Ok(Ok(log)) if log == node.acknowledged));
    }
    assert!(found >= 5, "{found} of 10");
}

#[test]
fn errors_of_the_disk_end_a_process_and_lose_nothing_that_was_acknowledged() {
    let faults = DiskFaults { error_ppm: 10_000, ..DiskFaults::of_an_honest_disk() };
    for seed in 100..110 {
        survive(seed, faults, 20);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_the_same_outcome() {
    let faults = DiskFaults { error_ppm: 1_000, ..DiskFaults::of_an_honest_disk() };
    let first = survive(7, faults, 20);
    assert_eq!(survive(7, faults, 20), first);
    assert_ne!(survive(8, faults, 20).digests, first.digests);
    assert!(first.delay > Duration::ZERO);
}

/// The effect on a log of one bit that flips while the machine is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The bit did not matter.
    Unharmed,
    /// redb cannot open it, and says so.
    Reported,
    /// redb cannot open it, and panics.
    Panicked,
    /// redb reads other content than was written. The log's own checksums show it.
    Noticed,
    /// The newest commit is lost. Nothing on this disk shows that.
    Shortened,
    /// The disk has another log, and nothing shows that.
    Wrong,
}

fn flip(seed: u64) -> (bool, Fate) {
    let mut node = NodeId::new(seed, DiskFaults::default());
    if seed % 2 == 1 {
        node.disk.cut_power_after(20 + node.dice.below(100));
    }
    let clean = node.work(12).is_ok();
    node.disk.suffer(DiskFaults { flipped_ppm: ALWAYS, ..DiskFaults::default() });
    assert_eq!(node.disk.crash().flipped, 1);
    node.disk.suffer(DiskFaults::default());
    let promised = node.acknowledged.commits;
    let fate = match catch_unwind(AssertUnwindSafe(|| node.read())) {
        Err(_) => Fate::Panicked,
        Ok(Err(Damage::Reported(_))) => Fate::Reported,
        Ok(Err(Damage::Noticed)) => Fate::Noticed,
        Ok(Ok(log)) if log == node.acknowledged || log == node.attempted => Fate::Unharmed,
        Ok(Ok(log)) if log.commits + 1 == promised => Fate::Shortened,
        Ok(Ok(_)) => Fate::Wrong,
    };
    (clean, fate)
}

#[test]
fn a_flipped_bit_is_found_by_checksums_on_top_or_takes_the_newest_commit_with_it() {
    let mut fates = BTreeMap::<(bool, Fate), u32>::new();
    for seed in 0..600 {
        *fates.entry(flip(seed)).or_default() += 1;
    }
    println!("flipped bits (after a clean stop?, fate): {fates:?}");
    let count = |fate| [true, false].map(|clean| fates.get(&(clean, fate)).map_or(0, |n| *n));
    assert_eq!(count(Fate::Wrong), [0, 0]);
    let [after_clean_stop, _] = count(Fate::Noticed);
    assert!(after_clean_stop > 0, "redb reads without looking at its checksums");
    let [_, after_crash] = count(Fate::Reported);
    assert!(after_crash > 0, "redb recovers with its checksums");
}

#[test]
fn a_wiped_disk_is_an_empty_log() {
    let mut node = NodeId::new(1, DiskFaults { wiped_ppm: ALWAYS, ..DiskFaults::default() });
    node.work(5).unwrap();
    assert!(node.disk.crash().wiped);
    assert_eq!(node.read().unwrap(), Log::default());
}

#[test]
fn a_full_disk_fails_a_commit_and_keeps_those_before() {
    let mut node = NodeId::new(1, DiskFaults::default());
    node.work(5).unwrap();
    let capacity_bytes = content(&node.disk.open()).len() as u64;
    node.disk.suffer(DiskFaults { capacity_bytes, ..DiskFaults::default() });
    let mut larger = node.acknowledged.clone();
    larger.entries.insert(1_000, vec![1; capacity_bytes as usize]);
    let full = store(&node.open().unwrap(), &node.acknowledged, &larger).unwrap_err();
    assert!(matches!(&full, redb::Error::Io(e) if e.kind() == ErrorKind::StorageFull), "{full}");
    node.disk.crash();
    assert_eq!(node.read().unwrap(), node.acknowledged);
    node.disk.suffer(DiskFaults::default());
    node.work(10).unwrap();
}

#[test]
fn what_a_dead_process_still_does_changes_nothing() {
    let disk = SimDisk::new(1, DiskFaults::default());
    let dead = disk.open();
    dead.set_len(8).unwrap();
    dead.write(0, &[1; 8]).unwrap();
    let file = disk.open(); // killed, without a crash of the machine
    assert!(dead.write(0, &[2; 8]).is_err() && dead.sync_data().is_err());
    assert_eq!(content(&file), [1; 8]);
    assert!(file.read(1, &mut [0; 8]).is_err(), "beyond the end");
}

#[test]
fn stalls_take_virtual_time() {
    let file = |stall_ppm| {
        let longest_stall = Duration::from_secs(100);
        let disk =
            SimDisk::new(1, DiskFaults { stall_ppm, longest_stall, ..DiskFaults::default() });
        disk.open().set_len(8).unwrap();
        disk
    };
    assert_eq!(file(0).take_delay(), Duration::ZERO);
    let stalled = file(ALWAYS);
    assert!(stalled.take_delay() > Duration::from_millis(1));
    assert_eq!(stalled.take_delay(), Duration::ZERO, "taken");
}

#[test]
fn an_error_changes_nothing_but_a_failed_sync_makes_its_writes_doubtful() {
    let disk = SimDisk::new(1, DiskFaults::default());
    let file = disk.open();
    file.set_len(8).unwrap();
    file.sync_data().unwrap();
    disk.suffer(DiskFaults { error_ppm: ALWAYS, ..DiskFaults::default() });
    assert!(file.write(0, &[1; 8]).is_err() && file.len().is_err());
    disk.suffer(DiskFaults::default());
    assert_eq!(content(&file), [0; 8]);
    file.write(0, &[1; 8]).unwrap();
    disk.suffer(DiskFaults { error_ppm: ALWAYS, lost_ppm: ALWAYS, ..DiskFaults::default() });
    assert!(file.sync_data().is_err());
    disk.suffer(DiskFaults::default());
    assert_eq!(content(&file), [1; 8], "still in the cache");
    file.sync_data().unwrap();
    disk.crash();
    assert_eq!(content(&disk.open()), [0; 8], "the sync that worked had nothing to do");
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.len().unwrap() as usize];
    file.read(0, &mut content).unwrap();
    content
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No synced byte is missing. Any other byte is that of the last sync, or of a write since
    /// then.
    #[test]
    fn a_crash_leaves_every_byte_as_synced_or_as_written_since(
        seed in any::<u64>(),
        writes in prop::collection::vec((0..4_000usize, 1..1_500usize, any::<bool>()), 1..20),
    ) {
        let faults =
            DiskFaults { longest_stall: Duration::ZERO, ..DiskFaults::of_an_honest_disk() };
        let disk = SimDisk::new(seed, faults);
        let file = disk.open();
        let mut possible = vec![vec![0]; 5_500];
        file.set_len(possible.len() as u64).unwrap();
        file.sync_data().unwrap();
        for (number, (offset, length, sync)) in (1..).zip(writes) {
            file.write(offset as u64, &vec![number; length]).unwrap();
            possible[offset..offset + length].iter_mut().for_each(|byte| byte.push(number));
            if sync {
                file.sync_data().unwrap();
                possible.iter_mut().for_each(|byte| drop(byte.drain(..byte.len() - 1)));
            }
        }
        disk.crash();
        let survived = content(&disk.open());
        prop_assert!(survived.iter().zip(&possible).all(|(byte, known)| known.contains(byte)));
    }
}
