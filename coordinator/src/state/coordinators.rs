//! The coordinators of the cluster: their names, ids and addresses.
//!
//! The founder has id 1. Every other coordinator has the index of the entry that made it one. An id
//! is never reused, so no process can be taken for a replica that has lost its disk. Raft knows
//! whether a coordinator is a voter of the log, and since when. This module does not.

use std::collections::BTreeMap;

use everstep_transport::identity::AcceptedToken;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CoordinatorId, CoordinatorView};

use super::{CoordinatorInfo, EntryOutcome, State};
use crate::raft::MAX_MEMBERS;

/// The id of the coordinator that founded the cluster.
pub const FOUNDER: CoordinatorId = 1;

/// How many coordinators that were shut out the state remembers.
const SHUT_OUT: usize = 1_000;

/// The coordinators, by id.
pub(super) type Coordinators = BTreeMap<CoordinatorId, CoordinatorInfo>;

impl State {
    /// The coordinators, by id. Empty before the cluster was founded.
    pub fn coordinators(&self) -> Vec<CoordinatorView> {
        views(&self.coordinators)
    }

    /// The coordinators that were removed or replaced, by id, while the log may still need their
    /// word: to agree on going on without them, or to elect a coordinator that knows that it does.
    pub fn leaving(&self) -> Vec<CoordinatorView> {
        views(&self.leaving)
    }

    /// The coordinators that were removed and that no other needs any more, by id: the newest
    /// thousand.
    pub fn those_shut_out(&self) -> Vec<CoordinatorView> {
        views(&self.shut_out)
    }

    /// Grows with every change of the coordinators or their addresses: the index of the entry that
    /// made it.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the log has this coordinator, with the address that it says to have.
    pub fn knows(&self, coordinator: &CoordinatorInfo) -> bool {
        self.coordinators.values().any(|known| known == coordinator)
    }

    /// Whether the cluster is there for one run, and dismisses its workers afterwards. A cluster
    /// that was not founded in the log is.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    pub(super) fn found(
        &mut self,
        ephemeral: bool,
        founder: &CoordinatorInfo,
        tokens: &[AcceptedToken],
    ) -> Result<EntryOutcome, Rejection> {
        match self.coordinators.get(&FOUNDER) {
            None if self.coordinators.is_empty() => {
                self.ephemeral = ephemeral;
                tokens.iter().for_each(|token| self.tokens.accept(token.clone()));
                self.place(FOUNDER, founder);
                Ok(EntryOutcome::Coordinator(FOUNDER))
            }
            Some(known) if known.incarnation == founder.incarnation => {
                self.settle_in(None, founder)
            }
            _ => Err(Rejection::Founded),
        }
    }

    /// The same directory is the same coordinator, perhaps elsewhere. Another directory takes its
    /// place.
    pub(super) fn settle_in(
        &mut self,
        claimed: Option<CoordinatorId>,
        coordinator: &CoordinatorInfo,
    ) -> Result<EntryOutcome, Rejection> {
        if self.coordinators.is_empty() {
            return Err(Rejection::NotFounded);
        }
        let its_own = |known: &CoordinatorInfo| known.incarnation == coordinator.incarnation;
        if let Some(id) = claimed
            && !self.coordinators.get(&id).is_some_and(its_own)
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
        let before = self.coordinators.iter().find(|(_, known)| known.name == *name);
        let before = before.map(|(&id, known)| (id, known.incarnation));
        let id = match before {
            Some((id, incarnation)) if incarnation == coordinator.incarnation => id,
            _ if before.is_none() && self.coordinators.len() >= MAX_MEMBERS => {
                return Err(Rejection::TooManyCoordinators(MAX_MEMBERS));
            }
            _ => {
                if let Some((lost, _)) = before {
                    self.leaving.extend(self.coordinators.remove_entry(&lost));
                }
                self.applied
            }
        };
        self.place(id, coordinator);
        Ok(EntryOutcome::Coordinator(id))
    }

    fn place(&mut self, id: CoordinatorId, coordinator: &CoordinatorInfo) {
        let before = self.coordinators.insert(id, coordinator.clone());
        if before.as_ref() != Some(coordinator) {
            self.revision = self.applied;
        }
        self.raise_format();
    }

    pub(super) fn remove(&mut self, id: CoordinatorId) -> Result<EntryOutcome, Rejection> {
        if !self.coordinators.contains_key(&id) {
            return Err(Rejection::NoCoordinator(id));
        }
        if self.coordinators.len() == 1 {
            return Err(Rejection::LastCoordinator(id));
        }
        self.leaving.extend(self.coordinators.remove_entry(&id));
        self.revision = self.applied;
        Ok(EntryOutcome::Accepted)
    }

    pub(super) fn shut_out(&mut self, id: CoordinatorId) -> Result<EntryOutcome, Rejection> {
        let Some(gone) = self.leaving.remove(&id) else {
            return Err(Rejection::NotRemoved(id));
        };
        // A coordinator that took its place goes by its name.
        if self.coordinators.values().all(|known| known.name != gone.name) {
            self.shut_out.insert(id, gone);
        }
        self.forget_oldest_shut_out();
        self.raise_format();
        Ok(EntryOutcome::Accepted)
    }

    /// Only the survivor is left. The others do not come back: two clusters would lead the workers.
    pub(super) fn recover(
        &mut self,
        unix_ms: u64,
        survivor: CoordinatorId,
    ) -> Result<EntryOutcome, Rejection> {
        let Some(own) = self.coordinators.remove(&survivor) else {
            return Err(Rejection::Removed(survivor));
        };
        let mut gone = std::mem::take(&mut self.coordinators);
        gone.append(&mut self.leaving);
        gone.retain(|_, known| known.name != own.name);
        self.shut_out.append(&mut gone);
        self.forget_oldest_shut_out();
        self.coordinators.insert(survivor, own);
        self.revision = self.applied;
        self.raise_format();
        self.note(unix_ms, EventKind::Recovered { coordinator: survivor });
        Ok(EntryOutcome::Accepted)
    }

    fn forget_oldest_shut_out(&mut self) {
        while self.shut_out.len() > SHUT_OUT {
            self.shut_out.pop_first();
        }
    }
}

fn views(coordinators: &Coordinators) -> Vec<CoordinatorView> {
    let views = coordinators.iter().map(|(&id, known)| CoordinatorView {
        id,
        name: known.name.clone(),
        address: known.address,
        api: known.api,
    });
    views.collect()
}
