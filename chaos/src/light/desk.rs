//! The coordinator's side: its core, its queue, and a log that agrees after a while.

use std::collections::VecDeque;

use everstep_coordinator::core::{Effect, Input, LinkEnd};
use everstep_coordinator::lines::{LinesFound, PAGE};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{Lineage, MetricsLine, Step, Term};

use super::worker::Event;
use super::{Arc, Core, Crowd, Failure, Happening, Lane, LinkId, Message, OPERATOR, Time};

/// The only term of the only coordinator.
pub(super) const TERM: Term = Term(1);
/// Wall clock at time zero: the simulation is of no day in particular.
const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;

pub(super) struct Desk {
    core: Core,
    waiting: VecDeque<Input>,
    /// The coordinator works on an input, or is about to take one.
    busy: bool,
    /// The file of the run's lines, and its history.
    lines: Vec<MetricsLine>,
    lineage: Lineage,
    /// Index of the newest entry of the log, applied or not.
    index: u64,
}

impl Desk {
    pub(super) fn new() -> Self {
        let core = Core::new(Time(0), UNIX_MS_AT_ZERO);
        let (lines, lineage) = Default::default();
        Self { core, waiting: VecDeque::new(), busy: false, lines, lineage, index: 0 }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }
}

impl Crowd {
    pub(super) fn arrive(&mut self, input: Input) -> Result<(), Failure> {
        if let Input::Message { from, .. } = &input {
            self.checks.waits(*from)?;
        }
        self.desk.waiting.push_back(input);
        let waiting = self.desk.waiting.len() as u64;
        self.report.longest_queue = self.report.longest_queue.max(waiting);
        if !std::mem::replace(&mut self.desk.busy, true) {
            self.put(self.now, Happening::Serve);
        }
        Ok(())
    }

    pub(super) fn serve(
        &mut self,
        handle: &mut impl FnMut(&mut Core, Time, Input),
    ) -> Result<(), Failure> {
        let Some(input) = self.desk.waiting.pop_front() else {
            self.desk.busy = false;
            return Ok(());
        };
        self.put(self.now + self.scenario.service, Happening::Serve);
        self.report.inputs += 1;
        match &input {
            Input::Message { from, message } => {
                self.report.heartbeats += u64::from(matches!(message, Message::Heartbeat(_)));
                self.checks.taken(*from);
                self.note(message.name(), from.0);
            }
            Input::Applied { index, .. } => self.note("entry", *index),
            Input::Connected { link, .. } => self.note("up", link.0),
            Input::Disconnected { link, .. } => self.note("gone", link.0),
            Input::Elected { .. } => self.note("elected", 0),
            Input::Tick => self.note("tick", 0),
            _ => self.note("other", 0),
        }
        handle(&mut self.desk.core, self.now, input);
        self.report.lost += self.checks.events(self.desk.core.events_after(0))?;
        let mut effects = 0;
        while let Some(effect) = self.desk.core.poll_effect() {
            effects += 1;
            self.effect(effect)?;
        }
        self.report.most_effects = self.report.most_effects.max(effects);
        Ok(())
    }

    fn effect(&mut self, effect: Effect) -> Result<(), Failure> {
        match effect {
            Effect::Send { to, message } => self.send(&[to], message)?,
            Effect::Broadcast { to, message } => self.send(&to, message)?,
            Effect::Propose(entry) => {
                self.desk.index += 1;
                self.report.entries += 1;
                let index = self.desk.index;
                self.bring(
                    Lane::Log,
                    Happening::Arrive(Input::Applied { index, term: TERM, entry }),
                );
            }
            // There is no other coordinator.
            Effect::Confirm { ticket } => {
                self.bring(Lane::Log, Happening::Arrive(Input::Confirmed { ticket }));
            }
            Effect::OpenLines(history) => {
                self.desk.lines.clear();
                let (lineage, found) = (history.lineage, LinesFound::default());
                self.desk.lineage = lineage;
                self.bring(Lane::Log, Happening::Arrive(Input::LinesOpened { lineage, found }));
            }
            Effect::AppendLines(records) => {
                self.desk.lines.extend(records.into_iter().map(|record| record.line));
                let reach = Step(self.desk.lines.len() as u64);
                let durable = Input::LinesDurable { lineage: self.desk.lineage, reach };
                self.bring(Lane::Log, Happening::Arrive(durable));
            }
            Effect::Update { to, after, update } => {
                let rest = after.map(|after| self.desk.lines.iter().skip(after.0 as usize));
                let lines = rest.into_iter().flatten().take(PAGE).cloned().collect();
                self.send(&[to], Message::Update(Update { lines, ..*update }))?;
            }
            // No line is lost, and no other coordinator asks for one.
            Effect::SkipLines(_) | Effect::TellLines { .. } => {}
            // Another simulation covers its disk.
            Effect::History(_) | Effect::Admitted { .. } | Effect::Looked(_) => {}
            // No operator asks for it here.
            Effect::Describe { .. } | Effect::Transfer { .. } => {}
            Effect::Close { to, reason } => {
                self.tell(to, Event::Closed);
                let closed = Input::Disconnected { link: to, end: LinkEnd::Lost, reason };
                self.bring(Lane::Up(to), Happening::Arrive(closed));
            }
        }
        Ok(())
    }

    fn send(&mut self, to: &[LinkId], message: Message) -> Result<(), Failure> {
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
            self.bring(Lane::Down(OPERATOR), Happening::Told(message));
            return Ok(());
        }
        let message = Arc::new(message);
        for link in to {
            self.checks.sent(*link)?;
            self.tell(*link, Event::Hear(message.clone()));
        }
        Ok(())
    }
}
