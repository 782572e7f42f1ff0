use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use redb::backends::FileBackend;

use super::*;
use crate::raft::Members;

const OWNER: DiskOwner = DiskOwner { cluster: [7; 32], replica: ReplicaId(1) };

/// A disk in memory that can lose its power. Clones are the same disk.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Platter>>);

#[derive(Debug)]
struct Platter {
    /// The content that reads see.
    cached: Vec<u8>,
    /// The content that survives, and the writes that may not.
    stored: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Operations until the power fails.
    left: u64,
}

impl Default for Platter {
    fn default() -> Self {
        let (cached, stored, unsynced) = Default::default();
        Self { cached, stored, unsynced, left: u64::MAX }
    }
}

impl Memory {
    fn holding(content: &[u8]) -> Self {
        let (cached, stored) = (content.to_vec(), content.to_vec());
        Self(Arc::new(Mutex::new(Platter { cached, stored, ..Platter::default() })))
    }

    fn content(&self) -> Vec<u8> {
        self.platter().cached.clone()
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().expect("sound")
    }

    /// Begins an operation, if there is power.
    fn operate(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let mut platter = self.platter();
        platter.left = platter.left.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(platter)
    }

    /// The power fails. Any part of the writes without a sync may survive.
    fn crash(&self, mut survives: impl FnMut() -> bool) {
        let mut platter = self.platter();
        let length = platter.cached.len();
        let mut stored = std::mem::take(&mut platter.stored);
        stored.resize(length, 0);
        for (at, bytes) in platter.unsynced.drain(..).filter(|_| survives()) {
            let end = length.min(at + bytes.len());
            stored[at.min(end)..end].copy_from_slice(&bytes[..end.saturating_sub(at)]);
        }
        let cached = stored.clone();
        *platter = Platter { cached, stored, ..Platter::default() };
    }
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.operate()?.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.operate()?;
        let wanted = platter.cached.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(wanted.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.operate()?.cached.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.operate()?;
        platter.stored = platter.cached.clone();
        platter.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.operate()?;
        platter.cached[offset as usize..][..data.len()].copy_from_slice(data);
        platter.unsynced.push((offset as usize, data.to_vec()));
        Ok(())
    }
}

/// A disk, and the content that it should have.
struct Room {
    disk: Memory,
    kept: DurableState,
    batches: u64,
}

impl Room {
    fn new() -> Self {
        let kept = DurableState::founded_by(ReplicaId(1));
        let room = Self { disk: Memory::default(), kept, batches: 0 };
        ReplicaStore::create(room.disk.clone(), OWNER, &room.kept).expect("created");
        room
    }

    fn open(&self) -> ReplicaStore {
        let (store, kept) = ReplicaStore::open(self.disk.clone(), OWNER).expect("a sound file");
        assert_eq!(kept, self.kept);
        store
    }

    /// A batch with so many entries. So many of the last ones that are not agreed go first.
    fn append(&mut self, gone: u64, entries: u64) -> WriteBatch {
        let DurableState { hard_state, .. } = &mut self.kept;
        hard_state.term.0 += gone.min(1);
        let (commit, term) = (hard_state.commit, hard_state.term);
        let last = self.kept.last().index;
        let first = commit.max(last.saturating_sub(gone)) + 1;
        let entry = |index: u64| RaftEntry {
            position: LogPosition { index, term },
            kind: if index.is_multiple_of(5) { EntryKind::Members } else { EntryKind::Command },
            bytes: vec![index as u8; (index * 37 % 300) as usize],
        };
        self.batch(None, self.kept.base, (first..first + entries).map(entry).collect())
    }

    /// A batch after which the log begins behind `base`, and a snapshot holds all up to `index`.
    fn compact(&mut self, index: u64, keep: u64) -> WriteBatch {
        let position = |index| self.kept.term(index).map(|term| LogPosition { index, term });
        let base = position(self.kept.base.index.max(index.saturating_sub(keep)));
        let position = position(index).expect("it is in the log");
        self.kept.hard_state.commit = self.kept.hard_state.commit.max(index);
        self.batch(Some(snapshot(position)), base.expect("it is in the log"), Vec::new())
    }

    /// A batch with the snapshot of another replica that is so far ahead.
    fn install(&mut self, ahead: u64) -> WriteBatch {
        self.kept.hard_state.term.0 += 1;
        let index = self.kept.last().index + ahead;
        let position = LogPosition { index, term: self.kept.hard_state.term };
        self.kept.hard_state.commit = index;
        self.batch(Some(snapshot(position)), position, Vec::new())
    }

    fn batch(
        &mut self,
        snapshot: Option<Snapshot>,
        base: LogPosition,
        entries: Vec<RaftEntry>,
    ) -> WriteBatch {
        self.batches += 1;
        let (number, hard_state) = (self.batches, self.kept.hard_state);
        let batch = WriteBatch { number, hard_state, snapshot, base, entries };
        self.kept.absorb(&batch);
        batch
    }
}

/// A real file. Makes it if it does not exist.
fn file(path: &Path) -> FileBackend {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    FileBackend::new(options.expect("a file")).expect("no other process has it")
}

fn snapshot(position: LogPosition) -> Snapshot {
    let members = Members { voters: vec![ReplicaId(1), ReplicaId(2)], ..Members::default() };
    Snapshot { position, members, bytes: vec![position.index as u8; 1000] }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append { gone: u64, entries: u64 },
    Commit(u64),
    Vote,
    Compact { keep: u64 },
    Install { ahead: u64 },
    Confirm,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5_u64, 0..8_u64).prop_map(|(gone, entries)| Step::Append { gone, entries }),
        2 => (0..8_u64).prop_map(Step::Commit),
        1 => Just(Step::Vote),
        1 => (0..6_u64).prop_map(|keep| Step::Compact { keep }),
        1 => (1..9_u64).prop_map(|ahead| Step::Install { ahead }),
        1 => Just(Step::Confirm),
        2 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_file_holds_what_its_batches_say(steps in prop::collection::vec(step(), 1..25)) {
        let mut room = Room::new();
        let (mut store, mut batches) = (Some(room.open()), Vec::new());
        for step in steps {
            let batch = match step {
                Step::Append { gone, entries } => room.append(gone, entries),
                Step::Commit(more) => {
                    let last = room.kept.last().index;
                    let commit = &mut room.kept.hard_state.commit;
                    *commit = last.min(*commit + more);
                    room.append(0, 0)
                }
                Step::Vote => {
                    room.kept.hard_state.term.0 += 1;
                    room.kept.hard_state.vote = Some(ReplicaId(2));
                    room.append(0, 0)
                }
                Step::Compact { keep } => room.compact(room.kept.hard_state.commit, keep),
                Step::Install { ahead } => room.install(ahead),
                Step::Confirm => {
                    store.as_mut().expect("open").confirm().expect("written");
                    continue;
                }
                Step::Reopen => {
                    store.as_mut().expect("open").persist(&batches).expect("written");
                    batches.clear();
                    drop(store.take());
                    store = Some(room.open());
                    continue;
                }
            };
            prop_assert!(room.kept.validate().is_ok());
            batches.push(batch);
            // Some batches go together.
            if !room.batches.is_multiple_of(3) {
                store.as_mut().expect("open").persist(&batches).expect("written");
                batches.clear();
            }
        }
        store.as_mut().expect("open").persist(&batches).expect("written");
        drop(store);
        room.open();
    }
}

/// A disk with every kind of content. Returns its bytes after a clean stop or a sudden one.
fn content(clean_stop: bool) -> (Room, Vec<u8>) {
    let mut room = Room::new();
    let mut store = room.open();
    let steps: [fn(&mut Room) -> WriteBatch; 4] =
        [|it| it.append(0, 12), |it| it.append(3, 6), |it| it.compact(5, 2), |it| it.append(0, 4)];
    for step in steps {
        store.persist(&[step(&mut room)]).expect("written");
    }
    store.confirm().expect("written");
    let sudden = room.disk.content();
    drop(store);
    let content = if clean_stop { room.disk.content() } else { sudden };
    (room, content)
}

#[test]
fn a_flipped_byte_is_an_error_or_changes_nothing() {
    for clean_stop in [true, false] {
        let (room, content) = content(clean_stop);
        let mut noticed = 0;
        // All of redb's own header. Elsewhere every byte that is not zero, and some that are.
        let flipped = content.iter().enumerate().filter(|(at, byte)| match (at, byte) {
            (..320, _) => true,
            (at, 0) => at % 4999 == 0,
            (at, _) => at % 13 == 0,
        });
        for (at, _) in flipped {
            let mut bytes = content.clone();
            bytes[at] ^= 1 << (at % 8);
            match ReplicaStore::open(Memory::holding(&bytes), OWNER) {
                Err(_) => noticed += 1,
                Ok((_, kept)) => assert_eq!(kept, room.kept, "byte {at}"),
            }
        }
        println!("{} bytes, clean stop: {clean_stop}, {noticed} flips noticed", content.len());
        assert!(noticed > 100);
    }
}

#[test]
fn i9_a_crash_leaves_what_was_durable_or_the_batch_under_way_as_well() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut dice = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut room = Room::new();
    let (mut durable, mut interrupted) = (room.kept.clone(), 0);
    for _ in 0..200 {
        let (mut store, kept) =
            ReplicaStore::open(room.disk.clone(), OWNER).expect("what a crash leaves is sound");
        assert!(kept == durable || kept == room.kept, "neither before nor after");
        (durable, room.kept) = (kept.clone(), kept);
        room.disk.platter().left = dice(120);
        for _ in 0..10 {
            let batch = match dice(5) {
                0 => room.compact(room.kept.hard_state.commit, 3),
                1 => room.install(5),
                _ => room.append(dice(4), 1 + dice(4)),
            };
            if store.persist(&[batch]).is_err() {
                interrupted += 1;
                break;
            }
            durable = room.kept.clone();
        }
        drop(store);
        room.disk.crash(|| dice(2) == 0);
    }
    assert!(interrupted > 50, "{interrupted}");
}

#[test]
fn a_truncated_file_is_an_error() {
    let (_, content) = content(true);
    for part in 0..20 {
        let disk = Memory::holding(&content[..content.len() * part / 20]);
        let opened = ReplicaStore::open(disk, OWNER).map(drop);
        assert!(opened.is_err(), "{part} twentieths are enough");
    }
}

#[test]
fn another_owner_is_refused_in_words() {
    let room = Room::new();
    let words = |owner| {
        let opened = ReplicaStore::open(room.disk.clone(), owner).map(drop);
        opened.expect_err("it is not theirs").to_string()
    };
    assert_eq!(words(DiskOwner { cluster: [8; 32], ..OWNER }), "it is of another cluster");
    let other = DiskOwner { replica: ReplicaId(2), ..OWNER };
    assert_eq!(words(other), "it is replica 1's, and this is replica 2");
}

#[test]
fn i23_a_file_of_an_earlier_or_a_later_format_is_refused_by_its_number() {
    // Files of format 1 state a digest of their layouts.
    for (stated, number) in [(3, 3), (0xa1a3_b780_4701_769b, 1)] {
        let mut room = Room::new();
        let mut other = room.open();
        other.header.format = stated;
        other.persist(&[room.append(0, 3)]).expect("written");
        drop(other);
        let opened = ReplicaStore::open(room.disk.clone(), OWNER).map(drop);
        let words = opened.expect_err("it is of another format").to_string();
        let expected =
            format!("it has format {number}, and this build of Everstep reads format 2: start");
        assert!(words.starts_with(&expected), "{words}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused_in_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("other.redb");
    drop(database(file(&path)).expect("an empty database"));
    let error = ReplicaStore::open(file(&path), OWNER).map(drop).expect_err("it is no replica's");
    assert_eq!(error.to_string(), "the file is damaged: it has no header");
    std::fs::write(&path, "").expect("emptied");
    assert!(ReplicaStore::open(file(&path), OWNER).is_err());
}

#[test]
fn a_new_replica_that_joins_has_nothing_and_can_be_opened_in_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("replica.redb");
    ReplicaStore::create(file(&path), OWNER, &DurableState::default()).expect("created");
    let (_, kept) = ReplicaStore::open(file(&path), OWNER).expect("a sound file");
    assert_eq!(kept, DurableState::default());
}
