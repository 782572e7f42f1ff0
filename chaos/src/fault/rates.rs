//! How often each fault happens, and how long it lasts.

use std::time::Duration;

#[cfg(doc)]
use super::TOLERATED_OUTAGE;

/// How many of each fault happen in a virtual minute, on average, and how long they last.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Crashes of a worker, in a virtual minute.
    pub worker_crashes: f64,
    /// Several workers that crash at once.
    pub joint_crashes: f64,
    /// Workers that join, in a virtual minute.
    pub joins: f64,
    /// Workers that are to leave.
    pub drains: f64,
    /// Times when all workers are to leave.
    pub joint_drains: f64,
    /// Machines that a cloud takes back, and announces it.
    pub preemptions: f64,
    /// Times when a cloud takes several machines back at once. Half of the times it takes all.
    pub joint_preemptions: f64,
    /// The longest time that a cloud tells ahead.
    pub longest_notice: Duration,
    /// The share of notices that the cloud withdraws.
    pub withdrawn_notices: f64,
    /// Pauses of the run, by the operator.
    pub rests: f64,
    /// Checkpoints that the operator asks for.
    pub saves: f64,
    /// The longest grace of a worker that is to leave, if it has a limit.
    pub grace: Duration,
    /// Coordinators that crash, the leader more often than not.
    pub coordinator_crashes: f64,
    /// Crashes of all coordinators at once.
    pub cluster_crashes: f64,
    /// Coordinators that crash in the middle of a change.
    pub proposing_crashes: f64,
    /// Coordinators that stop on request, and start again.
    pub coordinator_stops: f64,
    /// Coordinators that crash when they shut another one out.
    pub expelling_crashes: f64,
    /// Losses of a coordinator's disk, in a virtual minute.
    pub coordinator_wipes: f64,
    /// Damages of a coordinator's log, in a virtual minute.
    pub damages: f64,
    /// Times in which a coordinator's disk is full.
    pub full_disks: f64,
    /// Coordinators that the operator removes.
    pub coordinator_removals: f64,
    /// Further machines that become coordinators.
    pub coordinator_joins: f64,
    /// Times in which a coordinator's disk writes nothing.
    pub disk_stalls: f64,
    /// The share of crashed processes that start again.
    pub restarts: f64,
    /// The longest time until they do.
    pub restart_within: Duration,
    /// Processes that stand still.
    pub pauses: f64,
    /// Clocks that change their speed, by a tenth at most.
    pub drifts: f64,
    /// Connections that are lost.
    pub disconnects: f64,
    /// Links that become slow.
    pub slow_links: f64,
    /// Paths that deliver nothing for a while.
    pub clogs: f64,
    /// Groups of nodes that are cut off.
    pub partitions: f64,
    /// Times in which no coordinator reaches any worker. Workers reach each other.
    pub isolations: f64,
    /// Groups of workers that stand still together.
    pub standstills: f64,
    /// Groups of nodes that the others do not hear.
    pub one_way_partitions: f64,
    /// Pairs of nodes that do not reach each other.
    pub bridges: f64,
    /// Workers that a firewall refuses to the coordinators.
    pub refusals: f64,
    /// Workers of which a firewall refuses probes, and nothing else.
    pub refused_probes: f64,
    /// Coordinators that no worker reaches.
    pub deaf_coordinators: f64,
    /// Workers of a machine that state the address of another machine.
    pub misstatements: f64,
    /// Items that arrive twice.
    pub duplicates: f64,
    /// Lanes that fall behind.
    pub reorders: f64,
    /// Devices that hang while their workers live.
    pub hangs: f64,
    /// Stores that take no model for a while.
    pub full_stores: f64,
    /// Directories that do not answer for a while.
    pub silent_directories: f64,
    /// Devices that become slow.
    pub slow_devices: f64,
    /// Times in which the store of checkpoints answers no worker.
    pub store_outages: f64,
    /// Power failures of the store's machine.
    pub store_cuts: f64,
    /// Checkpoints that a disk of the store tears.
    pub torn_checkpoints: f64,
    /// Losses of all processes and of the coordinators' disks.
    pub lost_clusters: f64,
    /// Flipped bits that their device finds.
    pub flips: f64,
    /// Garbled gradients that their device finds.
    pub garbles: f64,
    /// Mistakes in an update, which end the run.
    pub mistakes: f64,
    /// The share of interruptions that are longer than a cluster must bear ([`TOLERATED_OUTAGE`]).
    pub long: f64,
    /// The longest time for which a fault interrupts a process or a path.
    pub longest: Duration,
    /// The most that a slow link or lane adds to a delay.
    pub slowest: Duration,
    /// How long links and lanes stay slow, at most.
    pub slow_for: Duration,
}

impl Default for Rates {
    /// A very bad day: a fault every second and a half, a third of them a change of members.
    fn default() -> Self {
        Self {
            worker_crashes: 3.0,
            joint_crashes: 0.7,
            joins: 4.0,
            drains: 1.5,
            joint_drains: 0.3,
            preemptions: 0.7,
            joint_preemptions: 0.3,
            longest_notice: Duration::from_secs(12),
            withdrawn_notices: 0.2,
            rests: 0.7,
            saves: 1.5,
            grace: Duration::from_secs(5),
            coordinator_crashes: 1.5,
            cluster_crashes: 0.3,
            proposing_crashes: 0.5,
            coordinator_stops: 1.0,
            expelling_crashes: 0.5,
            coordinator_wipes: 1.0,
            damages: 0.5,
            full_disks: 0.7,
            coordinator_removals: 0.7,
            coordinator_joins: 0.7,
            disk_stalls: 1.0,
            restarts: 0.5,
            restart_within: Duration::from_secs(4),
            pauses: 2.5,
            drifts: 3.0,
            disconnects: 2.0,
            slow_links: 3.0,
            clogs: 3.0,
            partitions: 1.5,
            isolations: 0.3,
            standstills: 0.3,
            one_way_partitions: 1.0,
            bridges: 1.5,
            refusals: 0.7,
            refused_probes: 0.7,
            deaf_coordinators: 0.5,
            misstatements: 0.5,
            duplicates: 8.0,
            reorders: 4.0,
            hangs: 0.3,
            full_stores: 2.0,
            silent_directories: 1.0,
            slow_devices: 1.0,
            store_outages: 0.3,
            store_cuts: 2.0,
            torn_checkpoints: 0.5,
            lost_clusters: 0.4,
            flips: 0.5,
            garbles: 0.5,
            mistakes: 0.0,
            long: 0.3,
            longest: Duration::from_secs(10),
            slowest: Duration::from_millis(60),
            slow_for: Duration::from_secs(5),
        }
    }
}

impl Rates {
    /// Only faults that a cluster must bear without the loss of a worker.
    pub fn tolerated() -> Self {
        Self {
            worker_crashes: 0.0,
            joint_crashes: 0.0,
            joins: 0.0,
            drains: 0.0,
            joint_drains: 0.0,
            preemptions: 0.0,
            joint_preemptions: 0.0,
            rests: 0.0,
            saves: 0.0,
            coordinator_crashes: 0.0,
            cluster_crashes: 0.0,
            proposing_crashes: 0.0,
            coordinator_stops: 0.0,
            expelling_crashes: 0.0,
            coordinator_wipes: 0.0,
            damages: 0.0,
            full_disks: 0.0,
            coordinator_removals: 0.0,
            coordinator_joins: 0.0,
            disconnects: 0.0,
            isolations: 0.0,
            refusals: 0.0,
            deaf_coordinators: 0.0,
            misstatements: 0.0,
            standstills: 0.0,
            hangs: 0.0,
            full_stores: 0.0,
            silent_directories: 0.0,
            store_outages: 0.0,
            store_cuts: 0.0,
            torn_checkpoints: 0.0,
            lost_clusters: 0.0,
            flips: 0.0,
            garbles: 0.0,
            long: 0.0,
            ..Self::default()
        }
    }

    /// Rates at which nothing ever happens.
    pub fn none() -> Self {
        Self {
            disk_stalls: 0.0,
            pauses: 0.0,
            drifts: 0.0,
            slow_links: 0.0,
            clogs: 0.0,
            partitions: 0.0,
            one_way_partitions: 0.0,
            bridges: 0.0,
            refused_probes: 0.0,
            slow_devices: 0.0,
            duplicates: 0.0,
            reorders: 0.0,
            ..Self::tolerated()
        }
    }
}
