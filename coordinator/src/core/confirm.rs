//! Confirms that this coordinator still leads, before it says what it cannot take back, or what
//! others rely on.
//!
//! A leader that was stopped, or cut off from the others, does not know that another one leads, and
//! that the log has gone on without it. A worker that it does not know may be a member by now. So
//! it has a majority confirm that it leads, and applies all that was agreed by then, in three
//! cases. It does so before it tells a worker, from its state alone, that the worker is evicted or
//! may go. It does so before it blames many silent workers, and not itself, for their silence. And
//! it does so before it answers a reader (`reads.rs`). One confirmation serves all questions that
//! waited when it began.

use std::collections::BTreeSet;

use everstep_transport::time::Time;

use super::leadership::Leadership;
use super::links::PeerPhase;
use super::outbox::Outbox;
use super::reads::WaitingReads;
use super::{Core, CoreEffect, LinkId};

/// The questions that wait for a confirmation.
#[derive(Debug, Default)]
struct Questions {
    /// Workers that have said Hello, and wait for an eviction or a dismissal.
    greeted: BTreeSet<LinkId>,
    /// Many workers are silent.
    mass_silence: bool,
    reads: WaitingReads,
}

impl Questions {
    fn are_none(&self) -> bool {
        self.greeted.is_empty() && !self.mass_silence && self.reads.is_empty()
    }

    fn forget_workers(&mut self) {
        self.greeted.clear();
        self.mass_silence = false;
    }
}

#[derive(Debug, Default)]
pub(super) struct Confirmations {
    ticket: u64,
    /// The questions of the newest ticket, until its answer comes.
    asked: Option<Questions>,
    /// The questions that came up since.
    waiting: Questions,
}

impl Confirmations {
    /// A peer with another Hello on this link waits anew: the confirmation under way may be older
    /// than that Hello.
    pub(super) fn withdraw(&mut self, link: LinkId) {
        self.waiting.greeted.remove(&link);
        if let Some(asked) = &mut self.asked {
            asked.greeted.remove(&link);
        }
    }

    /// Drops the questions of workers.
    pub(super) fn forget_workers(&mut self) {
        self.asked.iter_mut().chain([&mut self.waiting]).for_each(Questions::forget_workers);
    }

    /// No answer comes to a question that this coordinator asked as a leader. Its number is never
    /// used again.
    pub(super) fn give_up(&mut self) {
        let asked = self.asked.take().unwrap_or_default();
        self.waiting.reads.append(asked.reads);
        self.waiting.reads.forget_operators();
    }

    /// Drops the reads of a link that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        for questions in self.asked.iter_mut().chain([&mut self.waiting]) {
            questions.reads.forget(link);
        }
    }

    /// The reads that wait for the next confirmation.
    pub(super) fn reads(&mut self) -> &mut WaitingReads {
        &mut self.waiting.reads
    }
}

impl Leadership {
    /// A worker that has said Hello is to hear that it is evicted or may go: confirms that first.
    pub(super) fn confirm_word(&mut self, link: LinkId, outbox: &mut Outbox) {
        self.confirmations.waiting.greeted.insert(link);
        self.ask_for_confirmation(outbox);
    }

    /// Many workers are silent at once.
    pub(super) fn confirm_silence(&mut self, outbox: &mut Outbox) {
        let asked = self.confirmations.asked.as_ref().is_some_and(|asked| asked.mass_silence);
        self.confirmations.waiting.mass_silence |= !asked;
        self.ask_for_confirmation(outbox);
    }

    /// At most one confirmation is under way, and none before this coordinator leads.
    pub(super) fn ask_for_confirmation(&mut self, outbox: &mut Outbox) {
        let leads = self.term().is_some();
        let Confirmations { ticket, asked, waiting } = &mut self.confirmations;
        if leads && asked.is_none() && !waiting.are_none() {
            *ticket += 1;
            *asked = Some(std::mem::take(waiting));
            outbox.push(CoreEffect::Confirm { ticket: *ticket });
        }
    }

    /// This coordinator may lead or not: it asks again at the next tick.
    pub(super) fn unconfirmed(&mut self, ticket: u64) {
        if let Some(mut again) = self.answered(ticket) {
            let waiting = &mut self.confirmations.waiting;
            waiting.greeted.append(&mut again.greeted);
            waiting.mass_silence |= again.mass_silence;
            waiting.reads.append(again.reads);
        }
    }

    fn answered(&mut self, ticket: u64) -> Option<Questions> {
        let current = ticket == self.confirmations.ticket && self.term().is_some();
        if current { self.confirmations.asked.take() } else { None }
    }
}

impl Core {
    /// This coordinator led when it asked, and has applied all that was agreed by then.
    pub(super) fn confirmed(&mut self, now: Time, ticket: u64) {
        let Some(Questions { greeted, mass_silence, reads }) = self.leadership.answered(ticket)
        else {
            return;
        };
        self.answer_reads(now, reads);
        for link in greeted {
            if let Some(PeerPhase::Greeted(worker)) = self.links.find(link).map(|link| link.phase) {
                self.receive(now, link, worker, true);
            }
        }
        if mass_silence {
            self.suspect_silent(now);
        }
        self.leadership.ask_for_confirmation(&mut self.outbox);
    }
}
