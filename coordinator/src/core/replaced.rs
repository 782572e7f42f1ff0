//! Processes that have taken the place of a worker's process, which has ended.
//!
//! In: registrations, and the proofs of workers. Out: suspicions, most of them certain. A leader
//! may end before it has told anyone of such an end. So the next leader finds it again in the log's
//! registrations, once it hears of the later process.

use std::collections::BTreeMap;

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{NodeName, WorkerId};
use everstep_transport::time::Time;

use super::Core;
use super::failure_detector::{Certainty, Suspicion};
use crate::state::{State, Worker};

/// By each present worker, the earlier workers at its address on its machine, as the log has them.
/// The process of the later worker has taken their place.
#[derive(Debug, Default)]
pub(super) struct ReplacedWorkers(BTreeMap<WorkerId, Vec<WorkerId>>);

impl ReplacedWorkers {
    /// The replaced workers in the log.
    pub(super) fn of(state: &State) -> Self {
        let mut found: BTreeMap<WorkerId, Vec<WorkerId>> = BTreeMap::new();
        let mut at_address: BTreeMap<_, Vec<WorkerId>> = BTreeMap::new();
        for (worker, known) in state.present() {
            let Registration { address, machine, .. } = &known.registration;
            let Some(machine) = machine else { continue };
            let earlier = at_address.entry((*machine, *address)).or_default();
            if !earlier.is_empty() {
                found.insert(worker, earlier.clone());
            }
            earlier.push(worker);
        }
        Self(found)
    }
}

impl Core {
    /// A process registers that may have taken the place of others.
    pub(super) fn replace_others(
        &mut self,
        now: Time,
        name: &NodeName,
        registration: &Registration,
    ) {
        let others = self.state.present().map(|(worker, _)| worker).collect();
        self.replace(now, others, name, registration);
    }

    /// This leader hears of a worker whose registration the log has. An earlier leader may have
    /// seen that the worker had taken the place of others, and may have ended before the log had
    /// that.
    pub(super) fn replace_predecessors(&mut self, now: Time, worker: WorkerId) {
        let Some(others) = self.health.replaced.0.remove(&worker) else { return };
        let Some(later) = self.state.workers().get(&worker).cloned() else { return };
        self.replace(now, others, &later.name, &later.registration);
    }

    /// Suspects those of the others whose place a process with this registration has taken.
    fn replace(
        &mut self,
        now: Time,
        others: Vec<WorkerId>,
        name: &NodeName,
        registration: &Registration,
    ) {
        let replaced = others.into_iter().filter_map(|other| {
            let known =
                self.state.workers().get(&other).filter(|_| self.state.is_present(other))?;
            Some((other, self.replacement(other, known, name, registration)?))
        });
        let replaced: Vec<(WorkerId, Suspicion)> = replaced.collect();
        for (other, suspicion) in replaced {
            self.suspect(now, other, suspicion);
        }
    }

    /// A process that registers under the name of a worker has taken the place of that worker's
    /// process, which has ended. So has a process that listens at the same address of the same
    /// machine, where the worker's link is lost.
    ///
    /// The address alone proves nothing. An address may pass to another machine while its first
    /// owner sleeps, and a holder of a worker's credentials can state any address.
    fn replacement(
        &self,
        worker: WorkerId,
        known: &Worker,
        name: &NodeName,
        registration: &Registration,
    ) -> Option<Suspicion> {
        let Registration { incarnation, address, machine, .. } = registration;
        let unlinked = self.links.of_registered(worker).is_none();
        let (reason, certainty) = match &known.registration {
            same if same.incarnation == *incarnation => return None,
            _ if known.name == *name => (LossReason::RegisteredAnew, Certainty::Dead),
            other if other.address != *address || !unlinked => return None,
            other if machine.is_some() && other.machine == *machine => {
                (LossReason::AddressReplaced, Certainty::Dead)
            }
            #[cfg(feature = "planted")]
            _ if self.state.plant == Some(crate::plant::CorePlant::AddressIsProof) => {
                (LossReason::AddressReplaced, Certainty::Dead)
            }
            _ => (LossReason::AddressStated, Certainty::Refused),
        };
        Some(Suspicion { reason, certainty })
    }

    /// A worker proves that others have ended: it holds the locks of files that they held. Only a
    /// process that could read those files knows the incarnations, which are random numbers.
    pub(super) fn predecessors_ended(&mut self, now: Time, worker: WorkerId, ended: &[u64]) {
        let others = self.state.present().filter(|(other, _)| *other != worker);
        let replaced = others.filter(|(_, known)| ended.contains(&known.registration.incarnation));
        let replaced: Vec<WorkerId> = replaced.map(|(other, _)| other).collect();
        for other in replaced {
            let reason = LossReason::RegisteredAnew;
            self.suspect(now, other, Suspicion { reason, certainty: Certainty::Dead });
        }
    }
}
