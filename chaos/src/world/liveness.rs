//! Judges the course of a run: whether a fault explains each loss (I8), and whether the run makes
//! progress (I11). It knows the truth: when each process was heard, and which links were lost.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use everstep_coordinator::state::Change;
use everstep_transport::protocol::Step;
use everstep_transport::protocol::format::LogFormat;
use everstep_transport::time::Time;

use super::NodeId;
use super::endure::MAX_STANDSTILL;
use crate::fault::{Fault, TOLERATED_OUTAGE};

/// After this silence a coordinator may take a worker for gone. It is the time after which the
/// coordinator suspects the worker, by a clock that is a tenth fast, less a message's travel time.
const MIN_SUSPECT_SILENCE: Duration = Duration::from_millis(1_950);
/// A coordinator that hears only workers that came in the isolation waits for this long: 20 s, by a
/// clock that is a tenth fast.
const MIN_ISOLATED_SILENCE: Duration = Duration::from_secs(18);
/// How long a fault may lead to a loss: a change that waits for workers that fell silent together
/// takes up to 20 s, and some seconds more.
const FAULT_AFTERMATH: Duration = Duration::from_secs(28);
/// The time after an isolation of the coordinators in which all workers dial again.
const REDIAL_TIME: Duration = Duration::from_secs(6);
/// A disturbance that begins this soon after another one adds to it: not all workers have spoken in
/// between.
const DISTURBANCE_MERGE_GAP: Duration = Duration::from_secs(1);
/// If a pair of workers loses its link again within this time, one of them may be left out: 10 s,
/// by a clock that is a tenth slow.
const REPEATED_LOSS_WINDOW: Duration = Duration::from_millis(11_500);

/// The faults so far, and the last progress.
#[derive(Debug, Default)]
pub struct LivenessChecker {
    /// A schedule of faults is under way, and a fault must explain every loss.
    judging: bool,
    /// Since when and until when a machine or its roads were last disturbed.
    disturbed: BTreeMap<Disturbed, (Time, Time)>,
    /// The last time that no coordinator heard any worker: since when, and until when. That alone
    /// costs no worker its place (I8).
    isolated: Option<(Time, Time)>,
    /// Workers that stand still together, or did so last, while no other fault was at work. That
    /// alone costs no worker its place (I8).
    standstill: Option<SharedStandstill>,
    /// Until when a fault other than a standstill may lead to a loss.
    other_fault_until: Time,
    /// Until when the device of a machine's worker hangs.
    hung: BTreeMap<NodeId, Time>,
    /// Until when a machine's host refuses packets of coordinators for its worker.
    refused: BTreeMap<NodeId, Time>,
    /// When the last interruption ends.
    interrupted_until: Time,
    /// What each coordinator hears.
    listeners: BTreeMap<usize, Listener>,
    /// The last two times that a pair of processes lost its link.
    parted: BTreeMap<(usize, usize), [Option<Time>; 2]>,
    /// Pairs of machines of which one stated the other's address: a coordinator may suspect the
    /// worker of either.
    misstated: BTreeSet<NodeId>,
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

/// The machines that a fault disturbs, itself or by their roads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbed {
    Machine(NodeId),
    AllWorkers,
}

/// Many workers stand still together: a coordinator waits for them as it does in an outage.
#[derive(Debug)]
struct SharedStandstill {
    machines: Vec<NodeId>,
    since: Time,
    until: Time,
}

/// What a coordinator hears of workers' processes.
#[derive(Debug, Default)]
struct Listener {
    /// Since when it listens: since it runs, or leads.
    awake: Time,
    /// When it last heard each process, and when it last ended too long a silence of one.
    heard: BTreeMap<usize, Time>,
    silent: BTreeMap<usize, Time>,
    /// When it heard each process for the first time.
    met: BTreeMap<usize, Time>,
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
    /// Committed steps that returns to an earlier step have undone.
    pub undone: u64,
    /// Returns to a checkpoint.
    pub restores: u64,
    /// Workers that still ran when a cloud took their machines back.
    pub taken: u64,
    /// Clusters that went on from the store of one that was lost.
    pub continued: u64,
    /// Checkpoints that the log has listed.
    pub checkpoints: u64,
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
    /// The newest format of the log in which a coordinator could propose.
    pub log_format: Option<LogFormat>,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.generations += more.generations;
        self.lost += more.lost;
        self.left += more.left;
        self.redone += more.redone;
        self.rollbacks += more.rollbacks;
        self.undone += more.undone;
        self.restores += more.restores;
        self.taken += more.taken;
        self.continued += more.continued;
        self.checkpoints += more.checkpoints;
        self.installed += more.installed;
        self.pages += more.pages;
        self.line_pages += more.line_pages;
        self.joined += more.joined;
        self.removed += more.removed;
        self.stopped += more.stopped;
        self.full += more.full;
        self.replaced += more.replaced;
        self.log_format = self.log_format.max(more.log_format);
    }
}

// Events.
impl LivenessChecker {
    /// From now on a fault must explain every loss.
    pub fn judge(&mut self) {
        self.judging = true;
    }

    /// A cluster begins anew. Its processes have nothing to do with the ones before, but the faults
    /// of machines and roads go on.
    pub fn begin_anew(&mut self, now: Time) {
        let before = std::mem::take(self);
        *self = Self {
            judging: before.judging,
            tally: before.tally,
            interrupted_until: before.interrupted_until,
            disturbed: before.disturbed,
            other_fault_until: before.other_fault_until,
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

    /// A fault begins. A process of a worker runs on each of these machines.
    pub fn strike(&mut self, now: Time, fault: &Fault, running: &[NodeId]) {
        let end = now + fault.outage();
        self.note_standstill(now, fault, running);
        self.interrupted_until = self.interrupted_until.max(end);
        self.quiet_since = now;
        let mut disturb = |whom: Disturbed| {
            let (since, until) = self.disturbed.entry(whom).or_insert((now, end));
            if now > *until + DISTURBANCE_MERGE_GAP {
                *since = now;
            }
            *until = end.max(*until);
        };
        let is_worker = |node: &&NodeId| matches!(node, NodeId::Worker(_));
        let machine = |node: &NodeId| Disturbed::Machine(*node);
        match fault {
            Fault::Pause { node, .. } => disturb(machine(node)),
            Fault::Refuse { node, .. } => {
                disturb(machine(node));
                self.refused.insert(*node, end);
            }
            Fault::Deafen { .. } => disturb(Disturbed::AllWorkers),
            Fault::Misstate { node, of } => self.misstated.extend([*node, *of]),
            Fault::PauseTogether { side, .. } => side.iter().map(machine).for_each(disturb),
            Fault::Clog { from, to, .. } => [from, to].map(machine).into_iter().for_each(disturb),
            Fault::Bridge { ends: (one, other), .. } => {
                [one, other].map(machine).into_iter().for_each(disturb);
            }
            Fault::Hang { node, span } => _ = self.hung.insert(*node, now + *span),
            Fault::Isolation { .. } => {
                let (since, until) = self.isolated.unwrap_or((now, end));
                let since = if now > until { now } else { since };
                self.isolated = Some((since, until.max(end)));
            }
            Fault::Partition { side, .. } | Fault::OneWay { side, .. } => {
                side.iter().map(machine).for_each(&mut disturb);
                // The other side of a coordinator's partition is cut off from it as well.
                if !side.iter().all(|node| is_worker(&node)) {
                    disturb(Disturbed::AllWorkers);
                }
            }
            _ => {}
        }
    }

    /// Notes whether a fault is a standstill of many workers that the coordinators must bear, with
    /// no other fault at work.
    fn note_standstill(&mut self, now: Time, fault: &Fault, running: &[NodeId]) {
        let until = now + fault.outage();
        self.standstill = match fault {
            Fault::PauseTogether { side, span }
                if now > self.other_fault_until && *span < MIN_ISOLATED_SILENCE =>
            {
                let machines: Vec<NodeId> =
                    side.iter().filter(|node| running.contains(node)).copied().collect();
                let many = machines.len() >= 2 && 5 * machines.len() > running.len();
                many.then_some(SharedStandstill { machines, since: now, until })
            }
            _ => None,
        };
        self.other_fault_until = self.other_fault_until.max(until + FAULT_AFTERMATH);
    }

    /// All faults end, and no more begin.
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
        listener.met.entry(place).or_insert(now);
        if listener.heard.insert(place, now).is_some() && silence >= MIN_SUSPECT_SILENCE {
            listener.silent.insert(place, now);
        }
    }

    /// A coordinator has lost its link with a process. The loss of a link by an isolation explains
    /// no loss of the worker.
    pub fn unlinked(&mut self, now: Time, coordinator: usize, place: usize) {
        if self.isolated.is_some_and(|(since, until)| since <= now && now <= until + REDIAL_TIME) {
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
        let resume = change.record.resume;
        let undone = |(from, _): &(Step, _)| from.0.saturating_sub(resume.0);
        self.tally += Tally {
            generations: 1,
            lost: change.lost.len() as u64,
            left: change.left.len() as u64,
            redone: u64::from(change.redone),
            rollbacks: u64::from(change.rollback.is_some()),
            undone: change.rollback.as_ref().map_or(0, undone),
            restores: u64::from(change.rollback.is_some() && resume > Step(0)),
            ..Tally::default()
        };
    }
}

// The judgement.
impl LivenessChecker {
    /// Whether a coordinator may take a process for lost that runs on. `machine` is its slot.
    pub fn explains(&self, now: Time, place: usize, machine: NodeId, coordinator: usize) -> bool {
        let recent = |at: Option<&Time>| at.is_some_and(|at| now.since(*at) <= FAULT_AFTERMATH);
        let listener = self.listeners.get(&coordinator);
        let silent = self.is_silent(now, place, coordinator);
        // A coordinator that began to listen meanwhile has heard no worker yet. It cannot judge.
        let reborn = self.isolated.is_some_and(|(since, until)| {
            let awake = listener.map_or(Time(0), |listener| listener.awake);
            since <= awake && now <= until + FAULT_AFTERMATH
        });
        let disturbed =
            [Disturbed::Machine(machine), Disturbed::AllWorkers].map(|it| self.disturbed.get(&it));
        let disturbed =
            disturbed.into_iter().flatten().filter(|(_, until)| now <= *until + FAULT_AFTERMATH);
        let disturbed: Vec<_> = disturbed.collect();
        // After so long an interruption the process itself hears nothing for too long, even if the
        // coordinator hears it.
        let long = disturbed.iter().any(|(since, until)| until.since(*since) > TOLERATED_OUTAGE);
        let again = |times: &[Option<Time>; 2]| match times {
            [Some(first), Some(second)] => {
                second.since(*first) <= REPEATED_LOSS_WINDOW && recent(Some(second))
            }
            _ => false,
        };
        let mut pairs = self.parted.iter();
        let parted =
            pairs.any(|((one, other), times)| (*one == place || *other == place) && again(times));
        if self.judging && self.only_stood_still(now, machine) {
            return false;
        }
        !self.judging
            || listener.is_some_and(|listener| recent(listener.unlinked.get(&place)))
            || silent && (reborn || !disturbed.is_empty())
            || listener.is_some_and(|listener| self.is_outlasted(now, place, listener))
            || long
            || parted
            || self.misstated.contains(&machine)
            || [&self.refused, &self.hung]
                .into_iter()
                .any(|ends| ends.get(&machine).is_some_and(|until| now <= *until + FAULT_AFTERMATH))
    }

    /// Whether a standstill that all coordinators must bear is the only fault that a machine has
    /// met lately.
    fn only_stood_still(&self, now: Time, machine: NodeId) -> bool {
        self.standstill.as_ref().is_some_and(|standstill| {
            let lately = standstill.since <= now && now <= standstill.until + FAULT_AFTERMATH;
            lately && standstill.machines.contains(&machine)
        })
    }

    fn is_silent(&self, now: Time, place: usize, coordinator: usize) -> bool {
        let recent = |at: Option<&Time>| at.is_some_and(|at| now.since(*at) <= FAULT_AFTERMATH);
        self.listeners.get(&coordinator).is_some_and(|listener| {
            listener.silence(now, place) >= MIN_SUSPECT_SILENCE
                || recent(listener.silent.get(&place))
        })
    }

    /// Whether a process has been silent for long in an isolation, while a process that came
    /// meanwhile was heard: the coordinator cannot tell the isolation from the end of the process.
    fn is_outlasted(&self, now: Time, place: usize, listener: &Listener) -> bool {
        let lately = |(since, until): &(Time, Time)| *since <= now && now <= *until;
        self.isolated.filter(lately).is_some_and(|(since, _)| {
            let newest = listener.met.values().max();
            listener.silence(now, place) >= MIN_ISOLATED_SILENCE
                && newest.is_some_and(|met| *met > since)
        })
    }

    /// Whether an isolation keeps a coordinator from hearing a process. An isolation explains the
    /// loss of the last member alone: the coordinator cannot tell it from the member's end.
    pub fn hides(&self, now: Time, place: usize, coordinator: usize) -> bool {
        let lately = |(since, until): (Time, Time)| since <= now && now <= until + FAULT_AFTERMATH;
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
        (idle <= MAX_STANDSTILL).then_some(idle)
    }
}
