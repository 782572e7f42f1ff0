//! The faults that last, and those that wait for their moment, by machine or process.
//!
//! This table does not inflict anything. The world asks it where a fault changes what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::time::Time;

use super::NodeId;
use super::preemption::MachineNotice;
use super::types::Event;
use crate::fault::DuplicateKind;

/// All faults that are not over.
#[derive(Debug)]
pub struct ActiveFaults {
    paused: BTreeMap<NodeId, PausedProcess>,
    /// How fast each machine's clock runs, in thousandths of true time.
    drifts: BTreeMap<NodeId, u32>,
    /// For each of these machines, the machine with the address that its workers state.
    misstated: BTreeMap<NodeId, NodeId>,
    /// Until when a firewall refuses machines to the coordinators.
    refused_until: BTreeMap<NodeId, Time>,
    /// Until when firewalls refuse the coordinators' probes of machines, and nothing else.
    probes_refused_until: BTreeMap<NodeId, Time>,
    /// The notices of clouds that are in force, by machine.
    notices: BTreeMap<NodeId, MachineNotice>,
    /// Until when the stores of workers' machines are full, by slot.
    full_stores: BTreeMap<usize, Time>,
    /// Until when the directories of workers' machines do not answer, by slot.
    silent_directories: BTreeMap<usize, Time>,
    /// How slow the devices of workers' machines are, thousandths of the usual time, and until
    /// when, by slot.
    slow_devices: BTreeMap<usize, (u32, Time)>,
    /// Faults that wait for their moment.
    pub armed: ArmedFaults,
    /// The virtual time at which the phase of faults ends.
    end: Time,
}

/// A process that stands still.
#[derive(Debug, Default)]
pub struct PausedProcess {
    /// Since when the process stands still. None before the world has set it.
    pub since: Option<Time>,
    until: Time,
    /// Events that wait until the process goes on.
    pub held: Vec<Event>,
}

/// Faults that wait for their moment.
#[derive(Debug, Default)]
pub struct ArmedFaults {
    duplicates: Vec<Duplicate>,
    /// A coordinator crashes at its next proposal, and starts again after this time.
    crash_on_proposal: Option<Duration>,
    /// A coordinator crashes when it next shuts another one out, and starts again after this time.
    crash_on_expel: Option<Duration>,
    /// Slots of workers. The world will garble the next reduced gradient of each in memory.
    garbles: BTreeSet<usize>,
    /// Slots of workers that will err in an update.
    mistakes: BTreeSet<usize>,
    /// Slots of workers. The world will garble the next chunk of a shard's state of each in memory.
    garbled_states: BTreeSet<usize>,
}

/// A message or item that will arrive twice.
#[derive(Debug)]
pub struct Duplicate {
    /// The machine that sends, and the one that receives.
    pub route: (NodeId, NodeId),
    pub what: DuplicateKind,
    /// How long after the first the second one arrives.
    pub after: Duration,
}

impl ActiveFaults {
    /// No fault yet, and no end of them.
    pub fn new() -> Self {
        Self {
            paused: BTreeMap::new(),
            drifts: BTreeMap::new(),
            misstated: BTreeMap::new(),
            refused_until: BTreeMap::new(),
            probes_refused_until: BTreeMap::new(),
            notices: BTreeMap::new(),
            full_stores: BTreeMap::new(),
            silent_directories: BTreeMap::new(),
            slow_devices: BTreeMap::new(),
            armed: ArmedFaults::default(),
            end: Time(u64::MAX),
        }
    }

    /// Drops the faults of processes, since all processes are new. Faults of machines go on.
    pub fn on_cluster_restart(&mut self) {
        (self.armed, self.paused) = Default::default();
    }

    /// The virtual time at which the phase of faults ends.
    pub fn end(&self) -> Time {
        self.end
    }

    /// Sets when faults end.
    pub fn end_at(&mut self, end: Time) {
        self.end = end;
    }

    /// Ends firewalls, withdraws clouds' notices, and disarms the faults that wait. A pause and
    /// a full store have an end of their own, by the event that the fault has scheduled. Clocks may
    /// stay wrong for good: the cluster bears them.
    pub fn calm_down(&mut self) {
        self.refused_until.clear();
        self.probes_refused_until.clear();
        self.notices.clear();
        self.armed = ArmedFaults::default();
    }

    // Processes that stand still.

    /// Whether a process stands still.
    pub fn is_paused(&self, node: NodeId) -> bool {
        self.paused.contains_key(&node)
    }

    /// Keeps an event of a process that stands still. Returns the event of any other process.
    pub fn hold(&mut self, event: Event) -> Option<Event> {
        match event.owner().and_then(|node| self.paused.get_mut(&node)) {
            Some(pause) => {
                pause.held.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// A process stands still until `until`, or longer if it does so already.
    pub fn pause(&mut self, now: Time, node: NodeId, until: Time) {
        let pause = self.paused.entry(node).or_default();
        pause.since.get_or_insert(now);
        pause.until = pause.until.max(until);
    }

    /// At `until` a pause is over. Returns it, unless the process stands still for longer or does
    /// not stand still.
    pub fn resume(&mut self, node: NodeId, until: Time) -> Option<PausedProcess> {
        let is_over = self.paused.get(&node).is_some_and(|pause| pause.until <= until);
        if is_over { self.paused.remove(&node) } else { None }
    }

    /// A process ends, with all events that it has not handled.
    pub fn forget(&mut self, node: NodeId) {
        self.paused.remove(&node);
    }

    // Machines.

    /// A machine's clock runs at this rate, in thousandths of true time.
    pub fn drift(&mut self, machine: NodeId, permille: u32) {
        self.drifts.insert(machine, permille);
    }

    /// The rate of a machine's clock, in thousandths of true time.
    pub fn permille(&self, machine: NodeId) -> u32 {
        self.drifts.get(&machine).copied().unwrap_or(1000)
    }

    /// Workers on one machine state the address of another.
    pub fn misstate(&mut self, machine: NodeId, of: NodeId) {
        self.misstated.insert(machine, of);
    }

    /// The slot of the address that the workers in a slot state.
    pub fn stated_slot(&self, slot: usize) -> usize {
        match self.misstated.get(&NodeId::Worker(slot)) {
            Some(NodeId::Worker(other)) => *other,
            _ => slot,
        }
    }

    /// A firewall refuses a machine to the coordinators. A longer refusal stays.
    pub fn refuse(&mut self, machine: NodeId, until: Time) {
        let refused = self.refused_until.entry(machine).or_default();
        *refused = until.max(*refused);
    }

    /// Whether a firewall refuses a machine to the coordinators.
    pub fn is_refused(&self, machine: NodeId, now: Time) -> bool {
        self.refused_until.get(&machine).is_some_and(|until| *until > now)
    }

    /// A firewall refuses the coordinators' probes of a machine. A longer refusal stays.
    pub fn refuse_probes(&mut self, machine: NodeId, until: Time) {
        let refused = self.probes_refused_until.entry(machine).or_default();
        *refused = until.max(*refused);
    }

    /// Whether a firewall refuses the coordinators' probes of a machine.
    pub fn refuses_probes(&self, machine: NodeId, now: Time) -> bool {
        self.probes_refused_until.get(&machine).is_some_and(|until| *until > now)
    }

    /// A cloud takes a machine back. A notice before this one no longer counts.
    pub fn announce(&mut self, machine: NodeId, notice: MachineNotice) {
        self.notices.insert(machine, notice);
    }

    /// The notice for a machine that is in force.
    pub fn notice(&self, machine: NodeId) -> Option<MachineNotice> {
        self.notices.get(&machine).copied()
    }

    /// A notice is over. None if another one has taken its place, or none is in force.
    pub fn end_notice(&mut self, machine: NodeId, gone_at: Time) -> Option<MachineNotice> {
        self.notice(machine).filter(|notice| notice.gone_at == gone_at)?;
        self.notices.remove(&machine)
    }

    /// The store of a slot's machine is full.
    pub fn fill_store(&mut self, slot: usize, until: Time) {
        self.full_stores.insert(slot, until);
    }

    /// Until when the store of a slot's machine is full. Time zero if it never was.
    pub fn store_full_until(&self, slot: usize) -> Time {
        self.full_stores.get(&slot).copied().unwrap_or_default()
    }

    /// The device of a slot's machine takes so many thousandths of its usual time.
    pub fn slow_device(&mut self, slot: usize, permille: u32, until: Time) {
        self.slow_devices.insert(slot, (permille, until));
    }

    /// How long the device of a slot's machine takes now, in thousandths of its usual time.
    pub fn device_permille(&self, now: Time, slot: usize) -> u32 {
        let slow = self.slow_devices.get(&slot).filter(|(_, until)| now < *until);
        slow.map_or(1_000, |(permille, _)| *permille)
    }

    /// The directory of a slot's machine does not answer.
    pub fn silence_directory(&mut self, slot: usize, until: Time) {
        self.silent_directories.insert(slot, until);
    }

    /// Until when the directory of a slot's machine does not answer. Time zero if it always has.
    pub fn directory_silent_until(&self, slot: usize) -> Time {
        self.silent_directories.get(&slot).copied().unwrap_or_default()
    }
}

impl ArmedFaults {
    /// A leader will crash at its next proposal, and start again after `restart`.
    pub fn arm_crash_on_proposal(&mut self, restart: Duration) {
        self.crash_on_proposal = Some(restart);
    }

    /// A leader has proposed a generation. If it is to crash, returns when it starts again.
    pub fn take_crash_on_proposal(&mut self) -> Option<Duration> {
        self.crash_on_proposal.take()
    }

    /// A coordinator will crash when it next shuts another one out, and start again after
    /// `restart`.
    pub fn arm_crash_on_expel(&mut self, restart: Duration) {
        self.crash_on_expel = Some(restart);
    }

    /// A coordinator shuts another one out. If it is to crash, returns when it starts again.
    pub fn take_crash_on_expel(&mut self) -> Option<Duration> {
        self.crash_on_expel.take()
    }

    /// Something will arrive twice.
    pub fn repeat(&mut self, duplicate: Duplicate) {
        self.duplicates.push(duplicate);
    }

    /// Whether anything will arrive twice.
    pub fn repeats(&self) -> bool {
        !self.duplicates.is_empty()
    }

    /// The duplicate of one of these kinds that waits for something to go this route.
    pub fn take_duplicate(
        &mut self,
        route: (NodeId, NodeId),
        kinds: &[DuplicateKind],
    ) -> Option<Duplicate> {
        let fits =
            |duplicate: &Duplicate| duplicate.route == route && kinds.contains(&duplicate.what);
        let found = self.duplicates.iter().position(fits)?;
        Some(self.duplicates.remove(found))
    }

    /// The next reduced gradient of a slot's worker will be garbled in its memory.
    pub fn garble(&mut self, slot: usize) {
        self.garbles.insert(slot);
    }

    /// Whether a slot's reduced gradient is to be garbled now. It answers yes once.
    pub fn take_garble(&mut self, slot: usize) -> bool {
        self.garbles.remove(&slot)
    }

    /// A slot's worker will err in an update.
    pub fn mistake(&mut self, slot: usize) {
        self.mistakes.insert(slot);
    }

    /// Whether a slot's worker is to err now. It answers yes once.
    pub fn take_mistake(&mut self, slot: usize) -> bool {
        self.mistakes.remove(&slot)
    }

    /// The next chunk of a state that a slot's worker receives will be garbled.
    pub fn garble_state(&mut self, slot: usize) {
        self.garbled_states.insert(slot);
    }

    /// Whether a chunk of a state is to be garbled now in a slot. It answers yes once.
    pub fn take_garbled_state(&mut self, slot: usize) -> bool {
        self.garbled_states.remove(&slot)
    }
}
