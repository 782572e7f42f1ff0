//! How the workers do, as far as this coordinator alone notices it: signs of life, links between
//! members, the progress of devices.
//!
//! A coordinator that begins or ceases to lead forgets all of it, except the workers that it saw
//! end. It does not know which workers are members, nor what follows from a suspicion.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::{Cloud, Generation, PreemptionNotice, Telemetry, WorkerId};
use everstep_transport::time::Time;

use super::failure_detector::{FailureDetector, Suspicion};
use super::links::Links;
use super::pace::Paces;
use super::partition::Partition;
use super::progress::DeviceProgress;
use super::replaced::ReplacedWorkers;
use super::roster::Roster;
use crate::state::State;

/// What the core knows of the health of workers.
#[derive(Debug)]
pub(super) struct WorkerHealth {
    pub(super) detector: FailureDetector,
    pub(super) partition: Partition,
    pub(super) paces: Paces,
    /// The workers that have slow devices.
    pub(super) progress: DeviceProgress,
    /// The newest GPU figures of workers. They change so fast that the log never has them: only a
    /// reader that asks is told. A new leader hears them with the next heartbeats.
    telemetry: BTreeMap<WorkerId, Telemetry>,
    /// The cloud that takes a worker's machine back, and when. The worker tells each new leader.
    preemptions: BTreeMap<WorkerId, (Cloud, Time)>,
    /// Bytes that members of a generation have yet to read of the checkpoint that they restore.
    unread: BTreeMap<WorkerId, (Generation, u64)>,
    /// Registered workers that ended while this coordinator followed, and how it noticed that. If
    /// it comes to lead, it need not wait for them to be silent.
    departed: BTreeMap<WorkerId, Suspicion>,
    /// The workers that the log showed to be replaced when this coordinator came to lead.
    pub(super) replaced: ReplacedWorkers,
}

impl WorkerHealth {
    pub(super) fn new(now: Time) -> Self {
        Self {
            detector: FailureDetector::new(now),
            partition: Partition::default(),
            paces: Paces::default(),
            progress: DeviceProgress::default(),
            telemetry: BTreeMap::new(),
            preemptions: BTreeMap::new(),
            unread: BTreeMap::new(),
            departed: BTreeMap::new(),
            replaced: ReplacedWorkers::default(),
        }
    }

    /// Forgets all but the workers that have ended.
    pub(super) fn reset(&mut self, now: Time) {
        let departed = std::mem::take(&mut self.departed);
        #[cfg(feature = "planted")]
        let plant = self.detector.plant;
        *self = Self { departed, ..Self::new(now) };
        #[cfg(feature = "planted")]
        self.plant(plant);
    }

    /// The run's workers at this moment.
    pub(super) fn roster<'a>(
        &'a self,
        now: Time,
        state: &'a State,
        links: &'a Links,
    ) -> Roster<'a> {
        Roster { now, state, links, detector: &self.detector, paces: &self.paces }
    }

    /// Begins to listen to these workers, each with a fresh deadline.
    pub(super) fn listen(&mut self, now: Time, workers: impl Iterator<Item = WorkerId>) {
        #[cfg(feature = "planted")]
        let plant = self.detector.plant;
        self.detector = FailureDetector::begin(now, workers);
        #[cfg(feature = "planted")]
        self.plant(plant);
    }

    /// The failure detector has this bug.
    #[cfg(feature = "planted")]
    pub(super) fn plant(&mut self, plant: Option<crate::plant::CorePlant>) {
        self.detector.plant = plant;
    }

    /// An input arrives. Returns whether answers may still be on their way: in a queue, since this
    /// coordinator was late itself, or in a network in which it hears no worker.
    pub(super) fn wake(&mut self, now: Time) -> bool {
        self.detector.wake(now) || !self.detector.hears_any(now)
    }

    /// Time has passed, and this coordinator was awake. Returns whether so many workers are silent
    /// that it may be the one that does not hear.
    pub(super) fn tick(&mut self, now: Time) -> bool {
        self.detector.tick(now);
        self.detector.are_many(self.detector.silent(now).len())
    }

    /// A worker is suspected. Returns whether this is news, and whether an outage begins with it.
    pub(super) fn suspect(
        &mut self,
        now: Time,
        worker: WorkerId,
        suspicion: Suspicion,
    ) -> (bool, bool) {
        let is_news = self.detector.suspect(now, worker, suspicion);
        (is_news, self.detector.look_for_outage(now))
    }

    /// A generation begins: members that could not reach each other try anew.
    pub(super) fn renew_links(&mut self, now: Time) {
        let Self { detector, partition, .. } = self;
        partition.renew(now, |worker| detector.is_settled(now, worker));
    }

    /// Drops what is known of a worker that is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.detector.forget(worker);
        self.telemetry.remove(&worker);
        self.preemptions.remove(&worker);
        self.unread.remove(&worker);
        self.progress.forget(worker);
        self.paces.forget(worker);
    }

    /// A member of a generation tells how many bytes of a checkpoint it has yet to read.
    pub(super) fn set_unread(&mut self, worker: WorkerId, of: Generation, bytes: u64) {
        self.unread.insert(worker, (of, bytes));
    }

    /// How many bytes a member has yet to read, if it has told that in this generation.
    pub(super) fn unread(&self, worker: WorkerId, generation: Generation) -> Option<u64> {
        let (of, unread) = self.unread.get(&worker)?;
        (*of == generation).then_some(*unread)
    }

    /// A worker tells its GPU's figures, or that it has none.
    pub(super) fn set_telemetry(&mut self, worker: WorkerId, telemetry: Option<Telemetry>) {
        match telemetry {
            Some(telemetry) => drop(self.telemetry.insert(worker, telemetry)),
            None => drop(self.telemetry.remove(&worker)),
        }
    }

    /// The newest GPU figures of a worker.
    pub(super) fn telemetry(&self, worker: WorkerId) -> Option<Telemetry> {
        self.telemetry.get(&worker).copied()
    }

    /// A worker leaves since a cloud takes its machine back, or for another reason.
    pub(super) fn set_preemption(
        &mut self,
        now: Time,
        worker: WorkerId,
        notice: Option<PreemptionNotice>,
    ) {
        match notice {
            Some(PreemptionNotice { cloud, seconds_left }) => {
                let at = now + Duration::from_secs(seconds_left.into());
                self.preemptions.insert(worker, (cloud, at));
            }
            None => drop(self.preemptions.remove(&worker)),
        }
    }

    /// Whether a cloud takes a worker's machine back, and the time that is left.
    pub(super) fn preemption(&self, now: Time, worker: WorkerId) -> Option<PreemptionNotice> {
        let (cloud, at) = *self.preemptions.get(&worker)?;
        Some(PreemptionNotice::until(cloud, at.since(now)))
    }

    #[cfg(test)]
    pub(super) fn has_telemetry(&self) -> bool {
        !self.telemetry.is_empty()
    }

    /// Notes the end of a worker's process, and forgets the ends of workers that are not present.
    pub(super) fn note_departure(
        &mut self,
        worker: Option<WorkerId>,
        suspicion: Suspicion,
        is_present: impl Fn(WorkerId) -> bool,
    ) {
        self.departed.retain(|worker, _| is_present(*worker));
        self.departed.extend(worker.map(|worker| (worker, suspicion)));
    }

    /// The worker's node has a link again.
    pub(super) fn returned(&mut self, worker: WorkerId) {
        self.departed.remove(&worker);
    }

    /// The workers that ended while this coordinator followed. It forgets them.
    pub(super) fn take_departed(&mut self) -> BTreeMap<WorkerId, Suspicion> {
        std::mem::take(&mut self.departed)
    }
}
