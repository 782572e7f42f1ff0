//! While nothing changes: which workers catch up in the background, and whether there is a reason
//! to change.

use std::time::Duration;

use everstep_transport::protocol::{Generation, Message, Step, Term, WorkerId};
use everstep_transport::time::Time;

use super::super::catch_up::HoldDecision;
use super::super::feeds::{FeedTargets, Feeds, frees_somebody};
use super::super::roster::Roster;
use super::super::{Core, LinkId, Parts};
use super::{ChangePhase, GenerationChange};
use crate::state::{State, WorkerPhase};

/// Why a change is due while nothing changes.
struct ChangeCheck {
    /// The workers that hear anew what they sync.
    feed: Vec<WorkerId>,
    /// Whether a change is due.
    is_due: bool,
}

// Feeds.
impl GenerationChange {
    /// Whether the worker syncs shards.
    pub(in crate::core) fn is_fed(&self, worker: WorkerId) -> bool {
        self.feeds.shard_syncs().contains_key(&worker)
    }

    /// Why a worker's join waits, in words.
    pub(in crate::core) fn join_waits_for(&self, worker: WorkerId) -> Option<String> {
        self.catch_up.reason(worker)
    }

    /// A joiner of this generation says that it has synced everything.
    pub(in crate::core) fn synced(&mut self, now: Time, worker: WorkerId, of: Generation) {
        self.feeds.synced(now, worker, of);
    }

    /// A worker of the current generation says how many bytes it is behind.
    pub(in crate::core) fn set_behind(&mut self, now: Time, worker: WorkerId, behind: u64) {
        if self.is_fed(worker) {
            self.catch_up.set_behind(now, worker, behind);
        }
    }

    /// A worker cannot reach `unreachable`. Where one of a pair is a member and the other one
    /// catches up, either end's word counts: only one of them may have noticed.
    pub(in crate::core) fn cut_from_joiners(
        &mut self,
        roster: Roster<'_>,
        worker: WorkerId,
        unreachable: &[WorkerId],
    ) {
        for other in unreachable.iter().copied() {
            match (roster.state.is_member(worker), roster.state.is_member(other)) {
                (false, true) => self.feeds.on_lost_link(roster.now, worker),
                (true, false) => self.feeds.on_lost_link(roster.now, other),
                _ => {}
            }
        }
    }

    fn feed_targets(&self, roster: Roster<'_>) -> FeedTargets {
        roster.feed_targets(|worker| self.catch_up.is_given_up(roster.now, worker))
    }

    /// Begins shard syncs for these workers. Returns the workers with new ones.
    fn feed(&mut self, roster: Roster<'_>, feed_targets: FeedTargets) -> Vec<WorkerId> {
        let state = roster.state;
        let (Some(run), Some(record)) = (state.run(), state.record()) else { return Vec::new() };
        let (known, paces) = (state.workers(), roster.paces);
        let feeds = Feeds::new(roster.now, run, record, feed_targets, known, paces);
        self.feeds.replace(feeds)
    }

    /// Brings the feeds up to date, and looks for a reason to change. `over` says whether the last
    /// step is committed.
    fn check_feeds(&mut self, roster: Roster<'_>, over: bool, is_trained: bool) -> ChangeCheck {
        let now = roster.now;
        let mut check = ChangeCheck { feed: Vec::new(), is_due: false };
        let Some(record) = roster.state.record() else { return check };
        let feed_targets = self.feed_targets(roster);
        let frees = frees_somebody(record, &feed_targets.leaving);
        if self.feeds.are_outdated(now, record.number, &feed_targets) {
            check.feed = self.feed(roster, feed_targets);
        }
        check.feed.extend(self.feeds.repeat(now));
        // Joiners cannot sync a last step that the record does not state: no commit follows.
        let lacks_record = over && !is_trained && !self.feeds.shard_syncs().is_empty();
        check.is_due =
            lacks_record || (frees || self.feeds.are_due(now)) && roster.all_members_are_linked();
        check
    }

    /// Checks whether joiners keep up with steps of this length.
    fn check_joiners(&mut self, now: Time, step: Duration) -> HoldDecision {
        self.catch_up.check(now, &self.feeds.unready(), step)
    }

    /// Gives a join up. Returns the workers with new shard syncs.
    fn give_up_join(&mut self, roster: Roster<'_>, worker: WorkerId) -> Vec<WorkerId> {
        self.catch_up.give_up(roster.now, worker);
        let feed_targets = self.feed_targets(roster);
        self.feed(roster, feed_targets)
    }

    /// What a worker syncs, as all members are told of it. The list is empty if the leader has
    /// given the join up.
    fn feed_of(&self, state: &State, term: Term, joiner: WorkerId) -> Option<Message> {
        let known = state.workers().get(&joiner)?;
        Some(Message::Feed {
            term,
            generation: state.generation(),
            joiner,
            name: known.name.clone(),
            address: known.registration.address,
            shards: self.feeds.shard_syncs().get(&joiner).cloned().unwrap_or_default(),
        })
    }
}

impl Core {
    /// Looks for a reason to change, and takes the first.
    pub(in crate::core) fn begin_due_change(&mut self, now: Time) {
        if !self.running() || self.ends_without_checkpoint(now) {
            return;
        }
        if self.roster(now).suspects_member() || self.change.is_steady() && self.restores_damaged()
        {
            return self.pause(now);
        }
        self.start(now);
        let over = self.is_over();
        let (asked, is_asked) = (self.asked(now), self.is_to_be_changed(now));
        let finishes = over && self.model_awaited().is_none() && !is_asked;
        if !self.change.is_steady() || finishes {
            return;
        }
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let is_trained = record.resume >= Step(run.steps);
        let rests = record.waiting || is_trained;
        let Parts { change, roster, .. } = self.parts(now);
        // If all workers are to leave, none goes before the others, and none copies for another.
        let ChangeCheck { feed, is_due } = match asked.closing {
            true => ChangeCheck { feed: Vec::new(), is_due: false },
            false => change.check_feeds(roster, over, is_trained),
        };
        for joiner in feed {
            self.send_feed(now, joiner);
        }
        let is_due = is_due || !rests && !over && self.is_to_be_shared_anew(now);
        if is_due || is_asked && self.roster(now).all_members_are_linked() {
            if rests || over { self.pause(now) } else { self.hold(now) }
        } else if !rests {
            self.hold_back(now);
        }
    }

    /// Whether other shares of the data shards would make the steps shorter, and nothing else is
    /// under way: no worker is missing, joins or leaves.
    fn is_to_be_shared_anew(&mut self, now: Time) -> bool {
        #[cfg(feature = "planted")]
        if self.state.plant == Some(crate::plant::CorePlant::IgnorePace) {
            return false;
        }
        let is_calm = self.change.feeds.shard_syncs().is_empty()
            && self.roster(now).all_members_are_linked()
            && self.health.detector.outage(now).is_none()
            && self.state.present().all(|(_, known)| known.phase != WorkerPhase::Leaving);
        let reached = self.change.reached();
        let Some(record) = self.state.record().filter(|_| is_calm) else {
            self.health.paces.disturb();
            return false;
        };
        self.health.paces.is_due(now, record, reached)
    }

    /// Holds steps back for joiners that cannot keep up, or gives their joins up.
    fn hold_back(&mut self, now: Time) {
        let step = Duration::try_from_secs_f64(self.lines.pace()).unwrap_or_default();
        let order = self.change.check_joiners(now, step);
        if order.hold {
            self.ask_to_hold();
        }
        // A member goes on catching up: no other worker is there to hold its copies.
        for worker in order.hopeless {
            if self.state.is_member(worker) {
                continue;
            }
            let Parts { change, roster, .. } = self.parts(now);
            for joiner in change.give_up_join(roster, worker) {
                self.send_feed(now, joiner);
            }
            self.send_feed(now, worker);
        }
    }

    /// Whether the last step is committed. Then members only finish, and no change is worth its
    /// cost, unless the model waits for a place. That wait may be long, and the weights are in
    /// memory alone.
    pub(in crate::core) fn is_over(&self) -> bool {
        self.state.run().is_some_and(|run| self.change.reached() >= Step(run.steps))
    }

    /// Tells all members, and the joiner, what it syncs.
    pub(in crate::core) fn send_feed(&mut self, now: Time, joiner: WorkerId) {
        let mut to = self.roster(now).member_links();
        if !self.state.is_member(joiner)
            && let Some(link) = self.links.of_registered(joiner)
        {
            self.announce(vec![link]);
            to.push(link);
        }
        let term = self.leader();
        if let Some(feed) = term.and_then(|term| self.change.feed_of(&self.state, term, joiner)) {
            self.outbox.broadcast(to, feed);
        }
    }

    pub(super) fn announce(&mut self, to: Vec<LinkId>) {
        if let Some(record) = self.state.record().cloned() {
            self.outbox.broadcast(to, Message::Announce(record));
        }
    }

    /// A worker has a link again. It may have missed messages to all.
    pub(in crate::core) fn catch_up(&mut self, now: Time, link: LinkId, worker: WorkerId) {
        let Some(term) = self.leader() else { return };
        match &mut self.change.phase {
            ChangePhase::Pausing(pausing) => {
                pausing.on_return(now, worker);
                let number = pausing.number;
                self.outbox.send(link, Message::Pause { term, number });
            }
            ChangePhase::Steady | ChangePhase::Holding(_) => {
                let member = self.state.is_member(worker);
                let joiners = self.change.feeds.shard_syncs().keys().copied();
                let told = joiners.filter(|joiner| member || *joiner == worker);
                let feed = |joiner| self.change.feed_of(&self.state, term, joiner);
                let feeds: Vec<Message> = told.filter_map(feed).collect();
                // A feed counts only in its own generation, and a member may lack the record.
                if !feeds.is_empty() {
                    self.announce(vec![link]);
                }
                feeds.into_iter().for_each(|feed| self.outbox.send(link, feed));
            }
            ChangePhase::Proposed(_) => {}
        }
    }
}
