//! How a coordinator makes itself known: it founds its cluster, or tells the others its address,
//! until the log says the same.

use std::time::Duration;

use everstep_transport::identity::AcceptedToken;
use everstep_transport::protocol::{CoordinatorId, Message};
use everstep_transport::time::Time;

use crate::state::{Command, CoordinatorInfo, State};

/// How long a coordinator waits before it proposes or announces the same again.
pub(super) const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);

/// What a coordinator states about itself, and when it last did.
pub(super) struct Introduction {
    own: CoordinatorInfo,
    /// `Some` if this coordinator founds the cluster: whether the cluster exists for one run only.
    founds: Option<bool>,
    /// For a founder: the tokens that admit nodes from the beginning.
    tokens: Vec<AcceptedToken>,
    /// When this coordinator last told the cluster its address.
    told: Option<Time>,
}

impl Introduction {
    pub(super) fn new(
        own: CoordinatorInfo,
        founds: Option<bool>,
        tokens: Vec<AcceptedToken>,
    ) -> Self {
        Self { own, founds, tokens, told: None }
    }

    pub(super) fn own(&self) -> &CoordinatorInfo {
        &self.own
    }

    /// Whether the log has to hear of this coordinator, and it is time to say so.
    pub(super) fn is_due(&self, now: Time, state: &State) -> bool {
        self.told.is_none_or(|last| now.since(last) >= ANNOUNCE_INTERVAL) && !state.knows(&self.own)
    }

    /// The cluster has heard of this coordinator.
    pub(super) fn told(&mut self, now: Time) {
        self.told = Some(now);
    }

    /// The entry with which this coordinator makes itself known. None if it does not know the log
    /// yet, or was removed.
    pub(super) fn command(&self, state: &State, id: CoordinatorId) -> Option<Command> {
        let coordinators = state.coordinators();
        let coordinator = self.own.clone();
        match self.founds {
            Some(ephemeral) if coordinators.is_empty() => {
                let tokens = self.tokens.clone();
                Some(Command::Found { ephemeral, founder: coordinator, tokens })
            }
            _ if coordinators.iter().any(|view| view.id == id) => {
                Some(Command::Coordinator { id: Some(id), coordinator })
            }
            _ => None,
        }
    }

    /// What it tells another coordinator.
    pub(super) fn message(&self, id: CoordinatorId) -> Message {
        let CoordinatorInfo { incarnation, address, api, log_format, .. } = self.own;
        Message::Join { id: Some(id), incarnation, address, api, log_format }
    }
}
