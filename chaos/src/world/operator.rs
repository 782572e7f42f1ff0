//! The operator that submits the run and watches it, as the launcher does.
//!
//! It has a link to every coordinator, and asks the leader. It repeats a command until it has an
//! answer, and then once more. The cluster must carry the command out once, and give the same
//! answer again (I9).

use std::collections::VecDeque;
use std::time::Duration;

use everstep_coordinator::core::{LinkId, ShellInput};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::{EventKind, Outcome, Update};
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    CoordinatorId, Message, MetricsLine, NodeName, OperatorCommand, Question, RequestId, RunId,
    RunSpec, Step, Term,
};
use everstep_transport::time::Time;

use super::successor::Continuation;
use super::types::Event;
use super::{Exits, NodeId, World};
use crate::check::{Invariant, Observation, Violation};
use crate::fault::Fault;

/// The pause between an answer and the next question.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How often the world looks for processes that have ended.
const EXIT_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// An operator asks a run to go back when it has waited this long for owners.
const ROLLBACK_AFTER: Duration = Duration::from_secs(4);
/// The operator's number among all clients.
const CLIENT: u64 = 1;

/// The commands and the knowledge of the operator.
#[derive(Debug)]
pub struct SimOperator {
    /// Wishes that are not done yet, with their numbers. The first one is under way.
    commands: VecDeque<(u64, OperatorCommand)>,
    /// How many commands there were.
    commanded: u64,
    /// The first answer to the command under way. The operator expects a second one.
    answer: Option<Option<Rejection>>,
    /// The coordinator whose removal was refused while it was a member. The operator asks for it
    /// again.
    refused: Option<CoordinatorId>,
    /// The newest known term, and its leader.
    leader: (Term, Option<usize>),
    /// The link on which it waits for an answer.
    asked: Option<u64>,
    lines: Vec<MetricsLine>,
    /// The number of the newest event.
    event: u64,
    outcome: Outcome,
    /// Processes that a launcher has seen end. It keeps them until the leader has recorded that.
    exits: Vec<(NodeName, ProcessExit)>,
    /// When the world last looked for processes that have ended.
    looked: Time,
    /// The operator has asked for a pause, and has not been told that it is over.
    rests: bool,
    /// The run of the newest pause that was answered.
    paused: Option<RunId>,
}

impl Default for SimOperator {
    fn default() -> Self {
        Self {
            commands: VecDeque::new(),
            commanded: 0,
            answer: None,
            refused: None,
            leader: (Term(0), None),
            asked: None,
            lines: Vec::new(),
            event: 0,
            outcome: Outcome::Running,
            exits: Vec::new(),
            looked: Time(0),
            rests: false,
            paused: None,
        }
    }
}

impl SimOperator {
    /// The state of the run, as the operator last heard.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// All lines that the operator has received. A rollback takes lines back.
    pub fn lines(&self) -> &[MetricsLine] {
        &self.lines
    }

    /// Whether the operator wants to remove a coordinator.
    pub fn wishes_a_removal(&self) -> bool {
        self.commands.iter().any(|(_, command)| matches!(command, OperatorCommand::Remove(_)))
    }

    /// Whether the run may be paused.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Notes that a launcher has seen the end of a process.
    pub fn exited(&mut self, name: NodeName, how: ProcessExit) {
        self.exits.push((name, how));
    }

    /// Submits the run, or lets it go on from its store.
    pub fn submit(&mut self, run: RunSpec, from: Option<Continuation>) {
        let run = Box::new(run);
        match from {
            None => self.command(OperatorCommand::Submit(run)),
            Some(Continuation { origin, lines }) => {
                self.lines = lines;
                self.command(OperatorCommand::Continue { run, origin: Box::new(origin) });
            }
        }
    }

    /// Adds a command at the end of the queue.
    pub fn command(&mut self, command: OperatorCommand) {
        self.commanded += 1;
        self.commands.push_back((self.commanded, command));
    }
}

impl World {
    /// Gives the operator a link to a coordinator.
    pub(super) fn connect_operator(&mut self, place: usize) -> Result<(), Violation> {
        let name = NodeName::parse("operator").expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let link = LinkId(self.link(NodeId::Operator, NodeId::Coordinator(place)));
        self.queue.put(self.now, Event::Watch(link.0));
        self.step_coordinator(place, ShellInput::Connected { link, identity, address: None })
    }

    /// Asks the leader for news on this link, and repeats the command under way. Asks any other
    /// coordinator which one leads.
    pub(super) fn watch(&mut self, link: u64) {
        let own = NodeId::Operator;
        let Some(peer) = self.network.links.peer(own, link) else { return };
        let usable = self.network.links.is_open(own, peer)
            && self.network.links.number(own, peer) == Some(link);
        if !usable || self.operator.asked == Some(link) {
            return;
        }
        if self.operator.leader.1.map(NodeId::Coordinator) != Some(peer) {
            return self.say(own, peer, Message::Ask(Question::Coordinators));
        }
        self.operator.asked = Some(link);
        if let Some((number, command)) = self.operator.commands.front().cloned() {
            let id = RequestId { client: CLIENT, number };
            self.say(own, peer, Message::Request { id, command });
        }
        let step = self.operator.lines.last().map_or(Step(0), |line| line.step);
        let event = self.operator.event;
        self.say(own, peer, Message::Watch { run: None, step, event });
    }

    /// The operator gives a word about the run that goes on, if it knows one.
    pub(super) fn direct(&mut self, fault: &Fault) {
        let leader = self.leader().and_then(|place| self.coordinators[place].node());
        let Some(run) = leader.map(|node| node.core().state().run_id()) else { return };
        match fault {
            Fault::Rest { span } if !self.operator.rests => {
                self.operator.rests = true;
                self.operator.command(OperatorCommand::Pause(run));
                self.queue.put((self.now + *span).min(self.faults.end()), Event::ResumeRun);
            }
            Fault::Save => self.operator.command(OperatorCommand::Checkpoint(run)),
            _ => {}
        }
    }

    /// The operator lets the run go on.
    pub(super) fn resume_run(&mut self) {
        let paused = |(_, command): &(u64, OperatorCommand)| match command {
            OperatorCommand::Pause(run) => Some(*run),
            _ => None,
        };
        let asked = self.operator.commands.iter().find_map(paused);
        if let Some(run) = asked.or(self.operator.paused).filter(|_| self.operator.rests) {
            self.operator.command(OperatorCommand::Resume(run));
        }
    }

    /// Tells the leader of processes that have ended, in the scenario's way.
    pub(super) fn look_after_exits(&mut self) {
        let leader = self.leader().and_then(|place| self.coordinators[place].node());
        let Some(state) = leader.map(|node| node.core().state()) else { return };
        if self.now.since(self.operator.looked) < EXIT_REPORT_INTERVAL {
            return;
        }
        self.operator.looked = self.now;
        match self.scenario.exits {
            Exits::Reported => {
                self.operator.exits.retain(|(name, _)| state.on_node(name).is_some());
                for (name, how) in self.operator.exits.clone() {
                    self.tell_leader(Message::Exited { name, how });
                }
            }
            Exits::RolledBack => {
                let (run, asked) = (state.run_id(), state.is_to_go_back());
                let generation = state.generation();
                let waits = self.waits_for_owners().is_some_and(|span| span >= ROLLBACK_AFTER);
                if waits && !asked && self.operator.commands.is_empty() {
                    self.operator.command(OperatorCommand::Rollback {
                        run,
                        step: Step(0),
                        generation,
                    });
                }
            }
            Exits::GivenUp => {}
        }
    }

    /// How long the leader has waited for owners of parameter shards. None if it does not wait.
    fn waits_for_owners(&self) -> Option<Duration> {
        let place = self.leader()?;
        let coordinator = &self.coordinators[place];
        let now = coordinator.clock().read(self.now);
        let view = coordinator.node()?.core().cluster_view(now);
        let since = view.owners_awaited?.since_unix_ms;
        Some(Duration::from_millis(view.now_unix_ms.saturating_sub(since)))
    }

    /// Sends a message to the leader, if the operator knows it.
    pub(super) fn tell_leader(&mut self, message: Message) {
        if let Some(leader) = self.operator.leader.1 {
            self.say(NodeId::Operator, NodeId::Coordinator(leader), message);
        }
    }

    /// The operator takes a message of a coordinator.
    pub(super) fn told(&mut self, from: NodeId, message: Message) -> Result<(), Violation> {
        match message {
            Message::Coordinators { term, leader, .. } => {
                let leader = leader.and_then(|id| self.place_of(id));
                self.led_by(term, leader);
                Ok(())
            }
            Message::Update(update) => {
                let link = self.network.links.number(NodeId::Operator, from);
                match self.operator.asked.take_if(|asked| Some(*asked) == link) {
                    Some(_) => self.updated(update),
                    None => Ok(()),
                }
            }
            Message::Answer { id, refusal, .. } => self.answered(id, refusal),
            _ => Ok(()),
        }
    }

    fn led_by(&mut self, term: Term, leader: Option<usize>) {
        let (known, before) = self.operator.leader;
        // A term without a leader may never have one.
        if term < known || leader.is_none() {
            return;
        }
        self.operator.leader = (term, leader);
        // A new leader does not know the questions to the one before.
        if let Some(place) = leader.filter(|_| leader != before || term > known) {
            if let Some(asked) = self.operator.asked.take() {
                self.give_up(NodeId::Operator, asked);
            }
            if let Some(link) =
                self.network.links.number(NodeId::Operator, NodeId::Coordinator(place))
            {
                self.queue.put(self.now, Event::Watch(link));
            }
        }
    }

    fn answered(&mut self, id: RequestId, refusal: Option<Rejection>) -> Result<(), Violation> {
        let Some((number, command)) = self.operator.commands.front() else { return Ok(()) };
        if id.number != *number {
            return Ok(());
        }
        if refusal == Some(Rejection::Superseded) {
            let seen =
                format!("request {} was refused for a later one, and is the newest", id.number);
            return Err(Violation { invariant: Invariant::I9, at: self.now, seen });
        }
        let submission =
            matches!(command, OperatorCommand::Submit(_) | OperatorCommand::Continue { .. });
        let removal = if let OperatorCommand::Remove(id) = command { Some(*id) } else { None };
        let (paused, resumed) = match command {
            OperatorCommand::Pause(run) => (Some(*run), false),
            OperatorCommand::Resume(_) => (None, true),
            _ => (None, false),
        };
        let first = self.operator.answer.is_none();
        match removal.filter(|_| first && refusal.is_some()) {
            // The leader may hear too few of the others at this moment. The operator asks again.
            Some(id) if self.checkers.invariants.is_listed(id) => return self.ask_anew(id),
            Some(id) if self.operator.refused == Some(id) => {
                let seen = format!("the removal of coordinator {id} was refused, and carried out");
                return Err(Violation { invariant: Invariant::I9, at: self.now, seen });
            }
            _ => {}
        }
        let Some(first) = self.operator.answer.take() else {
            self.operator.answer = Some(refusal);
            return Ok(());
        };
        self.operator.commands.pop_front();
        self.operator.paused = paused.or(self.operator.paused);
        self.operator.rests &= !resumed;
        removal.into_iter().for_each(|id| self.has_removed(id));
        if first == refusal && !(submission && refusal.is_some()) {
            return Ok(());
        }
        let seen = format!("request {} was answered {first:?}, then {refusal:?}", id.number);
        Err(Violation { invariant: Invariant::I9, at: self.now, seen })
    }

    /// The cluster must not carry out a refused command, however often the operator repeated it. So
    /// the operator makes the same command under a new number. Those behind it get later numbers,
    /// or the cluster takes them for commands that this one has superseded.
    fn ask_anew(&mut self, refused: CoordinatorId) -> Result<(), Violation> {
        let SimOperator { commands, commanded, .. } = &mut self.operator;
        for (number, _) in commands.iter_mut() {
            *commanded += 1;
            *number = *commanded;
        }
        self.operator.refused = Some(refused);
        Ok(())
    }

    /// Lines in the same update as a rollback may be void. The operator asks again, and believes no
    /// end of the run until then.
    fn updated(&mut self, update: Update) -> Result<(), Violation> {
        let mut back = None;
        for event in &update.events {
            self.observe(Observation::Told(event))?;
            if let EventKind::Rollback { to, .. } = event.kind {
                back = Some(back.map_or(to, |before: Step| before.min(to)));
            }
        }
        self.operator.event += update.events.len() as u64;
        if let Some(to) = back {
            self.operator.lines.retain(|line| line.step <= to);
        } else {
            for line in update.lines {
                self.observe(Observation::Written(&line))?;
                self.operator.lines.push(line);
            }
            self.operator.outcome = update.outcome;
        }
        if let Some(leader) = self.operator.leader.1
            && let Some(link) =
                self.network.links.number(NodeId::Operator, NodeId::Coordinator(leader))
        {
            self.queue.put(self.now + WATCH_INTERVAL, Event::Watch(link));
        }
        Ok(())
    }
}
