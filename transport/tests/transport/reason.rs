//! The reasons of losses and ends: the sentences that people and scripts see of them, and the names
//! in them that come from a peer.

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::codec::{DecodeError, decode, encode};
use everstep_transport::protocol::outcome::{Event, EventKind, Inability, Outcome};
use everstep_transport::protocol::question::RevokedView;
use everstep_transport::protocol::reason::{
    DeviceHang, FailReason, LinkEnd, LossReason, NamedWorker, ProcessExit, RollbackReason,
    StandstillReason, UnableCause, UnableReason,
};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    HistoryEntry, HistoryEvent, Message, NodeName, OperatorCommand, Reply, Shard, Step, WorkerId,
    WorkerLabel, exemplars,
};
use everstep_transport::quic::LinkError;

const HANG: DeviceHang = DeviceHang { spent_ms: 31_000, usual_ms: 2_000 };
const HANGS: &str =
    "its device has been at one data shard or update for 31.0s, which takes 2.0s there as a rule";

fn name(name: &str) -> NodeName {
    NodeName::parse(name).expect("a valid name")
}

fn label() -> WorkerLabel {
    WorkerLabel { number: 2, worker: WorkerId(4), host: None }
}

fn worker() -> NamedWorker {
    NamedWorker::of(WorkerId(4), Some(label()))
}

fn forgotten() -> NamedWorker {
    NamedWorker::of(WorkerId(9), None)
}

#[test]
fn a_loss_has_its_sentence() {
    let words = || "no space left".to_string();
    for (reason, sentence) in [
        (
            LossReason::LinkClosed(LinkEnd::Broken(words())),
            "its link closed: the link broke: no space left",
        ),
        (LossReason::Silent(2_200), "no heartbeat for 2.2s"),
        (LossReason::NoAnswer, "it did not answer a Pause"),
        (LossReason::Unreachable(worker()), "it and worker 2 (id 4) cannot reach each other"),
        (
            LossReason::Unreachable(forgotten()),
            "it and the worker with id 9 cannot reach each other",
        ),
        (LossReason::RegisteredAnew, "it registered anew"),
        (LossReason::AddressReplaced, "another process listens at its address"),
        (LossReason::AddressStated, "another worker states its address"),
        (LossReason::ProcessEnded(ProcessExit::Unknown), "its process has ended"),
        (LossReason::FoundDead, "an earlier leader found that it has ended"),
        (LossReason::Revoked, "an operator revoked it"),
        (LossReason::Failed(words()), "it failed: no space left"),
        (LossReason::CannotCompute(words()), "it cannot compute yet: no space left"),
        (LossReason::DeviceHangs(HANG), HANGS),
    ] {
        assert_eq!(reason.to_string(), sentence);
    }
}

/// The log and the state of a coordinator name the end of a link in the same words.
#[test]
fn the_end_of_a_link_has_the_sentence_of_its_error() {
    let reason = || "cut".to_string();
    let too_large = LinkError::TooLarge { name: "write", bytes: 9 };
    let not_listed = "the node is not in the allow list here: it was removed, or is not known yet";
    for (error, sentence) in [
        (LinkError::Gone { words: Some(reason()) }, "the peer is gone: cut"),
        (LinkError::Gone { words: None }, "the peer is gone: it has said all it had to say"),
        (
            LinkError::Unreachable { how: "no process listens at its port" },
            "the peer cannot be reached: no process listens at its port",
        ),
        (LinkError::Closed { reason: reason() }, "the peer closed the link: cut"),
        (LinkError::Silent, "the link was lost: nothing was heard from the peer"),
        (LinkError::Forgotten, "the link was lost: the peer has forgotten the link"),
        (LinkError::Refused { what: "a cut".into() }, "the peer was refused: it sent a cut"),
        (
            LinkError::Unsent(LinkError::Full.into()),
            "the link was closed here: too many messages wait for the peer",
        ),
        (
            LinkError::Unsent(too_large.into()),
            "the link was closed here: a write message of 9 bytes is too large to be sent",
        ),
        (
            LinkError::Ended { reason: not_listed.into() },
            &format!("the link was closed here: {not_listed}"),
        ),
        (LinkError::Broken { what: reason() }, "the link broke: cut"),
    ] {
        assert_eq!(error.to_string(), sentence);
        assert_eq!(error.end().to_string(), sentence);
    }
    assert_eq!(LinkError::Ended { reason: reason() }.end(), LinkEnd::ClosedHere);
}

#[test]
fn the_end_of_a_process_has_its_sentence() {
    for (exit, sentence) in [
        (ProcessExit::KILLED, "its process was killed (signal 9)"),
        (ProcessExit::Signal(15), "its process ended by signal 15"),
        (ProcessExit::Code(1), "its process ended with exit code 1"),
        (ProcessExit::WithLauncher, "its process ended with its launcher"),
        (ProcessExit::Unknown, "its process has ended"),
    ] {
        assert_eq!(LossReason::ProcessEnded(exit).to_string(), sentence);
    }
}

#[test]
fn a_worker_that_cannot_compute_has_its_sentence() {
    let address = Some([10, 0, 0, 7].into());
    let words = UnableReason { cause: UnableCause::Words("no such file".into()), address };
    assert_eq!(words.to_string(), "no such file (the worker is at 10.0.0.7)");
    let overdue = UnableReason { cause: UnableCause::BuildOverdue(60_000), address: None };
    let sentence = "its build of the model and the data has taken 60s so far";
    assert_eq!(overdue.to_string(), sentence);
}

#[test]
fn the_failure_of_a_run_has_its_sentence() {
    let words = || "no such file".to_string();
    let reason = UnableReason { cause: UnableCause::Words(words()), address: None };
    let unable = |others| FailReason::Unable { name: name("a"), others, reason: reason.clone() };
    let owners = (name("a"), name("b"));
    for (reason, sentence) in [
        (FailReason::Cancelled, "it was cancelled"),
        (
            FailReason::Broken { worker: worker(), words: words() },
            "worker 2 (id 4) cannot go on, nor may any other worker: no such file",
        ),
        (
            FailReason::LastWorkerFailed { worker: forgotten(), words: words() },
            "the worker with id 9 was lost: it failed: no such file",
        ),
        (
            FailReason::MemberUnable { worker: label(), words: words() },
            "worker 2 (id 4) cannot compute it: no such file",
        ),
        (unable(0), "a cannot compute it: no such file"),
        (unable(1), "a cannot compute it, nor can another worker: no such file"),
        (unable(2), "a cannot compute it, nor can 2 other workers: no such file"),
        (
            FailReason::OwnersDiffer { owners, shard: Shard(3) },
            "a and b ended with different copies of parameter shard 3",
        ),
        (
            FailReason::RecordTooLarge { bytes: 9, most: 8 },
            "the record of a generation takes 9 bytes of the log, which takes 8 at most: train \
             with fewer workers or copies",
        ),
        (
            FailReason::OriginDamaged { step: Step(3), damage: "it was cut".into() },
            "the checkpoint of step 3, from which the run was to go on, is damaged: it was cut",
        ),
        (
            FailReason::NoWholeCheckpoint { step: Step(3), damage: "it was cut".into() },
            "no checkpoint of the run is whole, and that of step 3 is damaged: it was cut",
        ),
    ] {
        assert_eq!(reason.to_string(), sentence);
    }
}

#[test]
fn a_rollback_and_a_standstill_have_their_sentences() {
    let owners = vec![worker(), forgotten()];
    let lost = |more| RollbackReason::ShardsLost { first: Shard(2), more, owners: owners.clone() };
    let both = "worker 2 (id 4) and the worker with id 9";
    assert_eq!(RollbackReason::Asked.to_string(), "an operator asked for it");
    assert_eq!(lost(0).to_string(), format!("parameter shard 2 was lost with {both}"));
    let more = format!("parameter shard 2, of {both}, and 1 others were lost");
    assert_eq!(lost(1).to_string(), more);
    let damaged = RollbackReason::CheckpointDamaged(Step(7));
    assert_eq!(damaged.to_string(), "the checkpoint of step 7 is damaged");
    let hangs = StandstillReason::DeviceHangs { worker: worker(), hang: HANG };
    assert_eq!(hangs.to_string(), format!("worker 2 (id 4): {HANGS}"));
}

#[test]
fn events_show_programs_a_state_hash_in_hexadecimal() {
    let kind = EventKind::Checkpoint { step: Step(5), bytes: 9, seconds: 1.5, state_hash: [8; 32] };
    let told = serde_json::to_value(Event { number: 1, unix_ms: 2, kind });
    assert_eq!(told.expect("plain data")["state_hash"], "08".repeat(32));
}

#[test]
fn events_show_programs_the_sentence_of_their_reason() {
    let (from, to) = (Step(5), Step(0));
    let hang = StandstillReason::DeviceHangs { worker: forgotten(), hang: HANG };
    let overdue = UnableReason { cause: UnableCause::BuildOverdue(60_000), address: None };
    for (kind, sentence) in [
        (
            EventKind::Refused { name: name("a"), reason: Rejection::NoRunToJoin },
            "there is no run to register for".to_string(),
        ),
        (
            EventKind::Lost {
                worker: WorkerId(4),
                reason: LossReason::NoAnswer,
                detect_ms: 1,
                pause_ms: 2,
            },
            "it did not answer a Pause".into(),
        ),
        (
            EventKind::Rollback { from, to, reason: RollbackReason::Asked },
            "an operator asked for it".into(),
        ),
        (EventKind::Failed { reason: FailReason::Cancelled }, "it was cancelled".into()),
        (
            EventKind::Unable { name: name("a"), reason: overdue, inability: Inability::Place },
            "its build of the model and the data has taken 60s so far".into(),
        ),
        (EventKind::Standstill { reason: hang }, format!("the worker with id 9: {HANGS}")),
    ] {
        let told = serde_json::to_value(Event { number: 1, unix_ms: 2, kind });
        assert_eq!(told.expect("plain data")["reason"], sentence);
    }
}

/// A name in a reason, or in what operators ask and hear, comes from a peer as any other name does.
#[test]
fn a_nodes_name_that_cannot_be_is_refused_wherever_it_stands() {
    let at_fault = || name("at-fault");
    let reason = UnableReason { cause: UnableCause::BuildOverdue(60_000), address: None };
    let unable = || FailReason::Unable { name: at_fault(), others: 0, reason: reason.clone() };
    let differ = FailReason::OwnersDiffer { owners: (name("a"), at_fault()), shard: Shard(0) };
    let log_format = Rejection::ShutOut(at_fault());
    let events = [
        EventKind::Failed { reason: unable() },
        EventKind::Failed { reason: differ },
        EventKind::Refused { name: name("a"), reason: log_format },
    ];
    let mut messages: Vec<Message> = events.map(history).to_vec();
    messages.push(ended(Outcome::Failed { name: None, reason: unable() }));
    let operator = || Identity { role: Role::Operator, name: at_fault() };
    let view = RevokedView { role: Role::Operator, name: at_fault(), since_unix_ms: 7 };
    messages.push(Message::Reply(Reply::Revoked(vec![view])));
    messages.push(Message::Reply(Reply::Operators(vec![at_fault()])));
    let asked = exemplars::all().into_iter().filter_map(|message| match message {
        Message::Request { id, .. } => Some(id),
        _ => None,
    });
    let asked =
        asked.map(|id| Message::Request { id, command: OperatorCommand::Revoke(operator()) });
    messages.extend(asked.take(1));
    for message in messages {
        let mut bytes = encode(&message).to_vec();
        assert_eq!(decode(&bytes).expect("its own bytes"), message);
        let found = bytes.windows(8).position(|part| part == b"at-fault");
        bytes[found.expect("the name")] = b' ';
        assert!(matches!(decode(&bytes), Err(DecodeError::Name)), "{message:?}");
    }
}

fn history(kind: EventKind) -> Message {
    let event = Event { number: 1, unix_ms: 2, kind };
    let entry = HistoryEntry { index: 3, events: vec![HistoryEvent::Event(event)] };
    Message::History { entries: vec![entry] }
}

fn ended(outcome: Outcome) -> Message {
    let update = exemplars::all().into_iter().find_map(|message| match message {
        Message::Update(update) => Some(update),
        _ => None,
    });
    let mut update = update.expect("an exemplar");
    update.outcome = outcome;
    Message::Update(update)
}
