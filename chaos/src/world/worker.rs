//! A worker in the world: its core, its device, and what the shell does in production.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use everstep_coordinator::core as coordination;
use everstep_kernels::buffer::Pool;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{Chunk, NodeName, RunSpec, Step, WorkerId};
use everstep_worker::device::build::{Place, build};
use everstep_worker::step::core::{self, Core};
use everstep_worker::step::event::{Admission, Effect, Exit, Input, Job, Report};

use super::bench::Bench;
use super::wire::StreamId;
use super::{Happening, Node, UNIX_MS_AT_ZERO, World};
use crate::check::{Copy, Observation, Violation};

/// One worker.
pub struct Worker {
    name: NodeName,
    /// Its id, once it is a member.
    id: Option<WorkerId>,
    core: Core,
    pool: Pool,
    bench: Option<Bench>,
    /// Streams whose next header waits until the core has moved on.
    waiting: BTreeSet<StreamId>,
    ended: bool,
}

/// What the world looks at before and after an input.
struct Standing {
    refused: u64,
    committed: Option<Step>,
    settled: Option<Step>,
}

/// Free memory that a worker's pool keeps, bytes.
const POOL_BYTES: usize = 1 << 20;

impl Worker {
    /// The worker at `place`, before its first word.
    pub fn new(place: usize) -> Self {
        let name = NodeName::parse(&format!("worker-{place}")).expect("a valid name");
        let pool = Pool::new(POOL_BYTES);
        let identity = core::Identity { name: name.clone(), unix_ms_at_zero: UNIX_MS_AT_ZERO };
        Self {
            core: Core::new(identity, pool.clone()),
            name,
            id: None,
            pool,
            bench: None,
            waiting: BTreeSet::new(),
            ended: false,
        }
    }

    /// Its id.
    ///
    /// # Panics
    /// Before it is a member: until then it says nothing to other workers.
    pub fn id(&self) -> WorkerId {
        self.id.expect("only members speak to members")
    }

    /// Where its buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether its process has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// See [`Core::admit`].
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        self.core.admit(from, chunk)
    }

    /// The stream's next header waits.
    pub fn wait_with(&mut self, stream: StreamId) {
        self.waiting.insert(stream);
    }

    /// Its last commit, in words.
    pub fn standing(&self) -> String {
        let committed = self.core.member().map(|member| member.committed().to_string());
        format!("{} {}", self.name, committed.unwrap_or_else(|| "none".into()))
    }

    fn look(&self) -> Standing {
        let member = self.core.member();
        Standing {
            refused: self.core.refused(),
            committed: member.map(|member| member.committed()),
            settled: member.map(|member| member.settled()),
        }
    }
}

impl World {
    pub(super) fn connect_worker(&mut self, place: usize) {
        let name = self.workers[place].name.clone();
        self.connect(Node::Worker(place), Identity { role: Role::Worker, name });
        self.later(Happening::Worker(place, Input::Start));
    }

    /// Gives a worker's core an input, does what it wants done, and shows both to the checkers.
    pub(super) fn feed(&mut self, place: usize, input: Input) -> Result<(), Violation> {
        if self.workers[place].ended {
            return Ok(());
        }
        if let Input::Device(report) = &input {
            self.witness_report(place, report)?;
        }
        let now = self.now;
        let worker = &mut self.workers[place];
        let before = worker.look();
        worker.core.handle(now, input);
        let after = worker.look();
        self.witness(place, &before, &after)?;
        while let Some(effect) = self.workers[place].core.poll_effect() {
            self.perform(place, effect)?;
        }
        if after.committed != before.committed {
            for stream in std::mem::take(&mut self.workers[place].waiting) {
                self.later(Happening::Header(stream));
            }
        }
        Ok(())
    }

    fn perform(&mut self, place: usize, effect: Effect) -> Result<(), Violation> {
        let own = Node::Worker(place);
        match effect {
            Effect::Tell(message) => self.say(own, Node::Coordinator, message),
            Effect::Send { to, message } => {
                if let Some(to) = self.places.get(&to) {
                    self.say(own, Node::Worker(*to), message);
                }
            }
            Effect::Stream { to, lane, step, parcel } => {
                self.stream(place, to, (lane, step, parcel));
            }
            Effect::Build(run) => self.build(place, &run),
            // Everyone reaches everyone: the core itself holds back what comes too early.
            Effect::Enter(_) => {}
            Effect::Device(job) => return self.deliver(place, job),
            Effect::Exit(exit) => self.exit(place, exit),
        }
        Ok(())
    }

    // The device.

    fn build(&mut self, place: usize, run: &RunSpec) {
        let address = (Ipv4Addr::LOCALHOST, 1 + place as u16).into();
        let incarnation = self.random.bits();
        let own = Place { incarnation, address, dir: None, overlap: true };
        let worker = &mut self.workers[place];
        let built = build(&self.scenario.registry, run, &own, worker.pool.clone());
        let input = match built {
            Ok((device, built)) => {
                let shards = built.registration.fingerprint.shards;
                worker.bench = Some(Bench::new(device, shards));
                Input::Built(built)
            }
            Err(reason) => Input::BuildFailed(reason),
        };
        self.later(Happening::Worker(place, input));
    }

    fn deliver(&mut self, place: usize, job: Job) -> Result<(), Violation> {
        if let Job::Load { shard, version, values } = &job {
            let (version, shard, parameters) = (*version, *shard, Some(&**values));
            let copy = Copy { version, shard, digest: None, parameters };
            self.observe(Observation::Loaded(self.workers[place].id(), copy))?;
        }
        let bench = self.workers[place].bench.as_mut();
        bench.expect("a device is built before its first job").push(job);
        self.work(place)
    }

    pub(super) fn free(&mut self, place: usize) -> Result<(), Violation> {
        if let Some(bench) = &mut self.workers[place].bench {
            bench.release();
        }
        self.work(place)
    }

    fn work(&mut self, place: usize) -> Result<(), Violation> {
        let Some(bench) = &mut self.workers[place].bench else { return Ok(()) };
        let Some(work) = bench.work(self.now, &mut self.random) else { return Ok(()) };
        for (at, report) in work.reports {
            self.queue.put(at, Happening::Worker(place, Input::Device(report)));
        }
        self.queue.put(work.until, Happening::Free(place));
        match work.gradient {
            Some(step) => self.observe(Observation::Began(self.workers[place].id(), step)),
            None => Ok(()),
        }
    }

    // The end.

    /// The process ends, and its links with it.
    fn exit(&mut self, place: usize, exit: Exit) {
        self.note(format_args!("worker {place} ends: {exit:?}"));
        let own = Node::Worker(place);
        let reason = "its process has ended".to_string();
        let worker = &mut self.workers[place];
        worker.ended = true;
        worker.bench = None;
        let member = worker.id;
        let gone = coordination::Input::Disconnected { link: own.link(), reason: reason.clone() };
        self.arrive((own, Node::Coordinator), Happening::Coordinator(gone));
        let Some(from) = member else { return };
        for other in (0..self.workers.len()).filter(|other| *other != place) {
            let lost = Input::PeerLost { from, reason: reason.clone() };
            self.arrive((own, Node::Worker(other)), Happening::Worker(other, lost));
        }
    }

    // What the checkers see.

    fn witness_report(&mut self, place: usize, report: &Report) -> Result<(), Violation> {
        match report {
            Report::Computed { step, contribution, .. } => {
                self.observe(Observation::Computed(*step, contribution))
            }
            Report::Updated { version, shard, digest, parameters } => {
                let parameters = parameters.as_ref().map(|values| &***values);
                let (version, shard, digest) = (*version, *shard, Some(*digest));
                let copy = Copy { version, shard, digest, parameters };
                self.observe(Observation::Updated(self.workers[place].id(), copy))
            }
            _ => Ok(()),
        }
    }

    fn witness(
        &mut self,
        place: usize,
        before: &Standing,
        after: &Standing,
    ) -> Result<(), Violation> {
        if before.committed.is_none() && after.committed.is_some() {
            self.enter(place)?;
        }
        let worker = &self.workers[place];
        let commit = worker.core.member().and_then(|member| member.commit()).cloned();
        if let Some(commit) = commit.filter(|_| before.committed != after.committed) {
            let id = worker.id();
            self.note(format_args!("worker {place} commits {commit:?}"));
            self.observe(Observation::Committed(id, &commit))?;
        }
        if let Some(settled) = after.settled.filter(|_| before.settled != after.settled) {
            self.observe(Observation::Settled(self.workers[place].id(), settled))?;
        }
        for _ in before.refused..after.refused {
            self.observe(Observation::Refused(format_args!("worker {place} refuses an input")))?;
        }
        Ok(())
    }

    fn enter(&mut self, place: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[place];
        let Some(member) = worker.core.member() else { return Ok(()) };
        let (id, record) = (member.plan().worker(), member.plan().record().clone());
        worker.id = Some(id);
        for (at, worker) in self.workers.iter().enumerate() {
            let listed = record.members.iter().find(|member| member.name == worker.name);
            self.places.extend(listed.map(|member| (member.worker, at)));
        }
        self.observe(Observation::Entered(id, &record))
    }
}
