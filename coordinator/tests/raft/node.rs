//! A replica with its disk, and what a crash leaves of both.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_coordinator::raft::{
    CorruptState, DurableState, Members, RaftOptions, Replica, ReplicaId, WriteBatch,
};
use everstep_transport::protocol::Term;
use everstep_transport::time::Time;

use super::dice::Dice;
use super::machine::Machine;

pub struct Node {
    pub id: ReplicaId,
    /// The content that survives a crash.
    pub disk: DurableState,
    /// None while it is down.
    pub process: Option<Process>,
    /// How often the test has started it.
    pub incarnation: u64,
    /// The replica does nothing before this time.
    pub paused_until: Time,
    /// When the disk will have finished its writes.
    pub disk_free: Time,
    /// Whether the disk was lost. The replica must not come back then.
    pub lost: bool,
}

pub struct Process {
    pub replica: Replica,
    pub machine: Machine,
    /// Batches that the disk has, but that are not durable.
    pub unwritten: VecDeque<WriteBatch>,
    /// The content that the disk will have.
    pub view: DurableState,
    pub leads: Option<Term>,
    /// The members of the replica's last effect.
    pub members: Members,
}

impl Node {
    pub fn new(id: ReplicaId, disk: DurableState) -> Self {
        Self {
            id,
            disk,
            process: None,
            incarnation: 0,
            paused_until: Time(0),
            disk_free: Time(0),
            lost: false,
        }
    }

    pub fn start(
        &mut self,
        now: Time,
        keep: u64,
        prepare: fn(&mut RaftOptions),
    ) -> Result<(), CorruptState> {
        let mut options = RaftOptions {
            id: self.id,
            seed: 1,
            keep,
            #[cfg(feature = "planted")]
            plant: None,
        };
        prepare(&mut options);
        let replica = Replica::new(now, options, self.disk.clone())?;
        self.incarnation += 1;
        self.disk_free = now;
        self.process = Some(Process {
            replica,
            machine: Machine::default(),
            unwritten: VecDeque::new(),
            view: self.disk.clone(),
            leads: None,
            members: Members::default(),
        });
        Ok(())
    }

    /// The process dies. The disk keeps some first batches of those that it was given.
    pub fn crash(&mut self, dice: &mut Dice) {
        let Some(process) = self.process.take() else { return };
        let survive = dice.below(process.unwritten.len() as u64 + 1) as usize;
        process.unwritten.iter().take(survive).for_each(|batch| self.disk.absorb(batch));
    }

    /// When a batch that the disk gets now will be durable.
    pub fn time_to_write(&mut self, now: Time, longest: Duration, dice: &mut Dice) -> Time {
        self.disk_free = self.disk_free.max(now) + dice.span(longest);
        self.disk_free
    }
}
