use std::net::Ipv4Addr;

use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::outcome::{EventKind, Update, WorkerState};
use everstep_transport::protocol::{Generation, MetricsLine, Shard};

use super::*;

const EPOCH_UNIX_MS: u64 = 1_000_000;

/// One coordinator with a log that agrees at once (unless told to hold back), and its peers.
struct World {
    core: Core,
    now: Time,
    index: u64,
    links: u64,
    /// Entries proposed and not yet applied.
    log: VecDeque<Entry>,
    holds_back: bool,
    said: BTreeMap<LinkId, Vec<Message>>,
    closed: BTreeMap<LinkId, String>,
    operator: LinkId,
}

impl World {
    fn empty() -> Self {
        let mut world = Self {
            core: Core::new(Time(0), EPOCH_UNIX_MS),
            now: Time(0),
            index: 0,
            links: 0,
            log: VecDeque::new(),
            holds_back: false,
            said: BTreeMap::new(),
            closed: BTreeMap::new(),
            operator: LinkId(0),
        };
        world.operator = world.connect(Role::Operator, "operator");
        world
    }

    /// With a submitted run of two workers and ten steps.
    fn with_run() -> Self {
        let mut world = Self::empty();
        world.say(world.operator, Message::Submit(exemplars::run()));
        world
    }

    /// With its two workers in the first generation.
    fn training() -> (Self, [(LinkId, WorkerId); 2]) {
        let mut world = Self::with_run();
        let workers = [world.worker("worker-1"), world.worker("worker-2")];
        for (link, _) in workers {
            world.hear(link);
        }
        (world, workers)
    }

    fn give(&mut self, input: Input) {
        self.core.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            match self.core.poll_effect() {
                Some(Effect::Send { to, message }) => {
                    self.said.entry(to).or_default().push(message);
                }
                Some(Effect::Broadcast { to, message }) => {
                    for link in to {
                        self.said.entry(link).or_default().push(message.clone());
                    }
                }
                Some(Effect::Close { to, reason }) => drop(self.closed.insert(to, reason)),
                Some(Effect::Propose(entry)) => self.log.push_back(entry),
                None => match self.log.pop_front_if(|_| !self.holds_back) {
                    Some(entry) => self.apply(entry),
                    None => return,
                },
            }
        }
    }

    fn apply(&mut self, entry: Entry) {
        self.index += 1;
        self.core.handle(self.now, Input::Applied { index: self.index, entry });
    }

    fn connect(&mut self, role: Role, name: &str) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        let name = NodeName::parse(name).expect("a valid name");
        self.give(Input::Connected { link, identity: Identity { role, name } });
        link
    }

    fn say(&mut self, from: LinkId, message: Message) {
        self.give(Input::Message { from, message });
    }

    fn hear(&mut self, link: LinkId) -> Vec<Message> {
        self.said.remove(&link).unwrap_or_default()
    }

    /// Connects and says Hello.
    fn greeted(&mut self, name: &str) -> LinkId {
        let link = self.connect(Role::Worker, name);
        self.say(link, Message::Hello { schema: schema() });
        link
    }

    /// Connects and registers.
    fn worker(&mut self, name: &str) -> (LinkId, WorkerId) {
        let link = self.greeted(name);
        self.say(link, Message::Register(registration(link.0)));
        let heard = self.said.get(&link).into_iter().flatten();
        let mut id = heard.filter_map(|message| match message {
            Message::Registered { worker } => Some(*worker),
            _ => None,
        });
        (link, id.next_back().expect("it is registered"))
    }

    fn drop_link(&mut self, link: LinkId) {
        self.give(Input::Disconnected { link, reason: "connection reset".into() });
    }

    fn beat(&mut self, (link, worker): (LinkId, WorkerId), lines: Vec<MetricsLine>) {
        let generation = self.core.state().generation();
        let (promised, step, unreachable) = (generation, Step(0), Vec::new());
        let heartbeat = Heartbeat { worker, generation, promised, step, lines, unreachable };
        self.say(link, Message::Heartbeat(heartbeat));
    }

    /// Time passes, tick by tick; these workers beat at each.
    fn pass(&mut self, span: Duration, beating: &[(LinkId, WorkerId)]) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + TICK;
            beating.iter().for_each(|worker| self.beat(*worker, Vec::new()));
            self.give(Input::Tick);
        }
    }

    fn finish(&mut self, (link, worker): (LinkId, WorkerId), digest: [u8; 32]) {
        let digests = vec![(Shard(0), [0; 32]), (Shard(1), digest)];
        let result = WorkerResult { worker, digests, ..WorkerResult::default() };
        self.say(link, Message::Finished(result));
    }

    fn watch(&mut self, step: u64, event: u64) -> Update {
        self.say(self.operator, Message::Watch { step: Step(step), event });
        match self.hear(self.operator).pop() {
            Some(Message::Update(update)) => update,
            other => panic!("no update but {other:?}"),
        }
    }

    /// Why the run failed.
    fn failure(&self) -> &str {
        match self.core.state().outcome() {
            Outcome::Failed { reason, .. } => reason,
            other => panic!("the run did not fail: {other:?}"),
        }
    }

    fn running(&self) -> bool {
        *self.core.state().outcome() == Outcome::Running
    }
}

fn registration(incarnation: u64) -> Registration {
    let fingerprint =
        Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: 2, samples: 99 };
    let address = (Ipv4Addr::LOCALHOST, 40_000).into();
    Registration { incarnation, address, fingerprint, probe: 7 }
}

fn lines(steps: std::ops::RangeInclusive<u64>) -> Vec<MetricsLine> {
    steps.map(|step| MetricsLine { step: Step(step), ..MetricsLine::default() }).collect()
}

#[test]
fn a_run_starts_when_enough_workers_are_registered() {
    let mut world = World::with_run();
    let (first, first_id) = world.worker("worker-1");
    assert_eq!(world.hear(first)[0], Message::Welcome { run: exemplars::run() });
    let (second, second_id) = world.worker("worker-2");
    let [Message::Announce(record)] = &world.hear(first)[..] else { panic!("no announcement") };
    assert_eq!(world.hear(second).last(), Some(&Message::Announce(record.clone())));
    let members: Vec<_> = record.members.iter().map(|member| member.worker).collect();
    assert_eq!(members, [first_id, second_id]);
    assert_eq!((record.number, record.predecessor), (Generation(1), Generation(0)));
    assert_eq!((record.resume, &record.commit), (Step(0), &None));
    record.validate(4, 2).expect("the record is valid");
}

#[test]
fn workers_that_came_before_the_run_are_welcomed_when_it_is_submitted() {
    let mut world = World::empty();
    let early = world.greeted("worker-1");
    world.say(early, Message::Register(registration(1)));
    assert_eq!((world.hear(early), world.core.ignored()), (vec![], 1));
    world.say(world.operator, Message::Submit(exemplars::run()));
    assert_eq!(world.hear(early), [Message::Welcome { run: exemplars::run() }]);
}

#[test]
fn a_second_run_is_refused_and_the_same_again_is_not() {
    let mut world = World::with_run();
    world.say(world.operator, Message::Submit(exemplars::run()));
    assert_eq!(world.hear(world.operator), []);
    let other = RunSpec { name: "other".into(), ..exemplars::run() };
    world.say(world.operator, Message::Submit(other));
    let reason = "this cluster already trains example, another run".into();
    assert_eq!(world.hear(world.operator), [Message::Refused { reason }]);
}

#[test]
fn an_operator_who_has_left_gets_no_answer() {
    let mut world = World::with_run();
    world.holds_back = true;
    let other = RunSpec { name: "other".into(), ..exemplars::run() };
    world.say(world.operator, Message::Submit(other));
    world.drop_link(world.operator);
    world.holds_back = false;
    world.drain();
    assert_eq!(world.hear(world.operator), []);
}

#[test]
fn a_worker_of_another_build_is_refused_in_words() {
    let mut world = World::with_run();
    let link = world.connect(Role::Worker, "worker-1");
    world.say(link, Message::Hello { schema: schema() ^ 1 });
    let [Message::Refused { reason }] = &world.hear(link)[..] else { panic!("not refused") };
    assert!(reason.contains("same build"), "{reason}");
    world.say(link, Message::Register(registration(1)));
    assert_eq!(world.hear(link), []);
}

#[test]
fn a_worker_with_another_model_is_refused_and_both_are_named() {
    let mut world = World::with_run();
    world.worker("worker-1");
    let link = world.greeted("worker-2");
    let mut other = registration(2);
    other.fingerprint.model = [9; 32];
    world.say(link, Message::Register(other));
    let Some(Message::Refused { reason }) = world.hear(link).pop() else { panic!("not refused") };
    assert_eq!(
        reason,
        "worker-2 differs from worker-1, which registered first: \
         model 090909090909, not 010101010101"
    );
    let refused = world.watch(0, 0).events.pop().map(|event| event.kind);
    assert!(matches!(refused, Some(EventKind::Refused { .. })), "{refused:?}");
}

#[test]
fn a_registration_after_the_start_is_refused() {
    let (mut world, _) = World::training();
    let late = world.greeted("worker-3");
    world.say(late, Message::Register(registration(3)));
    let reason = "the run has started; workers cannot join it yet".into();
    assert_eq!(world.hear(late).pop(), Some(Message::Refused { reason }));
    assert!(world.running());
}

#[test]
fn the_same_incarnation_registered_again_gets_the_same_id() {
    let (mut world, [(link, id), _]) = World::training();
    world.say(link, Message::Register(registration(link.0)));
    assert_eq!(world.hear(link), [Message::Registered { worker: id }]);
    assert_eq!((world.index, world.running()), (5, true), "nothing else was proposed");
}

#[test]
fn another_incarnation_on_the_same_link_is_a_new_worker() {
    let mut world = World::with_run();
    let (link, id) = world.worker("worker-1");
    world.say(link, Message::Register(registration(77)));
    let workers: Vec<_> = world.core.state().workers().keys().copied().collect();
    assert_eq!(workers.len(), 1);
    assert!(workers[0] > id, "an id is never used again");
}

#[test]
fn a_heartbeat_is_answered_with_generation_and_written_step() {
    let (mut world, [leader, _]) = World::training();
    world.beat(leader, lines(1..=3));
    let (generation, written) = (Generation(1), Step(3));
    assert_eq!(world.hear(leader.0), [Message::HeartbeatAnswer { generation, written }]);
}

/// I13: whatever is repeated, out of order, beyond the end, or of another generation.
#[test]
fn each_step_has_its_line_once_and_in_order() {
    let (mut world, [leader, second]) = World::training();
    world.beat(leader, lines(1..=3));
    world.beat(leader, lines(2..=5));
    world.beat(leader, lines(7..=9));
    world.beat(leader, lines(5..=6));
    world.beat(second, lines(7..=7)); // not the one that reports them
    let heartbeat = Heartbeat {
        worker: leader.1,
        generation: Generation(9),
        promised: Generation(9),
        step: Step(7),
        lines: lines(7..=7),
        unreachable: vec![],
    };
    world.say(leader.0, Message::Heartbeat(heartbeat));
    let steps: Vec<_> = world.watch(0, 0).lines.iter().map(|line| line.step.0).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    world.beat(leader, lines(7..=1_000));
    assert_eq!(world.watch(0, 0).lines.len(), 10, "the run has ten steps");
}

#[test]
fn a_silent_member_ends_the_run_and_is_cut_off() {
    let (mut world, [(alive, alive_id), (silent, _)]) = World::training();
    world.pass(Duration::from_millis(2_400), &[(alive, alive_id)]);
    assert!(world.running());
    world.pass(Duration::from_millis(200), &[(alive, alive_id)]);
    assert_eq!(world.failure(), "worker-2 (worker 3) was lost: no heartbeat for 2.5s");
    assert_eq!(world.closed[&silent], "no heartbeat for 2.5s");
    assert_eq!(world.hear(alive).last(), Some(&Message::Dismiss));
    let states: Vec<_> = world.watch(0, 0).workers.iter().map(|view| view.state).collect();
    assert_eq!(states, [WorkerState::Training, WorkerState::Lost]);
}

/// Invariant I8.
#[test]
fn a_coordinator_that_was_late_itself_blames_nobody() {
    let (mut world, workers) = World::training();
    world.now = world.now + Duration::from_secs(60);
    world.give(Input::Tick);
    world.pass(Duration::from_secs(5), &workers);
    assert!(world.running());
}

#[test]
fn a_lost_link_of_a_member_ends_the_run() {
    let (mut world, [(alive, _), (dead, _)]) = World::training();
    world.drop_link(dead);
    let expected = "worker-2 (worker 3) was lost: its link closed: connection reset";
    assert_eq!(world.failure(), expected);
    assert_eq!(world.hear(alive), [Message::Dismiss]);
    let events: Vec<_> = world.watch(0, 0).events.into_iter().map(|event| event.kind).collect();
    let [.., EventKind::Lost { .. }, EventKind::Failed { .. }] = &events[..] else {
        panic!("no loss in {events:?}")
    };
    world.drop_link(alive);
    assert_eq!(world.watch(0, 0).events.len(), events.len(), "nobody is missed any more");
}

#[test]
fn a_member_that_cannot_go_on_ends_the_run_with_its_reason() {
    let (mut world, [(_, _), (link, _)]) = World::training();
    world.say(link, Message::Failed { at_fault: None, reason: "the disk is full".into() });
    assert_eq!(world.failure(), "worker-2 (worker 3) was lost: it failed: the disk is full");
}

#[test]
fn a_member_that_names_another_does_not_take_the_blame() {
    let (mut world, [(link, _), (_, silent)]) = World::training();
    let reason = "it cannot be reached".to_string();
    world.say(link, Message::Failed { at_fault: Some(silent), reason });
    let expected = "worker-2 (worker 3) was lost: worker 2 says: it cannot be reached";
    assert_eq!(world.failure(), expected);
}

#[test]
fn a_worker_lost_before_the_start_is_forgotten() {
    let mut world = World::with_run();
    let (link, _) = world.worker("worker-1");
    world.drop_link(link);
    assert!(world.running() && world.core.state().workers().is_empty());
    world.worker("worker-2");
    assert_eq!(world.core.state().record(), None, "the run waits for two living workers");
    world.worker("worker-1");
    assert_eq!(world.core.state().generation(), Generation(1));
}

#[test]
fn a_newer_link_of_a_node_replaces_the_older() {
    let mut world = World::with_run();
    let (old, old_id) = world.worker("worker-1");
    let (_, new_id) = world.worker("worker-1");
    assert!(world.closed.contains_key(&old) && new_id > old_id);
    world.drop_link(old);
    assert_eq!(world.core.state().workers().len(), 1);
}

#[test]
fn a_worker_lost_while_the_first_generation_is_agreed_on_is_missed() {
    let mut world = World::with_run();
    world.worker("worker-1");
    let link = world.greeted("worker-2");
    world.holds_back = true;
    world.say(link, Message::Register(registration(2)));
    let entry = world.log.pop_front().expect("the registration");
    world.apply(entry);
    world.drain();
    world.drop_link(link);
    let commands: Vec<_> = world.log.iter().map(|entry| entry.command.clone()).collect();
    let [Command::Generation(_), Command::Lose { .. }] = &commands[..] else {
        panic!("not in flight: {commands:?}")
    };
    world.log.swap(0, 1); // the log may have them in either order
    world.holds_back = false;
    world.drain();
    assert_eq!((world.core.state().generation(), world.running()), (Generation(0), true));
}

#[test]
fn a_worker_that_leaves_while_it_registers_is_forgotten() {
    let mut world = World::with_run();
    let link = world.greeted("worker-1");
    world.holds_back = true;
    world.say(link, Message::Register(registration(1)));
    world.drop_link(link);
    world.holds_back = false;
    world.drain();
    assert!(world.core.state().workers().is_empty());
}

#[test]
fn a_run_is_complete_when_all_have_finished_and_every_step_has_its_line() {
    let (mut world, [first, second]) = World::training();
    world.finish(first, [1; 32]);
    world.finish(second, [1; 32]);
    assert!(world.running(), "the last lines are missing");
    let states: Vec<_> = world.watch(0, 0).workers.iter().map(|view| view.state).collect();
    assert_eq!(states, [WorkerState::Finished; 2]);
    world.beat(first, lines(1..=10));
    assert_eq!(world.hear(second.0), [Message::Dismiss]);
    let update = world.watch(0, 0);
    let Outcome::Complete(results) = update.outcome else { panic!("not complete") };
    assert_eq!(results.iter().map(|r| r.worker).collect::<Vec<_>>(), [first.1, second.1]);
    assert_eq!(
        update.events.last().map(|event| &event.kind),
        Some(&EventKind::Complete { step: Step(10) })
    );
    world.drop_link(first.0);
    world.pass(Duration::from_secs(5), &[]);
    assert!(world.closed.is_empty(), "silence is no fault any more");
    let (late, heard) = (world.greeted("worker-3"), Message::Dismiss);
    assert_eq!(world.hear(late), [heard], "who comes after the end may go");
}

/// I3: the owners of a shard must end with the same bits.
#[test]
fn disagreeing_digests_fail_the_run_and_name_the_shard() {
    let (mut world, [first, second]) = World::training();
    world.beat(first, lines(1..=10));
    world.finish(first, [1; 32]);
    world.finish(second, [2; 32]);
    let expected = "worker-2 and worker-1 ended with different copies of parameter shard 1";
    assert_eq!(world.failure(), expected);
}

#[test]
fn a_missing_digest_fails_the_run() {
    let (mut world, [first, (link, worker)]) = World::training();
    world.beat(first, lines(1..=10));
    world.finish(first, [1; 32]);
    world.say(link, Message::Finished(WorkerResult { worker, ..WorkerResult::default() }));
    assert_eq!(world.failure(), "worker-2 reported no digest of parameter shard 0");
}

#[test]
fn different_probes_make_the_run_not_bitwise() {
    let mut world = World::with_run();
    world.worker("worker-1");
    assert!(world.watch(0, 0).bitwise);
    let link = world.greeted("worker-2");
    world.say(link, Message::Register(Registration { probe: 8, ..registration(2) }));
    assert!(!world.watch(0, 0).bitwise);
}

#[test]
fn a_watcher_gets_pages_and_the_outcome_with_the_last() {
    let mut world = World::empty();
    world.say(world.operator, Message::Submit(RunSpec { steps: 450, ..exemplars::run() }));
    let (first, second) = (world.worker("worker-1"), world.worker("worker-2"));
    world.beat(first, lines(1..=450));
    world.finish(first, [1; 32]);
    world.finish(second, [1; 32]);
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
    assert_eq!((pages, step, event), (vec![200, 200, 50], 450, 5));
    let beyond = world.watch(u64::MAX, u64::MAX);
    assert_eq!((beyond.lines, beyond.events), (vec![], vec![]));
}

#[test]
fn a_fetched_record_is_the_announced_one() {
    let (mut world, [(link, _), _]) = World::training();
    world.say(link, Message::FetchRecord);
    let record = world.core.state().record().cloned().expect("training");
    assert_eq!(world.hear(link), [Message::Announce(record)]);
}

#[test]
fn events_carry_the_wall_clock() {
    let mut world = World::empty();
    world.pass(Duration::from_secs(2), &[]);
    world.say(world.operator, Message::Submit(exemplars::run()));
    assert_eq!(world.watch(0, 0).events[0].unix_ms, EPOCH_UNIX_MS + 2_000);
}

/// What each role may not say at all, in any phase, changes nothing and is counted.
#[test]
fn messages_of_the_wrong_role_are_counted_and_ignored() {
    let (mut world, [(worker, id), _]) = World::training();
    let coordinator = world.connect(Role::Coordinator, "coordinator-2");
    let (stranger, nobody) = (world.connect(Role::Worker, "worker-9"), LinkId(99));
    let before = world.core.state().clone();
    let mut expected = 0;
    for message in exemplars::all() {
        for (link, permitted) in [
            (worker, &["heartbeat", "register", "fetch_record", "finished", "failed"][..]),
            (world.operator, &["submit", "watch"]),
            (stranger, &["hello"]),
            (coordinator, &[]),
            (nobody, &[]),
        ] {
            if !permitted.contains(&message.name()) {
                expected += 1;
                world.say(link, message.clone());
            }
        }
    }
    assert_eq!((world.core.ignored(), world.core.state()), (expected, &before));
    let result = WorkerResult { worker: WorkerId(id.0 + 1), ..WorkerResult::default() };
    world.say(worker, Message::Finished(result));
    assert_eq!(world.core.ignored(), expected + 1, "it speaks for another worker");
}
