//! What a watcher is told: a page of news, and how the run stands.
//!
//! Lines and events have numbers, and a watcher names the newest that it has. Workers change in no
//! order: for each watching link, this coordinator remembers what it last told of them.

mod cluster;

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::{
    Outcome, RunPause, UnregisteredWorker, Update, WaitNotice, Waiting, WorkerState, WorkerView,
};
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{Rank, Step, WorkerId, WorkerLabel};
use everstep_transport::time::Time;

pub use self::cluster::{ClusterView, RunEnd};
use super::links::PeerPhase;
use super::partition::Pair;
use super::reads::WatchPosition;
use super::{Core, EventsAfter, LinkId, ShellEffect, feeds};
use crate::lines::PAGE;
use crate::state::{Worker, WorkerPhase};

/// The most idle workers in one answer, and as many that build a model.
const MOST_UNREGISTERED: usize = 1_000;

/// What each watcher was last told of the workers.
#[derive(Debug, Default)]
pub(super) struct Watchers(BTreeMap<LinkId, BTreeMap<WorkerId, WorkerView>>);

impl Watchers {
    /// Drops the link of a watcher that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    /// The workers with a view that the watcher does not know, and the ids of workers that it knows
    /// and that are gone.
    fn news(&mut self, link: LinkId, all: Vec<WorkerView>) -> (Vec<WorkerView>, Vec<WorkerId>) {
        let known = self.0.entry(link).or_default();
        let is_there = |id: &WorkerId| all.binary_search_by_key(id, |view| view.worker).is_ok();
        let forgotten: Vec<WorkerId> = known.keys().copied().filter(|id| !is_there(id)).collect();
        forgotten.iter().for_each(|worker| drop(known.remove(worker)));
        let is_new = |view: &WorkerView| known.get(&view.worker) != Some(view);
        let news: Vec<WorkerView> = all.into_iter().filter(is_new).collect();
        known.extend(news.iter().map(|view| (view.worker, view.clone())));
        (news, forgotten)
    }
}

impl Core {
    /// Sends the watcher on this link all news after this step's line and this event. The last page
    /// tells the end of the run, so that a watcher that stops there has everything. A watcher of
    /// another run gets no lines.
    pub(super) fn update(
        &mut self,
        now: Time,
        to: LinkId,
        WatchPosition { run: watched, step, event }: WatchPosition,
    ) {
        let views = self.views(now);
        let (workers, forgotten) = self.clients.watchers.news(to, views);
        let run = self.state.run().map(|_| self.state.run_id());
        let same = watched.is_none() || watched == run;
        let after = if same { self.lines_follow(step) } else { None };
        let (events, in_file) = match self.history.events_after(event) {
            EventsAfter::Recent(rest) => (rest, None),
            EventsAfter::InFile(range) => (&[][..], Some(range)),
        };
        let last = self.history.is_whole() && in_file.is_none() && events.len() <= PAGE;
        let last = last && (run.is_none() || !same || self.is_last_page(step));
        let unable = self.unable().into_iter();
        let update = Update {
            run,
            step,
            event,
            lines: Vec::new(),
            events: events.iter().take(PAGE).cloned().collect(),
            workers,
            forgotten,
            idle: self.idle(),
            building: self.building(),
            divergence: self.state.divergence().map(|it| it.to_string()),
            waiting: self.waiting(),
            owners_awaited: self.owners_awaited(),
            model_awaited: self.model_awaited(),
            unable: unable.map(|(name, why)| (name, why.reason.to_string())).collect(),
            unreachable: self.unreachable(now),
            outcome: if last { self.state.outcome().clone() } else { Outcome::Running },
            paused: self.paused(),
        };
        self.outbox.push(ShellEffect::Update { to, after, in_file, update: Box::new(update) });
    }

    /// The step after which to read lines for a watcher that has the line of `step`. It passes over
    /// lost lines, no matter which coordinator leads.
    fn lines_follow(&self, step: Step) -> Option<Step> {
        #[cfg(feature = "planted")]
        if self.state.plant == Some(crate::plant::CorePlant::CountLinesTwice) && step.0 > 0 {
            return Some(Step(step.0 - 1)).filter(|_| self.lines.is_open());
        }
        let step = step.min(self.lines.reach());
        let gap = self.state.lines().gap_at(step.next());
        let after = gap.map_or(step, |gap| gap.to);
        (self.lines.is_open() && after < self.lines.reach()).then_some(after)
    }

    /// Whether the next page gives a watcher that has the line of `step` all lines that there are,
    /// and will be if the run is over.
    fn is_last_page(&self, step: Step) -> bool {
        let reach = self.lines.reach();
        let is_whole = self.running() || reach >= self.state.settled();
        self.lines.is_open() && is_whole && reach.0.saturating_sub(step.0) <= PAGE as u64
    }

    /// The workers that wait for a run. While one is under way, these are the workers that cannot
    /// compute it.
    pub(super) fn idle(&self) -> Vec<UnregisteredWorker> {
        let is_under_way = self.state.run().is_some() && self.running();
        let waiting = if is_under_way { PeerPhase::Unable } else { PeerPhase::Greeted(None) };
        self.unregistered(|phase| phase == waiting)
    }

    /// The workers that read the data and build the model of the run.
    pub(super) fn building(&self) -> Vec<UnregisteredWorker> {
        self.unregistered(|phase| matches!(phase, PeerPhase::Welcomed | PeerPhase::Registering(_)))
    }

    fn unregistered(&self, is_wanted: impl Fn(PeerPhase) -> bool) -> Vec<UnregisteredWorker> {
        let links = self.workers_in(is_wanted).into_iter().take(MOST_UNREGISTERED);
        let workers = links
            .filter_map(|link| self.links.find(link))
            .map(|it| UnregisteredWorker { name: it.identity.name.clone(), address: it.address });
        workers.collect()
    }

    fn views(&self, now: Time) -> Vec<WorkerView> {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let members: BTreeMap<_, _> = members
            .zip(0..)
            .map(|(member, rank)| (member.worker, (Rank(rank), member.data_shards.len() as u32)))
            .collect();
        let views = self.state.workers().iter().map(|(&worker, known)| {
            let place = members.get(&worker);
            WorkerView {
                worker,
                number: known.number,
                name: known.name.clone(),
                address: known.registration.address,
                rank: place.map(|(rank, _)| *rank),
                data_shards: place.map_or(0, |(_, data_shards)| *data_shards),
                zone: known.registration.zone.clone(),
                device: known.registration.device.clone(),
                telemetry: self.health.telemetry(worker),
                state: self.state_of(worker, known),
                retained: self.retained(worker),
                waits_for: self.waits_of(worker),
                host: known.registration.host.clone(),
                preemption: self.health.preemption(now, worker),
            }
        });
        views.collect()
    }

    /// Of how many parameter shards leaving workers, this one among them, have the only copies.
    pub(super) fn retained(&self, worker: WorkerId) -> u32 {
        let is_leaving = |known: &Worker| known.phase == WorkerPhase::Leaving;
        if !self.running() || !self.state.workers().get(&worker).is_some_and(is_leaving) {
            return 0;
        }
        let leaving = self.state.present().filter(|(_, known)| is_leaving(known));
        let leaving = leaving.map(|(worker, _)| worker).collect();
        self.state.record().map_or(0, |record| feeds::retained(record, &leaving, worker))
    }

    fn waits_of(&self, worker: WorkerId) -> Option<String> {
        match self.retained(worker) {
            0 => {
                let join = self.change.join_waits_for(worker).filter(|_| self.running());
                join.or_else(|| self.reads_checkpoint(worker))
            }
            1 => Some("a parameter shard of which no worker that stays has a copy".into()),
            shards => {
                Some(format!("{shards} parameter shards of which no worker that stays has a copy"))
            }
        }
    }

    /// How far a member has read the checkpoint that it restores. None once it has all of it.
    fn reads_checkpoint(&self, worker: WorkerId) -> Option<String> {
        let read = self.restore_of(worker).filter(|it| it.read_bytes < it.total_bytes)?;
        Some(format!("it has read {} of the checkpoint of step {}", read.words(), read.step))
    }

    fn state_of(&self, worker: WorkerId, known: &Worker) -> WorkerState {
        match known.phase {
            WorkerPhase::Lost => WorkerState::Lost,
            WorkerPhase::Left => WorkerState::Left,
            _ if !self.running() => WorkerState::Finished,
            _ if self.state.has_departed(worker) => WorkerState::Left,
            _ if self.state.is_reported_dead(worker) => WorkerState::Lost,
            WorkerPhase::Member | WorkerPhase::Leaving
                if self.health.detector.is_suspected(worker) =>
            {
                WorkerState::Suspected
            }
            WorkerPhase::Leaving => WorkerState::Leaving,
            _ if self.completion.has_finished(worker) => WorkerState::Finished,
            WorkerPhase::Member => WorkerState::Training,
            WorkerPhase::Registered if self.change.is_fed(worker) => WorkerState::Learning,
            WorkerPhase::Registered => WorkerState::Waiting,
        }
    }

    /// Members that cannot reach each other and have to. In a generation that commits, they need
    /// not.
    fn unreachable(&self, now: Time) -> Vec<Pair> {
        if self.state.record().is_none_or(|record| self.change.reached() > record.resume) {
            return Vec::new();
        }
        let lasting = self.health.partition.lasting(now);
        let both = |(a, b): &Pair| self.state.is_member(*a) && self.state.is_member(*b);
        if self.running() { lasting.filter(both).collect() } else { Vec::new() }
    }

    /// The owners that a run waits for: it starts no step while they do not answer.
    pub(super) fn owners_awaited(&self) -> Option<WaitNotice> {
        let (shards, owners, since) = self.change.waits_for_owners().filter(|_| self.running())?;
        let known = owners.iter().filter_map(|owner| Some((*owner, self.state.label(*owner)?)));
        let (owners, workers): (Vec<WorkerId>, Vec<WorkerLabel>) = known.unzip();
        let reasons = owners.iter().map(|owner| self.reason_of_wait(*owner)).collect();
        let since_unix_ms = self.state.awaited().since().unwrap_or(self.unix_ms(since));
        let checkpoint = self.newest_checkpoint();
        Some(WaitNotice { shards, owners, since_unix_ms, workers, reasons, checkpoint })
    }

    /// Why an owner that the run waits for does not answer. A revoked worker is let in no more,
    /// whichever leader revoked it.
    fn reason_of_wait(&self, owner: WorkerId) -> LossReason {
        let role = Role::Worker;
        let known = self.state.workers().get(&owner);
        let node = known.map(|known| Identity { role, name: known.name.clone() });
        match self.health.detector.reason(owner) {
            _ if node.is_some_and(|node| self.state.is_revoked(&node)) => LossReason::Revoked,
            Some(reason) => reason.clone(),
            None => LossReason::NoAnswer,
        }
    }

    /// Why the run is paused. After the last step no member takes any, so the pause is in force.
    fn paused(&self) -> Option<RunPause> {
        let pause = self.state.pause().filter(|_| self.running())?;
        Some(RunPause { in_force: pause.in_force || self.is_over(), ..pause.clone() })
    }

    /// Whether the run rests because all of its workers are to leave.
    fn closes(&self) -> bool {
        let rests = self.state.record().is_some_and(|record| record.waiting);
        let has_left = |worker| self.state.has_departed(worker);
        rests && self.running() && self.state.is_closing() && !self.state.members().any(has_left)
    }

    /// Why a run that has begun starts no step, for want of workers.
    fn waiting(&self) -> Option<Waiting> {
        let (run, record) = (self.state.run()?, self.state.record()?);
        // A pause is no want of workers. All that are to leave are enough to save what they hold.
        let known = record.members.iter().filter_map(|it| self.state.workers().get(&it.worker));
        let closes = self.closes();
        let stays = |known: &&Worker| closes || known.phase != WorkerPhase::Leaving;
        let staying = known.filter(stays).count();
        let is_enough = staying >= run.min_workers as usize;
        let of_generation = self.state.waiting_since().filter(|_| !is_enough);
        let (members, since_unix_ms) = match self.change.short_of_workers() {
            Some((members, since)) => (members, of_generation.unwrap_or(self.unix_ms(since))),
            None => (record.world_size(), of_generation?),
        };
        self.running().then_some(Waiting { members, wanted: run.min_workers, since_unix_ms })
    }
}
