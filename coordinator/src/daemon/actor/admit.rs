//! Which nodes get certificates, and which lose their links.
//!
//! The use of a token goes through the log, because the coordinators have to agree on it.
//! Everything else this coordinator judges by the entries that it has applied.

use actix::Handler;
use everstep_transport::identity::{Applicant, Identity, Refusal, Role, UnixTime};

use super::CoordinatorActor;
use crate::core::ShellInput;
use crate::daemon::admission::{AdmissionRequest, Subject};

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
                self.admissions.entry((token, node.clone())).or_default().push(answer);
                self.on_input(ShellInput::Admit { token, node });
            }
            None => drop(answer.send(judged)), // an error means that the endpoint's task has ended
        }
    }
}

impl CoordinatorActor {
    /// Whether the applicant may be admitted. True if the log has to count the use of the token.
    fn judge(&self, applicant: &Applicant, now: UnixTime) -> Result<bool, Refusal> {
        self.may_stay(&applicant.identity)?;
        let state = self.node.core().state();
        if !state.coordinators().is_empty() {
            state.tokens().judge(applicant, now)?;
            return Ok(!state.tokens().is_unlimited(&applicant.token));
        }
        // The founder's own tokens hold before its first entry says so. Any other coordinator does
        // not know yet whether they were revoked.
        match self.tokens.count() {
            0 => Err(Refusal::Undecided),
            _ => self.tokens.judge(applicant, now).map(|()| false),
        }
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
        let (shut_out, revoked) = (self.node.shut_out(), state.revocations_revision());
        if (&shut_out, revoked) == (&self.shut_out, self.revoked) {
            return;
        }
        let nodes: std::collections::BTreeSet<_> = state.revoked().cloned().collect();
        self.operator.replace_if(|node| nodes.contains(node));
        (self.shut_out, self.revoked) = (shut_out.clone(), revoked);
        let is_out = move |node: &Identity| {
            node.role == Role::Coordinator && shut_out.contains(&node.name) || nodes.contains(node)
        };
        self.endpoint.admit_only(move |node| !is_out(node));
    }
}
