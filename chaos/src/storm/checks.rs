//! What must hold in a storm, too: the invariants of coordinator and membership.

use std::collections::BTreeMap;
use std::sync::Arc;

use everstep_coordinator::core::LinkId;
use everstep_transport::protocol::chunk::MAX_MESSAGE_CHUNK;
use everstep_transport::protocol::outcome::{Event, EventKind, Update};
use everstep_transport::protocol::{Generation, Message, Record, Step, WorkerId, codec};
use everstep_transport::quic::Settings;

/// Messages of one worker that may wait for the coordinator. With more, its link would hold it
/// back, and its heartbeats would be late.
const ARRIVALS: u32 = 16;

/// A promise that did not hold, by its number in the design.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenPromise {
    /// A generation has two records.
    #[error("I1: two records of generation {0}")]
    TwoRecords(Generation),
    /// A worker was taken for lost that sent heartbeats.
    #[error("I8: worker {worker} sent heartbeats and was lost: {reason}")]
    LostAlive {
        /// The worker that was lost without a fault.
        worker: WorkerId,
        /// The reason that the coordinator gives for the loss.
        reason: String,
    },
    /// A queue is longer than its bound.
    #[error("I10: {0} messages wait on one lane")]
    LongQueue(u32),
    /// A message is larger than the wire carries.
    #[error("I10: a message `{name}` of {bytes} bytes")]
    LargeMessage {
        /// The name of the message, as failpoints have it.
        name: &'static str,
        /// The size of the encoded message.
        bytes: u64,
    },
    /// A message or a result does not follow from the history before.
    #[error("I13: {0}")]
    OtherHistory(String),
}

/// All checkers of one storm.
#[derive(Default)]
pub(super) struct StormChecks {
    records: BTreeMap<Generation, Arc<Message>>,
    /// By worker id, the link that was told it.
    ids: BTreeMap<WorkerId, LinkId>,
    /// The workers that send heartbeats, by link.
    present: BTreeMap<LinkId, WorkerId>,
    /// Messages on their way up or in the queue, by link.
    up: BTreeMap<LinkId, u32>,
    /// Messages on their way down, by link.
    down: BTreeMap<LinkId, u32>,
    /// The last line and the events that the operator has received.
    line: Step,
    told: Vec<Event>,
}

// I1.
impl StormChecks {
    /// A worker has heard of a record. Most workers hear the very same message.
    pub(super) fn announced(
        &mut self,
        record: &Record,
        message: &Arc<Message>,
    ) -> Result<(), BrokenPromise> {
        let first = self.records.entry(record.number).or_insert_with(|| message.clone());
        let same = Arc::ptr_eq(first, message) || first == message;
        if same { Ok(()) } else { Err(BrokenPromise::TwoRecords(record.number)) }
    }
}

// I8.
impl StormChecks {
    /// A worker has heard its id, and begins to send heartbeats.
    pub(super) fn registered(
        &mut self,
        link: LinkId,
        worker: WorkerId,
    ) -> Result<(), BrokenPromise> {
        self.present.insert(link, worker);
        match self.ids.insert(worker, link) {
            Some(other) if other != link => {
                Err(BrokenPromise::OtherHistory(format!("worker id {worker} was given twice")))
            }
            _ => Ok(()),
        }
    }

    /// The worker on this link sends no more heartbeats.
    pub(super) fn absent(&mut self, link: LinkId) {
        self.present.remove(&link);
    }

    /// How many workers send heartbeats.
    pub(super) fn present(&self) -> usize {
        self.present.len()
    }

    /// Checks the coordinator's new events. Returns how many of them are losses.
    pub(super) fn events(&mut self, events: &[Event]) -> Result<u64, BrokenPromise> {
        let mut lost = 0;
        for event in events {
            let EventKind::Lost { worker, reason, .. } = &event.kind else { continue };
            lost += 1;
            let link = self.ids.get(worker);
            if link.is_some_and(|link| self.present.get(link) == Some(worker)) {
                let (worker, reason) = (*worker, reason.to_string());
                return Err(BrokenPromise::LostAlive { worker, reason });
            }
        }
        Ok(lost)
    }
}

// I10.
impl StormChecks {
    /// A message joins the coordinator's queue.
    pub(super) fn waits(&mut self, from: LinkId) -> Result<(), BrokenPromise> {
        let waiting = self.up.entry(from).or_default();
        *waiting += 1;
        if *waiting > ARRIVALS { Err(BrokenPromise::LongQueue(*waiting)) } else { Ok(()) }
    }

    /// The coordinator takes a message from its queue.
    pub(super) fn taken(&mut self, from: LinkId) {
        less(&mut self.up, from);
    }

    /// The coordinator has put a message on a worker's lane.
    pub(super) fn sent(&mut self, to: LinkId) -> Result<(), BrokenPromise> {
        let waiting = self.down.entry(to).or_default();
        *waiting += 1;
        let most = Settings::default().control_queue as u32;
        if *waiting > most { Err(BrokenPromise::LongQueue(*waiting)) } else { Ok(()) }
    }

    /// The worker has the message.
    pub(super) fn heard(&mut self, link: LinkId) {
        less(&mut self.down, link);
    }

    /// The size of a message, if the wire carries it.
    pub(super) fn fits(&self, message: &Message) -> Result<u64, BrokenPromise> {
        let (name, bytes) = (message.name(), codec::encode(message).len() as u64);
        let fits = bytes <= u64::from(MAX_MESSAGE_CHUNK);
        if fits { Ok(bytes) } else { Err(BrokenPromise::LargeMessage { name, bytes }) }
    }
}

// I13.
impl StormChecks {
    /// The operator has received news.
    pub(super) fn told(&mut self, update: &Update) -> Result<(), BrokenPromise> {
        for line in &update.lines {
            let (step, last) = (line.step, std::mem::replace(&mut self.line, line.step));
            if step != last.next() {
                let words = format!("the line of step {step} after that of {last}");
                return Err(BrokenPromise::OtherHistory(words));
            }
        }
        self.told.extend_from_slice(&update.events);
        Ok(())
    }

    /// The run is complete, with these events and `steps` steps.
    pub(super) fn conclude(&self, events: &[Event], steps: u64) -> Result<(), BrokenPromise> {
        let other = |what: &str| Err(BrokenPromise::OtherHistory(what.into()));
        if self.told != events || !events.iter().map(|e| e.number).eq(1..=events.len() as u64) {
            return other("the operator was told other events than the coordinator has");
        }
        if self.line != Step(steps) {
            return other("the operator was not told of every step");
        }
        let generations =
            events.iter().filter(|e| matches!(e.kind, EventKind::Generation { .. })).count();
        if generations != self.records.len() {
            return other("there are other generations than were announced");
        }
        Ok(())
    }
}

fn less(waiting: &mut BTreeMap<LinkId, u32>, link: LinkId) {
    if let Some(count) = waiting.get_mut(&link) {
        *count -= 1;
        if *count == 0 {
            waiting.remove(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::MetricsLine;
    use everstep_transport::protocol::exemplars;

    use super::*;

    fn announce() -> Message {
        let is_record = |message: &Message| matches!(message, Message::Announce(_));
        exemplars::all().into_iter().find(is_record).expect("an example of every message")
    }

    fn update(steps: &[u64]) -> Update {
        let line = |step: &u64| MetricsLine { step: Step(*step), ..MetricsLine::default() };
        let lines = steps.iter().map(line).collect();
        Update { lines, ..Update::default() }
    }

    #[test]
    fn two_records_of_one_generation_break_i1() {
        let (mut checks, one) = (StormChecks::default(), Arc::new(announce()));
        let Message::Announce(mut record) = announce() else { unreachable!("it is a record") };
        assert_eq!(checks.announced(&record, &one), Ok(()));
        assert_eq!(checks.announced(&record, &Arc::new(announce())), Ok(()), "it is fetched");
        record.waiting = !record.waiting;
        let other = Arc::new(Message::Announce(record.clone()));
        let broken = checks.announced(&record, &other);
        assert_eq!(broken, Err(BrokenPromise::TwoRecords(record.number)));
    }

    #[test]
    fn an_id_for_two_breaks_i13() {
        let mut checks = StormChecks::default();
        let id = WorkerId(3);
        assert_eq!(checks.registered(LinkId(1), id), Ok(()));
        assert_eq!(checks.registered(LinkId(1), id), Ok(()));
        assert!(matches!(checks.registered(LinkId(2), id), Err(BrokenPromise::OtherHistory(_))));
    }

    #[test]
    fn lines_that_are_repeated_or_missing_break_i13() {
        let mut checks = StormChecks::default();
        assert_eq!(checks.told(&update(&[1, 2])), Ok(()));
        assert!(matches!(checks.conclude(&[], 3), Err(BrokenPromise::OtherHistory(_))));
        assert_eq!(checks.conclude(&[], 2), Ok(()));
        for steps in [&[2][..], &[4], &[3, 3]] {
            let mut checks = StormChecks::default();
            checks.told(&update(&[1, 2])).expect("the first two");
            assert!(matches!(checks.told(&update(steps)), Err(BrokenPromise::OtherHistory(_))));
        }
    }

    #[test]
    fn a_message_beyond_the_wire_breaks_i10() {
        let reason = "x".repeat(MAX_MESSAGE_CHUNK as usize);
        let checks = StormChecks::default();
        assert!(checks.fits(&Message::Dismiss).is_ok());
        let broken = checks.fits(&Message::Refused { reason });
        assert!(matches!(broken, Err(BrokenPromise::LargeMessage { name: "refused", .. })));
    }
}
