//! Links that are lost, workers that leave, and how a worker ends.

use std::time::Duration;

use everstep_transport::protocol::{
    Cloud, Decision, Generation, Message, PreemptionNotice, Record, Shard, Step, WorkerId,
};
use everstep_worker::step::event::{Effect, Exit, Input, Job, LinkId, Report};

use crate::cluster::{Cluster, run};
use crate::scaling::{committed, scale, voted};
use crate::solo::{LINK, Solo, TERM, commit, next_record};
use crate::support::{GENERATION, MEMBERS, STRANGER};

fn heartbeats(solo: &mut Solo) -> Vec<Vec<WorkerId>> {
    let told = solo.told().into_iter();
    told.filter_map(|message| match message {
        Message::Heartbeat(heartbeat) => Some(heartbeat.unreachable),
        _ => None,
    })
    .collect()
}

fn exit(solo: &mut Solo) -> Option<Exit> {
    solo.took().into_iter().find_map(|effect| match effect {
        Effect::Exit(exit) => Some(exit),
        _ => None,
    })
}

fn lose(solo: &mut Solo, from: WorkerId) {
    solo.give(Input::PeerLost { from, reason: "gone".into() });
}

#[test]
fn a_lost_member_is_told_at_once_and_once() {
    let mut solo = Solo::member(1);
    lose(&mut solo, MEMBERS[2]);
    assert_eq!(heartbeats(&mut solo), [vec![MEMBERS[2]]]);
    lose(&mut solo, MEMBERS[2]);
    lose(&mut solo, STRANGER);
    assert!(heartbeats(&mut solo).is_empty());
}

#[test]
fn training_outlives_the_link_to_the_coordinator() {
    let mut solo = Solo::member(1);
    solo.give(Input::CoordinatorLost { link: LINK });
    solo.prepare(1);
    assert!(solo.sent().iter().any(|(_, what)| what == "prepared"));
    solo.connect(LinkId(2));
    let [Message::Hello { worker, .. }] = solo.told()[..] else { panic!("one greeting") };
    assert_eq!(worker, Some(MEMBERS[1]));
    solo.hear_on(LinkId(2), Message::Registered { worker: MEMBERS[1], term: TERM });
    assert_eq!(heartbeats(&mut solo).len(), 1);
}

#[test]
fn a_worker_gives_up_without_a_coordinator_only_if_it_never_met_one() {
    let gives_up = |has_met: bool| {
        let mut solo = Solo::registered(STRANGER);
        solo.hear(Message::Evicted { worker: STRANGER });
        if has_met {
            let (revision, term, leader, members) = (1, TERM, None, Vec::new());
            solo.hear(Message::Coordinators { revision, term, leader, members });
        }
        solo.give(Input::CoordinatorGone("no coordinator answers".into()));
        matches!(exit(&mut solo), Some(Exit::Failed(_)))
    };
    assert_eq!([false, true].map(gives_up), [true, false]);
}

/// Two owners hold different bits, as this step leader finds while no coordinator leads.
fn broken() -> Solo {
    let mut solo = voted();
    solo.peer(MEMBERS[0], Message::Commit(committed(1, Decision::Skip, scale(15, 0))));
    solo.took();
    solo.peer(MEMBERS[2], Message::Commit(committed(1, Decision::Skip, scale(14, 0))));
    assert!(tells_that_it_broke(&mut solo));
    solo
}

fn tells_that_it_broke(solo: &mut Solo) -> bool {
    let effects = solo.took();
    let ends = |effect: &Effect| matches!(effect, Effect::Exit(_));
    assert!(!effects.iter().any(ends), "nobody would know");
    let failed = |effect: &Effect| {
        let Effect::SendToCoordinator { message, .. } = effect else { return false };
        matches!(message, Message::Failed { fatal: true, .. })
    };
    effects.iter().any(failed)
}

#[test]
fn i19_a_broken_run_is_told_to_each_leader_until_one_has_heard_it() {
    let mut solo = broken();
    solo.give(Input::Tick);
    assert!(!tells_that_it_broke(&mut solo), "no leader asks");
    solo.connect(LinkId(2));
    let [Message::Hello { worker, .. }] = solo.told()[..] else { panic!("one greeting") };
    assert_eq!(worker, Some(MEMBERS[1]));
    let registered = || Message::Registered { worker: MEMBERS[1], term: TERM };
    for message in [registered(), registered(), Message::Evicted { worker: MEMBERS[1] }] {
        solo.hear_on(LinkId(2), message);
        assert!(tells_that_it_broke(&mut solo));
    }
    solo.give(Input::Drain);
    solo.give(Input::CoordinatorGone("no coordinator answers".into()));
    assert!(!tells_that_it_broke(&mut solo));
    solo.hear_on(LinkId(2), Message::Released { term: TERM });
    assert!(matches!(exit(&mut solo), Some(Exit::Failed(_))));
    let mut solo = broken();
    solo.give(Input::DrainOverdue);
    assert!(matches!(exit(&mut solo), Some(Exit::Failed(_))), "somebody insists");
}

#[test]
fn a_member_that_the_cluster_has_removed_ends_in_words() {
    let mut solo = Solo::member(1);
    solo.give(Input::Removed);
    let Some(Exit::Refused(reason)) = exit(&mut solo) else { panic!("it goes on") };
    assert!(reason.contains("removed from the cluster"), "{reason}");
}

#[test]
fn a_member_outlives_all_coordinators_until_it_is_told_to_leave() {
    let mut solo = Solo::member(1);
    solo.give(Input::CoordinatorLost { link: LINK });
    solo.give(Input::CoordinatorGone("no coordinator answers".into()));
    solo.give(Input::Drain);
    assert_eq!(exit(&mut solo), None, "somebody may answer yet");
    solo.prepare(1);
    assert!(solo.sent().iter().any(|(_, what)| what == "prepared"));
    solo.give(Input::DrainOverdue);
    assert_eq!(exit(&mut solo), Some(Exit::Overdue));
}

/// A member lags behind two changes. Questions of the first generation, which it never enters, take
/// no room from messages that count.
#[test]
fn what_is_over_takes_no_room_from_what_comes_early() {
    let mut solo = Solo::member(1);
    let generation = |more: u64| Generation(GENERATION.0 + more);
    let ask = |solo: &mut Solo, generation| {
        let shards = vec![Shard(1)];
        solo.peer(MEMBERS[0], Message::FetchParameters { generation, shards });
    };
    (0..4).for_each(|_| ask(&mut solo, generation(1)));
    solo.hear(Message::Pause { term: TERM, number: generation(2) });
    ask(&mut solo, generation(2));
    solo.took();
    let record = Record { number: generation(2), predecessor: generation(1), ..next_record(None) };
    solo.hear(Message::Announce(record));
    let shared = |job: &Job| matches!(job, Job::Share { to, .. } if *to == MEMBERS[0]);
    assert!(solo.jobs().iter().any(shared));
}

#[test]
fn whoever_was_evicted_begins_again_as_another() {
    let mut solo = Solo::member(1);
    solo.hear(Message::Evicted { worker: STRANGER });
    assert!(matches!(solo.told()[..], [Message::Hello { .. }]), "that is another");
    solo.hear(Message::Pause { term: TERM, number: GENERATION.next() });
    solo.took();
    solo.hear(Message::Evicted { worker: MEMBERS[1] });
    let effects = solo.took();
    assert!(matches!(effects[0], Effect::Build(_)));
    assert!(matches!(
        effects[1],
        Effect::SendToCoordinator { link: LINK, message: Message::Hello { worker: None, .. } }
    ));
    let core = &solo.core;
    assert!(core.member().is_none());
    assert_eq!((core.worker(), core.promised().generation), (None, Generation(0)));
    solo.hear(Message::Welcome { run: run(10), term: TERM });
    solo.give(Input::Built(Cluster::built()));
    assert!(matches!(solo.told()[..], [Message::Register(_)]));
    solo.hear(Message::Registered { worker: STRANGER, term: TERM });
    assert_eq!(solo.core.worker(), Some(STRANGER));
}

#[test]
fn a_registration_that_may_not_have_arrived_is_said_again() {
    let mut solo = Solo::registered(MEMBERS[0]);
    solo.hear(Message::Evicted { worker: MEMBERS[0] });
    solo.give(Input::Built(Cluster::built()));
    solo.took();
    solo.connect(LinkId(2));
    solo.hear_on(LinkId(2), Message::Welcome { run: run(10), term: TERM });
    assert!(matches!(solo.told()[..], [Message::Hello { .. }, Message::Register(_)]));
}

#[test]
fn a_drained_worker_asks_on_every_link_until_it_is_let_go() {
    let mut solo = Solo::member(1);
    solo.give(Input::Drain);
    assert_eq!(solo.told(), [Message::Leave]);
    solo.connect(LinkId(2));
    solo.hear_on(LinkId(2), Message::Registered { worker: MEMBERS[1], term: TERM });
    assert!(solo.told_by_link().contains(&(LinkId(2), Message::Leave)));
    solo.hear(Message::Drain { worker: MEMBERS[1] });
    assert_eq!(exit(&mut solo), Some(Exit::Drained));
}

#[test]
fn a_worker_of_a_machine_that_is_taken_back_says_so_with_the_time_that_is_left() {
    let notice = |seconds_left| PreemptionNotice { cloud: Cloud::Aws, seconds_left };
    let mut solo = Solo::member(1);
    solo.give(Input::Preempted(Some(notice(117))));
    assert_eq!(solo.told(), [Message::Preempted(notice(117))]);
    solo.now = solo.now + Duration::from_secs(7);
    solo.connect(LinkId(2));
    solo.hear_on(LinkId(2), Message::Registered { worker: MEMBERS[1], term: TERM });
    assert!(solo.told_by_link().contains(&(LinkId(2), Message::Preempted(notice(110)))));
    solo.give(Input::Preempted(None));
    assert_eq!(solo.told(), [Message::Leave], "the notice is withdrawn, and others take over");
    solo.hear_on(LinkId(2), Message::Drain { worker: MEMBERS[1] });
    assert_eq!(exit(&mut solo), Some(Exit::Drained));
    let mut idle = Solo::new();
    idle.give(Input::Preempted(Some(notice(117))));
    assert_eq!(exit(&mut idle), Some(Exit::Drained), "it takes no part in anything");
}

#[test]
fn a_drained_worker_stays_as_long_as_it_is_needed_unless_an_operator_insists() {
    let mut solo = Solo::member(1);
    solo.give(Input::Drain);
    let (generation, written) = (GENERATION, Step(0));
    solo.hear(Message::HeartbeatAnswer { generation, written, lacks_lines: false, retained: 12 });
    for _ in 0..600 {
        solo.now = solo.now + Duration::from_secs(1);
        solo.give(Input::Tick);
    }
    assert_eq!(exit(&mut solo), None);
    assert_eq!(solo.core.leaving(), Some(12), "it knows what for");
    solo.give(Input::DrainOverdue);
    assert_eq!(exit(&mut solo), Some(Exit::Overdue));
    let mut solo = Solo::member(1);
    solo.hear(Message::Dismiss);
    assert_eq!(exit(&mut solo), Some(Exit::Dismissed));
}

#[test]
fn a_broken_history_is_fatal_to_the_run_and_a_broken_machine_is_not() {
    let fatal = |solo: &mut Solo| {
        solo.told().into_iter().find_map(|message| match message {
            Message::Failed { fatal, .. } => Some(fatal),
            _ => None,
        })
    };
    let mut solo = Solo::member(1);
    solo.report(Report::Failed("out of memory".into()));
    assert_eq!(fatal(&mut solo), Some(false));
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    let other = everstep_transport::protocol::Commit { decision: Decision::Skip, ..commit(1) };
    solo.peer(MEMBERS[0], Message::Commit(other));
    assert_eq!(fatal(&mut solo), Some(true));
}

#[test]
fn heartbeats_go_out_in_time_whatever_the_phase() {
    let mut solo = Solo::registered(MEMBERS[0]);
    for _ in 0..4 {
        solo.now = solo.now + Duration::from_millis(250);
        solo.give(Input::Tick);
    }
    assert_eq!(heartbeats(&mut solo).len(), 4);
}
