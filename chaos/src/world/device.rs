//! A worker's device in the world: its construction, its jobs and its reports.

use std::net::{Ipv4Addr, SocketAddr};

use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::{Generation, MachineId, ModelPlace, RunSpec, Zone};
use everstep_transport::time::Time;
use everstep_worker::device::build::{BuildContext, build};
use everstep_worker::registry::BuildError;
use everstep_worker::step::event::{DIRECTORY_ANSWER_TIMEOUT, Input, Job, Report};
use everstep_worker::store_work::StoreWork;

use super::sim_device::{DeviceOutput, SimDevice};
use super::sim_model_file::SimModelFile;
use super::store::StoreThreadId;
use super::types::Event;
use super::{NodeId, World};
use crate::check::{Invariant, Observation, QueueKind, ShardCopy, Violation};
use crate::random::mix;

/// The zones of machines. An empty label is no zone.
const ZONES: [&str; 4] = ["", "north", "south", "west"];

/// The address of the worker on a machine. All processes of a machine use the same port.
fn address(slot: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 1 + slot as u16).into()
}

/// The model's place on a machine. Each machine has a store of its own.
pub(super) fn place_of(slot: usize) -> ModelPlace {
    ModelPlace { host: format!("machine-{slot}"), path: "/runs/model.safetensors".into() }
}

impl World {
    /// The store of a worker's machine takes no model until `until`, or until the faults end.
    pub(super) fn fill_store(&mut self, node: NodeId, until: Time) {
        let (NodeId::Worker(slot), until) = (node, until.min(self.faults.end())) else { return };
        self.faults.fill_store(slot, until);
    }

    /// The directory of a worker's machine does not answer until `until`, or until the faults end.
    pub(super) fn silence_directory(&mut self, node: NodeId, until: Time) {
        let (NodeId::Worker(slot), until) = (node, until.min(self.faults.end())) else { return };
        self.faults.silence_directory(slot, until);
    }

    /// Builds a device. The worker drops the earlier one, with every link to other workers.
    pub(super) fn build(&mut self, place: usize, run: &RunSpec) -> Result<(), Violation> {
        self.leave_roster(place);
        let slot = self.workers[place].slot();
        let address = address(self.faults.stated_slot(slot));
        let incarnation = self.random.bits();
        let worker = &mut self.workers[place];
        let zone = zone(self.scenario.seed, worker.slot());
        // No thread loads ahead: its pace would depend on the real machine.
        let own = BuildContext {
            incarnation,
            address,
            machine: Some(MachineId(slot as u64)),
            zone,
            dir: None,
            device: DeviceChoice::Cpu,
            overlap: true,
            prefetch: 0,
            lacked: None,
        };
        worker.builds += 1;
        worker.sim_device = None;
        let builds = worker.builds;
        let built = build(&self.scenario.registry, run, &own, worker.pool().clone());
        let built = built.map(|(mut device, mut built)| {
            (self.scenario.prepare.device)(&mut device);
            if let Some(facts) = device.checkpoint_facts(&built.registration.fingerprint) {
                let mut work = StoreWork::new(facts, &self.store.cluster);
                (self.scenario.prepare.store)(&mut work);
                self.store.begin_thread(StoreThreadId { place, builds }, work);
            }
            let shards = built.registration.fingerprint.shards;
            let equal_share = (run.batch.data_shards / self.scenario.workers).max(1);
            worker.sim_device = Some(SimDevice::new(device, shards, equal_share));
            worker.model_file = SimModelFile::new(shards);
            built.registration.model = Some(place_of(worker.slot()));
            built
        });
        let begins = self.workers[place].hangs_until.max(self.now);
        // A build looks for the model's place in the worker's directory.
        let answers = self.faults.directory_silent_until(slot).max(begins);
        let last = begins + DIRECTORY_ANSWER_TIMEOUT;
        let built = match answers > last {
            true => Err(BuildError::Place("the directory has not answered".into())),
            false => built,
        };
        let at = answers.min(last) + self.random.delay();
        let built = DeviceOutput::Built(Box::new(built));
        self.queue.put(at, Event::Device(place, builds, built.into()));
        Ok(())
    }

    pub(super) fn give_job(&mut self, place: usize, job: Job) -> Result<(), Violation> {
        let id = self.workers[place].id().unwrap_or_default();
        match &job {
            Job::Load { shard, version, values } => {
                let (version, shard, parameters) = (*version, *shard, Some(&**values));
                let copy = ShardCopy { version, shard, digest: None, parameters };
                self.observe(Observation::Loaded(id, copy))?;
            }
            Job::Restore { shard, version, digest, .. } => {
                let (version, shard, digest) = (*version, *shard, Some(*digest));
                let copy = ShardCopy { version, shard, digest, parameters: None };
                self.observe(Observation::Offered(id, copy))?;
            }
            Job::Update { shard, step, .. } => {
                self.observe(Observation::Given(id, *shard, *step))?;
            }
            _ => {}
        }
        let sim_device = self.workers[place].sim_device.as_mut();
        let sim_device = sim_device.expect("a device is built before its first job");
        sim_device.push(job);
        let waiting = sim_device.waiting();
        self.observe(Observation::Queued(QueueKind::Device, waiting))?;
        self.work(place)
    }

    pub(super) fn on_free(&mut self, place: usize, build: u64) -> Result<(), Violation> {
        if self.workers[place].builds != build {
            return Ok(());
        }
        if let Some(sim_device) = &mut self.workers[place].sim_device {
            sim_device.release(self.now);
        }
        self.work(place)
    }

    fn work(&mut self, place: usize) -> Result<(), Violation> {
        let (build, id) = (self.workers[place].builds, self.workers[place].id());
        let generation = self.workers[place].core().generation();
        if self.now < self.workers[place].hangs_until {
            return Ok(());
        }
        let permille = self.faults.device_permille(self.now, self.workers[place].slot());
        let Some(sim_device) = &mut self.workers[place].sim_device else { return Ok(()) };
        let Some(work) = sim_device.work(self.now, permille, &mut self.random) else {
            return Ok(());
        };
        for (at, done) in work.reports {
            self.queue.put(at, Event::Device(place, build, done.into()));
        }
        self.queue.put(work.until, Event::Free(place, build));
        match (work.gradient, id) {
            // In the other case the core has gone on, perhaps to another history.
            (Some((entered, step, scale)), Some(id)) if entered == generation => {
                self.observe(Observation::Began(id, step, scale))
            }
            _ => Ok(()),
        }
    }

    /// A worker takes the result of a device, or of its construction.
    pub(super) fn on_device_output(
        &mut self,
        place: usize,
        build: u64,
        done: DeviceOutput,
    ) -> Result<(), Violation> {
        if self.workers[place].builds != build || self.workers[place].ended() {
            return Ok(());
        }
        let input = match done {
            DeviceOutput::Built(built) => match *built {
                Ok(built) => Input::Built(built),
                Err(error) => {
                    let (inability, reason) = (error.inability(), error.to_string());
                    Input::BuildFailed { inability, reason }
                }
            },
            DeviceOutput::Report(generation, report) => {
                self.witness_report(place, generation, &report)?;
                Input::Device(report)
            }
        };
        self.step_worker(place, input)
    }

    fn witness_report(
        &mut self,
        place: usize,
        entered: Generation,
        report: &Report,
    ) -> Result<(), Violation> {
        if let Report::Failed(reason) = report
            && !self.checkers.liveness.may_end(place)
        {
            let seen = format!("the device of process {place} failed for no reason: {reason}");
            return Err(Violation { invariant: Invariant::I8, at: self.now, seen });
        }
        let Some(id) = self.workers[place].id() else { return Ok(()) };
        let current = self.workers[place].core().generation();
        match report {
            Report::Entered { generation, owned } => {
                let record = self.checkers.invariants.record_of(*generation);
                let resume = record.map_or_else(Default::default, |record| record.resume);
                self.observe(Observation::Holds(id, owned, resume))
            }
            Report::Computed { step, contribution, .. } => {
                self.observe(Observation::Computed(id, (entered, *step), contribution))
            }
            Report::Updated { version, shard, digest, parameters } => {
                let parameters = parameters.as_ref().map(|values| &***values);
                let (version, shard, digest) = (*version, *shard, Some(*digest));
                let copy = ShardCopy { version, shard, digest, parameters };
                let of_now = entered == current;
                self.observe(Observation::Updated(id, copy, of_now))
            }
            Report::Shared { version, shard, values, .. } => {
                let (version, shard, parameters) = (*version, *shard, Some(&***values));
                let copy = ShardCopy { version, shard, digest: None, parameters };
                self.observe(Observation::Shared(id, copy))
            }
            Report::Restored { version, shard, intact: true, .. } => {
                let (version, shard) = (*version, *shard);
                let copy = ShardCopy { version, shard, digest: None, parameters: None };
                self.observe(Observation::Restored(id, copy))
            }
            _ => Ok(()),
        }
    }
}

/// The zone of a machine. It is the same for every process on it.
fn zone(seed: u64, slot: usize) -> Option<Zone> {
    let drawn = mix(seed ^ mix(slot as u64)) % ZONES.len() as u64;
    Zone::parse(ZONES[drawn as usize])
}
