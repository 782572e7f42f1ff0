//! What is read. Only a coordinator that leads, and has that confirmed, answers a reader. So no
//! reader is told less than an earlier reader was.
//!
//! Operators read on their links, each at most one thing of a kind at a time: an operator that asks
//! again before the answer means the newer question. The shell reads for others. It gives each look
//! a number, and the core tells it up to which number its looks may be answered.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::{Message, Question, Reply, RunId, Step};
use everstep_transport::time::Time;

use super::{Core, Effect, LinkId};

/// What a watcher has: lines of this run up to this step, and events up to this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) run: Option<RunId>,
    pub(super) step: Step,
    pub(super) event: u64,
}

/// Reads that wait for a confirmation.
#[derive(Debug, Default)]
pub(super) struct Reads {
    watches: BTreeMap<LinkId, Seen>,
    questions: BTreeSet<(LinkId, Question)>,
    /// The newest look of the shell.
    look: Option<u64>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty() && self.questions.is_empty() && self.look.is_none()
    }

    /// Drops the reads of a link that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.watches.remove(&link);
        self.questions.retain(|(other, _)| *other != link);
    }

    /// Operators ask another coordinator from now on. The shell waits.
    pub(super) fn forget_operators(&mut self) {
        *self = Self { look: self.look, ..Self::default() };
    }

    /// Puts older reads before these.
    pub(super) fn append(&mut self, mut older: Self) {
        older.watches.append(&mut self.watches);
        older.questions.append(&mut self.questions);
        older.look = older.look.max(self.look);
        *self = older;
    }
}

impl Core {
    /// An operator asks for what is new.
    pub(super) fn watch(&mut self, from: LinkId, seen: Seen) {
        self.confirmations.reads().watches.insert(from, seen);
        self.ask_for_confirmation();
    }

    /// An operator asks a question.
    pub(super) fn ask(&mut self, from: LinkId, question: Question) {
        self.confirmations.reads().questions.insert((from, question));
        self.ask_for_confirmation();
    }

    /// The shell reads. Its numbers grow.
    pub(super) fn look(&mut self, number: u64) {
        self.confirmations.reads().look = Some(number);
        self.ask_for_confirmation();
    }

    /// Answers reads: this coordinator knows all that was agreed when they were asked.
    pub(super) fn answer_reads(&mut self, now: Time, reads: Reads) {
        for (link, seen) in reads.watches {
            self.update(now, link, seen);
        }
        for (link, question) in reads.questions {
            let reply = match question {
                Question::Coordinators => {
                    self.effects.push_back(Effect::Describe { to: link });
                    continue;
                }
                Question::Tokens => Reply::Tokens(self.state.tokens().views()),
                Question::Runs => Reply::Runs(self.runs(now)),
                Question::Revoked => Reply::Revoked(self.state.revoked_views()),
            };
            self.send(link, Message::Told(reply));
        }
        self.effects.extend(reads.look.map(Effect::Looked));
    }
}
