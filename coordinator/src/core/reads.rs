//! What is read. Only a coordinator that leads, and has that confirmed, answers a reader. So no
//! reader is told less than an earlier reader was.
//!
//! Operators read on their links, each at most one thing of a kind at a time: an operator that asks
//! again before the answer means the newer question. The shell reads for others. It gives each read
//! a number, and the core tells it up to which number its reads may be answered.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::{Message, Question, Reply, RunId, Step};
use everstep_transport::time::Time;

use super::{Core, CoreEffect, LinkId, ShellEffect};

/// What a watcher has: lines of this run up to this step, and events up to this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchPosition {
    pub(super) run: Option<RunId>,
    pub(super) step: Step,
    pub(super) event: u64,
}

/// Reads that wait for a confirmation.
#[derive(Debug, Default)]
pub(super) struct WaitingReads {
    watches: BTreeMap<LinkId, WatchPosition>,
    questions: BTreeSet<(LinkId, Question)>,
    /// The newest read of the shell.
    shell_read: Option<u64>,
}

impl WaitingReads {
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty() && self.questions.is_empty() && self.shell_read.is_none()
    }

    /// Drops the reads of a link that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.watches.remove(&link);
        self.questions.retain(|(other, _)| *other != link);
    }

    /// Operators ask another coordinator from now on. The shell waits.
    pub(super) fn forget_operators(&mut self) {
        *self = Self { shell_read: self.shell_read, ..Self::default() };
    }

    /// Puts older reads before these.
    pub(super) fn append(&mut self, mut older: Self) {
        older.watches.append(&mut self.watches);
        older.questions.append(&mut self.questions);
        older.shell_read = older.shell_read.max(self.shell_read);
        *self = older;
    }
}

impl Core {
    /// An operator asks for what is new.
    pub(super) fn watch(&mut self, from: LinkId, seen: WatchPosition) {
        self.leadership.confirmations.reads().watches.insert(from, seen);
        self.leadership.ask_for_confirmation(&mut self.outbox);
    }

    /// An operator asks a question.
    pub(super) fn ask(&mut self, from: LinkId, question: Question) {
        self.leadership.confirmations.reads().questions.insert((from, question));
        self.leadership.ask_for_confirmation(&mut self.outbox);
    }

    /// The shell reads. Its numbers grow.
    pub(super) fn read(&mut self, number: u64) {
        self.leadership.confirmations.reads().shell_read = Some(number);
        self.leadership.ask_for_confirmation(&mut self.outbox);
    }

    /// Answers reads: this coordinator knows all that was agreed when they were asked.
    pub(super) fn answer_reads(&mut self, now: Time, reads: WaitingReads) {
        for (link, seen) in reads.watches {
            self.update(now, link, seen);
        }
        for (link, question) in reads.questions {
            let reply = match question {
                Question::Coordinators => {
                    self.outbox.push(CoreEffect::Describe { to: link });
                    continue;
                }
                Question::Tokens => Reply::Tokens(self.state.tokens().views()),
                Question::Runs => Reply::Runs(self.runs(now)),
                Question::Checkpoints => Reply::Checkpoints(self.checkpoint_views()),
                Question::Revoked => Reply::Revoked(self.state.revoked_views()),
                Question::Operators => Reply::Operators(self.links.operators().cloned().collect()),
            };
            self.outbox.send(link, Message::Reply(reply));
        }
        if let Some(number) = reads.shell_read {
            self.outbox.push(ShellEffect::ReadReady(number));
        }
    }
}
