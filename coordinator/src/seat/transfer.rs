//! Hands the lead to another coordinator: for an operator, at the end of this process, or because
//! this disk stands still.
//!
//! A transfer does not go through the log. The leader sends the heir all of its log and asks it to
//! begin an election at once. If that fails, the leader gives the transfer up. The operator gets
//! the result in either case. Only one transfer is under way at a time.

use std::time::Duration;

use everstep_transport::protocol::{CoordinatorId, Message, RequestId};
use everstep_transport::time::Time;

use super::{Effect, Seat};
use crate::core::LinkId;
use crate::raft::ReplicaId;

/// How long a transfer may take: some round trips, and the part of the log that the heir lacks.
const PATIENCE: Duration = Duration::from_secs(2);

/// A transfer that an operator waits for.
#[derive(Debug)]
pub(super) struct Transfer {
    asked_by: LinkId,
    id: RequestId,
    to: ReplicaId,
    began: Time,
}

impl Seat {
    /// An operator asks for another leader, or for this one.
    pub(super) fn transfer(
        &mut self,
        now: Time,
        asked_by: LinkId,
        id: RequestId,
        to: Option<CoordinatorId>,
    ) {
        let own = self.peers.own();
        if let Some(same) = self.transfer.as_mut().filter(|transfer| transfer.id == id) {
            same.asked_by = asked_by; // the operator asks again, perhaps on another link
            return;
        }
        let answer = match to.map(ReplicaId) {
            _ if self.transfer.is_some() => {
                Err("another transfer is under way; wait for it".into())
            }
            Some(to) if to == own => Ok(()),
            to => match self.begin_transfer(now, to) {
                Ok(to) => {
                    self.transfer = Some(Transfer { asked_by, id, to, began: now });
                    return;
                }
                Err(reason) => Err(reason),
            },
        };
        self.answer_transfer(asked_by, id, answer.err());
    }

    fn begin_transfer(&mut self, now: Time, to: Option<ReplicaId>) -> Result<ReplicaId, String> {
        let heirs = self.heirs(now);
        let to = match to {
            None => heirs.first().copied().ok_or("no other coordinator with a vote is heard")?,
            Some(to) if !self.replica.members().voters.contains(&to) => {
                return Err(format!("coordinator {} has no vote, or is none of them", to.0));
            }
            Some(to) if !heirs.contains(&to) => {
                return Err(format!("coordinator {} is not heard", to.0));
            }
            Some(to) => to,
        };
        self.replica.transfer(to).map_err(|refused| refused.to_string())?;
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
        self.asked_to_lead.get_or_insert_default();
        self.seek_heir(now);
    }

    /// An heir that was asked and does not come to lead may be dead without this leader knowing.
    /// Then it is the next heir's turn.
    pub(super) fn seek_heir(&mut self, now: Time) {
        if self.asked_to_lead.is_none() || self.replica.is_handing_over() {
            return;
        }
        let heirs = self.heirs(now).into_iter();
        if let Some(asked) = &mut self.asked_to_lead
            && let Some(heir) = heirs.min_by_key(|heir| asked.get(heir).copied())
        {
            *asked.entry(heir).or_default() += 1;
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
        if let Some(Transfer { asked_by, id, to, .. }) = self.transfer.take() {
            let other = || format!("coordinator {} has come to lead instead", leader.0);
            self.answer_transfer(asked_by, id, (leader != to).then(other));
        }
    }

    /// Gives up a transfer that takes too long.
    pub(super) fn end_transfer(&mut self, now: Time) {
        let is_over = |transfer: &mut Transfer| now.since(transfer.began) > PATIENCE;
        if let Some(Transfer { asked_by, id, to, .. }) = self.transfer.take_if(is_over) {
            let reason = format!("coordinator {} did not come to lead in time; ask again", to.0);
            self.answer_transfer(asked_by, id, Some(reason));
        }
    }

    fn answer_transfer(&mut self, to: LinkId, id: RequestId, refusal: Option<String>) {
        let message = Message::Answer { id, refusal, run: None };
        self.effects.push_back(Effect::Send { to, message });
    }
}
