use everstep_transport::protocol::RunId;

use super::*;

fn states(world: &mut World) -> Vec<WorkerState> {
    world.seen().iter().map(|view| view.state).collect()
}

#[test]
fn every_worker_is_shown_as_what_it_is() {
    use WorkerState::{Finished, Learning, Leaving, Left, Lost, Suspected, Training, Waiting};
    let mut world = World::with_run(run_of(4));
    let mut links = vec![world.worker("worker-1")];
    assert_eq!(states(&mut world), [Waiting]);
    links.extend((2..=4).map(|place| world.worker(&format!("worker-{place}"))));
    assert_eq!(states(&mut world), [Training; 4]);
    world.commit(1..=2);
    links.push(world.worker("worker-5"));
    world.pass(50, &links);
    assert_eq!(states(&mut world), [Training, Training, Training, Training, Learning]);
    world.kill(links[3]);
    let ranks: Vec<_> = world.seen().iter().map(|view| view.rank).collect();
    assert_eq!((ranks[3], states(&mut world)[3]), (None, Lost));
    world.say(links[4], Message::Leave);
    assert_eq!(states(&mut world)[3..], [Lost, Left]);
    world.holds_back = true;
    world.actor(links[0]).mute = true;
    world.cut(links[2]);
    assert_eq!(states(&mut world)[2], Suspected);
    let back = world.relink(links[2]);
    world.catch_up();
    assert_eq!(states(&mut world)[2], Training);
    world.say(back, Message::Leave);
    assert_eq!(states(&mut world)[2], Leaving);
    world.actor(links[0]).mute = false;
    world.pass(500, &[links[0], links[1], back]);
    super::results::finish(&mut world, links[1], [1; 32]);
    assert_eq!(states(&mut world)[1], Finished);
}

#[test]
fn workers_that_wait_for_a_run_are_listed_and_those_of_a_run_that_is_over_train_no_more() {
    let mut world = World::empty();
    world.found(false);
    let first = world.connect(Role::Worker, "worker-1");
    world.say(first, Message::Hello { worker: None });
    let idle = world.watch(0, 0).idle;
    assert_eq!((idle.len(), idle[0].name.as_str(), idle[0].address), (1, "worker-1", None));
    let place = Some((Ipv4Addr::new(10, 0, 0, 7), 4_000).into());
    let name = NodeName::parse("worker-2").expect("a valid name");
    let identity = Identity { role: Role::Worker, name };
    let second = LinkId(99);
    world.give(ShellInput::Connected { link: second, identity, address: place });
    world.say(second, Message::Hello { worker: None });
    assert_eq!(world.watch(0, 0).idle[1].address, place);
    assert_eq!(world.core.cluster_view(world.now).idle, 2);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    let Update { idle, building, .. } = world.watch(0, 0);
    let building: Vec<_> = building.iter().map(|worker| worker.name.as_str()).collect();
    assert_eq!((idle, &building[..]), (vec![], &["worker-1", "worker-2"][..]));
    assert_eq!(world.core.cluster_view(world.now).building, 2);
    let (inability, reason) = (Inability::Run, "there is no /nope".into());
    world.say(second, Message::Unable { inability, reason });
    let unable = &world.watch(0, 0).unable[0].1;
    assert_eq!(unable, "there is no /nope (the worker is at 10.0.0.7)");
    let idle = world.watch(0, 0).idle;
    assert_eq!((idle.len(), idle[0].name.as_str(), idle[0].address), (1, "worker-2", place));
    assert_eq!(world.core.cluster_view(world.now).idle, 1);
    let (mut world, _) = World::training(2);
    world.cancel(1);
    assert_eq!(states(&mut world), [WorkerState::Finished; 2]);
}

#[test]
fn workers_are_numbered_as_they_come_and_a_process_keeps_its_number() {
    let (mut world, links) = World::training(3);
    let numbers =
        |world: &mut World| -> Vec<u32> { world.seen().iter().map(|view| view.number).collect() };
    assert_eq!(numbers(&mut world), [1, 2, 3]);
    world.kill(links[1]);
    world.worker("worker-4");
    world.worker("worker-2");
    assert_eq!(numbers(&mut world), [1, 2, 3, 4, 2], "the second one is back under another id");
}

#[test]
fn a_run_that_has_not_begun_is_not_shown_as_waiting() {
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    world.pass(5_000, &[]);
    assert_eq!(world.watch(0, 0).waiting, None);
}

#[test]
fn a_watcher_is_told_of_a_worker_again_only_when_it_has_changed() {
    let (mut world, links) = World::training(3);
    let told = |world: &mut World| {
        let update = world.watch(0, 0);
        let ids: Vec<u64> = update.workers.iter().map(|view| view.worker.0).collect();
        (ids, update.forgotten)
    };
    let all: Vec<u64> = links.iter().map(|link| world.id(*link).0).collect();
    assert_eq!(told(&mut world), (all.clone(), vec![]));
    assert_eq!(told(&mut world), (vec![], vec![]));
    world.say(links[1], Message::Leave);
    assert_eq!(told(&mut world), (vec![all[1]], vec![]));
    let joiner = world.worker("worker-4");
    let joined = world.id(joiner);
    assert_eq!(told(&mut world), (vec![joined.0], vec![]));
    world.kill(joiner);
    assert_eq!(told(&mut world), (vec![], vec![joined]), "it was no member: nothing is left of it");
    world.operator = world.connect(Role::Operator, "operator");
    assert_eq!(told(&mut world), (all, vec![]), "on another link everything is new");
}

#[test]
fn what_gpus_tell_is_shown_of_who_is_there_and_never_comes_into_the_log() {
    let (mut world, links) = World::training(2);
    let told = exemplars::telemetry();
    let index = world.core.state().index();
    for percent in 0..50 {
        let telemetry = Telemetry { utilization_percent: Some(percent), ..told };
        let heartbeat = Heartbeat { telemetry: Some(telemetry), ..world.heartbeat(links[1]) };
        world.say(links[1], Message::Heartbeat(heartbeat));
    }
    assert_eq!(world.core.state().index(), index);
    let shown = |world: &World| -> Vec<Option<u32>> {
        let views = world.core.cluster_view(world.now).workers;
        views.iter().map(|view| view.telemetry.and_then(|told| told.utilization_percent)).collect()
    };
    assert_eq!(shown(&world), [None, Some(49)]);
    world.kill(links[1]);
    assert_eq!(shown(&world), [None, None]);
    assert!(!world.core.health.has_telemetry(), "nothing is kept of who is gone");
}

#[test]
fn a_device_is_shown_as_its_worker_stated_it() {
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    let link = world.greeted("worker-2");
    let device = exemplars::device();
    world.say(link, Message::Register(Registration { device, ..registration(2) }));
    let devices: Vec<Device> = world.seen().iter().map(|view| view.device.clone()).collect();
    assert_eq!(devices, [Device::default(), exemplars::device()]);
    assert_eq!(world.watch(0, 0).divergence, None, "the same bits come of both");
}

/// The operator cancelled the first run while its watcher was away.
#[test]
fn who_watches_a_run_is_told_no_lines_of_another() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=3);
    let first = world.watch(0, 0).run;
    assert_eq!(first, Some(world.core.state().run_id()));
    let watch = |run, step| Message::Watch { run, step: Step(step), event: 0 };
    let told = |world: &mut World, message| {
        world.say(world.operator, message);
        match world.hear(world.operator).pop() {
            Some(Message::Update(update)) => (update.run, update.lines.len()),
            other => panic!("no update but {other:?}"),
        }
    };
    assert_eq!(told(&mut world, watch(first, 1)), (first, 2));
    assert_eq!(told(&mut world, watch(Some(RunId(99)), 0)), (first, 0));
    assert_eq!(told(&mut world, watch(None, 0)), (first, 3));
}
