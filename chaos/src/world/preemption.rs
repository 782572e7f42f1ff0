//! Clouds that take machines of workers back, and tell the workers ahead.
//!
//! A worker asks its cloud now and then, and follows the rules of production ([`FateWatch`]). So it
//! hears late, leaves, and says goodbye shortly before its machine is gone. At that moment the
//! cloud ends the process on the machine. The clocks of clouds and machines agree. A worker
//! asks only where there is something to hear.

use std::time::Duration;

use everstep_transport::protocol::{Cloud, PreemptionNotice};
use everstep_transport::time::Time;
use everstep_worker::daemon::{Fate, FateChange, FateWatch, PREEMPTION_POLL_INTERVAL};
use everstep_worker::step::event::Input;

use super::types::Event;
use super::{NodeId, UNIX_MS_AT_ZERO, World};
use crate::check::Violation;
use crate::fault::NoticeEnd;

/// The cloud of all machines. It states when it takes a machine back.
const CLOUD: Cloud = Cloud::Aws;

/// A cloud's notice for a machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineNotice {
    /// When the machine is gone, as the cloud says.
    pub gone_at: Time,
    /// What comes of the notice.
    pub end: NoticeEnd,
}

/// What a worker has heard of its machine's fate.
#[derive(Debug)]
pub struct KnownFate {
    watch: FateWatch,
    /// When the worker leaves in any case. None if no notice is in force, as far as it has heard.
    leave_at: Option<Time>,
}

impl Default for KnownFate {
    fn default() -> Self {
        Self { watch: FateWatch::new(CLOUD), leave_at: None }
    }
}

/// Something between a cloud and a machine.
#[derive(Clone, Copy, Debug)]
pub enum CloudEvent {
    /// The notice for a machine ends that states this time.
    NoticeEnds(NodeId, Time),
    /// The worker at this place asks its cloud.
    Ask(usize),
    /// The time of the worker at this place is over, unless it has heard another one since.
    LeaveNow(usize, Time),
}

impl CloudEvent {
    /// The worker that handles the event, if one does. The event waits while its process stands
    /// still.
    pub fn owner(self) -> Option<NodeId> {
        match self {
            Self::NoticeEnds(..) => None,
            Self::Ask(place) | Self::LeaveNow(place, _) => Some(NodeId::Worker(place)),
        }
    }

    /// The event's words in the trace. Equal events have equal words.
    pub fn words(self) -> [u64; 3] {
        match self {
            Self::NoticeEnds(machine, gone_at) => [29, machine.word(), gone_at.0],
            Self::Ask(place) => [30, place as u64, 0],
            Self::LeaveNow(place, at) => [31, place as u64, at.0],
        }
    }
}

impl World {
    /// A cloud announces that it takes these machines back.
    pub(super) fn announce(&mut self, side: &[NodeId], ahead: Duration, end: NoticeEnd) {
        let gone_at = self.now + ahead;
        let ends_at = match end {
            NoticeEnd::TakenBack { .. } => gone_at,
            NoticeEnd::Withdrawn { after, .. } => self.now + after,
        };
        for machine in side {
            self.faults.announce(*machine, MachineNotice { gone_at, end });
            let ends = CloudEvent::NoticeEnds(*machine, gone_at);
            self.queue.put(ends_at, Event::Cloud(ends));
            self.ask_soon(*machine);
        }
    }

    /// The worker on a machine asks its cloud soon, if a notice is in force. A worker that knows of
    /// one asks on by itself.
    pub(super) fn ask_soon(&mut self, machine: NodeId) {
        let NodeId::Worker(place) = self.workers.process(machine) else { return };
        let has_heard =
            self.workers.find(place).is_none_or(|worker| worker.fate.leave_at.is_some());
        if has_heard || self.faults.notice(machine).is_none() {
            return;
        }
        let delay =
            Duration::from_nanos(self.random.below(PREEMPTION_POLL_INTERVAL.as_nanos() as u64));
        self.queue.put(self.now + delay, Event::Cloud(CloudEvent::Ask(place)));
    }

    pub(super) fn on_cloud_event(&mut self, event: CloudEvent) -> Result<(), Violation> {
        match event {
            CloudEvent::NoticeEnds(machine, gone_at) => {
                self.end_notice(machine, gone_at);
                Ok(())
            }
            CloudEvent::Ask(place) => self.ask_cloud(place),
            CloudEvent::LeaveNow(place, at) => {
                let is_due = self.workers[place].fate.leave_at == Some(at);
                if is_due { self.step_worker(place, Input::DrainOverdue) } else { Ok(()) }
            }
        }
    }

    /// The machine is gone, or the notice is withdrawn.
    fn end_notice(&mut self, machine: NodeId, gone_at: Time) {
        let Some(notice) = self.faults.end_notice(machine, gone_at) else { return };
        match notice.end {
            NoticeEnd::TakenBack { restart } => {
                self.note(format_args!("{machine} is taken back"));
                let runs = self.is_alive(self.workers.process(machine));
                self.checkers.liveness.tally.taken += u64::from(runs);
                self.checkers.liveness.progress(self.now);
                self.crash(machine, restart);
            }
            NoticeEnd::Withdrawn { restart, .. } => {
                self.note(format_args!("{machine} is not taken back after all"));
                self.restart_later(machine, restart);
            }
        }
    }

    /// A worker hears from its cloud. While a notice is in force, it asks again.
    fn ask_cloud(&mut self, place: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[place];
        if worker.ended() {
            return Ok(());
        }
        let notice = self.faults.notice(NodeId::Worker(worker.slot()));
        let fate = notice.map_or(Fate::Stays, |notice| Fate::TakenBack {
            at_unix_s: Some(unix_s(notice.gone_at)),
        });
        let input = match worker.fate.watch.take(unix_s(self.now), fate) {
            None => None,
            Some(FateChange::Withdrawn) => {
                worker.fate.leave_at = None;
                Some(Input::Preempted(None))
            }
            Some(FateChange::TakenBack { left, leave_after }) => {
                let leave_at = self.now + leave_after;
                worker.fate.leave_at = Some(leave_at);
                self.queue.put(leave_at, Event::Cloud(CloudEvent::LeaveNow(place, leave_at)));
                self.checkers.liveness.leaves(place);
                self.note(format_args!("worker {place} hears that it has {left:?} left"));
                Some(Input::Preempted(Some(PreemptionNotice::until(CLOUD, left))))
            }
        };
        if self.workers[place].fate.leave_at.is_some() {
            let next = self.now + PREEMPTION_POLL_INTERVAL;
            self.queue.put(next, Event::Cloud(CloudEvent::Ask(place)));
        }
        input.map_or(Ok(()), |input| self.step_worker(place, input))
    }
}

/// The wall clock of clouds and machines, seconds of Unix time.
fn unix_s(at: Time) -> i64 {
    (UNIX_MS_AT_ZERO / 1_000 + at.0 / 1_000_000_000) as i64
}
