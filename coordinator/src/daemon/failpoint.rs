//! Failpoints: named places at which a test may kill, stop or delay a coordinator.
//!
//! Every received or sent message has one, and every kind of entry on its way into the log, and the
//! history file, as far as one coordinator and one run need them. This module derives them from the
//! node's inputs and effects. `among.rs` has those of a coordinator among several.
//! `everstep_failpoint` knows the actions, and how a test sets them.
//!
//! The log's thread passes the `appended` and `written` points, and the actor's thread all others.
//! A delay there delays all messages. Only the feature `failpoints` builds this.

mod among;

use std::collections::VecDeque;

use everstep_failpoint::pass;
use everstep_transport::protocol::message::Heartbeat;
use everstep_transport::protocol::{Generation, Message};

pub use everstep_failpoint::FailpointError;

pub use self::among::AMONG;
use self::among::{anothers, of_batch, of_raft};
use super::files::reach;
use crate::core::{ShellEffect, ShellInput};
use crate::node::{NodeEffect, NodeInput};
use crate::raft::{self, WriteBatch};
use crate::state::{Command, CommandEntry, LOG_FORMATS, LineHistory};

/// All failpoints. A process passes `.receive` before it takes a message in, and `.send` before it
/// sends one, once for each receiver.
pub const POINTS: &[&str] = &[
    // A peer's link begins or ends.
    "connected",
    "disconnected",
    // A worker comes in.
    "hello.receive",
    "welcome.send",
    "register.receive",
    "registered.send",
    "refused.send",
    "unable.receive",
    // A worker lives.
    "heartbeat.receive",
    "heartbeat_answer.send",
    // A worker cannot reach others. It has learned. It holds.
    "unreachable.receive",
    "ready.receive",
    "held.receive",
    // A change of generation.
    "feed.send",
    "hold.send",
    "pause.send",
    "status.receive",
    "announce.send",
    "fetch_record.receive",
    // A worker's end.
    "evicted.send",
    "leave.receive",
    "drain.send",
    "finished.receive",
    "dismiss.send",
    // The model.
    "write.send",
    "written.receive",
    "stored.receive",
    // A checkpoint.
    "saved.receive",
    "write_manifest.send",
    "written_manifest.receive",
    // Operators.
    "request.receive",
    "answer.send",
    "watch.receive",
    "update.send",
    "exited.receive",
    // An entry is on its way to the disk, which has kept nothing of it yet.
    "propose.lead",
    "propose.request",
    "propose.register",
    "propose.lose",
    "propose.drain",
    "propose.generation",
    "propose.end",
    "propose.list_checkpoint",
    "propose.damage_checkpoint",
    // An entry is durable, and no peer knows.
    "appended.lead",
    "appended.request",
    "appended.register",
    "appended.lose",
    "appended.drain",
    "appended.generation",
    "appended.end",
    "appended.list_checkpoint",
    "appended.damage_checkpoint",
    // An entry is applied, and its consequences are done and sent.
    "applied.lead",
    "applied.request",
    "applied.register",
    "applied.lose",
    "applied.drain",
    "applied.generation",
    "applied.end",
    "applied.list_checkpoint",
    "applied.damage_checkpoint",
    // Before lines are written, after that, and when they are durable. Before and after a cut.
    "record",
    "recorded",
    "durable",
    "forget",
    "forgotten",
];

/// Reads the actions of these points, once, when the process starts.
///
/// # Errors
/// [`FailpointError`].
pub fn arm() -> Result<(), FailpointError> {
    everstep_failpoint::arm("coordinator", &[POINTS, AMONG].concat())
}

/// The point to pass when an effect is carried out.
pub(super) struct Done(Option<&'static str>);

impl Done {
    /// The effect is carried out.
    pub(super) fn pass(self) {
        self.0.into_iter().for_each(pass);
    }
}

/// Entries of the log that are on their way, until they are applied here.
#[derive(Default)]
pub(super) struct Passing(VecDeque<(u64, &'static str)>);

impl Passing {
    /// A batch is on its way to the disk. The entries that it replaces will not be applied.
    pub(super) fn written(&mut self, batch: &WriteBatch) {
        let first = batch.entries.first().map_or(u64::MAX, |entry| entry.position.index);
        self.0.retain(|(index, _)| *index < first);
        let snapshot = batch.snapshot.as_ref().filter(|_| anothers(batch));
        let reached = snapshot.and_then(|snapshot| reach(snapshot).ok());
        self.0.extend(reached.zip(find("snapshot", "installed")));
        let points =
            |entry: &raft::RaftEntry| Some((entry.position.index, of_entry("applied", entry)?));
        self.0.extend(batch.entries.iter().filter_map(points));
        let applied = batch.entries.last().zip(find("batch", "applied"));
        self.0.extend(applied.map(|(entry, point)| (entry.position.index, point)));
    }

    /// All entries up to this one are applied, and their consequences are done and sent.
    pub(super) fn applied(&mut self, last: u64) {
        while let Some((_, point)) = self.0.pop_front_if(|(index, _)| *index <= last) {
            pass(point);
        }
    }
}

/// An input goes into the node.
pub(super) fn on_input(input: &NodeInput) {
    of_input(input).into_iter().for_each(pass);
}

/// An effect has come out of the node, and has to be carried out.
pub(super) fn on_effect(effect: &NodeEffect) -> Done {
    of_effect(effect).into_iter().for_each(pass);
    Done(of_done(effect))
}

/// A message goes to one of many peers.
pub(super) fn on_broadcast(message: &Message) {
    of_message(message, "send").into_iter().for_each(pass);
}

/// Passes the points of batches that have become durable.
pub(super) fn on_appended(batches: &[WriteBatch]) {
    let entries = batches.iter().flat_map(|batch| &batch.entries);
    entries.filter_map(|entry| of_entry("appended", entry)).for_each(pass);
    batches.iter().flat_map(|batch| of_batch(batch, "written")).for_each(pass);
}

/// The process has come this far: a point that follows from no input or effect.
pub(super) fn on_stage(point: &'static str) {
    pass(point);
}

fn of_input(input: &NodeInput) -> Option<&'static str> {
    let NodeInput::Shell(input) = input else { return None };
    match input {
        ShellInput::Connected { .. } => Some("connected"),
        ShellInput::Disconnected { .. } => Some("disconnected"),
        ShellInput::Message { message: Message::Heartbeat(heartbeat), .. } => {
            Some(of_heartbeat(heartbeat))
        }
        ShellInput::Message { message: Message::Raft(bytes), .. } => of_raft(bytes, "receive"),
        ShellInput::Message { message, .. } => of_message(message, "receive"),
        ShellInput::Admit { .. } => find("admission", "receive"),
        ShellInput::LinesDurable { .. } => Some("durable"),
        ShellInput::Read(_) | ShellInput::LinesOpened { .. } => None,
    }
}

fn of_heartbeat(heartbeat: &Heartbeat) -> &'static str {
    match heartbeat {
        Heartbeat { held: true, .. } => "held.receive",
        Heartbeat { ready: true, .. } => "ready.receive",
        Heartbeat { unreachable, .. } if !unreachable.is_empty() => "unreachable.receive",
        _ => "heartbeat.receive",
    }
}

fn of_effect(effect: &NodeEffect) -> Vec<&'static str> {
    match effect {
        NodeEffect::Shell(effect) => of_shell_effect(effect).into_iter().collect(),
        NodeEffect::Persist(batch) => {
            let entries = batch.entries.iter().filter_map(|entry| of_entry("propose", entry));
            entries.chain(of_batch(batch, "write")).collect()
        }
        NodeEffect::Recall { .. } => find("history", "send").into_iter().collect(),
        NodeEffect::Recalled(_) | NodeEffect::Removed => Vec::new(),
    }
}

fn of_shell_effect(effect: &ShellEffect) -> Option<&'static str> {
    match effect {
        ShellEffect::Send { message: Message::Raft(bytes), .. } => of_raft(bytes, "send"),
        ShellEffect::Send { message, .. } => of_message(message, "send"),
        ShellEffect::Admitted { .. } => find("admission", "send"),
        ShellEffect::Update { .. } => find("update", "send"),
        ShellEffect::OrderManifest { .. } => find("write_manifest", "send"),
        ShellEffect::AppendLines(_) => Some("record"),
        ShellEffect::OpenLines(history) if cuts(history) => Some("forget"),
        _ => None,
    }
}

fn of_done(effect: &NodeEffect) -> Option<&'static str> {
    match effect {
        NodeEffect::Shell(ShellEffect::AppendLines(_)) => Some("recorded"),
        NodeEffect::Shell(ShellEffect::OpenLines(history)) if cuts(history) => Some("forgotten"),
        NodeEffect::Recalled(_) => Some("filled"),
        _ => None,
    }
}

/// Whether the file loses lines that a rollback has undone.
fn cuts(history: &LineHistory) -> bool {
    history.lineage.rollback > Generation(0)
}

/// The point of a message, by its name, if there is one.
fn of_message(message: &Message, way: &str) -> Option<&'static str> {
    find(message.name(), way)
}

fn of_entry(stage: &str, entry: &raft::RaftEntry) -> Option<&'static str> {
    // Raft's own entries have no command.
    let entry = CommandEntry::decode(&entry.bytes, *LOG_FORMATS.end()).ok()?;
    let kind = match &entry.command {
        Command::Lead { .. } => "lead",
        Command::Request { .. } => "request",
        Command::Register { .. } => "register",
        Command::Lose { .. } => "lose",
        Command::Drain { .. } => "drain",
        Command::Generation(_) => "generation",
        Command::Note { .. } => "note",
        Command::LoseLines { .. } => "lose_lines",
        Command::End { .. } => "end",
        Command::ShutOut { .. } => "shut_out",
        Command::Recover { .. } => "recover",
        Command::Found { .. } => "found",
        Command::Coordinator { .. } => "coordinator",
        Command::SpendToken { .. } => "spend_token",
        Command::Died(_) => "died",
        Command::AwaitOwners { .. } => "await_owners",
        Command::ListCheckpoint { .. } => "list_checkpoint",
        Command::DamageCheckpoint { .. } => "damage_checkpoint",
        Command::FailCheckpoint { .. } => "fail_checkpoint",
        Command::SkipCheckpoint { .. } => "skip_checkpoint",
        Command::LeaveAll { .. } => "leave_all",
        Command::Preempt { .. } => "preempt",
    };
    find(stage, kind)
}

fn find(first: &str, second: &str) -> Option<&'static str> {
    let all = POINTS.iter().chain(AMONG).copied();
    all.into_iter().find(|point| point.split_once('.') == Some((first, second)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use everstep_transport::identity::{Identity, Role};
    use everstep_transport::protocol::figures::RunFigures;
    use everstep_transport::protocol::outcome::Outcome;
    use everstep_transport::protocol::reason::{LinkEnd, LossReason};
    use everstep_transport::protocol::{
        CheckpointId, CoordinatorId, Lineage, NodeName, RunId, Step, Term, WorkerId, exemplars,
    };

    use super::*;
    use crate::core::LinkId;
    use crate::raft::{EntryKind, HardState, LogPosition};
    use crate::state::Change;

    const LINK: LinkId = LinkId(1);
    const WORKER: WorkerId = WorkerId(7);

    /// One of each kind, as the log has them.
    fn entries() -> Vec<raft::RaftEntry> {
        let name = NodeName::parse("worker-7").expect("a valid name");
        let told = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Request { id, command } => {
                Some(Command::Request { id, command, so_far: crate::state::RunSoFar::default() })
            }
            Message::Register(registration) => {
                Some(Command::Register { run: RunId(1), name: name.clone(), registration })
            }
            Message::Announce(record) => Some(Command::Generation(Change {
                record,
                lost: vec![],
                left: vec![],
                redone: false,
                unreachable: vec![],
                rollback: None,
            })),
            _ => None,
        });
        let lose = Command::Lose { worker: WORKER, reason: LossReason::NoAnswer };
        let drain = Command::Drain { worker: WORKER };
        let (outcome, figures) = (Outcome::Running, RunFigures::default());
        let end = Command::End { run: RunId(1), outcome, figures, steps: Step(0) };
        let list = Command::ListCheckpoint {
            run: RunId(1),
            checkpoint: exemplars::listed_checkpoint(),
            deleted: vec![],
            skipped: 0,
        };
        let (run, id, reason) = (RunId(1), CheckpointId::default(), String::new());
        let damage = Command::DamageCheckpoint { run, id, reason };
        let others =
            [Command::Lead { coordinator: CoordinatorId(1) }, lose, drain, end, list, damage];
        let position = LogPosition { index: 2, term: Term(1) };
        let entry = |command| raft::RaftEntry {
            position,
            kind: EntryKind::Command,
            bytes: CommandEntry { unix_ms: 1, command }.encode(*LOG_FORMATS.end()),
        };
        told.chain(others).map(entry).collect()
    }

    fn inputs() -> Vec<NodeInput> {
        let name = NodeName::parse("worker-7").expect("a valid name");
        let identity = Identity { role: Role::Worker, name };
        let mut messages = exemplars::all();
        for at in 0..messages.len() {
            if let Message::Heartbeat(full) = messages[at].clone() {
                let held = Heartbeat { ready: false, ..full };
                let ready = Heartbeat { held: false, ready: true, ..held.clone() };
                let cut_off = Heartbeat { ready: false, ..ready.clone() };
                let plain = Heartbeat { unreachable: vec![], ..cut_off.clone() };
                messages.extend([held, ready, cut_off, plain].map(Message::Heartbeat));
            }
        }
        let end = LinkEnd::SaidAll;
        let gone = NodeInput::Shell(ShellInput::Disconnected { link: LINK, end });
        let messages = messages
            .into_iter()
            .map(|message| NodeInput::Shell(ShellInput::Message { from: LINK, message }));
        let durable = NodeInput::Shell(ShellInput::LinesDurable {
            lineage: Lineage::default(),
            reach: Step(1),
        });
        messages
            .chain([
                NodeInput::Shell(ShellInput::Connected { link: LINK, identity, address: None }),
                gone,
                durable,
            ])
            .collect()
    }

    fn effects() -> Vec<NodeEffect> {
        let messages = exemplars::all().into_iter();
        let messages =
            messages.map(|message| NodeEffect::Shell(ShellEffect::Send { to: LINK, message }));
        let lineage = Lineage { run: RunId(1), rollback: Generation(2) };
        let history = LineHistory { lineage, ..LineHistory::default() };
        let lines = [
            NodeEffect::Shell(ShellEffect::AppendLines(vec![])),
            NodeEffect::Shell(ShellEffect::OpenLines(history)),
        ];
        let position = LogPosition { index: 1, term: Term(1) };
        let hard_state = HardState { term: Term(1), vote: None, commit: 1 };
        let batch = |entry| WriteBatch {
            number: 1,
            hard_state,
            snapshot: None,
            base: position,
            entries: vec![entry],
        };
        let batches = entries().into_iter().map(|entry| NodeEffect::Persist(batch(entry)));
        messages.chain(lines).chain(batches).collect()
    }

    #[test]
    fn every_failpoint_of_one_alone_is_passed_by_something() {
        let mut passed = BTreeSet::new();
        passed.extend(inputs().iter().filter_map(of_input));
        for effect in effects() {
            passed.extend(of_effect(&effect).into_iter().chain(of_done(&effect)));
        }
        for entry in entries() {
            passed.extend(of_entry("appended", &entry));
            passed.extend(of_entry("applied", &entry));
        }
        let among: BTreeSet<_> = AMONG.iter().copied().collect();
        let alone: BTreeSet<_> = POINTS.iter().copied().collect();
        assert_eq!(passed.difference(&among).copied().collect::<BTreeSet<_>>(), alone);
        assert_eq!(
            alone.union(&among).count(),
            POINTS.len() + AMONG.len(),
            "a name is there twice"
        );
    }

    /// Messages without a failpoint: those of a worker whose memory has changed, lines that
    /// coordinators send again, what workers say of a store that fails or of a checkpoint that is
    /// damaged or verified, and messages that only several runs need. Also messages between
    /// workers, and messages that operators send only over HTTP. An operator's questions and
    /// their replies have none either. The rest has points by content, or needs none.
    const WITHOUT_A_POINT: [&str; 23] = [
        "failed",
        "predecessors",
        "preempted",
        "unsaved",
        "damaged",
        "verification",
        "released",
        "verify",
        "prepared",
        "commit",
        "go",
        "fetch_parameters",
        "fetch_state",
        "fetch_masters",
        "state",
        "coordinators",
        "raft",
        "removed",
        "hears",
        "state_digest",
        "fetch_lines",
        "lines",
        "transfer",
    ];

    #[test]
    fn every_message_has_a_failpoint_but_for_those_that_are_named() {
        let has_none = |message: &Message| {
            ["send", "receive"].iter().all(|way| of_message(message, way).is_none())
        };
        let others = exemplars::all().into_iter().filter(|message| !message.is_question());
        let without = others.filter(has_none);
        assert_eq!(without.map(|message| message.name()).collect::<Vec<_>>(), WITHOUT_A_POINT);
    }
}
