//! The way from one generation to the next.
//!
//! ```text
//! Steady -- suspicion --> Pausing -- evidence is in --> Proposed -- applied --> Steady
//! Steady -- joiners ready, a worker free --> Holding -- all hold --> Pausing
//! ```
//!
//! A suspicion of a member pauses all workers at once. A planned change first lets the step under
//! way come to its end. Either way all workers that can do so promise the next number, and say what
//! they hold. `plan.rs` makes the next generation of that. A Pause always ends in a generation,
//! even of the same members. This module does not know how a plan is made, nor why a worker is
//! suspected.

mod awaiting;
mod holding;
mod parting;
mod pausing;
mod steady;

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Generation, Message, Step, Term, WorkerId};
use everstep_transport::time::Time;

use self::holding::Holding;
use self::pausing::Pausing;
use super::catch_up::CatchUp;
use super::directives::GenerationRequest;
use super::failure_detector::{SignOfLife, Suspicion};
use super::feeds::Feeds;
use super::partition::Partition;
use super::plan::{Plan, PlanInputs, Wait, plan};
use super::roster::Roster;
use super::{Core, LinkId, Parts, links};
use crate::state::{Change, Command, Loss, State};

/// Lost coordinators cannot have begun more generations than this. A worker that claims so errs.
const MAX_LOST_GENERATIONS: u64 = 1 << 20;

/// What the leader knows of the change of generation under way, and of the next one.
#[derive(Debug, Default)]
pub(super) struct GenerationChange {
    phase: ChangePhase,
    /// The answers to the newest Pause, by worker.
    statuses: BTreeMap<WorkerId, Status>,
    feeds: Feeds,
    catch_up: CatchUp,
    /// The greatest step that a member of the current generation has committed, as far as this
    /// coordinator knows.
    reached: Step,
    /// The newest generation that a worker has entered. It is newer than the log's where the log
    /// was recovered from a coordinator that had not heard of it.
    entered: Generation,
}

/// How far a change has come.
#[derive(Debug, Default)]
enum ChangePhase {
    /// No change is under way.
    #[default]
    Steady,
    /// The leader has asked the step leader to hold.
    Holding(Holding),
    /// The leader has asked all workers to promise.
    Pausing(Pausing),
    /// The next generation, with this number, is on its way into the log.
    Proposed(Generation),
}

// What others ask.
impl GenerationChange {
    /// Whether nothing changes, nor is about to.
    pub(super) fn is_steady(&self) -> bool {
        matches!(self.phase, ChangePhase::Steady)
    }

    /// Whether members take steps, so that a change may begin.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.phase, ChangePhase::Steady | ChangePhase::Holding(_))
    }

    /// Whether the next generation is on its way into the log.
    pub(super) fn is_proposed(&self) -> bool {
        matches!(self.phase, ChangePhase::Proposed(_))
    }

    #[cfg(test)]
    pub(super) fn is_pausing(&self) -> bool {
        matches!(self.phase, ChangePhase::Pausing(_))
    }

    /// The greatest step that a member of the current generation is known to have committed.
    pub(super) fn reached(&self) -> Step {
        self.reached
    }
}

// What happens to it.
impl GenerationChange {
    /// A coordinator begins or ceases to lead. Joins that were given up stay given up.
    pub(super) fn reset(&mut self) {
        let (catch_up, entered) = (std::mem::take(&mut self.catch_up), self.entered);
        *self = Self { catch_up, entered, ..Self::default() };
    }

    /// A generation begins after this step.
    fn begin(&mut self, resume: Step) {
        (self.phase, self.feeds, self.reached) = (ChangePhase::Steady, Feeds::default(), resume);
        self.catch_up.renew();
    }

    /// A member of the current generation has committed this step.
    pub(super) fn reach(&mut self, step: Step) {
        self.reached = self.reached.max(step);
    }

    /// A worker has entered this generation. `agreed` is the log's.
    pub(super) fn hear_of(&mut self, generation: Generation, agreed: Generation) {
        if generation.0.saturating_sub(agreed.0) <= MAX_LOST_GENERATIONS {
            self.entered = self.entered.max(generation);
        }
    }

    /// Drops what is known of a worker that is gone.
    fn forget(&mut self, worker: WorkerId) {
        self.feeds.forget(worker);
        self.catch_up.forget(worker);
        if let ChangePhase::Pausing(pausing) = &mut self.phase {
            pausing.expect_nothing_of(worker);
        }
    }

    /// Answers to a Pause may be late, through no fault of the workers.
    fn restart_deadline(&mut self, now: Time) {
        if let ChangePhase::Pausing(pausing) = &mut self.phase {
            pausing.restart_deadline(now);
        }
    }

    fn pause(&mut self, roster: Roster<'_>) {
        #[cfg(feature = "planted")]
        let forgets = roster.state.plant != Some(crate::plant::CorePlant::AnyStatus);
        #[cfg(not(feature = "planted"))]
        let forgets = true;
        if forgets {
            self.statuses.clear();
        }
        let newest = roster.state.generation().max(self.entered);
        let (number, missing) = (newest.next(), self.expected(roster));
        self.phase = ChangePhase::Pausing(Pausing::new(roster.now, number, missing));
    }

    /// The workers that owe an answer and may give one: members, joiners that are ready, and
    /// before the first generation every linked worker.
    fn expected(&self, roster: Roster<'_>) -> BTreeSet<WorkerId> {
        let linked = roster.links.registered().keys().copied();
        let first = linked.filter(|_| roster.state.record().is_none());
        let all = roster.state.members().chain(first).chain(self.feeds.ready().iter().copied());
        let silent = all.filter(|worker| !self.statuses.contains_key(worker));
        silent.filter(|worker| roster.may_answer(*worker)).collect()
    }

    /// A worker is suspected during a Pause. A worker that may be back in a moment is asked again,
    /// even if it has answered before. If an outage begins, so are all others that may answer.
    /// Returns whether there is a Pause.
    fn on_suspicion(&mut self, roster: Roster<'_>, worker: WorkerId, outage: bool) -> bool {
        let awaited = if outage { self.expected(roster) } else { BTreeSet::new() };
        let ChangePhase::Pausing(pausing) = &mut self.phase else { return false };
        pausing.expect(awaited);
        if roster.may_answer(worker) && roster.state.is_member(worker) {
            pausing.expect(BTreeSet::from([worker]));
        } else {
            pausing.expect_nothing_of(worker);
        }
        true
    }

    /// A worker returns from an outage: the others that fell silent with it may answer, too.
    /// Returns whether there is a Pause.
    fn on_outage_return(&mut self, roster: Roster<'_>) -> bool {
        let expected = self.expected(roster);
        let ChangePhase::Pausing(pausing) = &mut self.phase else { return false };
        pausing.expect(expected);
        pausing.renew(roster.now);
        true
    }

    /// Time passes during a Pause. Returns whether the Pause is to be repeated.
    fn tick(&mut self, roster: Roster<'_>) -> bool {
        let ChangePhase::Pausing(pausing) = &mut self.phase else { return false };
        pausing.drop_hopeless(roster);
        pausing.repeats(roster.now)
    }

    /// The number of the Pause under way, and the links of all workers that have not answered, and
    /// of suspects. A suspect that answers is taken back.
    fn unanswered(&self, roster: Roster<'_>) -> Option<(Generation, Vec<LinkId>)> {
        let ChangePhase::Pausing(pausing) = &self.phase else { return None };
        let silent = |worker: &WorkerId| {
            !self.statuses.contains_key(worker) || roster.detector.is_suspected(*worker)
        };
        let to = roster.links.registered().iter().filter(|(worker, _)| silent(worker));
        Some((pausing.number, to.map(|(_, link)| *link).collect()))
    }

    /// A worker has promised, and says what it holds. Returns whether this answers the Pause under
    /// way.
    fn on_status(&mut self, term: Option<Term>, worker: WorkerId, status: Status) -> bool {
        let ChangePhase::Pausing(pausing) = &mut self.phase else { return false };
        let answers = Some(status.term) == term && status.number == pausing.number;
        if answers {
            pausing.expect_nothing_of(worker);
            self.statuses.insert(worker, status);
        }
        answers
    }

    /// The plan of the next generation, once all expected answers are there, or late. `written` is
    /// the newest step with a line here, and `asked` what operators want.
    fn plan(
        &self,
        roster: Roster<'_>,
        term: Term,
        written: Step,
        asked: GenerationRequest,
        partition: &Partition,
    ) -> Option<Plan> {
        let ChangePhase::Pausing(pausing) = &self.phase else { return None };
        if !pausing.has_all_answers(roster) {
            return None;
        }
        let (now, state) = (roster.now, roster.state);
        let give_up = pausing.give_up(roster);
        let has_answered = |worker: &WorkerId| self.statuses.contains_key(worker);
        let is_settled = |worker| roster.detector.is_settled(now, worker);
        Some(plan(&PlanInputs {
            now,
            term,
            run: state.run()?,
            shards: state.shards()?,
            current: state.record(),
            workers: state.workers(),
            statuses: &self.statuses,
            detector: roster.detector,
            paces: roster.paces,
            ready: self.feeds.ready(),
            complete: pausing.everyone_is_heard(roster, has_answered),
            broken: &partition.repeated(now, is_settled),
            newest: state.generation(),
            number: pausing.number,
            written,
            reached: self.reached,
            checkpoints: state.checkpoints(),
            asked,
            give_up: give_up.as_ref(),
            is_exempt: state.is_exempt(),
            #[cfg(feature = "planted")]
            plant: state.plant,
        }))
    }

    /// The plan waits for this.
    fn wait_for(&mut self, now: Time, wait: Wait, state: &State) {
        if let ChangePhase::Pausing(pausing) = &mut self.phase {
            pausing.awaiting.on_wait(now, &wait, state.awaited());
            pausing.wait = Some(wait);
        }
    }

    /// The proposal of a generation with this number is refused. Returns whether it was under way.
    fn not_begun(&mut self, number: Generation) -> bool {
        let is_it = matches!(self.phase, ChangePhase::Proposed(proposed) if proposed == number);
        if is_it {
            self.phase = ChangePhase::Steady;
        }
        is_it
    }
}

// What starts a change.
impl Core {
    /// An input arrives. While answers to a Pause may be on their way, their deadline begins anew.
    pub(super) fn wake(&mut self, now: Time) {
        if self.health.wake(now) {
            self.change.restart_deadline(now);
        }
    }

    /// A worker is suspected. If it is a member, all workers pause. Any other one is lost at once.
    pub(super) fn suspect(&mut self, now: Time, worker: WorkerId, suspicion: Suspicion) {
        let reason = suspicion.reason.clone();
        let (is_news, outage) = self.health.suspect(now, worker, suspicion);
        if !self.running() {
            return;
        }
        let is_member = self.state.is_member(worker);
        if is_news && !is_member {
            self.propose(now, Command::Lose { worker, reason });
        }
        let Parts { change, roster, .. } = self.parts(now);
        if change.on_suspicion(roster, worker, outage) {
            self.advance(now);
        } else if change.is_free() && is_member {
            self.pause(now);
        }
    }

    /// Suspects the workers that have been silent for too long.
    pub(super) fn suspect_silent(&mut self, now: Time) {
        for worker in self.health.detector.silent(now) {
            self.suspect(now, worker, Suspicion::of_silence());
        }
    }

    /// A worker has promised a number that no generation has yet: it needs that generation.
    pub(super) fn keep_promise(&mut self, now: Time) {
        if self.change.is_free() {
            self.pause(now);
        }
    }

    /// A member has lost its links to other members of its generation.
    pub(super) fn on_unreachable(&mut self, now: Time, worker: WorkerId, unreachable: &[WorkerId]) {
        for other in unreachable.iter().filter(|other| self.state.is_member(**other)) {
            self.health.partition.report(worker, *other);
        }
        self.renew_for_partition(now);
    }

    /// Begins a new generation for members that cannot reach each other, if it is time for one.
    fn renew_for_partition(&mut self, now: Time) {
        if self.change.is_free() && self.running() && self.health.partition.is_due(now) {
            self.pause(now);
        }
    }

    /// Begins the first generation when enough registered workers are connected.
    pub(super) fn start(&mut self, now: Time) {
        let Some(run) = self.state.run() else { return };
        let enough = self.links.registered().len() >= run.start_workers as usize;
        let first = self.state.record().is_none() && self.change.is_steady();
        if first && enough && self.running() {
            self.pause(now);
        }
    }

    pub(super) fn tick(&mut self, now: Time) {
        self.history.tick(now);
        self.seek_lines(now);
        if self.leader().is_none() {
            return;
        }
        self.leadership.ask_for_confirmation(&mut self.outbox);
        self.give_up_lines(now);
        if self.health.tick(now) {
            self.leadership.confirm_silence(&mut self.outbox);
        } else {
            self.suspect_silent(now);
        }
        self.renew_for_partition(now);
        self.judge_builds(now);
        self.judge_unable(now);
        self.see_to_model(now);
        self.see_to_checkpoints(now);
        self.see_to_end(now);
        self.propose_joint_leave(now);
        match &self.change.phase {
            ChangePhase::Steady => self.begin_due_change(now),
            ChangePhase::Holding(_) => self.keep_holding(now),
            ChangePhase::Pausing(_) => self.keep_pausing(now),
            ChangePhase::Proposed(_) => {}
        }
    }
}

// Pausing.
impl Core {
    fn pause(&mut self, now: Time) {
        let Parts { change, roster, .. } = self.parts(now);
        change.pause(roster);
        self.send_pause(now);
        self.advance(now);
    }

    fn keep_pausing(&mut self, now: Time) {
        let Parts { change, roster, .. } = self.parts(now);
        if change.tick(roster) {
            self.send_pause(now);
        }
        self.advance(now);
        self.log_wait(now);
    }

    /// The leader hears a worker.
    pub(super) fn on_sign_of_life(&mut self, now: Time, heard: SignOfLife) {
        let Parts { change, roster, .. } = self.parts(now);
        if heard == SignOfLife::First && change.on_outage_return(roster) {
            self.send_pause(now);
        }
    }

    /// Sends the Pause to all workers that should answer it.
    fn send_pause(&mut self, now: Time) {
        let Some(term) = self.leader() else { return };
        if let Some((number, to)) = self.change.unanswered(self.roster(now)) {
            self.outbox.broadcast(to, Message::Pause { term, number });
        }
    }

    /// A worker has promised, and says what it holds. Only the answer to this very Pause counts.
    pub(super) fn on_status(&mut self, now: Time, worker: WorkerId, status: Status) {
        if !self.change.on_status(self.leader(), worker, status) {
            return self.links.ignore();
        }
        self.health.detector.clear(worker);
        self.advance(now);
    }

    /// A suspect has answered meanwhile, and is suspected no more.
    pub(super) fn on_cleared(&mut self, now: Time) {
        self.advance(now);
    }

    /// During a Pause, proposes the next generation once all expected answers are there, or late.
    fn advance(&mut self, now: Time) {
        let is_over = self.ends_without_checkpoint(now);
        let Some(term) = self.leader().filter(|_| !is_over) else { return };
        let (roster, written, asked) = (self.roster(now), self.newest_step(), self.asked(now));
        match self.change.plan(roster, term, written, asked, &self.health.partition) {
            None => {}
            Some(Plan::Wait(wait)) => self.change.wait_for(now, wait, &self.state),
            Some(Plan::Change(change)) => {
                self.change.phase = ChangePhase::Proposed(change.record.number);
                self.propose(now, Command::Generation(*change));
            }
        }
    }

    /// An operator asked that the run go back.
    pub(super) fn go_back(&mut self, now: Time) {
        if self.change.is_free() { self.pause(now) } else { self.advance(now) }
    }
}

// Applied entries.
impl Core {
    /// A generation has begun.
    pub(super) fn began(&mut self, now: Time, change: Change) {
        let Change { record, lost, left, .. } = change;
        self.health.renew_links(now);
        self.change.begin(record.resume);
        self.completion.begin(self.is_over());
        for Loss { worker, .. } in lost {
            let link = self.links.of_registered(worker);
            self.forget(worker);
            // Other workers may have reported its end before it could say why.
            link.inspect(|link| self.links.enter(*link, links::PeerPhase::Evicted(worker)));
        }
        for worker in left {
            self.let_go(worker);
        }
        let members = self.roster(now).member_links();
        self.announce(members);
        self.see_to_model(now);
        if self.state.is_to_go_back() {
            return self.pause(now); // An operator asked while this generation was on its way.
        }
        self.begin_due_change(now);
    }

    /// A proposal came too late. The change is still to be made, and all workers are paused: pauses
    /// again.
    pub(super) fn not_begun(&mut self, now: Time, number: Generation) {
        if self.change.not_begun(number) {
            self.pause(now);
        }
    }
}
