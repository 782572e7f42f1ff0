//! A worker among three coordinators: which one it obeys, what it tells each, and that no change of
//! leaders costs a step.

use std::net::Ipv4Addr;
use std::time::Duration;

use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Generation, Message, RunSpec, Step, Term, WorkerId,
};
use everstep_worker::step::Promise;
use everstep_worker::step::event::{Effect, Exit, Input, LinkId, Report};

use crate::cluster::{Cluster, run};
use crate::solo::{LINK, Solo, TERM, commit, coordinator, feed, next_record};
use crate::support::{GENERATION, MEMBERS, STRANGER};

const SECOND: LinkId = LinkId(2);
const THIRD: LinkId = LinkId(3);
const OWN: WorkerId = MEMBERS[1];
const NEXT: Generation = Generation(GENERATION.0 + 1);
/// The term after [`TERM`], in which [`LINK`] leads.
const LATER: Term = Term(TERM.0 + 1);

/// A member with links to three coordinators, of which the first leads.
fn among_three() -> Solo {
    let mut solo = Solo::member(1);
    solo.connect(SECOND);
    solo.connect(THIRD);
    solo.took();
    solo
}

fn registered(term: Term) -> Message {
    Message::Registered { worker: OWN, term }
}

fn lose(solo: &mut Solo, link: LinkId) {
    solo.give(Input::CoordinatorLost { link });
}

/// Its messages since the last question: on which link, and a word for each.
fn told(solo: &mut Solo) -> Vec<(LinkId, &'static str)> {
    let told = solo.told_by_link().into_iter();
    told.map(|(link, message)| (link, message.name())).collect()
}

/// The Hellos since the last question: on which link, and under which id.
fn greeted(solo: &mut Solo) -> Vec<(LinkId, Option<WorkerId>)> {
    let told = solo.told_by_link().into_iter();
    told.filter_map(|(link, message)| match message {
        Message::Hello { worker, .. } => Some((link, worker)),
        _ => None,
    })
    .collect()
}

fn beat(solo: &mut Solo) {
    solo.now = solo.now + Duration::from_millis(250);
    solo.give(Input::Tick);
}

fn committed(solo: &Solo) -> Option<Step> {
    solo.core.member().map(|member| member.committed())
}

/// Takes a step from the commit before it: the worker votes, and then gets the commit.
fn take_step(solo: &mut Solo, step: u64) {
    solo.prepare(step);
    assert!(solo.sent().iter().any(|(_, what)| what == "prepared"), "step {step}");
    solo.peer(MEMBERS[0], Message::Commit(commit(step)));
    assert_eq!(committed(solo), Some(Step(step)));
}

#[test]
fn every_coordinator_is_greeted_and_the_leader_alone_is_told() {
    let mut solo = Solo::member(1);
    solo.connect(SECOND);
    solo.connect(THIRD);
    assert_eq!(greeted(&mut solo), [(SECOND, Some(OWN)), (THIRD, Some(OWN))]);
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(LINK, "heartbeat")]);
    // A follower may be silent for as long as it likes.
    (0..100).for_each(|_| beat(&mut solo));
    assert!(told(&mut solo).iter().all(|(link, _)| *link == LINK));
}

#[test]
fn a_new_leader_is_told_at_once_what_the_old_one_may_not_have_heard() {
    let mut solo = among_three();
    solo.give(Input::Drain);
    assert_eq!(told(&mut solo), [(LINK, "leave")]);
    solo.hear_on(SECOND, registered(LATER));
    assert_eq!(told(&mut solo), [(SECOND, "heartbeat"), (SECOND, "leave")]);
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(SECOND, "heartbeat")]);
    lose(&mut solo, LINK);
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(SECOND, "heartbeat")], "that one did not lead any more");
}

#[test]
fn a_change_of_leaders_while_a_vote_is_under_way_costs_the_step_nothing() {
    let mut solo = among_three();
    solo.prepare(1);
    assert!(solo.sent().iter().any(|(_, what)| what == "prepared"));
    lose(&mut solo, LINK);
    beat(&mut solo);
    solo.hear_on(SECOND, registered(LATER));
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert_eq!((committed(&solo), solo.core.refused()), (Some(Step(1)), 0));
    beat(&mut solo);
    let steps = solo.told_by_link().into_iter().filter_map(|(link, message)| match message {
        Message::Heartbeat(heartbeat) => Some((link, heartbeat.step)),
        _ => None,
    });
    assert_eq!(steps.collect::<Vec<_>>(), [(SECOND, Step(0)), (SECOND, Step(1))]);
}

#[test]
fn without_any_coordinator_training_goes_on() {
    let mut solo = among_three();
    [LINK, SECOND, THIRD].into_iter().for_each(|link| lose(&mut solo, link));
    take_step(&mut solo, 1);
    (0..100).for_each(|_| beat(&mut solo));
    solo.give(Input::CoordinatorGone("no coordinator answers".into()));
    let quiet =
        |effect: &Effect| !matches!(effect, Effect::SendToCoordinator { .. } | Effect::Exit(_));
    assert!(solo.took().iter().all(quiet));
    solo.connect(LinkId(4));
    assert_eq!(greeted(&mut solo), [(LinkId(4), Some(OWN))]);
}

/// Invariant I7, for terms: a leader that stood still does not know that another one leads.
#[test]
fn a_stale_leader_is_not_obeyed() {
    let mut solo = among_three();
    solo.hear_on(SECOND, registered(LATER));
    solo.took();
    let answer = |generation| Message::HeartbeatAnswer {
        generation,
        written: Step(0),
        lacks_lines: false,
        retained: 0,
    };
    for stale in [
        registered(TERM),
        Message::Welcome { run: run(10), term: TERM },
        Message::Pause { term: TERM, number: NEXT },
        Message::Hold { term: TERM, generation: GENERATION },
        feed(STRANGER, &[0]),
        answer(NEXT),
        Message::Announce(next_record(None)),
    ] {
        let name = stale.name();
        solo.hear(stale);
        assert!(solo.took().is_empty(), "{name}");
    }
    assert_eq!(solo.core.promised().generation, GENERATION);
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(SECOND, "heartbeat")]);
    solo.hear_on(SECOND, answer(NEXT));
    assert_eq!(told(&mut solo), [(SECOND, "fetch_record")]);
}

/// The verdict may be true of an earlier worker. The coordinator must know this one's id, for the
/// next term in which it leads.
#[test]
fn a_coordinator_that_takes_this_worker_for_another_is_told_who_it_is() {
    let mut solo = among_three();
    solo.hear_on(SECOND, registered(LATER));
    solo.took();
    for word in [
        Message::Released { term: TERM },
        Message::Evicted { worker: STRANGER },
        Message::Drain { worker: STRANGER },
    ] {
        let name = word.name();
        solo.hear(word);
        assert_eq!(greeted(&mut solo), [(LINK, Some(OWN))], "{name}");
    }
    take_step(&mut solo, 1);
    solo.hear_on(SECOND, Message::Released { term: LATER });
    assert_eq!(solo.core.worker(), None);
}

/// Invariant I15.
#[test]
fn a_promise_is_given_to_whoever_asks_for_it_in_the_highest_term() {
    let mut solo = among_three();
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    assert_eq!(told(&mut solo), [(LINK, "status")]);
    // It does not matter whether that leader had let the worker in before.
    solo.hear_on(SECOND, Message::Pause { term: LATER, number: NEXT });
    assert_eq!(told(&mut solo), [(SECOND, "status")]);
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    assert_eq!(told(&mut solo), []);
    assert_eq!(solo.core.promised(), Promise { term: LATER, generation: NEXT });
    // A leader that lets the worker in has no promise yet.
    solo.hear_on(THIRD, registered(Term(LATER.0 + 1)));
    assert_eq!(solo.core.promised(), Promise { term: LATER, generation: NEXT });
}

/// The verdict is in the log, and its sender has confirmed it.
#[test]
fn who_is_evicted_by_one_while_another_leads_begins_again_with_all() {
    let mut solo = among_three();
    solo.hear_on(SECOND, Message::Evicted { worker: OWN });
    let effects = solo.took();
    assert!(matches!(effects[0], Effect::Build(_)));
    solo.effects = effects;
    assert_eq!(greeted(&mut solo), [(LINK, None), (SECOND, None), (THIRD, None)]);
    beat(&mut solo);
    assert_eq!(told(&mut solo), []);

    // Messages of the old leader in its old term do not count, if there was a later term.
    solo.hear_on(THIRD, Message::Welcome { run: run(10), term: LATER });
    solo.hear(Message::Welcome { run: run(10), term: TERM });
    solo.give(Input::Built(Cluster::built()));
    assert_eq!(told(&mut solo), [(THIRD, "register")]);
    solo.hear_on(SECOND, Message::Evicted { worker: OWN });
    assert_eq!(told(&mut solo), [(SECOND, "hello")], "it knows");
    solo.hear_on(THIRD, Message::Registered { worker: STRANGER, term: LATER });
    let told = solo.told_by_link();
    assert!(matches!(told[2], (THIRD, Message::Heartbeat(_))));
    solo.effects.extend(
        told.into_iter().map(|(link, message)| Effect::SendToCoordinator { link, message }),
    );
    assert_eq!(greeted(&mut solo), [(LINK, Some(STRANGER)), (SECOND, Some(STRANGER))]);
}

#[test]
fn a_leader_that_takes_it_for_new_is_told_who_it_is() {
    let mut solo = among_three();
    solo.hear_on(SECOND, Message::Welcome { run: run(10), term: LATER });
    let effects = solo.took();
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Build(_))));
    solo.effects = effects;
    assert_eq!(greeted(&mut solo), [(SECOND, Some(OWN))]);
    take_step(&mut solo, 1);
}

#[test]
fn whoever_leads_when_the_model_is_built_is_registered_with() {
    let mut solo = Solo::new();
    let links = [LINK, SECOND, THIRD];
    links.into_iter().for_each(|link| solo.connect(link));
    assert_eq!(greeted(&mut solo), links.map(|link| (link, None)));
    solo.hear(Message::Welcome { run: run(10), term: TERM });
    assert!(matches!(solo.took()[..], [Effect::Build(_)]));
    solo.hear_on(SECOND, Message::Welcome { run: run(10), term: LATER });
    assert!(solo.took().is_empty(), "one build is enough");
    solo.give(Input::Built(Cluster::built()));
    assert_eq!(told(&mut solo), [(SECOND, "register")]);
    // The answer of that leader never comes.
    lose(&mut solo, SECOND);
    solo.hear_on(THIRD, Message::Welcome { run: run(10), term: Term(LATER.0 + 1) });
    assert_eq!(told(&mut solo), [(THIRD, "register")]);
}

#[test]
fn another_run_is_built_anew() {
    let mut solo = Solo::new();
    solo.connect(LINK);
    let other = RunSpec { seed: run(10).seed + 1, ..run(10) };
    for run in [run(10), other.clone()] {
        solo.hear(Message::Welcome { run: run.clone(), term: TERM });
        let built = |effect: &Effect| matches!(effect, Effect::Build(it) if *it == run);
        assert!(solo.took().iter().any(built));
    }
    solo.give(Input::Built(Cluster::built()));
    solo.hear(Message::Registered { worker: OWN, term: TERM });
    solo.took();
    solo.hear(Message::Released { term: TERM });
    assert_eq!(greeted(&mut solo), [(LINK, None)]);
    assert_eq!(solo.core.worker(), None);
    solo.hear(Message::Welcome { run: other, term: TERM });
    assert!(matches!(solo.took()[..], [Effect::Build(_)]));
}

#[test]
fn what_comes_over_a_link_that_was_given_up_does_not_count() {
    let mut solo = among_three();
    lose(&mut solo, SECOND);
    solo.hear_on(SECOND, registered(LATER));
    solo.hear_on(SECOND, Message::Dismiss);
    assert!(solo.took().is_empty());
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(LINK, "heartbeat")]);
}

#[test]
fn a_coordinator_of_another_build_refuses_nobody_whom_another_leads() {
    let refused = || Message::Refused { reason: "another version".into() };
    let mut solo = among_three();
    solo.hear_on(THIRD, refused());
    take_step(&mut solo, 1);
    solo.took();
    solo.hear(refused());
    assert!(matches!(solo.took()[..], [Effect::Exit(Exit::Refused(_))]));
}

#[test]
fn the_last_word_goes_to_all() {
    let mut solo = among_three();
    lose(&mut solo, LINK);
    solo.report(Report::Failed("out of memory".into()));
    assert_eq!(told(&mut solo), [(SECOND, "failed"), (THIRD, "failed")]);
}

// The list of coordinators.

fn view(id: u64, port: u16) -> CoordinatorView {
    CoordinatorView {
        id: CoordinatorId(id),
        name: coordinator(id),
        address: (Ipv4Addr::LOCALHOST, port).into(),
        api: None,
    }
}

/// The list of coordinators for the shell, if it has changed.
fn lists(solo: &mut Solo) -> Option<Vec<CoordinatorView>> {
    let lists = solo.took().into_iter().filter_map(|effect| match effect {
        Effect::Coordinators(all) => Some(all),
        _ => None,
    });
    lists.last()
}

/// A coordinator sends the list of coordinators.
fn list(
    solo: &mut Solo,
    from: LinkId,
    revision: u64,
    members: &[CoordinatorView],
) -> Option<Vec<CoordinatorView>> {
    let (leader, members) = (None, members.to_vec());
    solo.hear_on(from, Message::Coordinators { revision, term: TERM, leader, members });
    lists(solo)
}

#[test]
fn a_worker_that_knows_one_coordinator_learns_of_all() {
    let mut solo = Solo::new();
    solo.connect(SECOND);
    let all = [view(1, 1), view(2, 2), view(3, 3)];
    assert_eq!(list(&mut solo, SECOND, 4, &all[..2]), Some(all[..2].to_vec()));
    assert_eq!(list(&mut solo, SECOND, 6, &all), Some(all.to_vec()));
    assert_eq!(list(&mut solo, SECOND, 6, &all), None, "it is no news");
}

#[test]
fn an_old_list_of_coordinators_counts_for_nothing_whoever_says_it() {
    let mut solo = among_three();
    let all = [view(1, 1), view(2, 2), view(3, 3)];
    let moved = [view(1, 1), view(2, 9)];
    assert_eq!(list(&mut solo, LINK, 9, &moved), Some(moved.to_vec()));
    for link in [LINK, SECOND, THIRD] {
        assert_eq!(list(&mut solo, link, 6, &all), None);
    }
}

/// The leader's old process is dead, and does not say so.
#[test]
fn a_leader_that_comes_under_a_new_address_is_greeted_there_and_obeyed() {
    let mut solo = among_three();
    let again = LinkId(4);
    solo.give(Input::CoordinatorUp { link: again, name: coordinator(1) });
    assert_eq!(greeted(&mut solo), [(again, Some(OWN))]);
    solo.hear_on(again, registered(LATER));
    solo.took();
    lose(&mut solo, LINK);
    beat(&mut solo);
    assert_eq!(told(&mut solo), [(again, "heartbeat")]);
    let moved = [view(1, 9), view(2, 2)];
    assert_eq!(list(&mut solo, again, 9, &moved), Some(moved.to_vec()));
}
