//! How fast three replicas in one process agree, with their stores on a real disk.
//!
//! `cargo bench -p everstep-coordinator --bench replicas [DIRECTORY]` prints entries a second with
//! many proposals under way, and the latency of single entries, from proposal to application at the
//! leader. Messages cost nothing here, so the figures show fsync: that of the leader, and that of
//! the faster follower. Each store has a thread of its own, as in a coordinator.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

use everstep_coordinator::log::replica::{DiskOwner, ReplicaStore};
use everstep_coordinator::raft::{
    DurableState, Message, RaftEffect, RaftOptions, Replica, ReplicaId, WriteBatch,
};
use everstep_transport::time::Time;
use redb::backends::FileBackend;

/// The size of an entry, in bytes.
const ENTRY: usize = 256;
const SINGLE: usize = 500;
const MANY: usize = 20_000;
/// The number of proposals under way when there are many.
const WINDOW: usize = 512;

/// News for the thread that drives the replicas.
enum Arrival {
    Message { from: ReplicaId, to: ReplicaId, message: Box<Message> },
    Persisted { at: ReplicaId, number: u64 },
}

struct Cluster {
    start: Instant,
    replicas: Vec<Replica>,
    disks: Vec<Sender<WriteBatch>>,
    tell: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    leader: Option<ReplicaId>,
    applied: usize,
}

fn main() {
    let here = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let dir = match here {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    };
    let dir = dir.expect("a directory");
    let mut cluster = Cluster::new(dir.path());
    cluster.until(|it| it.leader.is_some());
    let mut latencies: Vec<_> = (0..SINGLE).map(|_| cluster.agree_on_one()).collect();
    latencies.sort_unstable();
    let percentile = |percent: usize| latencies[(SINGLE * percent / 100).min(SINGLE - 1)];
    println!("one entry at a time: p50 {:?}, p99 {:?}", percentile(50), percentile(99));
    let begun = Instant::now();
    cluster.agree_on_many();
    let seconds = begun.elapsed().as_secs_f64();
    println!("{WINDOW} under way: {:.0} entries/s of {ENTRY} bytes", MANY as f64 / seconds);
}

impl Cluster {
    fn new(dir: &Path) -> Self {
        let ids: Vec<_> = (1..=3).map(ReplicaId).collect();
        let mut kept = DurableState::founded_by(ids[0]);
        kept.snapshot.members.voters = ids.clone();
        let (tell, arrivals) = mpsc::channel();
        let disks = ids.iter().map(|id| disk(dir, *id, &kept, tell.clone())).collect();
        let options = |id| RaftOptions {
            id,
            seed: 1,
            keep: 1000,
            #[cfg(feature = "planted")]
            plant: None,
        };
        let replica = |id: &ReplicaId| Replica::new(Time(0), options(*id), kept.clone());
        let replicas = ids.iter().map(|id| replica(id).expect("sound")).collect();
        let start = Instant::now();
        Self { start, replicas, disks, tell, arrivals, leader: None, applied: 0 }
    }

    fn agree_on_one(&mut self) -> Duration {
        let (begun, before) = (Instant::now(), self.applied);
        self.propose();
        self.until(|it| it.applied > before);
        begun.elapsed()
    }

    fn agree_on_many(&mut self) {
        let before = self.applied;
        for proposed in 0..MANY {
            self.propose();
            self.until(|it| it.applied - before + WINDOW > proposed);
        }
        self.until(|it| it.applied - before == MANY);
    }

    fn propose(&mut self) {
        let leader = self.leader.expect("one leads");
        self.replica(leader).propose(vec![1; ENTRY]).expect("it leads");
    }

    fn until(&mut self, so: impl Fn(&Self) -> bool) {
        loop {
            self.carry_out();
            if so(self) {
                return;
            }
            match self.arrivals.recv_timeout(Duration::from_millis(1)) {
                Ok(Arrival::Message { from, to, message }) => {
                    self.replica(to).receive(from, &message);
                }
                Ok(Arrival::Persisted { at, number }) => self.replica(at).persisted(number),
                Err(_) => {}
            }
            let now = Time(self.start.elapsed().as_nanos() as u64);
            self.replicas.iter_mut().for_each(|replica| replica.tick(now));
        }
    }

    fn carry_out(&mut self) {
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            let from = ReplicaId(at as u64 + 1);
            while let Some(effect) = replica.poll_effect() {
                match effect {
                    RaftEffect::Send { to, message } => {
                        let message = Box::new(message);
                        let _ = self.tell.send(Arrival::Message { from, to, message });
                    }
                    RaftEffect::Persist(batch) => self.disks[at].send(batch).expect("it writes"),
                    RaftEffect::Leads(_) => self.leader = Some(from),
                    RaftEffect::Apply(entries) if self.leader == Some(from) => {
                        self.applied += entries.len();
                    }
                    _ => {}
                }
            }
        }
    }

    fn replica(&mut self, id: ReplicaId) -> &mut Replica {
        &mut self.replicas[id.0 as usize - 1]
    }
}

/// A store on a thread of its own.
fn disk(
    dir: &Path,
    id: ReplicaId,
    kept: &DurableState,
    tell: Sender<Arrival>,
) -> Sender<WriteBatch> {
    let path = dir.join(format!("{}.redb", id.0));
    let owner = DiskOwner { cluster: [0; 32], replica: id };
    let open = || {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        FileBackend::new(file.expect("a file")).expect("no other process has it")
    };
    ReplicaStore::create(open(), owner, kept).expect("created");
    let (mut store, _) = ReplicaStore::open(open(), owner).expect("opened");
    let (give, batches) = mpsc::channel::<WriteBatch>();
    thread::spawn(move || {
        while let Ok(first) = batches.recv() {
            let together: Vec<_> = std::iter::once(first).chain(batches.try_iter()).collect();
            store.persist(&together).expect("the disk works");
            let number = together.last().expect("at least the first").number;
            if tell.send(Arrival::Persisted { at: id, number }).is_err() {
                return;
            }
        }
    });
    give
}
