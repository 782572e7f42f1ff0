//! The claim of this worker's cluster to the run's store.
//!
//! Each worker asks for itself, and remembers nothing that the store does not have: see
//! [`everstep_checkpoint::claims`].

use everstep_checkpoint::claims::{self, Claim, Standing};
use everstep_checkpoint::store::{ErrorKind, Store, StoreError};

/// Whether a worker may write.
pub(super) enum Permit {
    /// It may. The claim of its cluster has this number.
    May(u64),
    /// It must not, for this reason.
    MayNot(String),
}

/// Whether this worker's cluster may write into the store.
pub(super) struct ClusterClaim {
    claim: Claim,
    /// Its number, as this process has learned it.
    known: Option<u64>,
    /// A planted bug: the cluster writes whether another one has claimed the store since or not.
    #[cfg(feature = "planted")]
    pub(super) is_ignored: bool,
}

impl ClusterClaim {
    pub(super) fn new(claim: Claim) -> Self {
        Self {
            claim,
            known: None,
            #[cfg(feature = "planted")]
            is_ignored: false,
        }
    }

    /// Looks whether the cluster could write, and claims nothing.
    pub(super) fn look(&self, store: &dyn Store) -> Result<(), StoreError> {
        claims::look(store, &self.claim)
    }

    /// Lists the store's claims, and claims it if the cluster has no claim there yet.
    pub(super) fn ask(&mut self, store: &dyn Store) -> Result<Permit, StoreError> {
        let listing = store.list_claims()?;
        match claims::hold(store, &listing, &self.claim, self.known)? {
            Standing::Holds(number) => {
                self.known = Some(number);
                Ok(Permit::May(number))
            }
            #[cfg(feature = "planted")]
            Standing::Outdone(_) if self.is_ignored => Ok(Permit::May(self.known.unwrap_or(1))),
            Standing::Outdone(reason) => Ok(Permit::MayNot(reason)),
        }
    }

    /// Claims the store, if it can be claimed. From now on a cluster that had it before writes
    /// nothing. A cluster that may not write may still read.
    pub(super) fn ask_to_read(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        match self.ask(store) {
            Err(error) if error.kind == ErrorKind::Retry => Err(error),
            _ => Ok(()),
        }
    }

    /// As [`ClusterClaim::ask`], for a job that waits until the worker may write.
    pub(super) fn insist(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        match self.ask(store)? {
            Permit::May(_) => Ok(()),
            Permit::MayNot(reason) => Err(StoreError::refuse(store.place(), reason)),
        }
    }
}
