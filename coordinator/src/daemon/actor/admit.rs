//! Which nodes get certificates, and which lose their links.
//!
//! The use of a token goes through the log, because the coordinators have to agree on it.
//! Everything else this coordinator judges by the entries that it has applied.

use std::collections::{BTreeMap, BTreeSet};

use actix::Handler;
use everstep_transport::identity::{
    AcceptedTokens, Applicant, Identity, Refusal, TokenId, UnixTime,
};
use everstep_transport::protocol::{ClusterKeys, NodeName};
use tokio::sync::{mpsc, oneshot};

use super::CoordinatorActor;
use crate::core::ShellInput;
use crate::daemon::admission::{AdmissionRequest, Subject};
use crate::daemon::files::OperatorFolder;

/// The admissions that the log still has to agree on, with the tasks that wait for each.
type WaitingApplicants = BTreeMap<(TokenId, NodeName), Vec<oneshot::Sender<Result<(), Refusal>>>>;

/// The parts of admission that are no part of the log.
pub(super) struct Admissions {
    pub(super) keys: ClusterKeys,
    operator: OperatorFolder,
    /// The tokens that admit nodes before the cluster is founded.
    tokens: AcceptedTokens,
    waiting: WaitingApplicants,
    /// The requests of the process's endpoint, until the actor runs.
    pub(super) applicants: Option<mpsc::Receiver<AdmissionRequest>>,
}

impl Admissions {
    pub(super) fn new(
        keys: ClusterKeys,
        operator: OperatorFolder,
        tokens: AcceptedTokens,
        applicants: mpsc::Receiver<AdmissionRequest>,
    ) -> Self {
        let (waiting, applicants) = (BTreeMap::new(), Some(applicants));
        Self { keys, operator, tokens, waiting, applicants }
    }

    /// The log has spent a use of the token, or refused it.
    pub(super) fn answer(&mut self, token: TokenId, node: NodeName, refusal: Option<Refusal>) {
        for answer in self.waiting.remove(&(token, node)).unwrap_or_default() {
            let verdict = refusal.clone().map_or(Ok(()), Err);
            let _ = answer.send(verdict); // an error means that no node waits any more
        }
    }

    /// Judges an applicant by the founder's own tokens: they hold before its first entry says so.
    /// Any other coordinator does not know yet whether they were revoked.
    fn judge_early(&self, applicant: &Applicant, now: UnixTime) -> Result<(), Refusal> {
        match self.tokens.count() {
            0 => Err(Refusal::Undecided),
            _ => self.tokens.judge(applicant, now),
        }
    }
}

impl Handler<AdmissionRequest> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, admission: AdmissionRequest, _: &mut Self::Context) {
        let AdmissionRequest { subject, now, answer } = admission;
        let (judged, applicant) = match subject {
            Subject::Node(node) => (self.may_stay(&node), None),
            Subject::Applicant(applicant) => match self.judge(&applicant, now) {
                Ok(true) => (Ok(()), Some(applicant)),
                judged => (judged.map(drop), None),
            },
        };
        match applicant {
            Some(applicant) => {
                let (token, node) = (applicant.token, applicant.identity.name);
                let waiting = &mut self.admissions.waiting;
                waiting.entry((token, node.clone())).or_default().push(answer);
                self.on_input(ShellInput::Admit { token, node });
            }
            None => drop(answer.send(judged)), // an error means that the endpoint's task has ended
        }
    }
}

impl CoordinatorActor {
    /// Whether the applicant may be admitted. True if the log has to count the use of the token.
    ///
    /// A worker of the run that was out of reach until its certificate expired is still the same
    /// node. It may hold a last copy, and its token may have expired or be forgotten by now.
    fn judge(&self, applicant: &Applicant, now: UnixTime) -> Result<bool, Refusal> {
        self.may_stay(&applicant.identity)?;
        let state = self.node.core().state();
        if applicant.is_certified() && state.has_worker_of(&applicant.identity) {
            return Ok(false);
        }
        if state.is_founded() {
            state.tokens().judge(applicant, now)?;
            return Ok(!state.tokens().is_unlimited(&applicant.token));
        }
        self.admissions.judge_early(applicant, now).map(|()| false)
    }

    fn may_stay(&self, node: &Identity) -> Result<(), Refusal> {
        match self.node.core().state().is_revoked(node) {
            true => Err(Refusal::Removed),
            false => Ok(()),
        }
    }

    /// Closes the links of removed coordinators and of revoked nodes, and admits none of them any
    /// more. A revoked operator's folder here gets credentials of another name.
    pub(super) fn expel(&mut self) {
        let state = self.node.core().state();
        let shut_out: Vec<_> = self.node.shut_out().cloned().collect();
        let revoked = state.revocations_revision();
        if self.peers.is_allow_list_old(&shut_out, revoked) {
            let nodes: BTreeSet<_> = state.revoked().cloned().collect();
            self.admissions.operator.replace_if(|node| nodes.contains(node));
            self.peers.admit_only_others(shut_out, revoked, nodes);
        }
    }
}
