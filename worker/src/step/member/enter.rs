//! How a member begins and ends a generation: the state that it brings, and the work that it
//! repeats.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use everstep_transport::protocol::{Message, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::{AllGather, Member, Restoring, Round, Serving, StepControl, Voting};
use crate::step::event::{Effect, Report};
use crate::step::finish::Finish;
use crate::step::plan::MemberPlan;
use crate::step::replica_state::{EnterError, ReducedShard, ReplicaState};
use crate::step::setup::Setup;
use crate::step::version::Version;
use crate::step::vote_tally::VoteTally;

impl Member {
    /// Enters a generation with the worker's state.
    ///
    /// # Errors
    /// If the record asks for what the worker cannot have: see invariants I16 and I17.
    pub fn enter(
        now: Time,
        setup: Arc<Setup>,
        plan: MemberPlan,
        mut replica: ReplicaState,
    ) -> Result<Self, EnterError> {
        let mut out = VecDeque::from([Effect::Enter(plan.record().clone())]);
        out.extend(
            replica.enter(plan.record(), plan.owned(), true)?.into_iter().map(Effect::Device),
        );
        replica.was_member = true;
        replica.committed_at.get_or_insert(now);
        let first = replica.committed().next();
        let over = first.0 > setup.run.steps;
        let mut member = Self {
            control: StepControl::new(plan.record().waiting),
            round: Round::default(),
            all_gather: AllGather::new(plan.owned().keys().copied()),
            voting: Voting::new(plan.is_step_leader().then(|| VoteTally::new(first, over))),
            serving: Serving::default(),
            catch_up: None,
            restoring: Restoring::new(plan.record(), plan.owned().keys().copied()),
            finish: Finish::default(),
            refused: 0,
            out,
            replica,
            setup,
            plan,
        };
        member.fetch();
        if !member.plan.record().waiting {
            member.begin_compute();
            member.take_up_kept();
        }
        member.advance(now);
        Ok(member)
    }

    /// The state that outlives the generation.
    pub(in crate::step) fn into_replica_state(mut self) -> ReplicaState {
        let generation = self.plan.generation();
        let syncing = self.catch_up.map_or_else(Vec::new, |it| it.prepared(&self.replica));
        for (shard, gradient) in syncing {
            self.replica.prepared.insert(shard, ReducedShard { generation, gradient });
        }
        self.replica
    }

    /// Asks primaries for the parameters of the resume version that this member lacks. Those of its
    /// own shards are here, or come from a checkpoint.
    fn fetch(&mut self) {
        let resume = Version::resumed(self.plan.record());
        let mut requests: BTreeMap<WorkerId, Vec<Shard>> = BTreeMap::new();
        for (index, version) in self.replica.computing.iter().enumerate() {
            let shard = Shard(index as u32);
            if *version != resume && !self.plan.owned().contains_key(&shard) {
                self.all_gather.expect(shard);
                requests.entry(self.plan.primary(shard)).or_default().push(shard);
            }
        }
        let generation = self.plan.generation();
        for (to, shards) in requests {
            self.send(to, Message::FetchParameters { generation, shards });
        }
    }

    /// Takes up the sums that the worker kept of an aborted try, as this generation's plan needs
    /// them.
    fn take_up_kept(&mut self) {
        let kept = self.replica.gradients.partials();
        self.round.kept = kept.map(|(shard, node, sum)| (shard, node, sum.clone())).collect();
        self.merge_kept();
    }

    /// Adds up some of the kept sums. The rest waits for other inputs: a large model has gigabytes
    /// of them, and links and heartbeats must live meanwhile. Inputs in between do not change the
    /// bits of the sums, since all additions are the tree's.
    fn merge_kept(&mut self) {
        let mut bytes = 0;
        while bytes < self.setup.merge_bytes {
            let Some((shard, node, sum)) = self.round.kept.pop_front() else { return };
            bytes += sum.as_bytes().len();
            #[cfg(feature = "planted")]
            let sum = self.add_into_kept(sum);
            self.merge(shard, node, sum);
        }
        if !self.round.kept.is_empty() {
            self.out.push_back(Effect::Yield);
        }
    }

    /// Does more of the work that an earlier input put off. A promise voids it: kept sums stay kept
    /// for the next generation.
    pub fn after_yield(&mut self, now: Time) {
        if self.control.is_promised() {
            self.round.kept.clear();
        }
        self.merge_kept();
        self.advance(now);
    }

    /// Keeps account of the device's reports. Returns a report if it is of this generation.
    pub(super) fn follow_device(&mut self, report: Report) -> Option<Report> {
        let device = &mut self.replica.device;
        match report {
            Report::Entered { generation, owned } => {
                device.entered(generation);
                if generation == self.plan.generation() {
                    self.replica.progress.entered();
                    #[cfg(feature = "planted")]
                    self.measure_anew();
                    for (shard, version, digest) in owned {
                        self.entered(shard, version, digest);
                    }
                    self.save_if_due();
                }
                Some(Report::Entered { generation, owned: Vec::new() })
            }
            // It holds for the device, whatever generation its work is of.
            Report::LoadStalled(_) | Report::Evaluating | Report::Evaluated => {
                self.replica.progress.report(&report);
                None
            }
            _ if device.void_until.is_some() => None,
            Report::Partial { .. }
            | Report::Computed { .. }
            | Report::Shared { .. }
            | Report::State { .. } => Some(report),
            _ if device.entering.is_some() => None,
            _ => Some(report),
        }
    }

    fn entered(&mut self, shard: Shard, version: Step, digest: u64) {
        let resume = self.plan.record().resume;
        assert_eq!(version, resume, "I16: an owner holds its shards at the resume version");
        self.all_gather.updated(shard, digest);
    }
}
