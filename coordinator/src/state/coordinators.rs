//! The coordinators of the cluster: their names, ids and addresses.
//!
//! The founder has id 1. Every other coordinator has the index of the entry that made it one. An id
//! is never reused, so no process can be taken for a replica that has lost its disk. Raft knows
//! whether a coordinator is a voter of the log, and since when. This module does not.

use std::collections::BTreeMap;

use everstep_transport::identity::AcceptedToken;
use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName};
use rkyv::{Archive, Deserialize, Serialize};

use super::{CoordinatorInfo, EntryOutcome, LOG_FORMATS, State};
use crate::raft::MAX_MEMBERS;

/// The id of the coordinator that founded the cluster.
pub const FOUNDER: CoordinatorId = CoordinatorId(1);

/// How many coordinators that were shut out the state remembers.
const SHUT_OUT: usize = 1_000;

pub(super) type CoordinatorMap = BTreeMap<CoordinatorId, CoordinatorInfo>;

/// The coordinators of the cluster, and those that are removed from it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Coordinators {
    /// Whether the cluster is there for one run.
    pub(super) ephemeral: bool,
    /// The newest format of the log that all coordinators read.
    pub(super) log_format: LogFormat,
    pub(super) current: CoordinatorMap,
    /// The coordinators that were removed or replaced. Their word may be needed until the log goes
    /// on without them, and a majority knows that.
    pub(super) leaving: CoordinatorMap,
    /// The newest of the coordinators that were shut out.
    pub(super) shut_out: CoordinatorMap,
    /// The index of the newest entry that changed the coordinators or their addresses.
    pub(super) revision: u64,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self {
            ephemeral: true,
            log_format: *LOG_FORMATS.start(),
            current: CoordinatorMap::new(),
            leaving: CoordinatorMap::new(),
            shut_out: CoordinatorMap::new(),
            revision: 0,
        }
    }
}

impl Coordinators {
    /// The same directory is the same coordinator, perhaps elsewhere. Another directory takes its
    /// place. `index` is that of the entry.
    pub(super) fn settle_in(
        &mut self,
        index: u64,
        claimed: Option<CoordinatorId>,
        coordinator: &CoordinatorInfo,
    ) -> Result<EntryOutcome, Rejection> {
        if self.current.is_empty() {
            return Err(Rejection::NotFounded);
        }
        let its_own = |known: &CoordinatorInfo| known.incarnation == coordinator.incarnation;
        if let Some(id) = claimed
            && !self.current.get(&id).is_some_and(its_own)
        {
            return Err(Rejection::Removed(id));
        }
        let name = &coordinator.name;
        let (format, ours) = (coordinator.log_format, self.log_format);
        if format < ours {
            return Err(Rejection::LogFormat { name: name.clone(), format, ours });
        }
        if self.shut_out.values().any(|known| known.name == *name) {
            return Err(Rejection::ShutOut(name.clone()));
        }
        let before = self.current.iter().find(|(_, known)| known.name == *name);
        let before = before.map(|(&id, known)| (id, known.incarnation));
        let id = match before {
            Some((id, incarnation)) if incarnation == coordinator.incarnation => id,
            _ if before.is_none() && self.current.len() >= MAX_MEMBERS => {
                return Err(Rejection::TooManyCoordinators(MAX_MEMBERS));
            }
            _ => {
                if let Some((lost, _)) = before {
                    self.leaving.extend(self.current.remove_entry(&lost));
                }
                CoordinatorId(index)
            }
        };
        self.place(index, id, coordinator);
        Ok(EntryOutcome::Coordinator(id))
    }

    fn place(&mut self, index: u64, id: CoordinatorId, coordinator: &CoordinatorInfo) {
        let before = self.current.insert(id, coordinator.clone());
        if before.as_ref() != Some(coordinator) {
            self.revision = index;
        }
        self.raise_format();
    }

    pub(super) fn remove(
        &mut self,
        index: u64,
        id: CoordinatorId,
    ) -> Result<EntryOutcome, Rejection> {
        if !self.current.contains_key(&id) {
            return Err(Rejection::NoCoordinator(id));
        }
        if self.current.len() == 1 {
            return Err(Rejection::LastCoordinator(id));
        }
        self.leaving.extend(self.current.remove_entry(&id));
        self.revision = index;
        Ok(EntryOutcome::Accepted)
    }

    pub(super) fn shut_out(&mut self, id: CoordinatorId) -> Result<EntryOutcome, Rejection> {
        let Some(gone) = self.leaving.remove(&id) else {
            return Err(Rejection::NotRemoved(id));
        };
        // A coordinator that took its place goes by its name.
        if self.current.values().all(|known| known.name != gone.name) {
            self.shut_out.insert(id, gone);
        }
        self.forget_oldest_shut_out();
        self.raise_format();
        Ok(EntryOutcome::Accepted)
    }

    /// Only the survivor is left. The others do not come back: two clusters would lead the workers.
    fn recover(&mut self, index: u64, survivor: CoordinatorId) -> Result<(), Rejection> {
        let Some(own) = self.current.remove(&survivor) else {
            return Err(Rejection::Removed(survivor));
        };
        let mut gone = std::mem::take(&mut self.current);
        gone.append(&mut self.leaving);
        gone.retain(|_, known| known.name != own.name);
        self.shut_out.append(&mut gone);
        self.forget_oldest_shut_out();
        self.current.insert(survivor, own);
        self.revision = index;
        self.raise_format();
        Ok(())
    }

    fn forget_oldest_shut_out(&mut self) {
        while self.shut_out.len() > SHUT_OUT {
            self.shut_out.pop_first();
        }
    }

    /// Raises the format to the newest that all coordinators read, those included whose votes the
    /// log may still need.
    fn raise_format(&mut self) {
        let all = self.current.values().chain(self.leaving.values());
        let least = all.map(|coordinator| coordinator.log_format).min();
        self.log_format = self.log_format.max(least.unwrap_or(self.log_format));
    }
}

impl State {
    /// The coordinators, by id. Empty before the cluster was founded.
    pub fn coordinators(&self) -> Vec<CoordinatorView> {
        views(&self.coordinators.current)
    }

    /// The ids of the coordinators, in order.
    pub fn coordinator_ids(&self) -> impl Iterator<Item = CoordinatorId> {
        self.coordinators.current.keys().copied()
    }

    /// Whether the cluster has been founded.
    pub fn is_founded(&self) -> bool {
        !self.coordinators.current.is_empty()
    }

    /// The ids and names of the [leaving](Self::leaving) coordinators.
    #[cfg(feature = "planted")]
    pub(crate) fn names_leaving(&self) -> impl Iterator<Item = (CoordinatorId, &NodeName)> {
        self.coordinators.leaving.iter().map(|(&id, known)| (id, &known.name))
    }

    /// The coordinators that were removed or replaced, by id, while the log may still need their
    /// word: to agree on going on without them, or to elect a coordinator that knows that it does.
    pub fn leaving(&self) -> Vec<CoordinatorView> {
        views(&self.coordinators.leaving)
    }

    /// The ids and names of the coordinators that were removed and that no other needs any more:
    /// the newest thousand.
    pub fn names_shut_out(&self) -> impl Iterator<Item = (CoordinatorId, &NodeName)> {
        self.coordinators.shut_out.iter().map(|(&id, known)| (id, &known.name))
    }

    /// Grows with every change of the coordinators or their addresses: the index of the entry that
    /// made it.
    pub fn revision(&self) -> u64 {
        self.coordinators.revision
    }

    /// Whether the log has this coordinator, with the address that it says to have.
    pub fn knows(&self, coordinator: &CoordinatorInfo) -> bool {
        self.coordinators.current.values().any(|known| known == coordinator)
    }

    /// Whether the cluster is there for one run, and dismisses its workers afterwards. A cluster
    /// that was not founded in the log is.
    pub fn is_ephemeral(&self) -> bool {
        self.coordinators.ephemeral
    }

    pub(super) fn found(
        &mut self,
        ephemeral: bool,
        founder: &CoordinatorInfo,
        tokens: &[AcceptedToken],
    ) -> Result<EntryOutcome, Rejection> {
        let coordinators = &mut self.coordinators;
        match coordinators.current.get(&FOUNDER) {
            None if coordinators.current.is_empty() => {
                coordinators.ephemeral = ephemeral;
                coordinators.place(self.applied, FOUNDER, founder);
                self.access.accept(tokens);
                Ok(EntryOutcome::Coordinator(FOUNDER))
            }
            Some(known) if known.incarnation == founder.incarnation => {
                coordinators.settle_in(self.applied, None, founder)
            }
            _ => Err(Rejection::Founded),
        }
    }

    pub(super) fn recover(
        &mut self,
        unix_ms: u64,
        survivor: CoordinatorId,
    ) -> Result<EntryOutcome, Rejection> {
        self.coordinators.recover(self.applied, survivor)?;
        self.events.note(unix_ms, EventKind::Recovered { coordinator: survivor });
        Ok(EntryOutcome::Accepted)
    }
}

fn views(coordinators: &CoordinatorMap) -> Vec<CoordinatorView> {
    let views = coordinators.iter().map(|(&id, known)| CoordinatorView {
        id,
        name: known.name.clone(),
        address: known.address,
        api: known.api,
    });
    views.collect()
}
