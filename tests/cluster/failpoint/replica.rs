//! One of several coordinators killed at every point between what it hears, writes, says and
//! applies, and at every stage of a join: it comes back, and knows what the others know (I9, I14).
//!
//! [`DEATHS`] says for each point what happens when somebody dies there.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use everstep_coordinator::daemon::failpoint::AMONG;
use everstep_transport::protocol::{Wish, exemplars};

use super::failpoints;
use crate::world::{Council, Member, Signal, World, show, until};

/// What happens when a coordinator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum While {
    /// It joins a cluster that has a history.
    Joining,
    /// It leads, and another one joins.
    Admitting,
    /// It follows.
    Following,
    /// It becomes the leader, or is one.
    Leading,
    /// It has led, and hands that over.
    HandingOver,
    /// Another one wants to lead.
    Voting,
    /// It leads, and another one is removed.
    Removing,
}

/// Every point, and what happens.
const DEATHS: &[(While, &[&str])] = &[
    (While::Joining, &["enrolled", "keyed", "laying_out", "laid_out", "told", "begun", "admitted"]),
    (While::Joining, &["snapshot.receive", "snapshot.write", "snapshot.written"]),
    (While::Joining, &["snapshot.installed", "fetch_history.send", "history.receive", "filled"]),
    (While::Admitting, &["fetch_keys.receive", "keys.send", "join.receive", "joined.send"]),
    (While::Admitting, &["snapshot.send", "fetch_history.receive", "history.send"]),
    (While::Following, &["entries.receive", "batch.write", "batch.written"]),
    (While::Following, &["entries_answer.send", "batch.applied"]),
    (While::Leading, &["summons.receive", "vote.send", "ballot.receive"]),
    (While::Leading, &["entries.send", "entries_answer.receive"]),
    (While::HandingOver, &["summons.send"]),
    (While::Voting, &["vote.receive", "ballot.send"]),
    (While::Removing, &["propose.shut_out", "appended.shut_out", "applied.shut_out"]),
];

/// How many clusters there are at once: they mostly wait.
const ABREAST: usize = 3;

#[test]
fn there_is_a_way_to_every_failpoint_among_several() {
    let reached = DEATHS.iter().flat_map(|(_, points)| points.iter().copied());
    assert_eq!(reached.collect::<BTreeSet<_>>(), AMONG.iter().copied().collect());
}

/// A cluster in which somebody dies at a point.
struct Scene {
    council: Council,
    point: &'static str,
    /// Where it is written that the point was met.
    log: PathBuf,
    runs: u64,
}

impl Scene {
    fn begin(folder: PathBuf, count: usize, point: &'static str) -> Self {
        let (council, log) = (Council::found(&folder, count, &[]), folder.join("failpoints"));
        let mut scene = Self { council, point, log, runs: 0 };
        scene.agree();
        scene
    }

    fn environment(&self) -> [(&'static str, String); 2] {
        let log = show(&self.log).to_string();
        [("FAILPOINTS", failpoints(self.point)), ("EVERSTEP_FAILPOINT_LOG", log)]
    }

    /// Something more is agreed on, of which the history tells.
    fn agree(&mut self) {
        self.runs += 1;
        let run = exemplars::run();
        let run = everstep::RunSpec { name: format!("run-{}", self.runs), ..run };
        assert_eq!(self.council.wish(Wish::Submit(run)), Ok(()));
        assert_eq!(self.council.wish(Wish::Cancel), Ok(()));
    }

    fn has_met(&self) -> bool {
        fs::read_to_string(&self.log).unwrap_or_default().lines().any(|line| line == self.point)
    }

    /// Starts one again, so that it dies at the point.
    fn arm(&mut self, at: usize) {
        let environment = self.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.council.restart(at, &environment);
    }

    /// Waits until somebody has died at the point; starts again whoever has ended.
    fn revive(&mut self) {
        until(self.point, || self.has_met().then_some(()));
        until(self.point, || self.restart_ended().then_some(()));
    }

    /// Starts again whoever has ended; returns whether somebody has.
    fn restart_ended(&mut self) -> bool {
        let members = self.council.members.iter_mut().enumerate();
        let ended = members.filter_map(|(at, member)| member.program.is_over().then_some(at));
        let ended: Vec<_> = ended.collect();
        ended.iter().for_each(|at| self.council.restart(*at, &[]));
        !ended.is_empty()
    }

    /// Another one joins, and dies of that.
    fn join(&mut self) {
        let dir = self.council.next_dir();
        let environment = self.environment();
        let mut first = self.council.joining(&dir);
        first.envs(environment.each_ref().map(|(name, value)| (*name, value.as_str())));
        if let Some(joined) = Member::listening(first, dir.clone()) {
            self.council.members.push(joined);
            return self.revive();
        }
        assert!(self.has_met(), "{}: it died of something else", self.point);
        let again = Member::listening(self.council.joining(&dir), dir.clone());
        let joined = again.or_else(|| {
            // It had joined, and goes on in its directory.
            let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
            Member::listening(self.council.again(&dir, anywhere), dir)
        });
        self.council.members.push(joined.expect("it listens"));
    }

    /// Another one joins, and the founder dies of that.
    fn admit(&mut self) {
        self.arm(0);
        self.council.leader(1);
        let dir = self.council.next_dir();
        let joining = self.council.joining(&dir);
        let joined = thread::scope(|scope| {
            let joining = scope.spawn(|| Member::listening(joining, dir.clone()));
            self.revive();
            joining.join().expect("no panic")
        });
        // A handshake that breaks off is told to whoever joins, who begins again.
        let joined = joined.or_else(|| Member::listening(self.council.joining(&dir), dir));
        self.council.members.push(joined.expect("it joins"));
    }

    /// The others are to do without one, which ends by itself when they do for good.
    fn remove(&mut self) {
        self.arm(0);
        self.council.until_agreed(3);
        self.council.transfer(0, 3);
        let gone = self.council.members.remove(2);
        let id = gone.id();
        until("it is removed", || self.council.wish(Wish::Remove(id)).ok());
        self.revive();
        assert_eq!(gone.end().code, Some(0), "{}: it was told that it may go", self.point);
    }

    /// The founder hands leadership over to the next, or tries to.
    fn hand_over(&mut self) {
        let leader = self.council.leader(3);
        self.council.members[leader].program.signal(Signal::TERM);
        until(self.point, || self.council.members[leader].program.is_over().then_some(()));
        self.revive();
    }
}

impl While {
    /// How many coordinators there are at first, and in the end.
    fn counts(self) -> (usize, usize) {
        match self {
            Self::Joining | Self::Admitting => (1, 2),
            Self::Removing => (3, 2),
            _ => (3, 3),
        }
    }

    /// Somebody dies at the scene's point, and comes back.
    fn happen(self, scene: &mut Scene) {
        match self {
            Self::Joining => scene.join(),
            Self::Admitting => scene.admit(),
            Self::Following => {
                let follower = (scene.council.leader(3) + 1) % 3;
                scene.arm(follower);
                scene.agree();
                scene.revive();
            }
            // The first of those that follow the founder is asked to lead.
            Self::Leading => {
                scene.arm(1);
                scene.council.until_agreed(3);
                scene.hand_over();
            }
            Self::Voting => {
                scene.arm(2);
                scene.council.until_agreed(3);
                scene.hand_over();
            }
            Self::Removing => scene.remove(),
            Self::HandingOver => {
                (0..3).for_each(|at| scene.arm(at));
                scene.hand_over();
            }
        }
    }
}

#[test]
fn i9_a_replica_may_die_at_any_point_and_comes_back_with_all_that_was_agreed() {
    let world = World::new();
    let rows = DEATHS
        .iter()
        .flat_map(|(happening, points)| points.iter().map(move |point| (*happening, *point)));
    let rows = Mutex::new(rows.enumerate());
    let next = || rows.lock().expect("no panic").next();
    let folder = world.path("scenes");
    let play = || {
        while let Some((number, (happening, point))) = next() {
            let folder = folder.join(number.to_string());
            let (before, after) = happening.counts();
            let mut scene = Scene::begin(folder, before, point);
            happening.happen(&mut scene);
            assert!(scene.has_met(), "{happening:?}: {point} was not met");
            scene.agree();
            scene.council.until_agreed(after);
        }
    };
    thread::scope(|scope| {
        for _ in 0..ABREAST {
            scope.spawn(play);
        }
    });
}
