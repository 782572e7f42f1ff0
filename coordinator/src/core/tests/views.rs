use super::*;

fn states(world: &mut World) -> Vec<WorkerState> {
    world.watch(0, 0).workers.iter().map(|view| view.state).collect()
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
    let ranks: Vec<_> = world.watch(0, 0).workers.iter().map(|view| view.rank).collect();
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
fn a_run_that_has_not_begun_is_not_shown_as_waiting() {
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    world.pass(5_000, &[]);
    assert_eq!(world.watch(0, 0).waiting, None);
}
