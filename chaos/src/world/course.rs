//! Judges the course of a run: whether a fault explains each loss (I8), and whether the run makes
//! progress (I11). It knows the truth: when each process was heard, and which links were lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use everstep_coordinator::state::Change;
use everstep_transport::time::Time;

use super::Node;
use super::endure::STANDSTILL;
use crate::fault::{Fault, TOLERATED};

/// After this silence a coordinator may take a worker for gone. It is the coordinator's patience,
/// by a clock that is a tenth fast, less a message's travel time.
const SILENT: Duration = Duration::from_millis(1_950);
/// How long a fault may lead to a loss: a change that waits for workers that fell silent together
/// takes up to 20 s, and some seconds more.
const AFTERMATH: Duration = Duration::from_secs(28);
/// The time after an isolation of the coordinators in which all workers dial again.
const RETURNED: Duration = Duration::from_secs(6);
/// A disturbance that begins this soon after another one adds to it: not all workers have spoken in
/// between.
const BREATH: Duration = Duration::from_secs(1);
/// If a pair of workers loses its link again within this time, one of them may be left out: 10 s,
/// by a clock that is a tenth slow.
const AGAIN: Duration = Duration::from_millis(11_500);

/// The entry for all workers' machines.
const EVERYONE: Node = Node::Leader;

/// The faults so far, and the last progress.
#[derive(Debug, Default)]
pub struct Course {
    /// A schedule of faults is under way, and a fault must explain every loss.
    judging: bool,
    /// Since when and until when a machine or its roads were last disturbed.
    disturbed: BTreeMap<Node, (Time, Time)>,
    /// The last time that no coordinator heard any worker: since when, and until when. That alone
    /// costs no worker its place (I8).
    isolated: Option<(Time, Time)>,
    /// Until when the device of a machine's worker hangs.
    hung: BTreeMap<Node, Time>,
    /// Until when a machine's host refuses packets of coordinators for its worker.
    refused: BTreeMap<Node, Time>,
    /// When the last interruption ends.
    interrupted_until: Time,
    /// What each coordinator hears.
    listeners: BTreeMap<usize, Listener>,
    /// The last two times that a pair of processes lost its link.
    parted: BTreeMap<(usize, usize), [Option<Time>; 2]>,
    /// Pairs of machines of which one stated the other's address: a coordinator may suspect the
    /// worker of either.
    misstated: BTreeSet<Node>,
    /// Processes that were asked to leave.
    leaving: BTreeSet<usize>,
    /// Processes whose memory was changed. Their devices may fail.
    garbled: BTreeSet<usize>,
    /// An owner was made to err in an update. The history may be broken.
    mistaken: bool,
    /// Since when the run could go on, but made no progress.
    quiet_since: Time,
    /// Counts of changes of members.
    pub(super) tally: Tally,
}

/// What a coordinator hears of workers' processes.
#[derive(Debug, Default)]
struct Listener {
    /// Since when it listens: since it runs, or leads.
    awake: Time,
    /// When it last heard each process, and when it last ended too long a silence of one.
    heard: BTreeMap<usize, Time>,
    silent: BTreeMap<usize, Time>,
    /// When it last lost its link with a process.
    unlinked: BTreeMap<usize, Time>,
}

impl Listener {
    /// How long it has listened to a process without a word from it.
    fn silence(&self, now: Time, place: usize) -> Duration {
        let heard = self.heard.get(&place).copied().unwrap_or_default();
        now.since(heard.max(self.awake))
    }
}

/// Counts of changes of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Generations that have begun.
    pub generations: u64,
    /// Members that were lost.
    pub lost: u64,
    /// Members that have left.
    pub left: u64,
    /// Steps that members did again.
    pub redone: u64,
    /// Returns to an earlier step.
    pub rollbacks: u64,
    /// Snapshots that a leader sent to a coordinator that lacked the entries behind them.
    pub installed: u64,
    /// Pages of the history that a coordinator sent to another one.
    pub pages: u64,
    /// Pages of lines that coordinators sent to each other on request.
    pub line_pages: u64,
    /// Coordinators that were admitted.
    pub joined: u64,
    /// Coordinators that ended since they were removed, and lived to hear of it.
    pub removed: u64,
    /// Coordinators that stopped on request.
    pub stopped: u64,
    /// Coordinators that ended since their disks were full.
    pub full: u64,
    /// Coordinators that were removed since no process could start with their damaged logs. None of
    /// them lived to hear of it.
    pub replaced: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.generations += more.generations;
        self.lost += more.lost;
        self.left += more.left;
        self.redone += more.redone;
        self.rollbacks += more.rollbacks;
        self.installed += more.installed;
        self.pages += more.pages;
        self.line_pages += more.line_pages;
        self.joined += more.joined;
        self.removed += more.removed;
        self.stopped += more.stopped;
        self.full += more.full;
        self.replaced += more.replaced;
    }
}

// Events.
impl Course {
    /// From now on a fault must explain every loss.
    pub fn judge(&mut self) {
        self.judging = true;
    }

    /// A cluster begins anew. Its processes have nothing to do with the ones before.
    pub fn begin_anew(&mut self, now: Time) {
        let before = std::mem::take(self);
        *self = Self {
            judging: before.judging,
            tally: before.tally,
            interrupted_until: before.interrupted_until,
            disturbed: before.disturbed,
            hung: before.hung,
            refused: before.refused,
            misstated: before.misstated,
            quiet_since: now,
            ..Self::default()
        };
    }

    /// The run made progress.
    pub fn progress(&mut self, now: Time) {
        self.quiet_since = now;
    }

    /// Time passes. `able` says whether the run could go on.
    pub fn passes(&mut self, now: Time, able: bool) {
        if !able || now < self.interrupted_until {
            self.quiet_since = now;
        }
    }

    /// A fault begins.
    pub fn strike(&mut self, now: Time, fault: &Fault) {
        let end = now + fault.outage();
        self.interrupted_until = self.interrupted_until.max(end);
        self.quiet_since = now;
        let mut disturb = |node: &Node| {
            let (since, until) = self.disturbed.entry(*node).or_insert((now, end));
            if now > *until + BREATH {
                *since = now;
            }
            *until = end.max(*until);
        };
        let is_worker = |node: &&Node| matches!(node, Node::Worker(_));
        match fault {
            Fault::Pause { node, .. } => disturb(node),
            Fault::Refuse { node, .. } => {
                disturb(node);
                self.refused.insert(*node, end);
            }
            Fault::Deafen { .. } => disturb(&EVERYONE),
            Fault::Misstate { node, of } => self.misstated.extend([*node, *of]),
            Fault::PauseTogether { side, .. } => side.iter().for_each(disturb),
            Fault::Clog { from, to, .. } => [from, to].into_iter().for_each(disturb),
            Fault::Bridge { ends: (one, other), .. } => {
                [one, other].into_iter().for_each(disturb);
            }
            Fault::Hang { node, span } => _ = self.hung.insert(*node, now + *span),
            Fault::Isolation { .. } => {
                let (since, until) = self.isolated.unwrap_or((now, end));
                let since = if now > until { now } else { since };
                self.isolated = Some((since, until.max(end)));
            }
            Fault::Partition { side, .. } | Fault::OneWay { side, .. } => {
                side.iter().for_each(&mut disturb);
                // The other side of a coordinator's partition is cut off from it as well.
                if !side.iter().all(|node| is_worker(&node)) {
                    disturb(&EVERYONE);
                }
            }
            _ => {}
        }
    }

    /// All faults end.
    pub fn calm(&mut self, now: Time) {
        self.interrupted_until = self.interrupted_until.min(now);
        self.quiet_since = now;
    }

    /// A coordinator begins to listen.
    pub fn awake(&mut self, now: Time, coordinator: usize) {
        self.listeners.entry(coordinator).or_default().awake = now;
    }

    /// A coordinator hears a process.
    pub fn heard(&mut self, now: Time, coordinator: usize, place: usize) {
        let listener = self.listeners.entry(coordinator).or_default();
        let silence = listener.silence(now, place);
        if listener.heard.insert(place, now).is_some() && silence >= SILENT {
            listener.silent.insert(place, now);
        }
    }

    /// A coordinator has lost its link with a process. The loss of a link by an isolation explains
    /// no loss of the worker.
    pub fn unlinked(&mut self, now: Time, coordinator: usize, place: usize) {
        if self.isolated.is_some_and(|(since, until)| since <= now && now <= until + RETURNED) {
            return;
        }
        self.listeners.entry(coordinator).or_default().unlinked.insert(place, now);
    }

    /// A process has lost its link with another one, or did not get one.
    pub fn parted(&mut self, now: Time, one: usize, other: usize) {
        let times = self.parted.entry((one.min(other), one.max(other))).or_default();
        *times = [times[1], Some(now)];
    }

    /// An operator has asked a process to leave.
    pub fn leaves(&mut self, place: usize) {
        self.leaving.insert(place);
    }

    /// A fault has changed the memory of a process.
    pub fn garbled(&mut self, place: usize) {
        self.garbled.insert(place);
    }

    /// Whether the device of a process may fail.
    pub fn may_end(&self, place: usize) -> bool {
        self.garbled.contains(&place)
    }

    /// A fault made an owner err in an update. The run may end for that.
    pub fn mistaken(&mut self) {
        self.mistaken = true;
    }

    /// The members have changed.
    pub fn change(&mut self, change: &Change) {
        self.tally += Tally {
            generations: 1,
            lost: change.lost.len() as u64,
            left: change.left.len() as u64,
            redone: u64::from(change.redone),
            rollbacks: u64::from(change.rollback.is_some()),
            ..Tally::default()
        };
    }
}

// The judgement.
impl Course {
    /// Whether a coordinator may take a process for lost that runs on. `machine` is its slot.
    pub fn explains(&self, now: Time, (place, machine): (usize, Node), coordinator: usize) -> bool {
        let recent = |at: Option<&Time>| at.is_some_and(|at| now.since(*at) <= AFTERMATH);
        let listener = self.listeners.get(&coordinator);
        let silent = self.is_silent(now, place, coordinator);
        // A coordinator that began to listen meanwhile has heard no worker yet. It cannot judge.
        let reborn = self.isolated.is_some_and(|(since, until)| {
            let awake = listener.map_or(Time(0), |listener| listener.awake);
            since <= awake && now <= until + AFTERMATH
        });
        let disturbed = [machine, EVERYONE].map(|node| self.disturbed.get(&node));
        let disturbed =
            disturbed.into_iter().flatten().filter(|(_, until)| now <= *until + AFTERMATH);
        let disturbed: Vec<_> = disturbed.collect();
        // After so long an interruption the process itself hears nothing for too long, even if the
        // coordinator hears it.
        let long = disturbed.iter().any(|(since, until)| until.since(*since) > TOLERATED);
        let again = |times: &[Option<Time>; 2]| match times {
            [Some(first), Some(second)] => second.since(*first) <= AGAIN && recent(Some(second)),
            _ => false,
        };
        let mut pairs = self.parted.iter();
        let parted =
            pairs.any(|((one, other), times)| (*one == place || *other == place) && again(times));
        !self.judging
            || listener.is_some_and(|listener| recent(listener.unlinked.get(&place)))
            || silent && (reborn || !disturbed.is_empty())
            || long
            || parted
            || self.misstated.contains(&machine)
            || [&self.refused, &self.hung]
                .into_iter()
                .any(|ends| ends.get(&machine).is_some_and(|until| now <= *until + AFTERMATH))
    }

    fn is_silent(&self, now: Time, place: usize, coordinator: usize) -> bool {
        let recent = |at: Option<&Time>| at.is_some_and(|at| now.since(*at) <= AFTERMATH);
        self.listeners.get(&coordinator).is_some_and(|listener| {
            listener.silence(now, place) >= SILENT || recent(listener.silent.get(&place))
        })
    }

    /// Whether an isolation keeps a coordinator from hearing a process. An isolation explains the
    /// loss of the last member alone: the coordinator cannot tell it from the member's end.
    pub fn hides(&self, now: Time, place: usize, coordinator: usize) -> bool {
        let lately = |(since, until): (Time, Time)| since <= now && now <= until + AFTERMATH;
        self.isolated.is_some_and(lately) && self.is_silent(now, place, coordinator)
    }

    /// Whether an operator has asked a process to leave.
    pub fn is_leaving(&self, place: usize) -> bool {
        self.leaving.contains(&place)
    }

    /// Whether no interruption is under way.
    pub fn is_undisturbed(&self, now: Time) -> bool {
        now >= self.interrupted_until
    }

    /// Whether the run may fail for this reason: an owner has erred, or the last worker cannot
    /// trust its memory.
    pub fn may_fail(&self, reason: &str) -> bool {
        self.mistaken || !self.garbled.is_empty() && reason.contains("changed in memory")
    }

    /// How long the run has made no progress although it could. None if that is too long.
    pub fn standstill(&self, now: Time) -> Option<Duration> {
        let idle = now.since(self.quiet_since);
        (idle <= STANDSTILL).then_some(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: usize = 1;
    const PLACE: usize = 3;
    const MACHINE: Node = Node::Worker(1);

    fn second(number: u64) -> Time {
        Time(0) + Duration::from_secs(number)
    }

    fn course() -> Course {
        let mut course = Course::default();
        course.judge();
        course.heard(second(10), LEADER, PLACE);
        course
    }

    #[test]
    fn i8_silence_is_a_loss_only_with_a_fault_on_the_way() {
        let mut course = course();
        assert!(!course.explains(second(11), (PLACE, MACHINE), LEADER));
        assert!(
            !course.explains(second(13), (PLACE, MACHINE), LEADER),
            "it is silent for no reason"
        );
        let span = Duration::from_secs(1);
        course.strike(second(10), &Fault::Pause { node: MACHINE, span });
        assert!(course.explains(second(13), (PLACE, MACHINE), LEADER));
        assert!(!course.explains(second(13), (PLACE, Node::Worker(2)), LEADER), "another machine");
        course.heard(second(13), LEADER, PLACE);
        assert!(course.explains(second(20), (PLACE, MACHINE), LEADER), "it was silent");
        course.heard(second(20), LEADER, PLACE);
        assert!(!course.explains(second(60), (PLACE, MACHINE), LEADER), "long ago");
    }

    #[test]
    fn i8_who_hears_nothing_for_long_may_be_lost_though_it_is_heard() {
        for (ms, expected) in [(1_400, false), (1_600, true)] {
            let mut course = course();
            let span = Duration::from_millis(ms);
            let clog = Fault::Clog { from: Node::Coordinator(LEADER), to: MACHINE, span };
            course.strike(second(10), &clog);
            course.heard(second(11), LEADER, PLACE);
            assert_eq!(course.explains(second(12), (PLACE, MACHINE), LEADER), expected);
        }
    }

    #[test]
    fn i8_a_coordinator_that_did_not_listen_makes_nobody_silent() {
        let mut course = course();
        course.strike(second(10), &Fault::Pause { node: MACHINE, span: Duration::from_secs(1) });
        course.awake(second(14), LEADER);
        assert!(!course.explains(second(15), (PLACE, MACHINE), LEADER));
    }

    #[test]
    fn i8_a_pair_is_left_out_when_it_has_parted_twice() {
        let mut course = course();
        course.parted(second(11), PLACE, 7);
        assert!(!course.explains(second(11), (PLACE, MACHINE), LEADER));
        course.parted(second(14), 7, PLACE);
        assert!(course.explains(second(15), (PLACE, MACHINE), LEADER));
        assert!(course.explains(second(15), (7, MACHINE), LEADER));
        assert!(!course.explains(second(15), (8, MACHINE), LEADER));
    }

    #[test]
    fn i11_what_could_go_on_and_does_not_is_at_a_standstill() {
        let mut course = course();
        course.progress(second(20));
        assert!(course.standstill(second(21)).is_some());
        let late = second(21) + STANDSTILL;
        assert_eq!(course.standstill(late), None);
        course.passes(late, false);
        assert!(course.standstill(late).is_some(), "it could not go on");
    }
}
