//! The coordinator's side: its core, its queue, and a log that agrees after a while.

use std::collections::VecDeque;
use std::sync::Arc;

use everstep_coordinator::core::{
    Core, CoreEffect, CoreInput, EventRange, LinkId, ShellEffect, ShellInput,
};
use everstep_coordinator::lines::{LinesFound, PAGE};
use everstep_transport::protocol::outcome::{Event, Update};
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::protocol::{HistoryEvent, Lineage, Message, MetricsLine, Step, Term};
use everstep_transport::time::Time;

use super::worker::WorkerEvent;
use super::{OPERATOR, StormEvent, StormFailure, StormLane, StormSim};

/// The only term of the only coordinator.
pub(super) const TERM: Term = Term(1);
/// Wall clock at time zero: the simulation is of no day in particular.
const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;

pub(super) struct StormCoordinator {
    core: Core,
    waiting: VecDeque<CoreInput>,
    /// The coordinator works on an input, or is about to take one.
    busy: bool,
    /// The file of the run's lines, and its history.
    lines: Vec<MetricsLine>,
    lineage: Lineage,
    /// All events, in order, as the history file has them.
    events: Vec<Event>,
    /// Index of the newest entry of the log, applied or not.
    index: u64,
}

impl StormCoordinator {
    pub(super) fn new() -> Self {
        let core = Core::new(Time(0), UNIX_MS_AT_ZERO);
        let (lines, lineage) = Default::default();
        let (waiting, events) = (VecDeque::new(), Vec::new());
        Self { core, waiting, busy: false, lines, lineage, events, index: 0 }
    }

    /// All events so far.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// The update with its page of lines, and of events that memory does not have.
    fn filled(&self, update: Update, after: Option<Step>, in_file: Option<EventRange>) -> Update {
        let rest = after.map(|after| self.lines.iter().skip(after.0 as usize));
        let lines = rest.into_iter().flatten().take(PAGE).cloned().collect();
        let events = match in_file {
            Some(range) => self.events_of(range),
            None => update.events,
        };
        Update { lines, events, ..update }
    }

    /// Takes what an entry brings. Returns the new events.
    fn record(&mut self, brought: Vec<HistoryEvent>) -> &[Event] {
        let known = self.events.len();
        self.events.extend(brought.into_iter().filter_map(|event| match event {
            HistoryEvent::Event(event) => Some(event),
            HistoryEvent::Run(_) => None,
        }));
        &self.events[known..]
    }

    /// A page of the events of a range.
    fn events_of(&self, EventRange { after, to }: EventRange) -> Vec<Event> {
        let rest = self.events.iter().skip(after as usize);
        rest.take_while(|event| event.number <= to).take(PAGE).cloned().collect()
    }
}

impl StormSim {
    pub(super) fn arrive(&mut self, input: CoreInput) -> Result<(), StormFailure> {
        if let CoreInput::Shell(ShellInput::Message { from, .. }) = &input {
            self.checks.waits(*from)?;
        }
        self.coordinator.waiting.push_back(input);
        let waiting = self.coordinator.waiting.len() as u64;
        self.report.longest_queue = self.report.longest_queue.max(waiting);
        if !std::mem::replace(&mut self.coordinator.busy, true) {
            self.put(self.now, StormEvent::Serve);
        }
        Ok(())
    }

    pub(super) fn serve(
        &mut self,
        handle: &mut impl FnMut(&mut Core, Time, CoreInput),
    ) -> Result<(), StormFailure> {
        let Some(input) = self.coordinator.waiting.pop_front() else {
            self.coordinator.busy = false;
            return Ok(());
        };
        self.put(self.now + self.scenario.service, StormEvent::Serve);
        self.report.inputs += 1;
        match &input {
            CoreInput::Shell(ShellInput::Message { from, message }) => {
                self.report.heartbeats += u64::from(matches!(message, Message::Heartbeat(_)));
                self.checks.taken(*from);
                self.note(message.name(), from.0);
            }
            CoreInput::Applied { index, .. } => self.note("entry", *index),
            CoreInput::Shell(ShellInput::Connected { link, .. }) => self.note("up", link.0),
            CoreInput::Shell(ShellInput::Disconnected { link, .. }) => self.note("gone", link.0),
            CoreInput::Elected { .. } => self.note("elected", 0),
            CoreInput::Tick => self.note("tick", 0),
            _ => self.note("other", 0),
        }
        handle(&mut self.coordinator.core, self.now, input);
        let mut effects = 0;
        while let Some(effect) = self.coordinator.core.poll_effect() {
            effects += 1;
            self.effect(effect)?;
        }
        self.report.most_effects = self.report.most_effects.max(effects);
        Ok(())
    }

    fn effect(&mut self, effect: CoreEffect) -> Result<(), StormFailure> {
        match effect {
            CoreEffect::Shell(ShellEffect::Send { to, message }) => self.send(&[to], message)?,
            CoreEffect::Shell(ShellEffect::Broadcast { to, message }) => self.send(&to, message)?,
            CoreEffect::Propose(entry) => {
                self.coordinator.index += 1;
                self.report.entries += 1;
                let index = self.coordinator.index;
                self.bring(
                    StormLane::Log,
                    StormEvent::Arrive(CoreInput::Applied { index, term: TERM, entry }),
                );
            }
            // There is no other coordinator.
            CoreEffect::Confirm { ticket } => {
                self.bring(StormLane::Log, StormEvent::Arrive(CoreInput::Confirmed { ticket }));
            }
            CoreEffect::Shell(ShellEffect::OpenLines(history)) => {
                self.coordinator.lines.clear();
                let (lineage, found) = (history.lineage, LinesFound::default());
                self.coordinator.lineage = lineage;
                self.bring(
                    StormLane::Log,
                    StormEvent::Arrive(CoreInput::Shell(ShellInput::LinesOpened {
                        lineage,
                        found,
                    })),
                );
            }
            CoreEffect::Shell(ShellEffect::AppendLines(records)) => {
                self.coordinator.lines.extend(records.into_iter().map(|record| record.line));
                let reach = Step(self.coordinator.lines.len() as u64);
                let durable = CoreInput::Shell(ShellInput::LinesDurable {
                    lineage: self.coordinator.lineage,
                    reach,
                });
                self.bring(StormLane::Log, StormEvent::Arrive(durable));
            }
            CoreEffect::Shell(ShellEffect::Update { to, after, in_file, update }) => {
                let update = self.coordinator.filled(*update, after, in_file);
                self.send(&[to], Message::Update(update))?;
            }
            CoreEffect::Shell(ShellEffect::History(entry)) => {
                let new = self.coordinator.record(entry.events);
                self.report.lost += self.checks.events(new)?;
            }
            // No line is lost, no other coordinator asks for one, and the run saves nothing.
            CoreEffect::Shell(ShellEffect::SkipLines(_))
            | CoreEffect::Shell(ShellEffect::TellLines { .. })
            | CoreEffect::Shell(ShellEffect::OrderManifest { .. }) => {}
            // The storm has no node that enrols, and no client that reads.
            CoreEffect::Shell(ShellEffect::Admitted { .. })
            | CoreEffect::Shell(ShellEffect::ReadReady(_)) => {}
            // No operator asks for it here.
            CoreEffect::Describe { .. } | CoreEffect::Transfer { .. } => {}
            CoreEffect::Shell(ShellEffect::Close { to, .. }) => {
                self.tell(to, WorkerEvent::Closed);
                let (link, end) = (to, LinkEnd::ClosedHere);
                let closed = CoreInput::Shell(ShellInput::Disconnected { link, end });
                self.bring(StormLane::Up(to), StormEvent::Arrive(closed));
            }
        }
        Ok(())
    }

    fn send(&mut self, to: &[LinkId], message: Message) -> Result<(), StormFailure> {
        self.report.sent += to.len() as u64;
        match &message {
            Message::Announce(_) => self.report.record_bytes = self.checks.fits(&message)?,
            Message::Update(_) => {
                let bytes = self.checks.fits(&message)?;
                self.report.update_bytes = self.report.update_bytes.max(bytes);
                self.report.told_bytes += bytes;
            }
            _ => {}
        }
        if to == [OPERATOR] {
            self.bring(StormLane::Down(OPERATOR), StormEvent::Told(message));
            return Ok(());
        }
        let message = Arc::new(message);
        for link in to {
            self.checks.sent(*link)?;
            self.tell(*link, WorkerEvent::Hear(message.clone()));
        }
        Ok(())
    }
}
