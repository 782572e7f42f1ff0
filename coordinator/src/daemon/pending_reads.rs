//! Reads of the HTTP API that wait until this coordinator is known to lead, and to know all that is
//! agreed. One confirmation answers all reads that came before the confirmation began.
//!
//! If another coordinator leads, a read fails at once with that coordinator's address. If none
//! leads, there may be a leader in a moment. The reader decides how long to wait for it.

use std::collections::VecDeque;

use actix::Message;
use tokio::sync::oneshot;

use super::api::NotLeading;

/// Most reads that wait. The API has fewer connections than this.
const MAX_PENDING_READS: usize = 256;

/// A read, with the channel to its reader: Ok if the coordinator may answer it now, or the reason.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct LinearizableRead(pub(crate) oneshot::Sender<Result<(), ReadRefusal>>);

/// Why a coordinator does not answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadRefusal {
    /// As many reads as may wait do so.
    #[error("too many wait for an answer")]
    TooMany,
    /// Only a leader can answer.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
}

/// The reads that wait, by their numbers.
#[derive(Default)]
pub(super) struct PendingReads {
    count: u64,
    waiting: VecDeque<(u64, LinearizableRead)>,
}

impl PendingReads {
    /// Takes a read. Returns its number, unless too many wait.
    pub(super) fn open(&mut self, read: LinearizableRead) -> Option<u64> {
        self.waiting.retain(|(_, LinearizableRead(answer))| !answer.is_closed());
        if self.waiting.len() >= MAX_PENDING_READS {
            read.answer(Err(ReadRefusal::TooMany));
            return None;
        }
        self.count += 1;
        self.waiting.push_back((self.count, read));
        Some(self.count)
    }

    /// Answers the reads up to this number.
    pub(super) fn answer(&mut self, newest: u64) {
        while let Some((_, read)) = self.waiting.pop_front_if(|(number, _)| *number <= newest) {
            read.answer(Ok(()));
        }
    }

    /// Refuses all reads: another coordinator can answer them.
    pub(super) fn refuse(&mut self, place: NotLeading) {
        self.waiting.drain(..).for_each(|(_, read)| read.answer(Err(place.into())));
    }
}

impl LinearizableRead {
    pub(super) fn answer(self, answer: Result<(), ReadRefusal>) {
        let _ = self.0.send(answer); // an error means that no client waits any more
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::CoordinatorId;

    use super::*;

    type Answered = oneshot::Receiver<Result<(), ReadRefusal>>;

    fn open(reads: &mut PendingReads) -> (Option<u64>, Answered) {
        let (answer, answered) = oneshot::channel();
        (reads.open(LinearizableRead(answer)), answered)
    }

    #[test]
    fn a_confirmation_answers_those_that_it_was_asked_for_and_no_later_one() {
        let mut reads = PendingReads::default();
        let (_, mut first) = open(&mut reads);
        let (second, mut other) = open(&mut reads);
        let (_, mut later) = open(&mut reads);
        reads.answer(second.expect("there is room"));
        assert_eq!((first.try_recv(), other.try_recv()), (Ok(Ok(())), Ok(Ok(()))));
        assert!(later.try_recv().is_err());
        reads.refuse(NotLeading::WithoutApi(CoordinatorId(7)));
        assert_eq!(later.try_recv(), Ok(Err(NotLeading::WithoutApi(CoordinatorId(7)).into())));
    }

    #[test]
    fn at_most_so_many_wait_and_those_that_are_gone_do_not_count() {
        let mut reads = PendingReads::default();
        (0..MAX_PENDING_READS).for_each(|_| drop(open(&mut reads)));
        let waiting: Vec<_> = (0..MAX_PENDING_READS).map(|_| open(&mut reads)).collect();
        assert!(waiting.iter().all(|(number, _)| number.is_some()));
        let (number, mut refused) = open(&mut reads);
        assert!(number.is_none() && matches!(refused.try_recv(), Ok(Err(_))));
    }
}
