//! The way from one generation to the next.
//!
//! ```text
//! Steady -- suspicion --> Pausing -- evidence is in --> Proposed -- applied --> Steady
//! Steady -- learners ready, somebody free --> Holding -- all hold --> Pausing
//! ```
//!
//! A suspicion of a member pauses everyone at once. A planned change first lets the step under way
//! come to its end. Either way all workers that can do so promise the next number, and say what
//! they hold. `plan.rs` makes the next generation of that. A Pause always ends in a generation,
//! even of the same members. This module does not know how a plan is made, nor why a worker is
//! suspected.

mod awaiting;
mod holding;
mod steady;

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Generation, Message, WorkerId};
use everstep_transport::time::Time;

use self::awaiting::Awaiting;
use self::holding::Holding;
use super::feeds::Feeds;
use super::links;
use super::plan::{Evidence, Plan, Wait, plan};
use super::silence::{Certainty, Doubt, Heard, PATIENCE};
use super::{Core, LinkId};
use crate::state::{Change, Command, Loss, Standing, Verdict};

/// The leader goes on without a worker that has not answered a Pause for this long.
const ANSWER: Duration = Duration::from_secs(2);
/// How often the leader repeats a Pause to workers that have not answered.
const REPEAT: Duration = Duration::from_millis(500);
/// How far a change has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing changes.
    Steady,
    /// The leader has asked the step leader to hold.
    Holding(Holding),
    /// The leader has asked all workers to promise.
    Pausing(Pausing),
    /// The next generation, with this number, is on its way into the log.
    Proposed(Generation),
}

#[derive(Debug)]
pub(super) struct Pausing {
    number: Generation,
    since: Time,
    /// When the leader last sent the Pause.
    said: Time,
    /// The workers that still owe an answer.
    missing: BTreeSet<WorkerId>,
    /// The workers that got a link again during this Pause. Each restarts the deadline, but only
    /// once.
    returned: BTreeSet<WorkerId>,
    /// Why the last attempt gave no plan.
    wait: Option<Wait>,
    awaiting: Awaiting,
}

// What starts a change.
impl Core {
    /// An input arrives. If this coordinator was late itself, the answers to its Pause may still be
    /// in a queue. While it hears no worker, they may be on their way. Both restart the deadline.
    pub(super) fn wake(&mut self, now: Time) {
        let is_late = self.silence.wake(now);
        if (is_late || !self.silence.hears_any(now))
            && let Phase::Pausing(pausing) = &mut self.phase
        {
            pausing.since = now;
        }
    }

    /// A worker is suspected. If it is a member, everyone pauses. Any other worker is lost at once.
    pub(super) fn suspect(&mut self, now: Time, worker: WorkerId, doubt: Doubt) {
        let reason = doubt.reason.clone();
        let news = self.silence.suspect(now, worker, doubt);
        let outage = self.silence.look_for_outage(now);
        if !self.running() {
            return;
        }
        if news && !self.state.is_member(worker) {
            self.propose(now, Command::Lose { worker, reason });
        }
        let awaited = if outage { self.expected(now) } else { BTreeSet::new() };
        match &mut self.phase {
            Phase::Pausing(pausing) => {
                pausing.missing.extend(awaited);
                // A worker that may be back in a moment is asked again, even if it has answered
                // before.
                if self.silence.may_answer(now, worker) && self.state.is_member(worker) {
                    pausing.missing.insert(worker);
                } else {
                    pausing.missing.remove(&worker);
                }
                self.advance(now);
            }
            Phase::Steady | Phase::Holding(_) if self.state.is_member(worker) => self.pause(now),
            Phase::Steady | Phase::Holding(_) | Phase::Proposed(_) => {}
        }
    }

    /// Suspects the workers that have been silent for too long.
    pub(super) fn suspect_silent(&mut self, now: Time) {
        for worker in self.silence.silent(now) {
            let reason = format!("no heartbeat for {:?}", PATIENCE);
            self.suspect(now, worker, Doubt { reason, certainty: Certainty::Silent });
        }
    }

    /// A worker has promised a number that no generation has yet: it needs that generation.
    pub(super) fn keep_promise(&mut self, now: Time) {
        if matches!(self.phase, Phase::Steady | Phase::Holding(_)) {
            self.pause(now);
        }
    }

    /// A member has lost its links to other members of its generation.
    pub(super) fn cut_off(&mut self, now: Time, worker: WorkerId, unreachable: &[WorkerId]) {
        for other in unreachable.iter().filter(|other| self.state.is_member(**other)) {
            self.partition.report(worker, *other);
        }
        self.join_up(now);
    }

    /// Begins a new generation for members that cannot reach each other, if it is time for one.
    fn join_up(&mut self, now: Time) {
        let free = matches!(self.phase, Phase::Steady | Phase::Holding(_));
        if free && self.running() && self.partition.is_due(now) {
            self.pause(now);
        }
    }

    /// Begins the first generation when enough registered workers are connected.
    pub(super) fn start(&mut self, now: Time) {
        let Some(run) = self.state.run() else { return };
        let enough = self.links.registered().len() >= run.start_workers as usize;
        let first = self.state.record().is_none() && matches!(self.phase, Phase::Steady);
        if first && enough && self.running() {
            self.pause(now);
        }
    }

    pub(super) fn tick(&mut self, now: Time) {
        self.past.tick(now);
        self.seek_lines(now);
        if self.leader().is_none() {
            return;
        }
        self.ask_for_confirmation();
        self.give_up_lines(now);
        self.silence.tick(now);
        match self.silence.silent(now).len() {
            many if self.silence.are_many(many) => self.confirm_silence(),
            _ => self.suspect_silent(now),
        }
        self.join_up(now);
        self.judge_unable(now);
        self.see_to_model(now);
        match &mut self.phase {
            Phase::Steady => self.consider(now),
            Phase::Holding(_) => self.keep_holding(now),
            Phase::Pausing(pausing) => {
                pausing.missing.retain(|worker| self.silence.may_answer(now, *worker));
                self.repeat_pause(now);
                self.advance(now);
                self.tell_of_wait(now);
            }
            Phase::Proposed(_) => {}
        }
    }
}

// Pausing.
impl Core {
    fn pause(&mut self, now: Time) {
        self.forget_answers();
        self.phase = Phase::Pausing(Pausing {
            number: self.state.generation().next(),
            since: now,
            said: now,
            missing: self.expected(now),
            returned: BTreeSet::new(),
            wait: None,
            awaiting: Awaiting::default(),
        });
        self.say_pause();
        self.advance(now);
    }

    /// The leader hears a worker. If it returns from an outage, the others that fell silent with it
    /// may answer, too.
    pub(super) fn hear(&mut self, now: Time, heard: Heard) {
        if heard == Heard::Alone {
            return;
        }
        let expected = self.expected(now);
        if let Phase::Pausing(pausing) = &mut self.phase {
            pausing.missing.extend(expected);
            (pausing.since, pausing.said) = (now, now);
            self.say_pause();
        }
    }

    fn forget_answers(&mut self) {
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::Plant::AnyStatus) {
            return;
        }
        self.statuses.clear();
    }

    /// The workers that owe an answer and may give one: members, learners that are ready, and
    /// before the first generation every linked worker.
    fn expected(&self, now: Time) -> BTreeSet<WorkerId> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let linked = self.links.registered().keys().copied();
        let first = linked.filter(|_| self.state.record().is_none());
        let ready = self.feeds.ready().iter().copied();
        let all = members.map(|member| member.worker).chain(first).chain(ready);
        let silent = all.filter(|worker| !self.statuses.contains_key(worker));
        silent.filter(|worker| self.silence.may_answer(now, *worker)).collect()
    }

    fn repeat_pause(&mut self, now: Time) {
        if let Phase::Pausing(pausing) = &mut self.phase
            && now.since(pausing.said) >= REPEAT
        {
            pausing.said = now;
            self.say_pause();
        }
    }

    /// Sends the Pause to all workers that have not answered, and to suspects. A suspect that
    /// answers is taken back.
    fn say_pause(&mut self) {
        let (Phase::Pausing(pausing), Some(term)) = (&self.phase, self.leader()) else { return };
        let number = pausing.number;
        let silent = |worker: &WorkerId| {
            !self.statuses.contains_key(worker) || self.silence.is_suspected(*worker)
        };
        let to = self.links.registered().iter().filter(|(worker, _)| silent(worker));
        let to: Vec<LinkId> = to.map(|(_, link)| *link).collect();
        self.broadcast(to, Message::Pause { term, number });
    }

    /// A worker has promised, and says what it holds. Only the answer to this very Pause counts.
    pub(super) fn testify(&mut self, now: Time, worker: WorkerId, status: Status) {
        let term = self.leader();
        let Phase::Pausing(pausing) = &mut self.phase else {
            self.ignored += 1;
            return;
        };
        if Some(status.term) != term || status.number != pausing.number {
            self.ignored += 1;
            return;
        }
        self.silence.acquit(worker);
        pausing.missing.remove(&worker);
        self.statuses.insert(worker, status);
        self.advance(now);
    }

    /// A suspect has answered meanwhile, and is suspected no more.
    pub(super) fn acquitted(&mut self, now: Time) {
        if matches!(self.phase, Phase::Pausing(_)) {
            self.advance(now);
        }
    }

    /// Proposes the next generation, once all expected answers are there, or late.
    fn advance(&mut self, now: Time) {
        let (Phase::Pausing(pausing), Some(term)) = (&self.phase, self.leader()) else { return };
        if !self.evidence_is_in(now, pausing) {
            return;
        }
        let (Some(run), Some(shards)) = (self.state.run(), self.state.shards()) else { return };
        let give_up = self.give_up(now, pausing);
        let found = plan(&Evidence {
            now,
            term,
            run,
            shards,
            current: self.state.record(),
            workers: self.state.workers(),
            statuses: &self.statuses,
            silence: &self.silence,
            ready: self.feeds.ready(),
            complete: self.everyone_is_heard(now, pausing),
            broken: &self.partition.repeated(now),
            newest: self.state.generation(),
            written: self.newest_step(),
            reached: self.reached,
            give_up: give_up.as_ref(),
            #[cfg(feature = "planted")]
            plant: self.plant,
        });
        match found {
            Plan::Wait(wait) => self.wait_for(now, wait),
            Plan::Change(change) => {
                self.phase = Phase::Proposed(change.record.number);
                self.propose(now, Command::Generation(*change));
            }
        }
    }

    /// Whether each expected answer is there, or had its chance. A worker without a link that still
    /// has time to come back could not answer yet, nor could a worker that fell silent together
    /// with many others.
    fn evidence_is_in(&self, now: Time, pausing: &Pausing) -> bool {
        let had_its_chance = |worker: &WorkerId| {
            let linked = self.links.of_registered(*worker).is_some();
            (linked || pausing.returned.contains(worker)) && !self.silence.is_awaited(now, *worker)
        };
        pausing.missing.is_empty()
            || (now.since(pausing.since) >= ANSWER && pausing.missing.iter().all(had_its_chance))
    }

    /// Whether all linked workers have answered, or are late.
    fn everyone_is_heard(&self, now: Time, pausing: &Pausing) -> bool {
        let mut linked = self.links.registered().keys();
        let heard =
            |worker: &WorkerId| self.statuses.contains_key(worker) || self.silence.is_dead(*worker);
        now.since(pausing.since) >= ANSWER || linked.all(heard)
    }

    /// An operator asked that the run go back.
    pub(super) fn go_back(&mut self, now: Time) {
        match self.phase {
            Phase::Steady | Phase::Holding(_) => self.pause(now),
            Phase::Pausing(_) => self.advance(now),
            Phase::Proposed(_) => {}
        }
    }
}

// Applied entries.
impl Core {
    /// A generation has begun.
    pub(super) fn began(&mut self, now: Time, change: Change) {
        let Change { record, lost, left, .. } = change;
        self.results.clear();
        self.reached = record.resume;
        self.partition.renew(now);
        self.feeds = Feeds::default();
        self.catch_up.renew();
        self.phase = Phase::Steady;
        for Loss { worker, .. } in lost {
            let link = self.links.of_registered(worker);
            self.forget(worker);
            // Other workers may have reported its end before it could say why.
            link.inspect(|link| self.links.enter(*link, links::Phase::Evicted(worker)));
        }
        for worker in left {
            self.let_go(worker);
        }
        let members = self.member_links();
        self.announce(members);
        let last = self.state.run().is_some_and(|run| self.reached.0 >= run.steps);
        self.model.renew(last);
        self.see_to_model(now);
        if self.state.is_to_go_back() {
            return self.pause(now); // An operator asked while this generation was on its way.
        }
        self.consider(now);
    }

    /// A proposal came too late. The change is still to be made, and everyone is paused: pauses
    /// again.
    pub(super) fn not_begun(&mut self, now: Time, number: Generation) {
        if matches!(self.phase, Phase::Proposed(proposed) if proposed == number) {
            self.phase = Phase::Steady;
            self.pause(now);
        }
    }

    /// Forgets a worker that was no member. If the worker has become a member meanwhile, it is
    /// still suspected, and that is a reason to change.
    pub(super) fn lost(&mut self, now: Time, worker: WorkerId, verdict: &Verdict) {
        if *verdict == Verdict::Accepted || !self.state.is_present(worker) {
            self.forget(worker);
        }
        if matches!(self.phase, Phase::Steady) {
            self.consider(now);
        }
    }

    /// A worker is to leave, or has left.
    pub(super) fn drained(&mut self, now: Time, worker: WorkerId) {
        let known = self.state.workers().get(&worker);
        if known.is_some_and(|known| known.standing == Standing::Left) {
            self.let_go(worker);
        }
        if matches!(self.phase, Phase::Steady) {
            self.consider(now);
        }
    }

    /// The worker is lost. If it lives, the leader tells it so.
    fn forget(&mut self, worker: WorkerId) {
        self.expect_nothing_of(worker);
        if let Some(link) = self.links.of_registered(worker) {
            self.evict(link, worker);
        }
    }

    /// The worker has left: the leader lets it go.
    fn let_go(&mut self, worker: WorkerId) {
        self.expect_nothing_of(worker);
        if let Some(link) = self.links.of_registered(worker) {
            self.see_off(link, worker);
        }
    }

    /// Tells a drained worker that it may go, no matter which side asked for the drain.
    pub(super) fn see_off(&mut self, link: LinkId, worker: WorkerId) {
        self.release(link, Message::Drain { worker });
    }

    fn expect_nothing_of(&mut self, worker: WorkerId) {
        self.silence.forget(worker);
        self.telemetry.remove(&worker);
        self.progress.forget(worker);
        self.feeds.forget(worker);
        self.catch_up.forget(worker);
        if let Phase::Pausing(pausing) = &mut self.phase {
            pausing.missing.remove(&worker);
        }
    }
}
