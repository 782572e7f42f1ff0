//! The schedule of faults, drawn from a seed, at given [`Rates`].

use std::fmt;
use std::time::Duration;

use everstep_transport::time::Time;
use everstep_worker::step::event::Lane;

use super::{DrainOrigin, DuplicateKind, Fault, NoticeEnd, Rates, TOLERATED_OUTAGE};
use crate::random::Random;
use crate::world::NodeId;

/// Spare machines: a worker that comes later may run there.
pub const SPARE_MACHINES: u32 = 2;

/// Spare machines for coordinators that come later.
pub const SPARE_COORDINATORS: u32 = 1;

/// Faults, each with its time, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(pub Vec<(Time, Fault)>);

impl Schedule {
    /// The faults of `span` in a cluster of this many workers and coordinators: a pure function.
    pub fn draw(seed: u64, span: Duration, workers: u32, coordinators: u32, rates: &Rates) -> Self {
        // The seed differs from the world's, so the sequence does too.
        let random = Random::new(seed ^ 0x5C4E_D01E);
        let machines = u64::from(workers + SPARE_MACHINES);
        let coordinators = u64::from(coordinators);
        let mut draw = Draw { random, machines, coordinators, rates };
        let mut faults = Vec::new();
        for (rate, make) in draw.kinds() {
            for _ in 0..draw.count(rate * span.as_secs_f64() / 60.0) {
                let at = Time(draw.random.below(span.as_nanos().max(1) as u64));
                faults.push((at, make(&mut draw)));
            }
        }
        // Stable: at the same moment the order of the kinds decides.
        faults.sort_by_key(|(at, _)| *at);
        Self(faults)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in &self.0 {
            writeln!(f, "{:>12.3} ms  {fault}", at.0 as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// The share of a coordinator's faults that hit the leader.
const LEADERS: f64 = 0.6;

type Make = fn(&mut Draw<'_>) -> Fault;

/// The choices of one schedule.
struct Draw<'a> {
    random: Random,
    machines: u64,
    coordinators: u64,
    rates: &'a Rates,
}

impl Draw<'_> {
    fn kinds(&self) -> Vec<(f64, Make)> {
        let hang: Make = |draw| Fault::Hang { node: draw.worker(), span: draw.outage() };
        let all = self.of_processes_and_ways().into_iter().chain(self.of_coordinators());
        let full: Make = |draw| Fault::FullStore { node: draw.worker(), span: draw.outage() };
        let silent: Make =
            |draw| Fault::SilentDirectory { node: draw.worker(), span: draw.outage() };
        let all = all.chain([(self.rates.hangs, hang), (self.rates.full_stores, full)]);
        let all = all.chain([(self.rates.silent_directories, silent)]);
        let all = all.chain(self.of_evidence()).chain(self.of_operators());
        let probes: Make = |draw| Fault::RefuseProbes { node: draw.worker(), span: draw.outage() };
        let all = all.chain(self.of_the_store()).chain([(self.rates.refused_probes, probes)]);
        let away: Make = |draw| Fault::StoreAway { span: draw.outage() };
        let slow: Make = |draw| draw.slow_device();
        let last = [(self.rates.store_outages, away), (self.rates.slow_devices, slow)];
        all.chain(self.of_clouds()).chain(last).collect()
    }

    fn of_processes_and_ways(&self) -> [(f64, Make); 23] {
        let rates = self.rates;
        [
            (rates.worker_crashes, |draw| {
                let node = draw.worker();
                draw.crash(node)
            }),
            (rates.joint_crashes, |draw| {
                let side = draw.workers();
                Fault::CrashTogether { side, restart: draw.restart() }
            }),
            (rates.joins, |draw| Fault::Join { node: draw.worker() }),
            (rates.drains, |draw| draw.drain()),
            (rates.coordinator_crashes, |draw| {
                let restart = Some(draw.soon());
                Fault::Crash { node: draw.coordinator(), restart }
            }),
            (rates.cluster_crashes, |draw| {
                let side = (0..draw.coordinators as usize).map(NodeId::Coordinator).collect();
                let restart = Some(draw.soon());
                Fault::CrashTogether { side, restart }
            }),
            (rates.proposing_crashes, |draw| Fault::CrashProposing { restart: draw.soon() }),
            (rates.pauses, |draw| Fault::Pause { node: draw.node(), span: draw.interruption() }),
            (rates.disk_stalls, |draw| {
                let node = draw.coordinator();
                Fault::Stall { node, span: draw.interruption() }
            }),
            (rates.drifts, |draw| {
                let permille = 900 + draw.random.below(201) as u32;
                Fault::Drift { node: draw.node(), permille }
            }),
            (rates.disconnects, |draw| Fault::Disconnect { ends: draw.pair() }),
            (rates.slow_links, |draw| {
                let (extra, span) = draw.slowness();
                Fault::Slow { ends: draw.pair(), extra, span }
            }),
            (rates.clogs, |draw| {
                let (from, to) = draw.pair();
                Fault::Clog { from, to, span: draw.interruption() }
            }),
            (rates.partitions, |draw| Fault::Partition {
                side: draw.side(),
                span: draw.interruption(),
            }),
            (rates.one_way_partitions, |draw| Fault::OneWay {
                side: draw.side(),
                span: draw.interruption(),
            }),
            (rates.bridges, |draw| Fault::Bridge { ends: draw.pair(), span: draw.interruption() }),
            (rates.duplicates, |draw| draw.duplicate()),
            (rates.reorders, |draw| draw.reorder()),
            (rates.flips, |draw| Fault::Flip { node: draw.worker() }),
            (rates.garbles, |draw| Fault::Garble { node: draw.worker() }),
            (rates.mistakes, |draw| Fault::Mistake { node: draw.worker() }),
            (rates.isolations, |draw| Fault::Isolation { span: draw.outage() }),
            (rates.standstills, |draw| {
                let side = draw.workers();
                Fault::PauseTogether { side, span: draw.outage() }
            }),
        ]
    }

    /// Faults that look like the end of a worker, but are none.
    fn of_evidence(&self) -> [(f64, Make); 3] {
        let rates = self.rates;
        let deaf: Make = |draw| Fault::Deafen { node: draw.coordinator(), span: draw.outage() };
        [
            (rates.refusals, |draw| Fault::Refuse { node: draw.worker(), span: draw.outage() }),
            (rates.deaf_coordinators, deaf),
            (rates.misstatements, |draw| Fault::Misstate {
                node: draw.worker(),
                of: draw.worker(),
            }),
        ]
    }

    /// What operators ask of a run.
    fn of_operators(&self) -> [(f64, Make); 3] {
        let rates = self.rates;
        let rest: Make = |draw| Fault::Rest { span: draw.up_to(draw.rates.longest) };
        [
            (rates.joint_drains, |draw| Fault::DrainAll { restart: draw.outage() }),
            (rates.rests, rest),
            (rates.saves, |_| Fault::Save),
        ]
    }

    /// What befalls the store, and what needs it.
    fn of_the_store(&self) -> [(f64, Make); 3] {
        let rates = self.rates;
        [
            (rates.store_cuts, |_| Fault::CutStore),
            (rates.torn_checkpoints, |_| Fault::TearCheckpoint),
            (rates.lost_clusters, |_| Fault::LoseCluster),
        ]
    }

    /// Machines that a cloud takes back.
    fn of_clouds(&self) -> [(f64, Make); 2] {
        let rates = self.rates;
        [
            (rates.preemptions, |draw| {
                let side = vec![draw.worker()];
                draw.preemption(side)
            }),
            (rates.joint_preemptions, |draw| {
                let all = (0..draw.machines as usize).map(NodeId::Worker).collect();
                let side = if draw.chance(0.5) { all } else { draw.workers() };
                draw.preemption(side)
            }),
        ]
    }

    /// Changes of the coordinators and their disks.
    fn of_coordinators(&self) -> [(f64, Make); 7] {
        let rates = self.rates;
        [
            (rates.coordinator_stops, |draw| Fault::Stop {
                node: draw.coordinator(),
                restart: draw.soon(),
            }),
            (rates.coordinator_wipes, |draw| Fault::Wipe {
                node: draw.coordinator(),
                restart: draw.soon(),
            }),
            (rates.coordinator_removals, |draw| {
                let node = draw.coordinator();
                Fault::Remove { node, restart: draw.restart() }
            }),
            (rates.coordinator_joins, |draw| {
                let spare = draw.coordinators + draw.random.below(u64::from(SPARE_COORDINATORS));
                Fault::Join { node: NodeId::Coordinator(spare as usize) }
            }),
            (rates.expelling_crashes, |draw| Fault::CrashExpelling { restart: draw.soon() }),
            (rates.damages, |draw| Fault::Damage {
                node: draw.coordinator(),
                restart: draw.soon(),
            }),
            (rates.full_disks, |draw| Fault::FullDisk {
                node: draw.coordinator(),
                restart: draw.soon(),
            }),
        ]
    }

    /// A device that takes up to three times as long, for up to a minute.
    fn slow_device(&mut self) -> Fault {
        let permille = 1_200 + self.random.below(1_801) as u32;
        let span = Duration::from_millis(5_000 + self.random.below(55_000));
        Fault::SlowDevice { node: self.worker(), permille, span }
    }

    /// A time longer than any deadline: 1 to 16 seconds.
    fn outage(&mut self) -> Duration {
        Duration::from_millis(1_000 + self.random.below(15_000))
    }

    /// A random whole number with this mean.
    fn count(&mut self, mean: f64) -> u64 {
        mean.floor() as u64 + u64::from(self.chance(mean.fract()))
    }

    fn chance(&mut self, share: f64) -> bool {
        share > (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(1 + self.random.below(most.as_nanos().max(1) as u64))
    }

    fn worker(&mut self) -> NodeId {
        NodeId::Worker(self.random.below(self.machines) as usize)
    }

    /// The leader, more often than not.
    fn coordinator(&mut self) -> NodeId {
        if self.coordinators == 1 || self.chance(LEADERS) {
            return NodeId::Leader;
        }
        NodeId::Coordinator(self.random.below(self.coordinators) as usize)
    }

    fn node(&mut self) -> NodeId {
        match self.any() {
            NodeId::Coordinator(_) => self.coordinator(),
            worker => worker,
        }
    }

    fn any(&mut self) -> NodeId {
        let index = self.random.below(self.coordinators + self.machines);
        self.place(index)
    }

    fn pair(&mut self) -> (NodeId, NodeId) {
        let all = self.coordinators + self.machines;
        let first = self.random.below(all);
        let second = (first + 1 + self.random.below(all - 1)) % all;
        (self.place(first), self.place(second))
    }

    /// A coordinator, or a machine of a worker.
    fn place(&self, index: u64) -> NodeId {
        match index.checked_sub(self.coordinators) {
            None => NodeId::Coordinator(index as usize),
            Some(slot) => NodeId::Worker(slot as usize),
        }
    }

    /// Some nodes, not the first coordinator. It may be all others, so that the first one is alone.
    fn side(&mut self) -> Vec<NodeId> {
        let nodes = self.coordinators - 1 + self.machines;
        let chosen = 1 + self.random.below((1 << nodes.min(63)) - 1);
        let member = |index: &u64| chosen >> index.min(&63) & 1 == 1;
        (0..nodes).filter(member).map(|index| self.place(index + 1)).collect()
    }

    fn workers(&mut self) -> Vec<NodeId> {
        let chosen = 1 + self.random.below((1 << self.machines.min(63)) - 1);
        let member = |slot: &usize| chosen >> slot.min(&63) & 1 == 1;
        (0..self.machines as usize).filter(member).map(NodeId::Worker).collect()
    }

    fn interruption(&mut self) -> Duration {
        if self.chance(self.rates.long) {
            let more = self.rates.longest.saturating_sub(TOLERATED_OUTAGE);
            TOLERATED_OUTAGE + self.up_to(more)
        } else {
            self.up_to(TOLERATED_OUTAGE)
        }
    }

    fn slowness(&mut self) -> (Duration, Duration) {
        (self.up_to(self.rates.slowest), self.up_to(self.rates.slow_for))
    }

    /// The delay until a process starts again.
    fn soon(&mut self) -> Duration {
        self.up_to(self.rates.restart_within)
    }

    fn restart(&mut self) -> Option<Duration> {
        let again = self.chance(self.rates.restarts);
        again.then(|| self.soon())
    }

    fn crash(&mut self, node: NodeId) -> Fault {
        Fault::Crash { node, restart: self.restart() }
    }

    fn drain(&mut self) -> Fault {
        let by = if self.chance(0.5) { DrainOrigin::Machine } else { DrainOrigin::Operator };
        // One worker in three has all the time that it needs.
        let (node, grace) = (self.worker(), self.up_to(self.rates.grace * 3 / 2));
        Fault::Drain { node, by, grace: Some(grace).filter(|grace| *grace <= self.rates.grace) }
    }

    fn preemption(&mut self, side: Vec<NodeId>) -> Fault {
        let ahead = self.up_to(self.rates.longest_notice);
        let end = match self.chance(self.rates.withdrawn_notices) {
            true => NoticeEnd::Withdrawn { after: self.up_to(ahead), restart: self.outage() },
            false => NoticeEnd::TakenBack { restart: self.restart() },
        };
        Fault::Preempt { side, ahead, end }
    }

    fn duplicate(&mut self) -> Fault {
        let (from, to) = self.pair();
        let kinds = [DuplicateKind::Message, DuplicateKind::Item, DuplicateKind::OlderItem];
        let bulk = [from, to].iter().all(|node| matches!(node, NodeId::Worker(_)));
        let what = if bulk { kinds[self.random.below(3) as usize] } else { DuplicateKind::Message };
        Fault::Duplicate { from, to, what, after: self.up_to(Duration::from_millis(400)) }
    }

    fn reorder(&mut self) -> Fault {
        let lane = Lane::ALL[self.random.below(Lane::ALL.len() as u64) as usize];
        let (extra, span) = self.slowness();
        let from = self.random.below(self.machines);
        let to = (from + 1 + self.random.below(self.machines - 1)) % self.machines;
        let (from, to) = (NodeId::Worker(from as usize), NodeId::Worker(to as usize));
        Fault::Reorder { from, to, lane, extra, span }
    }
}

#[cfg(test)]
mod tests;
