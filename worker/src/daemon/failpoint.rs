//! Failpoints: places, each with a name, at which a test may kill, stop or delay a worker.
//!
//! There is one for every stage and message of a step and of a change of generation. This module
//! derives them from the core's inputs and effects. `everstep_failpoint` knows what happens at
//! them, and how a test asks for it.
//!
//! All points but [`STORE_POINTS`] lie on the network thread, so a delay there delays all messages.
//! Only the feature `failpoints` builds this.

use everstep_failpoint::pass;
use everstep_transport::protocol::{ChunkKind, Message, Step};

pub use everstep_failpoint::FailpointError;

use crate::step::event::{Effect, Input, Job, Lane, Report};

/// All failpoints. A worker passes `.send` before it sends a message, `.receive` before it takes
/// one in.
pub const POINTS: &[&str] = &[
    // A worker's beginning and end.
    "hello.send",
    "welcome.receive",
    "register.send",
    "registered.receive",
    "finished.send",
    "dismiss.receive",
    // A step. The core gives the device a Gradient job: the loader fills its batches.
    "load",
    // A data shard is computed: the next one's forward pass begins, if there is one.
    "forward",
    // A partial sum is final: the backward pass is under way.
    "backward",
    "reduce_scatter.send",
    "reduce_scatter.receive",
    "reduced.send",
    "reduced.receive",
    "vote.send",
    "vote.receive",
    "commit.send",
    "commit.receive",
    "update",
    "all_gather.send",
    "all_gather.receive",
    "write.receive",
    "fetch_masters.send",
    "fetch_masters.receive",
    "masters.send",
    "masters.receive",
    "written.send",
    "stored.send",
    // A checkpoint.
    "save",
    "saved.send",
    "write_manifest.receive",
    "written_manifest.send",
    // A change of generation.
    "pause.receive",
    "status.send",
    "announce.receive",
    "fetch_record.send",
    "enter",
    "fetch_parameters.send",
    "fetch_parameters.receive",
    "parameters.send",
    "parameters.receive",
    // A join.
    "feed.receive",
    "meet",
    "fetch_state.send",
    "fetch_state.receive",
    "state.send",
    "state.receive",
    "restore",
    // A planned change.
    "hold.receive",
    "held",
    "go.send",
    "go.receive",
    "leave.send",
    "evicted.receive",
];

/// The failpoints of the thread that reads and writes checkpoints.
pub const STORE_POINTS: &[&str] = &[
    // All bytes of a part are with the store, and the part is not in place yet.
    "part.written",
    "part.placed",
    // The store has all parts, and no manifest yet.
    "manifest.due",
    "manifest.placed",
    // Of a checkpoint that is deleted the manifest is gone, and its parts are there.
    "manifest.deleted",
    "part.swept",
    "model.due",
    "model.placed",
    // A shard of a checkpoint is read, and the worker does not have it yet.
    "shard.read",
];

/// Reads the actions for these points, once, when the process starts.
///
/// # Errors
/// [`FailpointError`].
pub fn arm() -> Result<(), FailpointError> {
    everstep_failpoint::arm("worker", &[POINTS, STORE_POINTS].concat())
}

/// The thread that reads and writes checkpoints is at one of [`STORE_POINTS`].
pub fn at_store(point: &str) {
    debug_assert!(STORE_POINTS.contains(&point), "{point}");
    pass(point);
}

/// The core is about to take an input. Its generation resumes with version `resume`.
pub fn on_input(input: &Input, resume: Step) {
    of_input(input, resume).into_iter().for_each(pass);
}

/// The core has put out an effect.
pub fn on_effect(effect: &Effect) {
    of_effect(effect).into_iter().for_each(pass);
}

fn of_input(input: &Input, resume: Step) -> Option<&'static str> {
    match input {
        Input::Coordinator { message, .. } | Input::Peer { message, .. } => {
            of_message(message, "receive")
        }
        Input::Chunk { chunk, .. } => match chunk.kind {
            ChunkKind::Partial => Some("reduce_scatter.receive"),
            ChunkKind::Reduced => Some("reduced.receive"),
            // Gathered parameters come from a commit of this generation. The member asked for older
            // ones.
            ChunkKind::Parameters if chunk.step > resume => Some("all_gather.receive"),
            ChunkKind::Parameters => Some("parameters.receive"),
            ChunkKind::Master => Some("masters.receive"),
            ChunkKind::State => Some("state.receive"),
            ChunkKind::Message => None,
        },
        Input::Device(Report::Computed { .. }) => Some("forward"),
        Input::Device(Report::Partial { .. }) => Some("backward"),
        _ => None,
    }
}

fn of_effect(effect: &Effect) -> Option<&'static str> {
    match effect {
        Effect::SendToCoordinator { message: Message::Heartbeat(heartbeat), .. } => {
            heartbeat.held.then_some("held")
        }
        Effect::SendToCoordinator { message, .. } | Effect::SendToPeer { message, .. } => {
            of_message(message, "send")
        }
        Effect::Stream { lane, .. } => Some(match lane {
            Lane::Partials => "reduce_scatter.send",
            Lane::Reduced | Lane::CatchUp => "reduced.send",
            Lane::Parameters => "all_gather.send",
            Lane::Masters => "masters.send",
            Lane::Resumed => "parameters.send",
            Lane::States => "state.send",
        }),
        Effect::Enter(_) => Some("enter"),
        Effect::AcceptPeer { .. } => Some("meet"),
        Effect::Device(Job::Gradient { .. }) => Some("load"),
        Effect::Device(Job::Update { .. }) => Some("update"),
        Effect::Device(Job::Restore { .. }) => Some("restore"),
        Effect::Device(Job::Save { .. }) => Some("save"),
        Effect::Coordinators(_)
        | Effect::Build(_)
        | Effect::Device(_)
        | Effect::Store(_)
        | Effect::File(_)
        | Effect::Yield
        | Effect::Exit(_) => None,
    }
}

/// The point of a message, by its name. None if the message has none.
fn of_message(message: &Message, way: &str) -> Option<&'static str> {
    let name = match message {
        Message::Prepared(_) => "vote",
        message => message.name(),
    };
    POINTS.iter().copied().find(|point| point.split_once('.') == Some((name, way)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use everstep_transport::protocol::message::Heartbeat;
    use everstep_transport::protocol::step::Contribution;
    use everstep_transport::protocol::{
        Chunk, DataShard, Encoding, Generation, LossScale, Shard, WorkerId, exemplars,
    };

    use super::*;
    use crate::step::event::{LinkId, StreamItem, Work};

    const PEER: WorkerId = WorkerId(7);

    fn messages() -> BTreeSet<&'static str> {
        let ways = ["send", "receive"];
        let all = exemplars::all().into_iter();
        all.flat_map(|message| ways.map(|way| of_message(&message, way))).flatten().collect()
    }

    fn inputs() -> BTreeSet<&'static str> {
        let chunk = |kind, step| {
            let step = Step(step);
            let chunk =
                Chunk { kind, encoding: Encoding::F32, ..Chunk::message(Generation(2), step, 1) };
            let values = everstep_kernels::buffer::Buffer::detached(vec![0.0]);
            Input::Chunk { from: PEER, chunk, values }
        };
        let contribution = Contribution {
            data_shard: DataShard(0),
            loss: 1.0,
            weight: 1.0,
            samples: vec![],
            samples_lost: 0,
            samples_repeated: 0,
            evaluation: None,
            scalars: Vec::new(),
        };
        let (step, seconds) = (Step(4), 1.0);
        let sum = everstep_kernels::buffer::Shared::new(
            everstep_kernels::buffer::Buffer::detached(vec![0.0]),
        );
        let node = everstep_kernels::reduce::TreeNode { level: 0, index: 0 };
        let inputs = [
            chunk(ChunkKind::Partial, 4),
            chunk(ChunkKind::Reduced, 4),
            chunk(ChunkKind::Parameters, 3),
            chunk(ChunkKind::Parameters, 4),
            chunk(ChunkKind::Master, 4),
            chunk(ChunkKind::State, 4),
            Input::Device(Report::Computed { step, contribution, seconds, load_seconds: 0.0 }),
            Input::Device(Report::Partial { step, shard: Shard(0), node, sum }),
        ];
        inputs.iter().filter_map(|input| of_input(input, Step(3))).collect()
    }

    fn effects() -> BTreeSet<&'static str> {
        let message = || exemplars::all().remove(0);
        let stream = |lane| Effect::Stream {
            to: PEER,
            lane,
            step: Step(1),
            item: StreamItem::Message(message().into()),
        };
        let (shard, step) = (Shard(0), Step(1));
        let commit = exemplars::listed_checkpoint().commit;
        let others = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Announce(record) => Some(Effect::Enter(record)),
            Message::Feed { joiner: worker, name, address, .. } => {
                Some(Effect::AcceptPeer { worker, name, address })
            }
            Message::Heartbeat(heartbeat) => {
                let message = Message::Heartbeat(Heartbeat { held: true, ..heartbeat });
                Some(Effect::SendToCoordinator { link: LinkId(1), message })
            }
            _ => None,
        });
        let jobs = [
            Job::Gradient { step, scale: LossScale::default(), work: Arc::new(Work::default()) },
            Job::Update { shard, step, norm: 1.0, factor: 1.0, update: 1, gradient: None },
            Job::Restore { shard, version: step, digest: 0, parts: vec![] },
            Job::Save { commit: Box::new(commit), shards: vec![] },
        ];
        let jobs = jobs.into_iter().map(Effect::Device);
        let effects = Lane::ALL.into_iter().map(stream).chain(others).chain(jobs);
        effects.filter_map(|effect| of_effect(&effect)).collect()
    }

    #[test]
    fn every_failpoint_is_passed_by_something_and_nothing_passes_another() {
        let passed: BTreeSet<_> = messages().into_iter().chain(inputs()).chain(effects()).collect();
        assert_eq!(passed, POINTS.iter().copied().collect());
        assert_eq!(passed.len(), POINTS.len(), "a name is there twice");
    }

    /// Messages that a worker neither sends nor receives, or only with several coordinators or
    /// runs, or only if an operator wants a checkpoint verified. Also messages that it sends all
    /// the time, and those that end it anyway. An operator's questions and their replies have none
    /// either.
    const WITHOUT_A_POINT: [&str; 32] = [
        "heartbeat",
        "failed",
        "unable",
        "predecessors",
        "preempted",
        "unsaved",
        "damaged",
        "verification",
        "refused",
        "heartbeat_answer",
        "drain",
        "released",
        "verify",
        "coordinators",
        "fetch_keys",
        "keys",
        "raft",
        "removed",
        "join",
        "joined",
        "hears",
        "state_digest",
        "fetch_history",
        "history",
        "fetch_lines",
        "lines",
        "watch",
        "update",
        "exited",
        "request",
        "answer",
        "transfer",
    ];

    #[test]
    fn every_message_has_a_failpoint_but_for_those_that_are_named() {
        let has_none = |message: &Message| {
            ["send", "receive"].iter().all(|way| of_message(message, way).is_none())
        };
        let others = exemplars::all().into_iter().filter(|message| !message.is_question());
        let without = others.filter(has_none);
        let mut without: Vec<_> = without.map(|message| message.name()).collect();
        without.dedup(); // a request has several exemplars
        assert_eq!(without, WITHOUT_A_POINT);
    }
}
