use super::*;
use crate::state::Gap;

fn steps(world: &mut World) -> Vec<u64> {
    world.watch(0, 0).lines.iter().map(|line| line.step.0).collect()
}

fn answer(written: u64) -> Message {
    let (generation, written) = (Generation(1), Step(written));
    Message::HeartbeatAnswer { generation, written, lacks_lines: false, retained: 0 }
}

/// What this coordinator tells another one of lines: the step it asks after, or the steps it sends.
fn said_of_lines(world: &mut World, link: LinkId) -> Vec<(&'static str, Vec<u64>)> {
    let said = world.hear(link).into_iter().filter_map(|message| match message {
        Message::FetchLines { after, .. } => Some(("asks after", vec![after.0])),
        Message::Lines { lines, .. } => {
            Some(("tells", lines.iter().map(|line| line.step.0).collect()))
        }
        _ => None,
    });
    said.collect()
}

fn tell(world: &mut World, from: LinkId, reach: u64, steps: RangeInclusive<u64>) {
    let (lineage, lines) = (world.lineage, lines(world.generation(), steps));
    world.say(from, Message::Lines { lineage, reach: Step(reach), lines });
}

#[test]
fn a_heartbeat_is_answered_with_generation_and_written_step() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=3);
    assert_eq!(world.hear(links[0]), [answer(0), answer(3)]);
    world.beat(links[1]);
    assert_eq!(world.hear(links[1]), [answer(3)]);
}

/// I13: members need not tell lines again once they hear that these are written.
#[test]
fn lines_are_written_once_they_are_on_the_leaders_disk() {
    let (mut world, links) = World::training(2);
    world.disk_stalls = true;
    world.report_lines(links[0], 1..=2);
    world.report_lines(links[0], 1..=3);
    assert_eq!(world.line_file.len(), 3, "each is appended once");
    assert_eq!(world.hear(links[0]), [answer(0), answer(0)]);
    assert_eq!(steps(&mut world), [1, 2, 3], "watchers need not wait for a disk");
    world.disk_stalls = false;
    world.sync_lines();
    world.drain();
    assert_eq!(world.hear(links[0]), [answer(3)]);
}

/// I7: the lines come after a generation that is not their own.
#[test]
fn lines_of_an_old_generation_are_not_written() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.kill(links[0]);
    assert_eq!(world.record().resume, Step(2));
    world.beat_with(links[1], |heartbeat| {
        heartbeat.generation = Generation(1);
        heartbeat.lines = lines(Generation(1), 1..=9);
    });
    assert!(steps(&mut world).is_empty());
}

/// I13: lines may be repeated, out of order, beyond the end, or of another generation.
#[test]
fn each_step_has_its_line_once_and_in_order() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=3);
    world.report_lines(links[0], 2..=5);
    world.report_lines(links[0], 7..=9);
    world.report_lines(links[0], 5..=6);
    world.report_lines(links[1], 7..=7); // only the step leader knows what is settled
    world.beat_with(links[0], |heartbeat| {
        heartbeat.generation = Generation(9);
        heartbeat.lines = lines(Generation(9), 7..=7);
    });
    assert_eq!(steps(&mut world), [1, 2, 3, 4, 5, 6]);
    assert_eq!(world.line_file.len(), 6);
    world.report_lines(links[0], 7..=1_000);
    assert_eq!(world.watch(0, 0).lines.len(), 20, "the run has twenty steps");
}

/// The step leader dies with lines that it had not reported. All members have them.
#[test]
fn after_a_change_every_member_is_asked_for_the_lines_before_it() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.report_lines(links[0], 1..=2);
    world.commit(3..=5);
    world.kill(links[0]);
    assert_eq!(world.record().resume, Step(5));
    world.hear(links[1]);
    world.beat(links[1]);
    let asked = |message: &Message| {
        matches!(message, Message::HeartbeatAnswer { lacks_lines: true, written: Step(2), .. })
    };
    assert!(world.hear(links[1]).iter().any(asked));
    world.beat(links[2]);
    world.beat(links[2]);
    assert_eq!(steps(&mut world), [1, 2, 3, 4, 5]);
    world.hear(links[1]);
    world.beat(links[1]);
    assert!(!world.hear(links[1]).iter().any(asked));
}

/// I13: a member's commits behind the resume step are not of the history.
#[test]
fn of_lines_behind_the_resume_step_the_step_leaders_word_counts() {
    let (mut world, links) = World::training(3);
    world.commit(1..=2);
    world.kill(links[0]);
    let (leader, other) = (world.record().step_leader(), Generation(2));
    let is_leader = |world: &World, link| world.id(link) == leader;
    let (first, second) = match is_leader(&world, links[1]) {
        true => (links[1], links[2]),
        false => (links[2], links[1]),
    };
    let both = || [lines(Generation(1), 1..=2), lines(other, 3..=3)].concat();
    world.beat_with(second, |heartbeat| heartbeat.lines = both());
    assert_eq!(steps(&mut world), [1, 2]);
    world.beat_with(first, |heartbeat| heartbeat.lines = both());
    assert_eq!(steps(&mut world), [1, 2, 3]);
}

#[test]
fn a_leader_tells_the_other_coordinators_and_answers_them() {
    let (mut world, links) = World::training(2);
    let other = world.connect(Role::Coordinator, "coordinator-2");
    world.report_lines(links[0], 1..=5);
    assert_eq!(said_of_lines(&mut world, other), [("tells", vec![1, 2, 3, 4, 5])]);
    let lineage = world.lineage;
    world.say(other, Message::FetchLines { lineage, after: Step(3) });
    assert_eq!(said_of_lines(&mut world, other), [("tells", vec![4, 5])]);
    let undone = Lineage { rollback: Generation(9), ..lineage };
    world.say(other, Message::FetchLines { lineage: undone, after: Step(3) });
    assert_eq!(said_of_lines(&mut world, other), []);
}

/// Page after page. The coordinator takes no lines of another history.
#[test]
fn a_coordinator_that_lacks_lines_asks_the_others() {
    let (mut world, links) = World::training(2);
    world.restart();
    let links: Vec<_> = links.iter().map(|link| world.relink(*link)).collect();
    let other = world.connect(Role::Coordinator, "coordinator-2");
    world.pass(1_500, &links);
    let asked = said_of_lines(&mut world, other);
    assert_eq!(asked.first(), Some(&("asks after", vec![0])), "nothing was heard for a while");
    tell(&mut world, other, 9, 1..=4);
    tell(&mut world, other, 9, 5..=8);
    let asked = said_of_lines(&mut world, other);
    assert_eq!(asked, [("asks after", vec![4]), ("asks after", vec![8])]);
    let lineage = Lineage { rollback: Generation(1), ..world.lineage };
    let line = lines(Generation(1), 9..=9);
    world.say(other, Message::Lines { lineage, reach: Step(9), lines: line });
    assert_eq!(world.line_file.len(), 8);
    tell(&mut world, other, 9, 9..=9);
    assert_eq!((world.line_file.len(), said_of_lines(&mut world, other)), (9, vec![]));
}

/// The log does not know how many lines there are.
#[test]
fn a_coordinator_asks_for_lines_as_soon_as_its_file_is_open() {
    let (mut world, links) = World::training(2);
    world.restart();
    let links: Vec<_> = links.iter().map(|link| world.relink(*link)).collect();
    assert!(world.core.may_lack_lines());
    let other = world.connect(Role::Coordinator, "coordinator-2");
    world.pass(100, &links);
    assert_eq!(said_of_lines(&mut world, other).first(), Some(&("asks after", vec![0])));
    let (lineage, lines) = (world.lineage, Vec::new());
    world.say(other, Message::Lines { lineage, reach: Step(3), lines });
    assert!(world.core.may_lack_lines(), "three lines");
    tell(&mut world, other, 3, 1..=3);
    assert!(!world.core.may_lack_lines());
}

/// D5: watchers do not wait for ever for lines that no process has.
#[test]
fn lines_that_nobody_tells_are_lost_after_a_while_and_no_others() {
    let (mut world, links) = World::training(3);
    world.commit(1..=6);
    world.report_lines(links[0], 1..=2);
    world.kill(links[0]);
    assert_eq!(world.record().resume, Step(6));
    let living = &links[1..];
    living.iter().for_each(|link| world.actor(*link).lines.retain(|line| line.step > Step(4)));
    world.pass(9_000, living);
    assert_eq!(world.core.state().lines().gaps, [], "some member may yet tell them");
    world.pass(2_000, living);
    assert_eq!(world.core.state().lines().gaps, [Gap { from: Step(3), to: Step(4) }]);
    assert_eq!(steps(&mut world), [1, 2]);
    let update = world.watch(2, 0);
    let told: Vec<u64> = update.lines.iter().map(|line| line.step.0).collect();
    assert_eq!((update.step, told), (Step(2), vec![5, 6]), "watchers are told so");
    let lost = EventKind::LinesLost { from: Step(3), to: Step(4) };
    assert!(world.events().contains(&lost));
}

/// Two workers train under two coordinators, of which this one leads.
pub(super) fn training_under_two() -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training(2);
    found_two(&mut world);
    (world, links)
}

/// The cluster has two coordinators, of which this one leads.
pub(super) fn found_two(world: &mut World) {
    world.found(true);
    let coordinator = super::leadership::coordinator("coordinator-2", 2);
    let command = Command::Coordinator { id: None, coordinator };
    world.log.push_back(CommandEntry { unix_ms: 1, command });
    world.drain();
}

/// A coordinator without a link may have the lines: the leader waits longer for it.
#[test]
fn lines_are_not_lost_while_a_coordinator_may_come_back_with_them() {
    let (mut world, links) = training_under_two();
    world.commit(1..=6);
    world.kill(links[0]);
    world.actor(links[1]).lines.clear();
    world.pass(25_000, &links[1..]);
    assert_eq!(world.core.state().lines().gaps, []);
    let other = world.connect(Role::Coordinator, "coordinator-2");
    world.pass(1_000, &links[1..]);
    assert!(said_of_lines(&mut world, other).contains(&("asks after", vec![0])));
    tell(&mut world, other, 6, 1..=6);
    world.pass(60_000, &links[1..]);
    assert_eq!((world.line_file.len(), world.core.state().lines().gaps.len()), (6, 0));
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

/// I13: a run is not complete before its last line is on a disk.
#[test]
fn a_run_ends_with_its_last_line_on_the_disk() {
    let (mut world, links) = World::training(2);
    world.disk_stalls = true;
    world.report_lines(links[0], 1..=20);
    links.iter().for_each(|link| super::results::finish(&mut world, *link, [1; 32]));
    assert!(world.running());
    world.disk_stalls = false;
    world.sync_lines();
    world.drain();
    assert!(!world.running());
}

/// I13: the members may go when the run ends, and the leader's disk may be lost after that.
#[test]
fn a_run_ends_once_most_coordinators_have_its_lines() {
    let (mut world, links) = training_under_two();
    let other = world.connect(Role::Coordinator, "coordinator-2");
    world.report_lines(links[0], 1..=20);
    let said = [("tells", (1..=20).collect()), ("tells", vec![])];
    assert_eq!(said_of_lines(&mut world, other), said, "the lines, and that they are durable");
    links.iter().for_each(|link| super::results::finish(&mut world, *link, [1; 32]));
    let lineage = world.lineage;
    let durable = |reach| Message::Lines { lineage, reach: Step(reach), lines: vec![] };
    world.say(other, durable(19));
    assert!(world.running());
    world.say(other, durable(20));
    assert!(!world.running());
}

/// Each of the two may have missed the moment in which the file became complete.
#[test]
fn a_coordinator_that_gets_a_link_later_hears_that_the_lines_are_durable() {
    let (mut world, links) = training_under_two();
    world.report_lines(links[0], 1..=19);
    let early = world.connect(Role::Coordinator, "coordinator-3");
    assert_eq!(said_of_lines(&mut world, early), []);
    world.report_lines(links[0], 20..=20);
    let late = world.connect(Role::Coordinator, "coordinator-2");
    assert_eq!(said_of_lines(&mut world, late), [("tells", vec![])]);
}

/// A coordinator of an older build says that it has the lines only when it is asked.
#[test]
fn a_run_waits_no_longer_than_ten_seconds_for_other_coordinators_lines() {
    let (mut world, links) = training_under_two();
    world.report_lines(links[0], 1..=20);
    links.iter().for_each(|link| super::results::finish(&mut world, *link, [1; 32]));
    world.pass(9_000, &links);
    assert!(world.running());
    world.pass(1_200, &links);
    assert!(!world.running());
}

#[test]
fn events_carry_the_wall_clock() {
    let mut world = World::empty();
    world.pass(2_000, &[]);
    world.request(1, OperatorCommand::Submit(run_of(2).into()));
    assert_eq!(world.watch(0, 0).events[1].unix_ms, EPOCH_UNIX_MS + 2_000);
}

#[test]
fn i13_the_line_of_a_resume_step_is_there_though_the_run_ends_before_a_member_tells_it() {
    let (mut world, links) = World::training(2);
    world.commit(1..=1);
    world.kill(links[1]);
    assert_eq!((world.generation(), world.record().resume), (Generation(2), Step(1)));
    let reason = "two owners differ".to_string();
    world.say(links[0], Message::Failed { at_fault: None, fatal: true, reason });
    assert!(!world.running());
    world.pass(60_000, &[]);
    assert_eq!(world.line_file, lines(Generation(1), 1..=1));
    let lost = |event: &EventKind| matches!(event, EventKind::LinesLost { .. });
    assert!(!world.events().iter().any(lost));
}
