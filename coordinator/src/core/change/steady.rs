//! While nothing changes: which workers learn in the background, and whether there is a reason to
//! change.

use std::time::Duration;

use everstep_transport::protocol::{Message, Step, WorkerId};
use everstep_transport::time::Time;

use super::super::feeds::{Feeds, Learners, frees_somebody};
use super::super::reign::Reign;
use super::super::{Core, LinkId};
use super::Phase;
use crate::state::Standing;

impl Core {
    /// Looks for a reason to change, and takes the first.
    pub(super) fn consider(&mut self, now: Time) {
        if !self.running() {
            return;
        }
        if self.silence.suspects().any(|worker| self.state.is_member(worker)) {
            return self.pause(now);
        }
        self.start(now);
        let finishes = self.is_over() && self.model_awaited().is_none();
        if !matches!(self.phase, Phase::Steady) || finishes {
            return;
        }
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let is_trained = record.resume >= Step(run.steps);
        let rests = record.waiting || is_trained;
        let learners = self.learners(now);
        let frees = frees_somebody(record, &learners.leaving);
        if self.feeds.are_outdated(now, record.number, &learners) {
            self.feed(now, learners);
        }
        for learner in self.feeds.repeat(now) {
            self.say_feed(learner);
        }
        // Learners cannot learn a last step that the record does not state: no commit follows.
        let lacks_record = self.is_over() && !is_trained && !self.feeds.lessons().is_empty();
        if lacks_record || (frees || self.feeds.are_due(now)) && self.all_are_linked() {
            if rests || self.is_over() { self.pause(now) } else { self.hold(now) }
        } else if !rests {
            self.hold_back(now);
        }
    }

    /// Holds steps back for learners that cannot keep up, or gives their joins up.
    fn hold_back(&mut self, now: Time) {
        let step = Duration::try_from_secs_f64(self.lines.pace()).unwrap_or_default();
        let order = self.catch_up.look(now, &self.feeds.unready(), step);
        if order.hold {
            self.ask_to_hold();
        }
        // A member goes on learning: no other worker is there to hold its copies.
        for worker in order.hopeless {
            if self.state.is_member(worker) {
                continue;
            }
            self.catch_up.give_up(now, worker);
            let learners = self.learners(now);
            self.feed(now, learners);
            self.say_feed(worker);
        }
    }

    /// Whether the last step is committed. Then members only finish, and no change is worth its
    /// cost, unless the model waits for a place. That wait may be long, and the weights are in
    /// memory alone.
    pub(in crate::core) fn is_over(&self) -> bool {
        self.state.run().is_some_and(|run| self.reached >= Step(run.steps))
    }

    fn learners(&self, now: Time) -> Learners {
        let mut learners = Learners::default();
        for (worker, known) in self.state.present() {
            match known.standing {
                Standing::Registered
                    if !self.silence.is_suspected(worker)
                        && !self.catch_up.is_given_up(now, worker) =>
                {
                    learners.joiners.insert(worker);
                }
                Standing::Leaving => {
                    learners.leaving.insert(worker);
                }
                _ => {}
            }
        }
        learners
    }

    pub(in crate::core) fn all_are_linked(&self) -> bool {
        let mut members = self.state.record().into_iter().flat_map(|record| &record.members);
        members.all(|member| self.links.of_registered(member.worker).is_some())
    }

    /// Tells everyone the lessons from now on, where they are new.
    fn feed(&mut self, now: Time, learners: Learners) {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let feeds = Feeds::new(now, run, record, learners, self.state.workers());
        for learner in self.feeds.replace(feeds) {
            self.say_feed(learner);
        }
    }

    /// Tells all members, and the learner, what it learns.
    pub(in crate::core) fn say_feed(&mut self, learner: WorkerId) {
        let mut to = self.member_links();
        if !self.state.is_member(learner)
            && let Some(link) = self.links.of_registered(learner)
        {
            self.announce(vec![link]);
            to.push(link);
        }
        if let Some(feed) = self.feed_of(learner) {
            self.broadcast(to, feed);
        }
    }

    /// A worker cannot reach `unreachable`. Where one of a pair is a member and the other one
    /// learns, either end's word counts: only one of them may have noticed.
    pub(in crate::core) fn cut_from_learners(
        &mut self,
        now: Time,
        worker: WorkerId,
        unreachable: &[WorkerId],
    ) {
        for other in unreachable.iter().copied() {
            match (self.state.is_member(worker), self.state.is_member(other)) {
                (false, true) => self.feeds.cut_off(now, worker),
                (true, false) => self.feeds.cut_off(now, other),
                _ => {}
            }
        }
    }

    fn feed_of(&self, learner: WorkerId) -> Option<Message> {
        let known = self.state.workers().get(&learner)?;
        Some(Message::Feed {
            term: self.leader()?,
            generation: self.state.generation(),
            learner,
            name: known.name.clone(),
            address: known.registration.address,
            // The list is empty if the leader has given the join up.
            shards: self.feeds.lessons().get(&learner).cloned().unwrap_or_default(),
        })
    }

    pub(super) fn announce(&mut self, to: Vec<LinkId>) {
        if let Some(record) = self.state.record().cloned() {
            self.broadcast(to, Message::Announce(record));
        }
    }

    pub(super) fn member_links(&self) -> Vec<LinkId> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        members.filter_map(|member| self.links.of_registered(member.worker)).collect()
    }

    /// A worker has a link again. It may have missed messages to all.
    pub(in crate::core) fn catch_up(&mut self, now: Time, link: LinkId, worker: WorkerId) {
        match (&mut self.phase, self.reign) {
            (Phase::Pausing(pausing), Reign::Leads(term)) => {
                // It could not answer before. A worker with an unstable link gets only one new
                // deadline.
                if pausing.missing.contains(&worker) && pausing.returned.insert(worker) {
                    pausing.since = now;
                }
                let number = pausing.number;
                self.send(link, Message::Pause { term, number });
            }
            (Phase::Steady | Phase::Holding(_), _) => {
                let member = self.state.is_member(worker);
                let learners = self.feeds.lessons().keys().copied();
                let told = learners.filter(|learner| member || *learner == worker);
                let feeds: Vec<Message> = told.filter_map(|id| self.feed_of(id)).collect();
                // A feed counts only in its own generation, and a member may lack the record.
                if !feeds.is_empty() {
                    self.announce(vec![link]);
                }
                feeds.into_iter().for_each(|feed| self.send(link, feed));
            }
            (Phase::Pausing(_) | Phase::Proposed(_), _) => {}
        }
    }
}
