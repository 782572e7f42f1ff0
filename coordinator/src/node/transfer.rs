//! Hands the lead to another coordinator: for an operator, at the end of this process, or because
//! this disk stands still.
//!
//! A transfer does not go through the log. The leader sends the heir all of its log and asks it to
//! begin an election at once. If that fails, the leader gives the transfer up. The operator gets
//! the result in either case. Only one transfer is under way at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CoordinatorId, Message, RequestId};
use everstep_transport::time::Time;

use super::Node;
use crate::core::{LinkId, ShellEffect};
use crate::raft::ReplicaId;

/// How long a transfer may take: some round trips, and the part of the log that the heir lacks.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

/// A transfer that an operator waits for.
#[derive(Debug)]
pub(super) struct Transfer {
    asked_by: LinkId,
    id: RequestId,
    to: ReplicaId,
    began: Time,
}

/// The handing over of leadership that this coordinator wants or is asked for.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// The transfer of leadership that an operator waits for.
    transfer: Option<Transfer>,
    /// Set when the process ends: how often this leader has asked each of the others to lead.
    asked_to_lead: Option<BTreeMap<ReplicaId, u32>>,
}

impl Handover {
    /// The next heir that an ending process asks to lead: it asks each as often as the others.
    fn next_heir(&mut self, heirs: Vec<ReplicaId>) -> Option<ReplicaId> {
        let asked = self.asked_to_lead.as_mut()?;
        let heir = heirs.into_iter().min_by_key(|heir| asked.get(heir).copied())?;
        *asked.entry(heir).or_default() += 1;
        Some(heir)
    }
}

impl Node {
    /// An operator asks for another leader, or for this one.
    pub(super) fn transfer(
        &mut self,
        now: Time,
        asked_by: LinkId,
        id: RequestId,
        to: Option<CoordinatorId>,
    ) {
        let own = self.peers.own();
        if let Some(same) = self.handover.transfer.as_mut().filter(|transfer| transfer.id == id) {
            same.asked_by = asked_by; // the operator asks again, perhaps on another link
            return;
        }
        let answer = match to.map(ReplicaId::from) {
            _ if self.handover.transfer.is_some() => Err(Rejection::OtherTransfer),
            Some(to) if to == own => Ok(()),
            to => match self.begin_transfer(now, to) {
                Ok(to) => {
                    self.handover.transfer = Some(Transfer { asked_by, id, to, began: now });
                    return;
                }
                Err(reason) => Err(reason),
            },
        };
        self.answer_transfer(asked_by, id, answer.err());
    }

    fn begin_transfer(&mut self, now: Time, to: Option<ReplicaId>) -> Result<ReplicaId, Rejection> {
        let heirs = self.heirs(now);
        let to = match to {
            None => heirs.first().copied().ok_or(Rejection::NoHeir)?,
            Some(to) if !self.replica.members().voters.contains(&to) => {
                return Err(match self.replica.members().learners.contains(&to) {
                    true => Rejection::NoVote(to.into()),
                    false => Rejection::NoCoordinator(to.into()),
                });
            }
            Some(to) if !heirs.contains(&to) => {
                return Err(Rejection::NotHeard(to.into()));
            }
            Some(to) => to,
        };
        self.replica.transfer(to).map_err(|_| Rejection::NotNow)?;
        Ok(to)
    }

    /// The coordinators that could lead instead. Those with most of the log come first.
    pub(super) fn heirs(&self, now: Time) -> Vec<ReplicaId> {
        let (own, voters) = (self.peers.own(), self.replica.members().voters.iter());
        let is_heir = |id: &ReplicaId| *id != own && self.silent_since(now, *id).is_none();
        let mut heirs: Vec<ReplicaId> = voters.copied().filter(is_heir).collect();
        heirs.sort_by_key(|id| std::cmp::Reverse(self.replica.matched(*id)));
        heirs
    }

    /// This process ends. If it leads, another coordinator should lead. It leaves even if that
    /// fails.
    pub(super) fn hand_over(&mut self, now: Time) {
        self.handover.asked_to_lead.get_or_insert_default();
        self.seek_heir(now);
    }

    /// An heir that was asked and does not come to lead may be dead without this leader knowing.
    /// Then it is the next heir's turn.
    pub(super) fn seek_heir(&mut self, now: Time) {
        if self.handover.asked_to_lead.is_none() || self.replica.is_handing_over() {
            return;
        }
        let heirs = self.heirs(now);
        if let Some(heir) = self.handover.next_heir(heirs) {
            let _ = self.replica.transfer(heir); // refused if this coordinator no longer leads
        }
    }

    /// A leader with a disk that stands still hands over to an heir with more of the log on its own
    /// disk.
    pub(super) fn yield_to_faster(&mut self, now: Time) {
        let own = self.replica.matched(self.peers.own());
        if self.writes.stand_still(now)
            && let Some(heir) = self.heirs(now).first()
            && self.replica.matched(*heir) > own
        {
            let _ = self.begin_transfer(now, None); // refused while a transfer is under way
        }
    }

    /// A new leader is known. An operator that waits for a transfer gets the result.
    pub(super) fn transferred(&mut self, leader: Option<ReplicaId>) {
        let Some(leader) = leader else { return };
        if let Some(Transfer { asked_by, id, to, .. }) = self.handover.transfer.take() {
            let other = || Rejection::OtherLeader(leader.into());
            self.answer_transfer(asked_by, id, (leader != to).then(other));
        }
    }

    /// Gives up a transfer that takes too long.
    pub(super) fn end_transfer(&mut self, now: Time) {
        let is_over = |transfer: &mut Transfer| now.since(transfer.began) > TRANSFER_TIMEOUT;
        if let Some(Transfer { asked_by, id, to, .. }) = self.handover.transfer.take_if(is_over) {
            self.answer_transfer(asked_by, id, Some(Rejection::NotInTime(to.into())));
        }
    }

    fn answer_transfer(&mut self, to: LinkId, id: RequestId, refusal: Option<Rejection>) {
        let message = Message::Answer { id, refusal, run: None };
        self.push(ShellEffect::Send { to, message });
    }
}
