//! The checkpoint that a worker reads whole, since an operator wants to know whether it is damaged.
//!
//! An operator asks before it lets the run go back, and asks again until there is a verdict. The
//! leader orders one worker to read, and passes on what that worker says. Another worker gets the
//! order when the link of the first is gone. All of this is the leader's own: the next leader
//! begins anew when the operator asks it. Damage goes into the log, as if a restore had found it.

use std::time::Duration;

use everstep_transport::protocol::{CheckpointId, Message, Step, Verification, WorkerId};
use everstep_transport::time::Time;

use crate::core::roster::Roster;
use crate::core::workers::bounded;
use crate::core::{Core, LinkId};

/// How long a verdict counts. An operator that asks later has the checkpoint read again.
const VERDICT_VALID: Duration = Duration::from_secs(10);
/// A reader that has said nothing for this long gets the order again.
const ORDER_REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// An operator that has not asked for this long wants no verdict any more.
const ASKER_GONE_AFTER: Duration = Duration::from_secs(5);

/// The newest checkpoint that a worker was ordered to read.
#[derive(Debug)]
pub(super) struct OrderedVerification {
    id: CheckpointId,
    reader: WorkerId,
    /// When an operator asked last.
    asked: Time,
    /// When the reader got the order, or said something, last.
    heard: Time,
    state: Verification,
}

impl OrderedVerification {
    fn is_reading(&self) -> bool {
        matches!(self.state, Verification::Reading { .. })
    }

    /// Whether an operator still waits for the verdict on this checkpoint.
    fn is_awaited(&self, now: Time) -> bool {
        self.is_reading() && now.since(self.asked) < ASKER_GONE_AFTER
    }

    /// Whether a new question is answered by what is known already.
    fn answers(&self, roster: Roster<'_>, id: CheckpointId) -> bool {
        let counts = match self.is_reading() {
            true => roster.is_linked(self.reader) && !roster.detector.is_suspected(self.reader),
            false => roster.now.since(self.heard) < VERDICT_VALID,
        };
        self.id == id && counts
    }
}

impl Core {
    /// An operator asks whether the checkpoint of a step is damaged.
    pub(in crate::core) fn ask_verification(&mut self, now: Time, from: LinkId, step: Step) {
        if self.leader().is_some() {
            let (id, state) = self.verification(now, step);
            self.outbox.send(from, Message::Verification { id, state });
        }
    }

    /// What is known of the checkpoint of this step. Has a worker read it if need be.
    fn verification(&mut self, now: Time, step: Step) -> (CheckpointId, Verification) {
        let found = self.state.checkpoints().of_step(step);
        let Some(listed) = found.filter(|_| self.running()) else {
            return (CheckpointId { step, ..CheckpointId::default() }, Verification::NotListed);
        };
        let id = listed.id();
        if let Some(damage) = &listed.damage {
            return (id, Verification::Damaged(damage.clone()));
        }
        let known = self.checkpoints.verification.as_ref();
        let state = match known {
            Some(known) if known.id != id && known.is_awaited(now) => {
                let other = known.id.step;
                let reason = format!(
                    "a worker reads the checkpoint of step {other} first, for another operator. \
                     Ask again when it is done"
                );
                return (id, Verification::Unread(reason));
            }
            Some(known) if known.answers(self.roster(now), id) => known.state.clone(),
            _ => self.order_verification(now, id),
        };
        self.repeat_verification(now);
        (id, state)
    }

    /// Orders a worker to read a checkpoint.
    fn order_verification(&mut self, now: Time, id: CheckpointId) -> Verification {
        let Some(reader) = self.reader(now) else { return Verification::NoReader };
        let state = Verification::Reading { bytes: 0, total: 0 };
        let order = OrderedVerification { id, reader, asked: now, heard: now, state };
        let state = order.state.clone();
        self.checkpoints.verification = Some(order);
        self.send_verification_order();
        state
    }

    /// A worker that can read: one that is no member, or else the member of the highest rank, since
    /// the first ones have more to do.
    fn reader(&self, now: Time) -> Option<WorkerId> {
        let roster = self.roster(now);
        let beside = self.state.present().map(|(worker, _)| worker);
        let beside = beside.filter(|worker| !self.state.is_member(*worker));
        let members: Vec<WorkerId> = self.state.members().collect();
        let can_read =
            |worker: &WorkerId| roster.is_linked(*worker) && !roster.detector.is_suspected(*worker);
        beside.chain(members.into_iter().rev()).find(can_read)
    }

    /// An operator has asked. A reader that has long been silent may not have got the order, or may
    /// have forgotten it.
    fn repeat_verification(&mut self, now: Time) {
        let Some(order) = &mut self.checkpoints.verification else { return };
        order.asked = now;
        let repeats = order.is_reading() && now.since(order.heard) >= ORDER_REPEAT_INTERVAL;
        if repeats {
            order.heard = now;
            self.send_verification_order();
        }
    }

    fn send_verification_order(&mut self) {
        let order = self.checkpoints.verification.as_ref();
        let found = order.and_then(|it| Some((it.id, self.links.of_registered(it.reader)?)));
        if let (Some(term), Some((id, link))) = (self.leader(), found) {
            self.outbox.send(link, Message::Verify { term, id });
        }
    }

    /// A worker says how its reading of a checkpoint stands.
    pub(in crate::core) fn on_verification(
        &mut self,
        now: Time,
        worker: WorkerId,
        id: CheckpointId,
        state: Verification,
    ) {
        let of = |order: &&mut OrderedVerification| {
            order.id == id && order.reader == worker && order.is_reading()
        };
        let Some(order) = self.checkpoints.verification.as_mut().filter(of) else {
            return self.links.ignore();
        };
        order.state = match state {
            Verification::Damaged(why) => Verification::Damaged(bounded(&why)),
            Verification::Unread(why) => Verification::Unread(bounded(&why)),
            // Only a leader says these.
            Verification::NotListed | Verification::NoReader => return self.links.ignore(),
            state => state,
        };
        order.heard = now;
        if let Verification::Damaged(reason) = order.state.clone() {
            self.note_damage(now, id, reason);
        }
    }
}
