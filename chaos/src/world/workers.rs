//! The worker processes of the world, present and past, by their places.
//!
//! A slot is a machine's room for one worker. Each new process gets the next place, and is the
//! newest process in its slot. The log gives a process its id. This table does not know what a
//! worker does.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use everstep_transport::protocol::WorkerId;

use super::NodeId;
use super::worker::SimWorker;

/// All worker processes, those included that have ended.
#[derive(Default)]
pub struct Workers {
    processes: Vec<SimWorker>,
    /// The place of the newest process in each slot. An empty slot has `usize::MAX`.
    slots: Vec<usize>,
    /// The places by the ids that the log gave the processes.
    places: BTreeMap<WorkerId, usize>,
}

impl Workers {
    /// Adds a process. Its place is the number of processes before it.
    pub fn add(&mut self, worker: SimWorker) {
        let slot = worker.slot();
        self.slots.resize(self.slots.len().max(slot + 1), usize::MAX);
        self.slots[slot] = self.processes.len();
        self.processes.push(worker);
    }

    /// The log has given the process at a place this id.
    pub fn name(&mut self, worker: WorkerId, place: usize) {
        self.places.insert(worker, place);
    }

    /// How many processes there are or were.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// The process at a place. None if no process was ever there.
    pub fn find(&self, place: usize) -> Option<&SimWorker> {
        self.processes.get(place)
    }

    /// As [`Workers::find`].
    pub fn find_mut(&mut self, place: usize) -> Option<&mut SimWorker> {
        self.processes.get_mut(place)
    }

    /// The place of the process that has or had this id.
    pub fn place_of(&self, worker: WorkerId) -> Option<usize> {
        self.places.get(&worker).copied()
    }

    /// Whether every process has ended.
    pub fn have_ended(&self) -> bool {
        self.processes.iter().all(SimWorker::ended)
    }

    /// Whether a worker's process has ended, or has discarded all that it held as this worker.
    pub fn is_gone(&self, worker: WorkerId) -> bool {
        let process = self.place_of(worker).map(|place| &self.processes[place]);
        process.is_none_or(|process| process.ended() || process.id() != Some(worker))
    }

    // Machines.

    /// The machines of all slots.
    pub fn machines(&self) -> impl Iterator<Item = NodeId> {
        (0..self.slots.len()).map(NodeId::Worker)
    }

    /// The newest process on a machine. Another node than a worker's machine is its own process.
    pub fn process(&self, machine: NodeId) -> NodeId {
        match machine {
            NodeId::Worker(slot) => {
                NodeId::Worker(self.slots.get(slot).copied().unwrap_or(usize::MAX))
            }
            other => other,
        }
    }

    /// The machine of a process. Another node than a worker is its own machine.
    pub fn machine(&self, node: NodeId) -> NodeId {
        match node {
            NodeId::Worker(place) => {
                NodeId::Worker(self.find(place).map_or(place, SimWorker::slot))
            }
            other => other,
        }
    }

    // The door.

    /// Whether input from one worker is for another one that does not know it yet.
    pub fn wait_at_the_door(&self, from: NodeId, to: NodeId) -> bool {
        match (from, to) {
            (NodeId::Worker(from), NodeId::Worker(to)) => self[to].peers().id_of(from).is_none(),
            _ => false,
        }
    }
}

impl Index<usize> for Workers {
    type Output = SimWorker;

    fn index(&self, place: usize) -> &SimWorker {
        &self.processes[place]
    }
}

impl IndexMut<usize> for Workers {
    fn index_mut(&mut self, place: usize) -> &mut SimWorker {
        &mut self.processes[place]
    }
}
