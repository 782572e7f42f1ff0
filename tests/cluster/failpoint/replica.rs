//! A coordinator killed at every point between input, write, message and application, and at every
//! stage of a founding and a join. It comes back, and knows what the others know (I9, I14).
//!
//! [`DEATHS`] names for each point the event during which a coordinator dies there.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use everstep_coordinator::daemon::failpoint::AMONG;
use everstep_transport::identity::{
    Authority, Credentials, EnrolmentError, JoinToken, Refusal, Role, TokenLimits,
};
use everstep_transport::protocol::{OperatorCommand, exemplars};
use everstep_transport::quic::{EnrolError, enrol, renew};

use super::{block_on, failpoints};
use crate::world::{CoordinatorGroup, Member, Program, Signal, World, show, until};

/// The event during which a coordinator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum While {
    /// It founds a cluster.
    Founding,
    /// It joins a cluster that has a history.
    Joining,
    /// It leads, and another one joins.
    Admitting,
    /// It follows.
    Following,
    /// It becomes the leader, or is one.
    Leading,
    /// It has led, and hands over leadership.
    HandingOver,
    /// Another coordinator wants to lead.
    Voting,
    /// It leads, and another one is removed.
    Removing,
    /// It leads, and nodes ask to be admitted by a token that is good for one.
    Spending,
}

/// Every point, with its event.
const DEATHS: &[(While, &[&str])] = &[
    (While::Founding, &["laying_out", "begun", "laid_out"]),
    (While::Founding, &["propose.found", "appended.found", "applied.found"]),
    (While::Joining, &["enrolled", "keyed", "laying_out", "laid_out", "told", "begun", "admitted"]),
    (While::Joining, &["snapshot.receive", "snapshot.write", "snapshot.written"]),
    (While::Joining, &["snapshot.installed", "fetch_history.send", "history.receive", "filled"]),
    (While::Admitting, &["fetch_keys.receive", "keys.send", "join.receive", "joined.send"]),
    (While::Admitting, &["snapshot.send", "fetch_history.receive", "history.send"]),
    (While::Admitting, &["propose.coordinator", "appended.coordinator", "applied.coordinator"]),
    (While::Following, &["entries.receive", "batch.write", "batch.written"]),
    (While::Following, &["entries_answer.send", "batch.applied"]),
    (While::Leading, &["timeout_now.receive", "vote.send", "vote_answer.receive"]),
    (While::Leading, &["entries.send", "entries_answer.receive"]),
    (While::HandingOver, &["timeout_now.send"]),
    (While::Voting, &["vote.receive", "vote_answer.send"]),
    (While::Removing, &["propose.shut_out", "appended.shut_out", "applied.shut_out"]),
    (While::Spending, &["admission.receive", "propose.spend_token", "appended.spend_token"]),
    (While::Spending, &["applied.spend_token", "admission.send"]),
];

/// How many clusters there are at once. They mostly wait.
const ABREAST: usize = 3;

#[test]
fn there_is_a_way_to_every_failpoint_among_several() {
    let reached = DEATHS.iter().flat_map(|(_, points)| points.iter().copied());
    assert_eq!(reached.collect::<BTreeSet<_>>(), AMONG.iter().copied().collect());
}

/// A cluster in which a coordinator dies at a point.
struct Scene {
    group: CoordinatorGroup,
    point: &'static str,
    /// The log of the points that were met.
    log: PathBuf,
    runs: u64,
}

impl Scene {
    fn begin(folder: PathBuf, count: usize, point: &'static str) -> Self {
        let log = folder.join("failpoints");
        if count == 0 {
            return Self { group: CoordinatorGroup::nowhere_yet(&folder), point, log, runs: 0 };
        }
        let mut scene =
            Self { group: CoordinatorGroup::found(&folder, count, &[]), point, log, runs: 0 };
        scene.agree();
        scene
    }

    /// The environment that makes a coordinator die at the point.
    fn environment(&self) -> [(&'static str, String); 2] {
        let log = show(&self.log).to_string();
        [("FAILPOINTS", failpoints(self.point)), ("EVERSTEP_FAILPOINT_LOG", log)]
    }

    /// The command with that environment.
    fn doom(&self, mut command: Command) -> Command {
        command.envs(self.environment());
        command
    }

    /// Lets the cluster agree on one more request, which the history shows.
    fn agree(&mut self) {
        self.runs += 1;
        let run = exemplars::run();
        let run = everstep::RunSpec { name: format!("run-{}", self.runs), ..run };
        assert_eq!(self.group.command(OperatorCommand::Submit(run.into())), Ok(()));
        let run = self.group.newest_run();
        assert_eq!(self.group.command(OperatorCommand::Cancel(run)), Ok(()));
    }

    fn has_met(&self) -> bool {
        fs::read_to_string(&self.log).unwrap_or_default().lines().any(|line| line == self.point)
    }

    /// Starts a coordinator again, so that it dies at the point.
    fn arm(&mut self, at: usize) {
        let [points, log] = self.environment();
        // At another address, it would first have to get that agreed on.
        let api = ("EVERSTEP_HTTP", self.group.members[at].api.to_string());
        let environment = [points, log, api];
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.group.restart(at, &environment);
    }

    /// The founder leads again, and dies at the point.
    fn arm_leader(&mut self) {
        self.arm(0);
        self.group.until_agreed(3);
        self.group.transfer(0, 3);
    }

    /// Waits until a coordinator has died at the point, which the log shows a moment before. Starts
    /// again all that have ended, for any reason.
    fn revive(&mut self) {
        until(self.point, || self.has_met().then_some(()));
        let somebody_died = || self.group.members.iter().any(|it| it.program.was_killed());
        until(self.point, || somebody_died().then_some(()));
        let members = self.group.members.iter().enumerate();
        let ended = members.filter_map(|(at, member)| member.program.is_over().then_some(at));
        let ended: Vec<_> = ended.collect();
        ended.into_iter().for_each(|at| self.group.restart(at, &[]));
    }

    /// A coordinator founds the cluster, and dies at that. The cluster goes on if it existed by
    /// then, and begins anew if not. The wrong choice of the two is refused, and changes nothing.
    fn found(&mut self) {
        let dir = self.group.next_dir();
        let first = self.doom(self.group.founding(&dir));
        if let Some(founder) = Member::listening(first, dir.clone()) {
            until(self.point, || founder.program.is_over().then_some(()));
        }
        assert!(self.has_met(), "{}: it died of something else", self.point);
        let authority = || fs::read(dir.join("authority/authority.pem")).expect("it is there");
        let (half, before) = (dir.join("unfinished").exists(), authority());
        let again = || self.group.again(&dir, (Ipv4Addr::LOCALHOST, 0).into());
        let (right, wrong, words) = match half {
            true => (self.group.founding(&dir), again(), "nothing to start from"),
            false => (again(), self.group.founding(&dir), "Start without --bootstrap"),
        };
        let refused = Program::start(wrong).end();
        assert_eq!(refused.code, Some(2), "{}: {refused:?}", self.point);
        assert!(refused.block().contains(words), "{}: {refused:?}", self.point);
        assert!(authority() == before, "{}: another cluster", self.point);
        let founder = Member::listening(right, dir.clone()).expect("it listens");
        assert_eq!(authority() == before, !half, "{}: whose cluster is it?", self.point);
        self.group.members.push(founder);
    }

    /// Another coordinator joins, and dies at that.
    fn join(&mut self) {
        let dir = self.group.next_dir();
        let first = self.doom(self.group.joining(&dir));
        if let Some(joined) = Member::listening(first, dir.clone()) {
            self.group.members.push(joined);
            return self.revive();
        }
        assert!(self.has_met(), "{}: it died of something else", self.point);
        let again = Member::listening(self.group.joining(&dir), dir.clone());
        let joined = again.or_else(|| {
            // The coordinator had joined, and goes on in its directory.
            let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
            Member::listening(self.group.again(&dir, anywhere), dir)
        });
        self.group.members.push(joined.expect("it listens"));
    }

    /// Another coordinator joins, and the founder dies at that.
    fn admit(&mut self) {
        self.arm(0);
        self.group.leader(1);
        let dir = self.group.next_dir();
        let joining = self.group.joining(&dir);
        let joined = thread::scope(|scope| {
            let joining = scope.spawn(|| Member::listening(joining, dir.clone()));
            self.revive();
            joining.join().expect("no panic")
        });
        // The joiner hears of a broken handshake, and begins again.
        let joined = joined.or_else(|| Member::listening(self.group.joining(&dir), dir));
        self.group.members.push(joined.expect("it joins"));
    }

    /// The others go on without one coordinator. It ends by itself when they do so for good.
    fn remove(&mut self) {
        self.arm_leader();
        let gone = self.group.members.remove(2);
        let id = gone.id();
        until("it is removed", || self.group.command(OperatorCommand::Remove(id)).ok());
        self.revive();
        assert_eq!(gone.end().code, Some(0), "{}: it was told that it may go", self.point);
    }

    /// Nodes ask for admission until the token is used up, and the leader dies at one of these.
    fn spend(&mut self) {
        self.arm_leader();
        let authority = self.group.members[0].dir.join("authority");
        let token = JoinToken::create(&Authority::load(&authority).expect("the cluster's"));
        let limits = TokenLimits { uses: Some(1), ..TokenLimits::unlimited(Role::Worker) };
        assert_eq!(
            self.group.command(OperatorCommand::CreateToken(token.accepted(limits))),
            Ok(())
        );
        let doors: Vec<_> = self.group.members.iter().map(|member| member.address).collect();
        let admitted = thread::scope(|scope| {
            let asking = scope.spawn(|| use_up(&doors, &token));
            self.revive();
            asking.join().expect("no panic")
        });
        assert!(use_up(&doors, &token).is_none(), "{}: it was used twice", self.point);
        if let Some(node) = admitted {
            let renewed = |door: &_| block_on(renew(*door, &token, &node)).ok();
            until("it is the same node", || doors.iter().find_map(renewed));
        }
    }

    /// Stops a coordinator in good order. A leader hands over first.
    fn stop(&mut self, at: usize) {
        self.group.members[at].program.signal(Signal::TERM);
        until(self.point, || self.group.members[at].program.is_over().then_some(()));
    }

    /// The leader hands over, and dies at that. Repeats this if, on a busy machine, another one had
    /// come to lead.
    fn hand_over(&mut self) {
        while !self.has_met() {
            let leader = self.group.leader(3);
            self.stop(leader);
            if !self.has_met() {
                self.arm(leader);
            }
        }
        self.revive();
    }

    /// The founder hands leadership to the next, and the coordinator `at` dies at that. Repeats
    /// this if, on a busy machine, another one had come to lead. There, the coordinator may also
    /// die before, since it may come to lead when it has just started.
    fn elect(&mut self, at: usize) {
        self.arm(at);
        until("all know the same", || (self.has_met() || self.group.is_agreed()).then_some(()));
        while !self.has_met() {
            self.group.transfer(0, 3);
            self.stop(0);
            let is_over = || self.has_met() || self.group.is_led(3);
            until(self.point, || is_over().then_some(()));
            if !self.has_met() {
                self.group.restart(0, &[]);
            }
        }
        self.revive();
    }
}

impl While {
    /// How many coordinators there are at first, and at the end.
    fn counts(self) -> (usize, usize) {
        match self {
            Self::Founding => (0, 1),
            Self::Joining | Self::Admitting => (1, 2),
            Self::Removing => (3, 2),
            _ => (3, 3),
        }
    }

    /// A coordinator dies at the scene's point, and comes back.
    fn happen(self, scene: &mut Scene) {
        match self {
            Self::Founding => scene.found(),
            Self::Joining => scene.join(),
            Self::Admitting => scene.admit(),
            Self::Following => {
                let follower = (scene.group.leader(3) + 1) % 3;
                scene.arm(follower);
                scene.agree();
                scene.revive();
            }
            // The scene asks the first of the followers to lead.
            Self::Leading => scene.elect(1),
            Self::Voting => scene.elect(2),
            Self::Removing => scene.remove(),
            Self::Spending => scene.spend(),
            Self::HandingOver => {
                (0..3).for_each(|at| scene.arm(at));
                scene.hand_over();
            }
        }
    }
}

/// Lets nodes enrol with the token, one after the other, at these addresses in turn. Returns the
/// next one that is admitted. None once the token is used up.
fn use_up(doors: &[SocketAddr], token: &JoinToken) -> Option<Credentials> {
    let mut doors = doors.iter().cycle();
    until("the token is used up", || match block_on(enrol(*doors.next()?, token, Role::Worker)) {
        Ok(node) => Some(Some(node)),
        Err(EnrolError::Enrolment(EnrolmentError::Refused(Refusal::UsedUp { .. }))) => Some(None),
        Err(_) => None,
    })
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
            scene.group.until_agreed(after);
        }
    };
    thread::scope(|scope| {
        for _ in 0..ABREAST {
            scope.spawn(play);
        }
    });
}
