use std::net::{Ipv4Addr, SocketAddr};

use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{
    Commit, DataShard, Decision, Device, LossScale, MetricsLine, NodeName,
};
use proptest::prelude::*;

use super::super::directives::GenerationRequest;
use super::super::failure_detector::{Certainty, Suspicion};
use super::super::feeds::{FeedTargets, Feeds};
use super::*;

const NOW: Time = Time(60_000_000_000);

/// A cluster as the planner sees it: what every worker holds, and how it stands.
struct Cluster {
    run: RunSpec,
    shards: u32,
    current: Option<Record>,
    workers: BTreeMap<WorkerId, Worker>,
    statuses: BTreeMap<WorkerId, Status>,
    detector: FailureDetector,
    ready: BTreeSet<WorkerId>,
    broken: Vec<Pair>,
    give_up: Option<GiveUp>,
    checkpoints: Checkpoints,
    written: Step,
    asked: GenerationRequest,
    paces: Paces,
}

impl Cluster {
    /// Workers with these ids, none of which is a member yet. All have answered.
    fn new(ids: impl Iterator<Item = u64>, shards: u32, copies: u32) -> Self {
        let run = RunSpec { copies, steps: 100, start_workers: 1, ..exemplars::run() };
        let mut cluster = Self {
            run,
            shards,
            current: None,
            workers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            detector: FailureDetector::begin(NOW, [].into_iter()),
            ready: BTreeSet::new(),
            broken: Vec::new(),
            give_up: None,
            checkpoints: Checkpoints::default(),
            written: Step(0),
            asked: GenerationRequest::default(),
            paces: Paces::default(),
        };
        ids.for_each(|id| cluster.add(WorkerId(id)));
        cluster
    }

    fn add(&mut self, worker: WorkerId) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let (model, data) = ([0; 32], [0; 32]);
        let fingerprint = Fingerprint { model, data, parameters: 9, shards: 1, samples: 9 };
        let (zone, device) = (None, Device::default());
        let registration = Registration {
            incarnation: 1,
            address,
            fingerprint,
            probe: 1,
            zone,
            device,
            model: None,
            host: None,
            machine: None,
        };
        let name = NodeName::parse("worker").expect("a valid name");
        let (number, phase) = (worker.0 as u32, WorkerPhase::Registered);
        self.workers.insert(worker, Worker { number, name, registration, phase });
        self.detector.heard(NOW, worker);
        self.statuses.insert(worker, status(None));
    }

    fn plan(&self) -> Plan {
        plan(&PlanInputs {
            now: NOW,
            term: Term(1),
            run: &self.run,
            shards: self.shards,
            current: self.current.as_ref(),
            workers: &self.workers,
            statuses: &self.statuses,
            detector: &self.detector,
            paces: &self.paces,
            ready: &self.ready,
            complete: true,
            broken: &self.broken,
            newest: self.current.as_ref().map_or(Generation(0), |current| current.number),
            number: self.current.as_ref().map_or(Generation(0), |current| current.number).next(),
            written: self.written,
            reached: Step(0),
            checkpoints: &self.checkpoints,
            asked: self.asked,
            give_up: self.give_up.as_ref(),
            is_exempt: false,
            #[cfg(feature = "planted")]
            plant: None,
        })
    }

    fn change(&self) -> Change {
        match self.plan() {
            Plan::Change(change) => *change,
            Plan::Wait(wait) => panic!("it waits: {wait:?}"),
        }
    }

    /// The change is made, and every member has committed this step since.
    fn enter(&mut self, change: &Change, step: u64) {
        let record = &change.record;
        for gone in change.lost.iter().map(|loss| loss.worker).chain(change.left.iter().copied()) {
            self.workers.remove(&gone);
            self.statuses.remove(&gone);
            self.detector.forget(gone);
        }
        for (member, rank) in record.members.iter().zip(0..) {
            let known = self.workers.get_mut(&member.worker).expect("a member is there");
            if known.phase == WorkerPhase::Registered {
                known.phase = WorkerPhase::Member;
            }
            let mut shown = status(Some(commit(record.number, step)));
            let owned = record.owned_by(everstep_transport::protocol::Rank(rank)).into_iter();
            shown.versions = owned.map(|(shard, _)| (shard, Step(step), record.number)).collect();
            self.statuses.insert(member.worker, shown);
        }
        self.current = Some(record.clone());
        self.ready.clear();
        self.broken.clear();
    }

    fn feed_targets(&self) -> FeedTargets {
        let of = |phase| {
            let these = self.workers.iter().filter(move |(_, known)| known.phase == phase);
            these.map(|(id, _)| *id).collect()
        };
        FeedTargets { newcomers: of(WorkerPhase::Registered), leaving: of(WorkerPhase::Leaving) }
    }

    /// All workers sync what they should. Returns whether a change is due.
    fn sync_all(&mut self, step: u64) -> bool {
        let record = self.current.clone().expect("a generation");
        let mut feeds =
            Feeds::new(NOW, &self.run, &record, self.feed_targets(), &self.workers, &self.paces);
        for (worker, shards) in feeds.shard_syncs().clone() {
            let shown = self.statuses.entry(worker).or_insert_with(|| status(None));
            let synced = shards.into_iter().map(|shard| (shard, Step(step), record.number));
            shown.versions.extend(synced);
            shown.commit = Some(commit(record.number, step));
            feeds.synced(NOW, worker, record.number);
        }
        self.ready = feeds.ready().clone();
        feeds.are_due(NOW)
            || super::super::feeds::frees_somebody(&record, &self.feed_targets().leaving)
    }

    /// Syncs and changes until nothing is due. Returns after how many changes.
    fn settle(&mut self, mut step: u64) -> usize {
        for changes in 0..20 {
            if !self.sync_all(step) {
                return changes;
            }
            let change = self.change();
            step += 1;
            self.enter(&change, step);
        }
        panic!("it never settles: {:?}", self.current)
    }

    fn kill(&mut self, worker: WorkerId) {
        let suspicion = Suspicion { reason: LossReason::FoundDead, certainty: Certainty::Dead };
        self.detector.suspect(NOW, worker, suspicion);
        self.statuses.remove(&worker);
    }

    fn members(&self) -> Vec<WorkerId> {
        self.current.iter().flat_map(|r| r.members.iter().map(|m| m.worker)).collect()
    }
}

fn status(commit: Option<Commit>) -> Status {
    Status {
        term: Term(1),
        number: Generation(1),
        commit,
        prepared: vec![],
        versions: vec![],
        under_way: None,
        unreachable: vec![],
    }
}

fn commit(generation: Generation, step: u64) -> Commit {
    let line = MetricsLine::default();
    let (norm, loss, decision, updates, hold) = (1.0, 2.0, Decision::Apply, step, false);
    let (step, gradient_factor, loss_scale) = (Step(step), 1.0, LossScale::default());
    Commit {
        generation,
        step,
        norm,
        loss,
        decision,
        gradient_factor,
        updates,
        loss_scale,
        hold,
        line,
    }
}

/// Whether every owner that the record lists shows what it needs (I16), by the words of the design.
fn every_owner_holds(cluster: &Cluster, record: &Record) -> bool {
    let Some(commit) = &record.commit else { return true };
    let holds = |worker: WorkerId, shard: Shard| {
        let shown = &cluster.statuses[&worker];
        let at = |step, generation| shown.versions.contains(&(shard, step, generation));
        let before = shown.versions.iter().any(|(s, v, _)| *s == shard && v.next() == commit.step);
        at(commit.step, commit.generation)
            || (before && shown.prepared.contains(&(shard, commit.generation)))
    };
    (0..record.shards()).map(Shard).all(|shard| {
        let owners = record.owners_of(shard);
        owners.iter().all(|rank| holds(record.member(*rank).worker, shard))
    })
}

fn spread(counts: impl Iterator<Item = usize> + Clone) -> usize {
    counts.clone().max().unwrap_or(0) - counts.min().unwrap_or(0)
}

/// Whether the assignment is balanced, and every shard has as many owners as there can be.
fn is_well_off(cluster: &Cluster) -> bool {
    let record = cluster.current.as_ref().expect("a generation");
    let copies = record.members.len().min(cluster.run.copies as usize);
    let primaries = (0..record.members.len() as u32).map(|rank| {
        let owned = record.owned_by(everstep_transport::protocol::Rank(rank));
        owned.into_iter().filter(|(_, primary)| *primary).count()
    });
    record.owners.iter().all(|run| run.owners.len() == copies)
        && spread(primaries.collect::<Vec<_>>().into_iter()) <= 1
        && spread(record.members.iter().map(|member| member.data_shards.len())) <= 1
}

fn chosen(ids: &[bool]) -> impl Iterator<Item = WorkerId> {
    ids.iter().zip(1..).filter(|(chosen, _)| **chosen).map(|(_, id)| WorkerId(id))
}

/// The rule for the resume step, case by case.
#[test]
fn the_resume_step_is_the_greatest_commit_of_the_current_generation() {
    // The generation and step of each of two workers' newest commits. The record resumed at 5, by a
    // commit of generation 1, and is itself generation 2.
    let table = [
        ([(1, 5), (1, 5)], (1, 5)),
        ([(2, 6), (1, 5)], (2, 6)),
        ([(2, 6), (2, 7)], (2, 7)),
        ([(1, 9), (1, 5)], (1, 5)),
        ([(1, 9), (2, 6)], (2, 6)),
        ([(3, 9), (2, 6)], (2, 6)),
        ([(2, 101), (2, 6)], (2, 6)), // there are 100 steps
    ];
    for (committed, expected) in table {
        let mut cluster = Cluster::new(1..=2, 4, 2);
        let first = cluster.change();
        cluster.enter(&first, 5);
        let mut second = cluster.change();
        second.record.commit = Some(commit(Generation(1), 5));
        cluster.enter(&second, 5);
        for (id, (generation, step)) in (1..).zip(committed) {
            let shown = cluster.statuses.get_mut(&WorkerId(id)).expect("it answered");
            shown.commit = Some(commit(Generation(generation), step));
            shown.versions = (0..4)
                .map(|shard| (Shard(shard), Step(expected.1), Generation(expected.0)))
                .collect();
        }
        let record = cluster.change().record;
        let found = record.commit.map(|commit| (commit.generation.0, commit.step.0));
        assert_eq!((found, record.resume), (Some(expected), Step(expected.1)), "{committed:?}");
    }
}

#[test]
fn a_version_of_another_generation_is_no_copy() {
    let mut cluster = Cluster::new(1..=2, 1, 2);
    let first = cluster.change();
    cluster.enter(&first, 5);
    let shown = cluster.statuses.get_mut(&WorkerId(2)).expect("it answered");
    shown.versions = vec![(Shard(0), Step(5), Generation(9))];
    let owners = cluster.change().record.owners;
    assert_eq!(owners[0].owners.len(), 1);
    let shown = cluster.statuses.get_mut(&WorkerId(2)).expect("it answered");
    shown.versions = vec![(Shard(0), Step(4), Generation(9))];
    shown.prepared = vec![(Shard(0), Generation(9)), (Shard(77), Generation(1))];
    assert_eq!(cluster.change().record.owners[0].owners.len(), 1);
    let shown = cluster.statuses.get_mut(&WorkerId(2)).expect("it answered");
    shown.prepared = vec![(Shard(0), Generation(1))];
    assert_eq!(cluster.change().record.owners[0].owners.len(), 2);
}

#[test]
fn a_run_that_waits_assigns_no_data_and_one_that_is_over_does_not_wait() {
    let mut cluster = Cluster::new(1..=2, 4, 2);
    cluster.run.min_workers = 2;
    let first = cluster.change();
    cluster.enter(&first, 5);
    cluster.kill(WorkerId(2));
    let record = cluster.change().record;
    assert!(record.waiting && record.members[0].data_shards.is_empty());
    cluster.run.steps = 5;
    let record = cluster.change().record;
    let all: Vec<DataShard> = (0..4).map(DataShard).collect();
    assert_eq!((record.waiting, &record.members[0].data_shards), (false, &all));
}

proptest! {
    /// I15, I16, I17: after any deaths that leave each shard a holder, the rest goes on from the
    /// same step, with owners that hold what they are listed for.
    #[test]
    fn survivors_go_on_from_where_they_were(
        count in 1..12u64,
        shards in 1..40u32,
        copies in 1..4u32,
        dies in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut cluster = Cluster::new(1..=count, shards, copies);
        let first = cluster.change();
        cluster.enter(&first, 7);
        cluster.settle(7);
        let before = cluster.current.clone().expect("a generation");
        let members = cluster.members();
        chosen(&dies[..count as usize]).for_each(|worker| cluster.kill(worker));
        let lives = |id: &WorkerId| cluster.statuses.contains_key(id);
        let orphaned = before.owners.iter().any(|run| {
            !run.owners.iter().any(|rank| lives(&before.member(*rank).worker))
        });
        let survivors: Vec<WorkerId> = members.iter().copied().filter(lives).collect();
        match cluster.plan() {
            Plan::Wait(wait) => {
                prop_assert_eq!((wait, survivors.len()), (Wait::Workers(0), 0), "all are dead");
            }
            Plan::Change(change) => {
                let record = &change.record;
                prop_assert_eq!(record.validate(4, shards), Ok(()));
                prop_assert_eq!(record.cause == Cause::Rollback, orphaned);
                prop_assert_eq!(change.rollback.is_some(), orphaned);
                let listed: Vec<_> = record.members.iter().map(|m| m.worker).collect();
                prop_assert_eq!(&listed, &survivors, "survivors keep their order");
                prop_assert!(every_owner_holds(&cluster, record));
                prop_assert!(orphaned || record.resume >= before.resume);
                let lost: Vec<_> = change.lost.iter().map(|loss| loss.worker).collect();
                let gone: Vec<_> =
                    members.iter().copied().filter(|id| !survivors.contains(id)).collect();
                prop_assert_eq!(lost, gone);
            }
        }
    }

    /// After any loss, joins and leaves, background syncing leads to an assignment that is
    /// balanced and whole, and then nothing changes any more.
    #[test]
    fn feeds_lead_to_the_target_and_then_there_is_peace(
        count in 1..8u64,
        shards in 1..40u32,
        copies in 1..4u32,
        dies in prop::collection::vec(any::<bool>(), 8),
        leaves in prop::collection::vec(any::<bool>(), 8),
        joins in 0..4u64,
    ) {
        let mut cluster = Cluster::new(1..=count, shards, copies);
        let first = cluster.change();
        cluster.enter(&first, 3);
        cluster.settle(3);
        chosen(&dies[..count as usize]).for_each(|worker| cluster.kill(worker));
        if let Plan::Change(change) = cluster.plan() {
            cluster.enter(&change, 9);
            for worker in chosen(&leaves[..count as usize]) {
                if let Some(known) = cluster.workers.get_mut(&worker) {
                    known.phase = WorkerPhase::Leaving;
                }
            }
            (1..=joins).for_each(|place| cluster.add(WorkerId(100 + place)));
            let changes = cluster.settle(9);
            prop_assert!(changes <= 4, "{} changes", changes);
            prop_assert!(is_well_off(&cluster), "{:?}", cluster.current);
            let members = cluster.members();
            let leaving = |id: &&WorkerId| cluster.workers[id].phase == WorkerPhase::Leaving;
            let stayers = members.iter().filter(|id| !leaving(id)).count();
            prop_assert!(members.iter().filter(leaving).count() <= usize::from(stayers == 0));
        }
    }

    /// A loss moves nothing that a survivor has, but for backups that stand in.
    #[test]
    fn a_loss_takes_no_shard_from_a_living_primary(
        count in 2..10u64,
        shards in 1..40u32,
        victim in 1..10u64,
    ) {
        let victim = 1 + victim % count;
        let mut cluster = Cluster::new(1..=count, shards, 2);
        let first = cluster.change();
        cluster.enter(&first, 3);
        let before = cluster.current.clone().expect("a generation");
        cluster.kill(WorkerId(victim));
        let after = cluster.change().record;
        for shard in (0..shards).map(Shard) {
            let primary = |record: &Record| record.member(record.owners_of(shard)[0]).worker;
            let (was, is) = (primary(&before), primary(&after));
            prop_assert!(was == is || was == WorkerId(victim), "{shard}: {was}, then {is}");
        }
    }

    /// Silence is not death: no plan goes back while an owner of a missing shard may live.
    #[test]
    fn i21_nothing_goes_back_while_an_owner_may_live(
        count in 2..10u64,
        shards in 1..40u32,
        copies in 1..3u32,
        silent in prop::collection::vec(any::<bool>(), 10),
        dead in prop::collection::vec(any::<bool>(), 10),
    ) {
        let mut cluster = Cluster::new(1..=count, shards, copies);
        let first = cluster.change();
        cluster.enter(&first, 3);
        let record = cluster.current.clone().expect("a generation");
        for worker in chosen(&silent[..count as usize]) {
            cluster.detector.suspect(NOW, worker, Suspicion::of_silence());
            cluster.statuses.remove(&worker);
        }
        chosen(&dead[..count as usize]).for_each(|worker| cluster.kill(worker));
        let answered = |rank: &_| cluster.statuses.contains_key(&record.member(*rank).worker);
        let may_live = |rank: &_| {
            let worker = record.member(*rank).worker;
            silent[worker.0 as usize - 1] && !dead[worker.0 as usize - 1]
        };
        let orphans = record.owners.iter().filter(|run| !run.owners.iter().any(answered));
        let lost = orphans.clone().any(|run| !run.owners.iter().any(may_live));
        let orphaned = orphans.count() > 0;
        match cluster.plan() {
            Plan::Wait(Wait::Workers(0) | Wait::Owners { hears: false, .. }) => {
                prop_assert!(cluster.statuses.is_empty());
            }
            Plan::Wait(_) => prop_assert!(orphaned && !lost),
            Plan::Change(change) => {
                prop_assert_eq!(orphaned, lost);
                prop_assert_eq!(change.rollback.is_some(), lost);
            }
        }
    }

    /// Of a pair that stays broken exactly one member goes, and no last copy goes with it.
    #[test]
    fn a_broken_pair_is_parted_without_losing_a_copy(
        count in 2..8u64,
        shards in 1..20u32,
        pair in (0..8u64, 1..7u64),
    ) {
        let one = pair.0 % count;
        let other = (one + 1 + pair.1 % (count - 1)) % count;
        let (a, b) = (WorkerId(1 + one.min(other)), WorkerId(1 + one.max(other)));
        let mut cluster = Cluster::new(1..=count, shards, 2);
        let first = cluster.change();
        cluster.enter(&first, 3);
        cluster.broken = vec![(a, b)];
        let change = cluster.change();
        prop_assert_eq!(change.lost.len(), 1);
        prop_assert_eq!(change.lost[0].worker, b, "both can be spared: the newest goes");
        prop_assert!(change.rollback.is_none() && every_owner_holds(&cluster, &change.record));
    }
}
