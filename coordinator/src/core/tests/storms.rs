//! Events of all kinds in any order: in the end every living worker takes part again.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Happening {
    /// Some worker's process is killed.
    Kill(usize),
    /// Some worker's link is lost, and comes back after this many milliseconds.
    Cut(usize, u64),
    /// Some worker is stopped, or goes on.
    Stop(usize),
    /// Two members lose each other.
    Part(usize, usize),
    Join,
    Drain(usize),
    /// Every member commits a step.
    Step,
    /// The log agrees late from now on, or no longer.
    Hesitate,
    Restart,
    /// The leader is none any more, for a moment. No entry that was on its way is agreed on.
    Fall,
    /// Time passes.
    Pass(u64),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let worker = || 0..12_usize;
    let one = prop_oneof![
        2 => worker().prop_map(Happening::Kill),
        2 => (worker(), 0..4_000_u64).prop_map(|(worker, after)| Happening::Cut(worker, after)),
        2 => worker().prop_map(Happening::Stop),
        1 => (worker(), worker()).prop_map(|(one, other)| Happening::Part(one, other)),
        2 => Just(Happening::Join),
        1 => worker().prop_map(Happening::Drain),
        4 => Just(Happening::Step),
        1 => Just(Happening::Hesitate),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Fall),
        6 => (50..3_000_u64).prop_map(Happening::Pass),
    ];
    prop::collection::vec(one, 1..40)
}

/// A world in which workers do by themselves what they should.
struct Storm {
    world: World,
    step: u64,
    joined: u64,
    /// Links that are lost, and when they come back.
    away: BTreeMap<LinkId, Time>,
    /// The nodes of killed processes: a launcher tells of each until the log has it.
    ended: BTreeSet<String>,
    /// The greatest resume step so far, since the last rollback.
    resumed: (Generation, Step),
}

impl Storm {
    fn new(count: u32, copies: u32) -> Self {
        let run = RunSpec { copies, steps: 1_000_000, ..run_of(count) };
        let (world, _) = World::training_as(run);
        let resumed = (Generation(1), Step(0));
        Self { world, step: 0, joined: 0, away: BTreeMap::new(), ended: BTreeSet::new(), resumed }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Kill(place) => {
                if let Some(link) = self.present(place) {
                    self.ended.insert(self.world.actor(link).node.clone());
                    self.world.kill(link);
                }
            }
            Happening::Cut(place, after) => {
                if let Some(link) = self.present(place) {
                    self.away.insert(link, self.world.now + Duration::from_millis(after));
                    self.world.cut(link);
                }
            }
            Happening::Stop(place) => {
                if let Some(link) = self.present(place) {
                    let actor = self.world.actor(link);
                    actor.mute = !actor.mute;
                }
            }
            Happening::Part(one, other) => self.part(one, other),
            Happening::Join => self.join(),
            Happening::Drain(place) => {
                if let Some(link) = self.present(place) {
                    self.world.say(link, Message::Leave);
                }
            }
            Happening::Step => self.step(),
            Happening::Hesitate => {
                self.world.holds_back = !self.world.holds_back;
                self.world.drain();
            }
            Happening::Restart => {
                self.world.restart();
                let now = self.world.now;
                let links: Vec<LinkId> = self.world.workers.keys().copied().collect();
                self.away.extend(links.into_iter().map(|link| (link, now)));
            }
            Happening::Fall => {
                self.world.give(CoreInput::SteppedDown);
                self.world.log.clear();
                self.world.term = Term(self.world.term.0 + 1);
                self.world.give(CoreInput::Elected { term: self.world.term, id: FOUNDER });
            }
            Happening::Pass(millis) => self.pass(millis),
        }
        self.check();
    }

    /// A worker with a link.
    fn present(&self, place: usize) -> Option<LinkId> {
        let mut linked = self.world.workers.keys().filter(|link| !self.away.contains_key(link));
        linked.nth(place).copied()
    }

    fn part(&mut self, one: usize, other: usize) {
        if let (Some(one), Some(other)) = (self.present(one), self.present(other)) {
            let other = self.world.id(other);
            self.world.beat_with(one, |heartbeat| heartbeat.unreachable = vec![other]);
        }
    }

    fn join(&mut self) {
        if self.world.workers.len() < 8 {
            self.joined += 1;
            let node = format!("joiner-{}", self.joined);
            let link = self.world.greeted(&node);
            self.world.workers.insert(link, Actor { node, ..Actor::default() });
        }
    }

    /// A step commits if every member is there, in this generation, and has promised no other.
    fn step(&mut self) {
        let record = self.world.record();
        let there = |worker| {
            let mut actors = self.world.workers.values();
            actors
                .any(|a| a.id == worker && !a.mute && a.generation.max(a.promised) == record.number)
        };
        if !record.waiting && record.members.iter().all(|member| there(member.worker)) {
            self.step = record.resume.0.max(self.committed(&record)) + 1;
            self.world.commit(self.step..=self.step);
            let reporter = self.world.workers.iter().find(|(_, a)| a.id == record.step_leader());
            if let Some((link, actor)) = reporter.map(|(link, actor)| (*link, actor.clone())) {
                self.world.beat_with(link, |heartbeat| heartbeat.lines = actor.lines);
            }
        }
    }

    fn committed(&self, record: &Record) -> u64 {
        let members = self.world.workers.values().filter(|a| record.rank(a.id).is_some());
        let steps = members.filter_map(|a| a.commit.as_ref().map(|commit| commit.step.0));
        steps.max().unwrap_or(0)
    }

    /// Workers beat, come back, sync, hold, and register anew when a message tells them to.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.world.now = self.world.now + CORE_TICK;
            let back: Vec<LinkId> =
                self.away.extract_if(.., |_, at| *at <= self.world.now).map(|(l, _)| l).collect();
            for link in back {
                if self.world.workers.contains_key(&link) {
                    self.world.relink(link);
                }
            }
            self.world.give(CoreInput::Tick);
            for node in &self.ended {
                let name = NodeName::parse(node).expect("a valid name");
                let how = ProcessExit::Unknown;
                self.world.say(self.world.operator, Message::Exited { name, how });
            }
            let links: Vec<LinkId> = self.world.workers.keys().copied().collect();
            for link in links {
                if !self.away.contains_key(&link) {
                    self.live(link);
                }
            }
        }
    }

    fn live(&mut self, link: LinkId) {
        let heard = self.world.hear(link);
        let told = |wanted: &str| heard.iter().any(|message| message.name() == wanted);
        if told("drain") || told("dismiss") {
            self.world.kill(link);
        } else if told("evicted") {
            let node = self.world.actor(link).node.clone();
            let mute = self.world.actor(link).mute;
            self.world.workers.insert(link, Actor { node, mute, ..Actor::default() });
            self.world.say(link, Message::Hello { worker: None });
        } else if told("welcome") {
            let incarnation = 1_000 + self.world.now.0 + link.0;
            self.world.say(link, Message::Register(registration(incarnation)));
        } else if !self.world.actor(link).mute {
            let held = told("hold");
            if self.world.actor(link).shard_syncs.is_some()
                && self.world.actor(link).promised.0 == 0
            {
                self.world.sync_shards(link);
            }
            self.fetch_record(link);
            let leader = self.world.core.state().record().map(|record| record.step_leader());
            let actor = self.world.actor(link).clone();
            self.world.beat_with(link, |heartbeat| {
                heartbeat.held = held;
                if leader == Some(actor.id) {
                    heartbeat.lines = actor.lines; // repeated until they are written
                }
            });
        }
    }

    /// The heartbeat's answer named a generation that the worker does not know.
    fn fetch_record(&mut self, link: LinkId) {
        let current = self.world.core.state().generation();
        let actor = self.world.actor(link);
        if actor.id != WorkerId(0) && actor.generation < current {
            self.world.say(link, Message::FetchRecord);
        } else if actor.promised <= current {
            actor.promised = Generation(0);
        }
    }

    /// I16 and I17 as they show from outside: a record is whole, and history goes forwards.
    fn check(&mut self) {
        let record = self.world.record();
        assert_eq!(record.validate(4, SHARDS), Ok(()));
        let (number, step) = self.resumed;
        if record.number > number {
            assert!(
                record.resume >= step
                    || record.cause == Cause::Rollback
                    || record.resume == Step(0),
                "from {step} to {}",
                record.resume
            );
            self.resumed = (record.number, record.resume);
        }
        let steps: Vec<u64> = self.world.line_file.iter().map(|line| line.step.0).collect();
        assert!(steps.iter().copied().eq(1..=steps.len() as u64), "lines of steps {steps:?}");
    }

    /// Nothing new happens, but what is under way comes to its end.
    fn calm(&mut self) {
        self.world.holds_back = false;
        self.world.drain();
        self.world.workers.values_mut().for_each(|actor| actor.mute = false);
        self.pass(4_500); // every link is back, and each worker that has left hears of it
        if self.world.workers.is_empty() {
            self.join();
        }
        for _ in 0..60 {
            self.pass(500);
            self.step();
            self.check();
        }
    }
}

proptest! {
    /// I11 and I20, as far as they are the coordinator's.
    #[test]
    fn after_a_storm_everyone_who_lives_takes_part(
        count in 1..5u32,
        copies in 1..3u32,
        happenings in happenings(),
    ) {
        let mut storm = Storm::new(count, copies);
        happenings.into_iter().for_each(|happening| storm.happen(happening));
        storm.calm();
        let world = &storm.world;
        let members = world.members();
        let living: Vec<WorkerId> = world.workers.values().map(|actor| actor.id).collect();
        prop_assert!(living.iter().all(|id| members.contains(id)), "{living:?} in {members:?}");
        prop_assert_eq!(living.len(), members.len());
        let copies = members.len().min(copies as usize);
        prop_assert_eq!(world.protection(), copies);
        let before = storm.step;
        storm.step();
        prop_assert_eq!(storm.step, before + 1, "steps are committed again");
        storm.pass(20_000);
        prop_assert_eq!(storm.world.members(), members, "and nothing changes any more");
    }
}
