//! The outcome of a change of generation: a pure function of the evidence.
//!
//! Input: the current record, the registered workers, their answers to one Pause, the suspects, and
//! the workers known to be dead. Output: a [`Change`] to propose, or the reason to wait. The plan
//! knows no links, no phases and no clock but the moment that it is given.
//!
//! Four steps: how far history goes ([`resume_point`]), which workers hold which shards at that
//! point ([`shard_holders`]), which workers take part ([`planned_members`]), and which own and
//! compute which shards ([`owners`], towards a [`target`]).
//!
//! History goes back to the newest checkpoint, or to its beginning if there is none, and the run
//! takes the steps again from there, in two cases: the processes of all owners of some shard have
//! ended, or the operator gives up waiting for them. A checkpoint of the very point that history
//! has come to loses no step, so the run waits for no owner then. Else, if no answer shows a shard
//! while one of its owners may live, the run waits: silence is not death, however long it lasts
//! (I21). A run of which all checkpoints are damaged waits for an operator.

mod owners;
mod planned_members;
mod prove;
mod resume_point;
mod shard_holders;
mod target;

use everstep_transport::protocol::generation::{Cause, Member};
use everstep_transport::protocol::reason::{NamedWorker, RollbackReason};
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    CheckpointId, Generation, Record, RunSpec, Shard, Step, Term, WorkerId,
};
use everstep_transport::time::Time;
use std::collections::{BTreeMap, BTreeSet};
#[cfg(feature = "planted")]
use std::time::Duration;

use self::planned_members::PlannedMembers;
use self::resume_point::ResumePoint;
use self::shard_holders::ShardHolders;
pub(super) use self::target::{Target, candidates};
use super::directives::GenerationRequest;
use super::failure_detector::FailureDetector;
use super::pace::Paces;
use super::partition::Pair;
use crate::assign::Occasion;
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::{Change, Checkpoints, NoWholeCheckpoint, Worker, WorkerPhase};

/// A coordinator with the planted bug takes an owner for dead that is silent for this long.
#[cfg(feature = "planted")]
const PLANTED_OWNER_DEAD_AFTER: Duration = Duration::from_secs(10);

/// All that a plan is made from.
pub(super) struct PlanInputs<'a> {
    pub(super) now: Time,
    pub(super) term: Term,
    pub(super) run: &'a RunSpec,
    /// How many parameter shards there are.
    pub(super) shards: u32,
    /// The generation that ends. `None` before the first.
    pub(super) current: Option<&'a Record>,
    pub(super) workers: &'a BTreeMap<WorkerId, Worker>,
    /// The answers to this very Pause, by worker: each worker has promised the number.
    pub(super) statuses: &'a BTreeMap<WorkerId, Status>,
    pub(super) detector: &'a FailureDetector,
    /// How fast workers compute, as far as they have told.
    pub(super) paces: &'a Paces,
    /// Workers that have synced what they were fed.
    pub(super) ready: &'a BTreeSet<WorkerId>,
    /// Whether every worker that can answer has done so, or is late: no more answers will come by
    /// themselves.
    pub(super) complete: bool,
    /// Pairs of members of which one is to be left out.
    pub(super) broken: &'a [Pair],
    /// The newest generation there was, of this run or of an earlier one.
    pub(super) newest: Generation,
    /// The number that all workers have promised.
    pub(super) number: Generation,
    /// The newest step with a line here.
    pub(super) written: Step,
    /// The newest step that a member has reported as committed.
    pub(super) reached: Step,
    /// The checkpoints that the log lists.
    pub(super) checkpoints: &'a Checkpoints,
    /// What operators ask of the next generation, and workers that are to leave.
    pub(super) asked: GenerationRequest,
    /// Why the leader gives up the state of owners, or why the run is to go back although
    /// nothing is lost.
    pub(super) give_up: Option<&'a GiveUp>,
    /// Whether a bug is planted in the core: its plan is proposed without a proof.
    pub(super) is_exempt: bool,
    #[cfg(feature = "planted")]
    pub(super) plant: Option<CorePlant>,
}

/// The result of a plan.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// No generation can be planned yet. The plan waits for this.
    Wait(Wait),
    /// The leader can propose this change.
    Change(Box<Change>),
}

/// What the leader waits for before it plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// More workers: this many take part.
    Workers(u32),
    /// The owners of parameter shards that no other worker shows, and that do not answer.
    Owners {
        /// How many shards these are.
        shards: u32,
        /// Those of their owners that may live, by id.
        owners: BTreeSet<WorkerId>,
        /// Whether another worker has answered, so that this coordinator surely hears.
        hears: bool,
    },
    /// An operator's word: the run has to go back, and each of its checkpoints is damaged.
    Checkpoint,
}

/// What the leader may give up without proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// The state of these owners, which have been silent, or have devices that hang, for
    /// `redundancy.give_up_after`.
    Silent(BTreeSet<WorkerId>),
    /// Every step after this one, as an operator asks.
    After(Step),
}

/// Plans the generation after the current one.
pub(super) fn plan(inputs: &PlanInputs) -> Plan {
    let answered: BTreeSet<WorkerId> = inputs.answered().collect();
    let wanted = if inputs.current.is_none() { inputs.run.start_workers } else { 1 };
    if answered.len() < wanted as usize {
        return Plan::Wait(inputs.answers_awaited(&answered));
    }
    let Ok(resume_point) = ResumePoint::resumed(inputs) else {
        return Plan::Wait(Wait::Checkpoint);
    };
    let shard_holders = ShardHolders::at(&resume_point, inputs, &answered);
    let planned = PlannedMembers::choose(inputs, &answered, &shard_holders);
    let orphans = shard_holders.missing(&planned.members);
    let reached = resume_point.step().max(inputs.written).max(inputs.reached);
    let is_saved = inputs.is_saved(&resume_point, &answered);
    match inputs.reason_to_go_back(&orphans, &answered, is_saved) {
        Some(reason) => {
            inputs.prove_rollback(&orphans, &answered, is_saved);
            match ResumePoint::restored(inputs) {
                Ok(point) => {
                    Plan::Change(Box::new(go_back(inputs, &answered, point, reached, reason)))
                }
                Err(NoWholeCheckpoint) => Plan::Wait(Wait::Checkpoint),
            }
        }
        None if orphans.is_empty() => {
            let basis = GenerationBasis { resume_point, shard_holders, planned };
            Plan::Change(Box::new(basis.change(inputs, &answered)))
        }
        None => Plan::Wait(inputs.owners_awaited(&orphans, &answered)),
    }
}

/// Goes back to a checkpoint or to the initial state, with every worker that has answered.
fn go_back(
    inputs: &PlanInputs,
    answered: &BTreeSet<WorkerId>,
    resume_point: ResumePoint<'_>,
    reached: Step,
    reason: RollbackReason,
) -> Change {
    let shard_holders = ShardHolders::Everyone;
    let planned = PlannedMembers::choose(inputs, answered, &shard_holders);
    let basis = GenerationBasis { resume_point, shard_holders, planned };
    let mut change = basis.change(inputs, answered);
    change.record.cause = Cause::Rollback;
    change.redone = inputs.begun().next().is_some();
    change.rollback = Some((reached, reason));
    change
}

/// What a generation stands on.
struct GenerationBasis<'a> {
    resume_point: ResumePoint<'a>,
    shard_holders: ShardHolders,
    planned: PlannedMembers,
}

impl GenerationBasis<'_> {
    fn change(self, inputs: &PlanInputs, answered: &BTreeSet<WorkerId>) -> Change {
        let record = self.record(inputs);
        self.prove(inputs, answered, &record);
        let resume = record.resume;
        let lost = self.planned.departed(inputs);
        let lost = lost.filter(|worker| !self.planned.left.contains(worker)).map(|worker| {
            let otherwise = self.planned.reason_to_leave_out(inputs, worker);
            inputs.detector.loss(inputs.now, worker, otherwise)
        });
        Change {
            lost: lost.collect(),
            left: self.planned.left.clone(),
            redone: inputs.begun().any(|step| step == resume.next()),
            unreachable: self.planned.unreachable.clone(),
            rollback: None,
            record,
        }
    }

    fn record(&self, inputs: &PlanInputs) -> Record {
        let Self { resume_point, shard_holders, planned } = self;
        let (run, resume) = (inputs.run, resume_point.step());
        let stay = inputs.staying(&planned.members);
        // A run that is over waits for nothing.
        let few = stay.len() < run.min_workers as usize;
        let waiting = (few || inputs.asked.rests()) && resume < Step(run.steps);
        let candidates = candidates(inputs.workers, inputs.paces, stay.iter().copied());
        let occasion = self.occasion(inputs);
        let target = Target::new(run, inputs.shards, inputs.current, &candidates, occasion);
        let members = planned.members.iter().map(|worker| Member {
            worker: *worker,
            name: inputs.workers[worker].name.clone(),
            address: inputs.workers[worker].registration.address,
            data_shards: if waiting { Vec::new() } else { target.data_shards(*worker) },
        });
        let members: Vec<Member> = members.collect();
        #[cfg(feature = "planted")]
        let members = match inputs.plant {
            Some(CorePlant::IgnoreTree) if !waiting => dealt(members, run.batch.data_shards),
            _ => members,
        };
        let owners = owners::owners(inputs, &target, shard_holders, &planned.members);
        let predecessor = inputs.newest;
        let mut record = Record {
            number: inputs.number,
            predecessor,
            term: inputs.term,
            cause: Cause::Start,
            members,
            owners,
            resume,
            commit: resume_point.commit(),
            waiting,
        };
        record.cause = self.cause(inputs, &record);
        record
    }

    /// At the initial state every worker owns what it should. So no planned change follows that
    /// would bring the data shards together again.
    fn occasion(&self, inputs: &PlanInputs) -> Occasion {
        let lost = self.planned.departed(inputs).count() > self.planned.left.len();
        let anew = matches!(self.shard_holders, ShardHolders::Everyone);
        if lost && !anew { Occasion::Loss } else { Occasion::Planned }
    }

    /// Why the generation begins. One with the same members may be asked for. Without that, it
    /// evens the shards out, unless it has the same shards and no member held for it: then members
    /// lost a connection.
    fn cause(&self, inputs: &PlanInputs, record: &Record) -> Cause {
        let Some(current) = inputs.current else { return Cause::Start };
        let (departed, left) = (self.planned.departed(inputs).count(), self.planned.left.len());
        let stayed = current.members.len() - departed;
        match () {
            () if departed > left => Cause::Lost,
            () if record.members.len() > stayed => Cause::Join,
            () if departed > 0 => Cause::Leave,
            () if inputs.asked.save && record.commit.is_some() => Cause::Checkpoint,
            () if inputs.asked.rests() && record.waiting && !current.waiting => Cause::Pause,
            () if current.waiting && !record.waiting => Cause::Resume,
            () if record.members != current.members || record.owners != current.owners => {
                Cause::Rebalance
            }
            () if inputs.held_at(record.resume) => Cause::Rebalance,
            () => Cause::Lost,
        }
    }
}

impl PlanInputs<'_> {
    /// The workers that have answered, are there, and were not suspected since.
    fn answered(&self) -> impl Iterator<Item = WorkerId> {
        let present =
            |id: &WorkerId| self.workers.get(id).is_some_and(|known| known.phase.is_present());
        let sound = |id: &WorkerId| !self.detector.is_suspected(*id);
        self.statuses.keys().copied().filter(present).filter(sound)
    }

    /// Steps that were begun in the generation that ends, and are not committed. A waiting
    /// generation begins none, even if its members still have one that was aborted before it.
    fn begun(&self) -> impl Iterator<Item = Step> {
        let begins = self.current.is_some_and(|current| !current.waiting);
        self.statuses.values().filter_map(move |status| status.under_way.filter(|_| begins))
    }

    /// Whether the members have held after this step, since the leader had asked for it.
    fn held_at(&self, step: Step) -> bool {
        let mut commits = self.statuses.values().filter_map(|status| status.commit.as_ref());
        let generation = self.current.map(|current| current.number);
        commits.any(|it| it.hold && it.step == step && Some(it.generation) == generation)
    }

    fn is_leaving(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.phase == WorkerPhase::Leaving)
    }

    /// The members that are to stay. If they all want to leave, the first has to wait.
    fn staying(&self, members: &[WorkerId]) -> Vec<WorkerId> {
        let stay = members.iter().copied().filter(|worker| !self.is_leaving(*worker));
        let stay: Vec<WorkerId> = stay.collect();
        if stay.is_empty() { members.first().copied().into_iter().collect() } else { stay }
    }

    /// The members of the current generation, by rank.
    fn previous(&self) -> impl Iterator<Item = WorkerId> {
        self.current.into_iter().flat_map(|current| current.members.iter().map(|m| m.worker))
    }

    /// Why the run has to go back, if it has to. Either an operator asks for it, or all owners of
    /// one of these shards, which no answer shows, are given up: they have ended, or have been
    /// silent for as long as the run allows. While the evidence is not complete, a worker that
    /// synced such a shard may still answer.
    fn reason_to_go_back(
        &self,
        orphans: &[Shard],
        answered: &BTreeSet<WorkerId>,
        is_saved: bool,
    ) -> Option<RollbackReason> {
        #[cfg(feature = "planted")]
        if self.plant == Some(CorePlant::HastyRollback) && !orphans.is_empty() {
            return Some(self.describe_loss(orphans[0], orphans.len()));
        }
        // No answer could keep an operator's rollback from being due.
        match self.give_up {
            Some(GiveUp::After(_)) => return Some(RollbackReason::Asked),
            Some(GiveUp::Silent(_)) | None => {}
        }
        if !self.complete {
            return None;
        }
        let is_lost = |shard: &Shard| {
            is_saved || self.silent_owners(*shard, answered).all(|owner| self.is_given_up(owner))
        };
        let lost: Vec<Shard> = orphans.iter().copied().filter(is_lost).collect();
        lost.first().map(|first| self.describe_loss(*first, lost.len()))
    }

    /// Whether a checkpoint has the state at this point of history, and no step after it can be
    /// settled: a member of the generation that ends would have told of it.
    fn is_saved(&self, resume_point: &ResumePoint, answered: &BTreeSet<WorkerId>) -> bool {
        let ResumePoint::Commit(commit) = resume_point else { return false };
        let is_witnessed = self.previous().any(|member| answered.contains(&member));
        is_witnessed
            && self.written.max(self.reached) <= commit.step
            && self.checkpoints.find_whole(CheckpointId::of(commit)).is_some()
    }

    /// The owners of a shard that have not answered, and may live.
    fn silent_owners(
        &self,
        shard: Shard,
        answered: &BTreeSet<WorkerId>,
    ) -> impl Iterator<Item = WorkerId> {
        let silent = self.owners_before(shard).filter(|owner| !answered.contains(owner));
        silent.filter(|owner| !self.detector.is_dead(*owner))
    }

    /// Whether the run gives up what a silent owner holds.
    fn is_given_up(&self, owner: WorkerId) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(CorePlant::ImpatientRollback) {
            return self.detector.unheard(self.now, owner) >= PLANTED_OWNER_DEAD_AFTER;
        }
        matches!(self.give_up, Some(GiveUp::Silent(owners)) if owners.contains(&owner))
    }

    fn owners_awaited(&self, orphans: &[Shard], answered: &BTreeSet<WorkerId>) -> Wait {
        let owners = orphans.iter().flat_map(|shard| self.silent_owners(*shard, answered));
        let hears = !answered.is_empty();
        Wait::Owners { shards: orphans.len() as u32, owners: owners.collect(), hears }
    }

    /// Too few workers have answered. Before the first generation any worker will do. Later the run
    /// waits for the owners, as long as one of them may live.
    fn answers_awaited(&self, answered: &BTreeSet<WorkerId>) -> Wait {
        let few = Wait::Workers(answered.len() as u32);
        if self.current.is_none() {
            return few;
        }
        let all: Vec<Shard> = (0..self.shards).map(Shard).collect();
        match self.owners_awaited(&all, answered) {
            Wait::Owners { owners, .. } if owners.is_empty() => few,
            awaited => awaited,
        }
    }

    fn owners_before(&self, shard: Shard) -> impl Iterator<Item = WorkerId> {
        self.current.into_iter().flat_map(move |current| {
            current.owners_of(shard).iter().map(|rank| current.member(*rank).worker)
        })
    }

    /// Which shards are lost, and which workers owned them, or the damaged checkpoint that the
    /// members could not restore.
    fn describe_loss(&self, first: Shard, shards: usize) -> RollbackReason {
        let restored = self.current.and_then(Record::restores);
        let restored = restored.filter(|id| self.written.max(self.reached) <= id.step);
        if let Some(id) = restored.filter(|id| self.checkpoints.find_whole(*id).is_none()) {
            return RollbackReason::CheckpointDamaged(id.step);
        }
        let owners = self.owners_before(first).map(|owner| {
            NamedWorker::of(owner, self.workers.get(&owner).map(|known| known.label(owner)))
        });
        let (owners, more) = (owners.collect(), shards as u32 - 1);
        RollbackReason::ShardsLost { first, more, owners }
    }
}

/// A planted bug: deals data shards out one by one.
#[cfg(feature = "planted")]
fn dealt(mut members: Vec<Member>, data_shards: u32) -> Vec<Member> {
    let count = members.len() as u32;
    for (member, rank) in members.iter_mut().zip(0..) {
        let mine = (rank..data_shards).step_by(count as usize);
        member.data_shards = mine.map(everstep_transport::protocol::DataShard).collect();
    }
    members
}

#[cfg(test)]
mod tests;
