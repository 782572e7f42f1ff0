//! Asking whether this coordinator still leads, before it says what cannot be taken back.
//!
//! A leader that was stopped, or cut off from the others, does not know that it was deposed, and
//! that the log has gone on without it: a worker that it does not know may be a member by now. So
//! before it tells a worker, from its state alone, that it is evicted or may go, and before it
//! takes the silence of many workers for theirs and not its own, it has a majority confirm that it
//! leads, and its state come to what was agreed by then. One confirmation serves all who were
//! waiting when it was asked for.

use std::collections::BTreeSet;

use everstep_transport::time::Time;

use super::links::Phase;
use super::{Core, Effect, LinkId};

/// What waits for a confirmation.
#[derive(Debug, Default)]
struct Questions {
    /// Workers that have said Hello, and wait for a word that hurts.
    greeted: BTreeSet<LinkId>,
    /// Many workers are silent.
    silence: bool,
}

#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// The newest ticket.
    ticket: u64,
    /// What the newest ticket is for, until it is answered.
    asked: Option<Questions>,
    /// What came up since.
    waiting: Questions,
}

impl Confirmations {
    /// Who says on this link to be another one than before waits anew: what is being confirmed may
    /// be older than that.
    pub(super) fn withdraw(&mut self, link: LinkId) {
        self.waiting.greeted.remove(&link);
        if let Some(asked) = &mut self.asked {
            asked.greeted.remove(&link);
        }
    }

    /// Nobody waits any more. A ticket is never given twice.
    pub(super) fn forget(&mut self) {
        (self.asked, self.waiting) = (None, Questions::default());
    }
}

impl Core {
    /// A worker that has said Hello would hear a word that hurts.
    pub(super) fn confirm_word(&mut self, link: LinkId) {
        self.confirmations.waiting.greeted.insert(link);
        self.ask_for_confirmation();
    }

    /// Many workers are silent at once.
    pub(super) fn confirm_silence(&mut self) {
        let asked = self.confirmations.asked.as_ref().is_some_and(|asked| asked.silence);
        self.confirmations.waiting.silence |= !asked;
        self.ask_for_confirmation();
    }

    /// At most one confirmation is under way.
    pub(super) fn ask_for_confirmation(&mut self) {
        let Confirmations { ticket, asked, waiting } = &mut self.confirmations;
        if asked.is_none() && (waiting.silence || !waiting.greeted.is_empty()) {
            *ticket += 1;
            *asked = Some(std::mem::take(waiting));
            self.effects.push_back(Effect::Confirm { ticket: *ticket });
        }
    }

    /// This coordinator led when it asked, and knows what was agreed by then.
    pub(super) fn confirmed(&mut self, now: Time, ticket: u64) {
        let Some(Questions { greeted, silence }) = self.answered(ticket) else { return };
        for link in greeted {
            if let Some(Phase::Greeted(worker)) = self.links.find(link).map(|link| link.phase) {
                self.receive(now, link, worker, true);
            }
        }
        if silence {
            self.suspect_silent(now);
        }
        self.ask_for_confirmation();
    }

    /// Perhaps it leads, perhaps not: it asks again at the next tick.
    pub(super) fn unconfirmed(&mut self, ticket: u64) {
        if let Some(mut again) = self.answered(ticket) {
            let waiting = &mut self.confirmations.waiting;
            waiting.greeted.append(&mut again.greeted);
            waiting.silence |= again.silence;
        }
    }

    fn answered(&mut self, ticket: u64) -> Option<Questions> {
        let current = ticket == self.confirmations.ticket && self.leader().is_some();
        if current { self.confirmations.asked.take() } else { None }
    }
}
