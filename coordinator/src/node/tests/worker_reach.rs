//! A leader that hears no worker hands over to a coordinator that does.

use everstep_transport::protocol::step::Status;

use super::*;

/// A run of one worker, which is a member and from now on sends the leader nothing more.
fn silent_member(world: &mut World) -> Identity {
    let run = RunSpec { start_workers: 1, min_workers: 1, ..exemplars::run() };
    assert_eq!(world.command(1, OperatorCommand::Submit(run.into())), Some(None));
    let leader = world.leader().expect("a coordinator leads");
    let worker = identity(Role::Worker, "worker-1");
    let link = world.connect(leader, worker.clone());
    world.say(link, Message::Hello { worker: None });
    world.pass(100);
    let registration =
        exemplars::all().into_iter().find(|message| matches!(message, Message::Register(_)));
    world.say(link, registration.expect("there is one"));
    world.pass(100);
    let pause = world.said[&link].iter().find_map(|message| match message {
        Message::Pause { term, number } => Some((*term, *number)),
        _ => None,
    });
    let (term, number) = pause.expect("the run begins");
    let nothing = (None, vec![], vec![], None, vec![]);
    let (commit, prepared, versions, under_way, unreachable) = nothing;
    let status = Status { term, number, commit, prepared, versions, under_way, unreachable };
    world.say(link, Message::Status(status));
    world.pass(100);
    assert!(world.nodes[&leader].core.state().record().is_some(), "it has begun");
    worker
}

#[test]
fn i11_a_leader_that_hears_no_worker_lets_one_lead_that_does_and_not_to_and_fro() {
    let (mut world, ids) = World::of_three();
    let worker = silent_member(&mut world);
    let first = world.leader().expect("a coordinator leads");
    world.pass(15_000);
    assert_eq!(world.leader(), Some(first), "nobody else hears the worker either");
    let heir = ids.into_iter().rev().find(|id| *id != first).expect("a follower");
    world.greet(heir, &worker);
    world.pass(2_000);
    assert_eq!(world.leader(), Some(heir));
    // The new leader hears nothing more of the worker, which still has a link with the first
    // leader.
    world.pass(8_000);
    assert_eq!(world.leader(), Some(heir), "it keeps the lead for a time");
    world.pass(5_000);
    assert_eq!(world.leader(), Some(first), "and lets another one try then");
}

#[test]
fn a_leader_that_hears_a_worker_leads_on_whatever_others_hear() {
    let (mut world, ids) = World::of_three();
    let worker = silent_member(&mut world);
    let first = world.leader().expect("a coordinator leads");
    let heir = ids.into_iter().find(|id| *id != first).expect("a follower");
    world.greet(heir, &worker);
    for _ in 0..20 {
        world.greet(first, &worker);
        world.pass(1_000);
    }
    assert_eq!(world.leader(), Some(first));
}

/// Its workers wait for the next run, and have nothing to say.
#[test]
fn a_leader_whose_run_is_over_is_not_deaf() {
    let (mut world, ids) = World::of_three();
    let worker = silent_member(&mut world);
    let first = world.leader().expect("a coordinator leads");
    let run = world.nodes[&first].core.state().run_id();
    assert_eq!(world.command(2, OperatorCommand::Cancel(run)), Some(None));
    let heir = ids.into_iter().find(|id| *id != first).expect("a follower");
    world.greet(heir, &worker);
    world.pass(30_000);
    assert_eq!(world.leader(), Some(first));
}

/// A worker that builds, or cannot compute, has links with all coordinators. But it has no part in
/// the run that a coordinator could hear.
#[test]
fn workers_without_a_part_in_the_run_take_the_lead_to_nobody() {
    let (mut world, ids) = World::of_three();
    silent_member(&mut world);
    let first = world.leader().expect("a coordinator leads");
    for heir in ids.into_iter().filter(|id| *id != first) {
        let link = world.connect(heir, identity(Role::Worker, "worker-2"));
        world.say(link, Message::Hello { worker: None });
    }
    world.pass(30_000);
    assert_eq!(world.leader(), Some(first));
}

impl World {
    /// A worker of the run connects to a coordinator and says its id.
    fn greet(&mut self, id: CoordinatorId, worker: &Identity) {
        let link = self.connect(id, worker.clone());
        let known = self.nodes[&id].core.state().on_node(&worker.name);
        self.say(link, Message::Hello { worker: known });
    }
}
