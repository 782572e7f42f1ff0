use super::*;

fn steps(world: &mut World) -> Vec<u64> {
    world.watch(0, 0).lines.iter().map(|line| line.step.0).collect()
}

#[test]
fn a_heartbeat_is_answered_with_generation_and_written_step() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=3);
    let answer =
        |written| Message::HeartbeatAnswer { generation: Generation(1), written, retained: 0 };
    assert_eq!(world.hear(links[0]), [answer(Step(0)), answer(Step(3))]);
    world.beat(links[1]);
    assert_eq!(world.hear(links[1]), [answer(Step(3))]);
}

/// Workers drop what they are told is written.
#[test]
fn lines_are_written_once_a_majority_has_them() {
    let (mut world, links) = World::training(2);
    world.holds_back = true;
    world.report_lines(links[0], 1..=2);
    world.report_lines(links[0], 1..=3);
    assert_eq!(world.log.len(), 2, "what is on its way is not proposed again");
    assert_eq!(world.journal, []);
    world.hear(links[0]);
    world.beat(links[0]);
    let answer =
        |written| Message::HeartbeatAnswer { generation: Generation(1), written, retained: 0 };
    assert_eq!(world.hear(links[0]), [answer(Step(0))]);
    world.catch_up();
    assert_eq!(world.hear(links[0]), [answer(Step(2)), answer(Step(3))]);
    assert_eq!(world.journal.len(), 3);
}

/// The log may lose what a leader proposed.
#[test]
fn lines_that_do_not_come_are_proposed_again() {
    let (mut world, links) = World::training(2);
    world.holds_back = true;
    world.report_lines(links[0], 1..=2);
    world.log.clear();
    world.pass(500, &links);
    world.report_lines(links[0], 1..=2);
    assert!(world.log.is_empty());
    world.pass(500, &links);
    world.report_lines(links[0], 1..=2);
    world.catch_up();
    assert_eq!(world.journal, lines(Generation(1), 1..=2));
}

/// I7: they came into the log after the generation that is not theirs.
#[test]
fn lines_of_an_old_generation_are_not_written() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.holds_back = true;
    world.report_lines(links[0], 1..=9);
    let late = world.log.pop_front().expect("the lines");
    world.kill(links[0]);
    world.catch_up();
    assert_eq!(world.record().resume, Step(2));
    world.log.push_back(late);
    world.drain();
    assert_eq!(steps(&mut world), [1, 2]);
}

/// I13: whatever is repeated, out of order, beyond the end, or of another generation.
#[test]
fn each_step_has_its_line_once_and_in_order() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=3);
    world.report_lines(links[0], 2..=5);
    world.report_lines(links[0], 7..=9);
    world.report_lines(links[0], 5..=6);
    world.report_lines(links[1], 7..=7); // not the one that reports them
    world.beat_with(links[0], |heartbeat| {
        heartbeat.generation = Generation(9);
        heartbeat.lines = lines(Generation(9), 7..=7);
    });
    assert_eq!(steps(&mut world), [1, 2, 3, 4, 5, 6]);
    assert_eq!(world.journal.len(), 6);
    world.report_lines(links[0], 7..=1_000);
    assert_eq!(world.watch(0, 0).lines.len(), 20, "the run has twenty steps");
}

/// The step leader is dead, and with it the lines that it had not reported.
#[test]
fn a_change_brings_the_lines_up_to_its_resume_step() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.report_lines(links[0], 1..=2);
    world.commit(3..=5);
    world.kill(links[0]);
    assert_eq!(world.record().resume, Step(5));
    assert_eq!(steps(&mut world), [1, 2, 3, 4, 5]);
    assert_eq!(world.journal.len(), 5);
}

#[test]
fn a_change_brings_no_line_beyond_its_resume_step_nor_behind_a_gap() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.actor(links[1]).lines = lines(Generation(1), 1..=4);
    world.actor(links[2]).lines = Vec::new();
    world.kill(links[0]);
    assert_eq!(steps(&mut world), [1, 2]);
    let (mut world, links) = World::training(3);
    world.commit(1..=4);
    for link in &links {
        world.actor(*link).lines.remove(1);
    }
    world.kill(links[0]);
    assert_eq!(steps(&mut world), [1], "the line of step 2 is missing");
}

#[test]
fn a_watcher_gets_pages_and_the_outcome_with_the_last() {
    let run = RunSpec { steps: 450, ..run_of(2) };
    let (mut world, links) = World::training_as(run);
    world.report_lines(links[0], 1..=450);
    super::results::finish(&mut world, links[0], [1; 32]);
    super::results::finish(&mut world, links[1], [1; 32]);
    let (mut step, mut event, mut pages) = (0, 0, Vec::new());
    loop {
        let update = world.watch(step, event);
        step = update.lines.last().map_or(step, |line| line.step.0);
        event = update.events.last().map_or(event, |event| event.number);
        pages.push(update.lines.len());
        if update.outcome != Outcome::Running {
            break;
        }
    }
    assert_eq!((pages, step, event), (vec![200, 200, 50], 450, 6));
    let beyond = world.watch(u64::MAX, u64::MAX);
    assert_eq!((beyond.lines, beyond.events), (vec![], vec![]));
}

#[test]
fn events_carry_the_wall_clock() {
    let mut world = World::empty();
    world.pass(2_000, &[]);
    world.request(1, Wish::Submit(run_of(2)));
    assert_eq!(world.watch(0, 0).events[1].unix_ms, EPOCH_UNIX_MS + 2_000);
}
