//! One core. The test plays its coordinator, its peers and its device.

use std::net::Ipv4Addr;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce::TreeNode;
use everstep_transport::protocol::step::{Contribution, Status};
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, DataShard, Decision, Encoding, Generation, LossScale, Message,
    MetricsLine, NodeName, Record, RunSpec, Shard, Step, Term, WorkerId,
};
use everstep_transport::time::Time;
use everstep_worker::step::core::{Core, WorkerIdentity};
use everstep_worker::step::event::{Effect, Input, Job, Lane, LinkId, Report, StreamItem};

use crate::cluster::{Cluster, run};
use crate::support::{GENERATION, MEMBERS, PARAMETERS, record};

pub const TERM: Term = Term(2);
/// The link to the coordinator that leads in that term.
pub const LINK: LinkId = LinkId(1);

/// A core, and its effects since the last question.
pub struct Solo {
    pub core: Core,
    pub now: Time,
    pub effects: Vec<Effect>,
}

impl Solo {
    /// A core that has sent nothing yet.
    pub fn new() -> Self {
        let name = NodeName::parse("solo").expect("a valid name");
        let core = Core::new(WorkerIdentity { name, unix_ms_at_zero: 0 }, Pool::new(1 << 20));
        Self { core, now: Time(1), effects: Vec::new() }
    }

    /// A core that is registered under this id.
    pub fn registered(worker: WorkerId) -> Self {
        Self::registered_for(run(10), worker)
    }

    /// The same for another run.
    pub fn registered_for(run: RunSpec, worker: WorkerId) -> Self {
        Self::new().register(run, worker)
    }

    /// Registers the core under this id.
    fn register(mut self, run: RunSpec, worker: WorkerId) -> Self {
        self.connect(LINK);
        self.hear(Message::Welcome { run, term: TERM });
        self.give(Input::Built(Cluster::built()));
        self.hear(Message::Registered { worker, term: TERM });
        self.effects.clear();
        self
    }

    /// A member of the generation of three. Its device has entered, and reported the initial
    /// digests.
    pub fn member(rank: usize) -> Self {
        Self::member_for(run(10), rank)
    }

    /// The same for another run.
    pub fn member_for(run: RunSpec, rank: usize) -> Self {
        Self::registered_for(run, MEMBERS[rank]).begin()
    }

    /// The same for a member that adds up so many bytes of kept sums at once.
    pub fn member_merging(rank: usize, bytes: usize) -> Self {
        let Self { core, now, effects } = Self::new();
        let solo = Self { core: core.merging(bytes), now, effects };
        solo.register(run(10), MEMBERS[rank]).begin()
    }

    /// Makes the core a member of the generation of three.
    fn begin(mut self) -> Self {
        self.hear(Message::Pause { term: TERM, number: GENERATION });
        self.hear(Message::Announce(record()));
        self.entered(GENERATION, Step(0));
        self.effects.clear();
        self
    }

    pub fn give(&mut self, input: Input) {
        self.core.handle(self.now, input);
        self.effects.extend(std::iter::from_fn(|| self.core.poll_effect()));
    }

    /// The leader sends a message.
    pub fn hear(&mut self, message: Message) {
        self.hear_on(LINK, message);
    }

    /// A coordinator sends a message.
    pub fn hear_on(&mut self, link: LinkId, message: Message) {
        self.give(Input::Coordinator { link, message });
    }

    /// A link to the coordinator of this number is up.
    pub fn connect(&mut self, link: LinkId) {
        self.give(Input::CoordinatorUp { link, name: coordinator(link.0) });
    }

    pub fn peer(&mut self, from: WorkerId, message: Message) {
        self.give(Input::Peer { from, message });
    }

    pub fn report(&mut self, report: Report) {
        self.give(Input::Device(report));
    }

    pub fn receive_chunk(&mut self, from: WorkerId, chunk: Chunk) {
        let values = Buffer::detached(vec![1.0; chunk.count as usize]);
        self.give(Input::Chunk { from, chunk, values });
    }

    pub fn entered(&mut self, generation: Generation, step: Step) {
        let plan = self.core.member().map(|member| member.plan().owned().clone());
        let owned = plan.into_iter().flatten().map(|(shard, _)| (shard, step, 100));
        self.report(Report::Entered { generation, owned: owned.collect() });
    }

    /// Its effects since the last question.
    pub fn took(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Its messages to coordinators since the last question.
    pub fn told(&mut self) -> Vec<Message> {
        self.told_by_link().into_iter().map(|(_, message)| message).collect()
    }

    /// The same, each with its link.
    pub fn told_by_link(&mut self) -> Vec<(LinkId, Message)> {
        let told = |effect| match effect {
            Effect::SendToCoordinator { link, message } => Some((link, message)),
            _ => None,
        };
        self.took().into_iter().filter_map(told).collect()
    }

    /// Its messages and chunks to workers since the last question.
    pub fn sent(&mut self) -> Vec<(WorkerId, String)> {
        let sent = |effect| match effect {
            Effect::SendToPeer { to, message } => Some((to, message.name().to_string())),
            Effect::Stream { to, lane, item: StreamItem::Tensor { .. }, .. } => {
                Some((to, format!("{lane:?}")))
            }
            Effect::Stream { to, lane: Lane::Parameters, .. } => Some((to, "head".into())),
            Effect::Stream { to, lane, .. } => Some((to, format!("head of {lane:?}"))),
            _ => None,
        };
        self.took().into_iter().filter_map(sent).collect()
    }

    /// Jobs that it gave its device since the last question.
    pub fn jobs(&mut self) -> Vec<Job> {
        let job = |effect| match effect {
            Effect::Device(job) => Some(job),
            _ => None,
        };
        self.took().into_iter().filter_map(job).collect()
    }

    pub fn status(&mut self) -> Option<Status> {
        self.told().into_iter().find_map(|message| match message {
            Message::Status(status) => Some(status),
            _ => None,
        })
    }

    /// The device of the member of rank 1 has the sums of a step.
    pub fn sum_up(&mut self, step: u64) {
        for (level, index) in [(0, 3), (1, 2)] {
            for shard in (0..3).map(Shard) {
                let sum = Shared::new(Buffer::detached(vec![1.0; length(shard)]));
                let node = TreeNode { level, index };
                self.report(Report::Partial { step: Step(step), shard, node, sum });
            }
        }
    }

    /// The member of rank 1 computes, gets its chunks and votes for a step.
    pub fn prepare(&mut self, step: u64) {
        self.sum_up(step);
        for data_shard in [3, 4, 5].map(DataShard) {
            let contribution = Contribution {
                data_shard,
                loss: 1.0,
                weight: 1.0,
                samples: vec![],
                samples_lost: 0,
                samples_repeated: 0,
                evaluation: None,
                scalars: Vec::new(),
            };
            self.report(Report::Computed {
                step: Step(step),
                contribution,
                seconds: 0.0,
                load_seconds: 0.0,
            });
        }
        for (from, level, index) in [(0, 1, 0), (0, 0, 2), (2, 1, 3)] {
            let partial = chunk(ChunkKind::Partial, step, 1);
            self.receive_chunk(MEMBERS[from], Chunk { level, index, ..partial });
        }
        self.receive_chunk(MEMBERS[0], chunk(ChunkKind::Reduced, step, 0));
    }
}

/// The name of a coordinator.
pub fn coordinator(number: u64) -> NodeName {
    NodeName::parse(&format!("coordinator-{number}")).expect("a valid name")
}

pub fn length(shard: Shard) -> usize {
    PARAMETERS.min(1_024 * (shard.0 as usize + 1)) - 1_024 * shard.0 as usize
}

/// A chunk of the generation of three.
pub fn chunk(kind: ChunkKind, step: u64, shard: u32) -> Chunk {
    Chunk {
        kind,
        generation: GENERATION,
        step: Step(step),
        shard: Shard(shard),
        level: 0,
        index: 0,
        count: length(Shard(shard)) as u32,
        encoding: Encoding::F32,
        digest: 0,
    }
}

/// A commit of the generation of three.
pub fn commit(step: u64) -> Commit {
    let line = MetricsLine { step: Step(step), ..MetricsLine::default() };
    Commit {
        generation: GENERATION,
        step: Step(step),
        norm: 1.0,
        loss: 2.0,
        decision: Decision::Apply,
        gradient_factor: 1.0,
        updates: step,
        loss_scale: LossScale::default(),
        hold: false,
        line,
    }
}

/// The same members, a generation later, after a commit.
pub fn next_record(commit: Option<Commit>) -> Record {
    Record {
        number: GENERATION.next(),
        predecessor: GENERATION,
        cause: everstep_transport::protocol::Cause::Lost,
        resume: commit.as_ref().map_or(Step(0), |commit| commit.step),
        commit,
        ..record()
    }
}

/// The leader's message that the members feed a joiner.
pub fn feed(joiner: WorkerId, shards: &[u32]) -> Message {
    Message::Feed {
        term: TERM,
        generation: GENERATION,
        joiner,
        name: NodeName::parse("joiner").expect("a valid name"),
        address: (Ipv4Addr::LOCALHOST, 1).into(),
        shards: shards.iter().copied().map(Shard).collect(),
    }
}
