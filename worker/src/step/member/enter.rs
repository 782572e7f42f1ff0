//! How a member begins and ends a generation: the state that it brings, and the work that it
//! repeats.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use everstep_transport::protocol::{Message, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::{Feeds, Member, Pace, Questions, Round};
use crate::step::ballot::Ballot;
use crate::step::event::{Effect, Report};
use crate::step::finish::Finish;
use crate::step::holdings::{Holdings, Reduced};
use crate::step::plan::Plan;
use crate::step::setup::Setup;
use crate::step::version::Version;

impl Member {
    /// Enters a generation with the worker's state.
    ///
    /// # Panics
    /// If the record asks for what the worker cannot have: see invariants I16 and I17.
    pub fn enter(now: Time, setup: Arc<Setup>, plan: Plan, mut holdings: Holdings) -> Self {
        let mut out = VecDeque::from([Effect::Enter(plan.record().clone())]);
        out.extend(holdings.enter(plan.record(), plan.owned()).into_iter().map(Effect::Device));
        holdings.was_member = true;
        holdings.committed_at.get_or_insert(now);
        let first = holdings.committed().next();
        let over = first.0 > setup.run.steps;
        let mut member = Self {
            pace: if plan.record().waiting { Pace::Waiting } else { Pace::Stepping },
            round: Round::default(),
            updating: plan.owned().keys().copied().collect(),
            digests: BTreeMap::new(),
            gathering: BTreeSet::new(),
            ballot: plan.leads().then(|| Ballot::new(first, over)),
            commit_seconds: 0.0,
            hold: false,
            feeds: Feeds::default(),
            questions: Questions::default(),
            learning: None,
            finish: Finish::default(),
            refused: 0,
            broken: None,
            out,
            holdings,
            setup,
            plan,
        };
        member.fetch();
        if !member.plan.record().waiting {
            member.begin_compute();
            member.take_up_kept();
        }
        member.advance(now);
        member
    }

    /// The state that outlives the generation.
    pub(in crate::step) fn into_holdings(mut self) -> Holdings {
        let generation = self.plan.generation();
        let learned = self.learning.map_or_else(Vec::new, |it| it.prepared(&self.holdings));
        for (shard, gradient) in learned {
            self.holdings.prepared.insert(shard, Reduced { generation, gradient });
        }
        self.holdings
    }

    /// Asks primaries for the parameters of the resume version that this member lacks.
    fn fetch(&mut self) {
        let resume = Version::resumed(self.plan.record());
        let mut questions: BTreeMap<WorkerId, Vec<Shard>> = BTreeMap::new();
        for (index, version) in self.holdings.computing.iter().enumerate() {
            let shard = Shard(index as u32);
            if *version != resume {
                self.gathering.insert(shard);
                questions.entry(self.plan.primary(shard)).or_default().push(shard);
            }
        }
        let generation = self.plan.generation();
        for (to, shards) in questions {
            self.send(to, Message::FetchParameters { generation, shards });
        }
    }

    /// Takes up the sums that the worker kept of an aborted try, as this generation's plan needs
    /// them.
    fn take_up_kept(&mut self) {
        let kept = self.holdings.gradients.partials();
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
            self.out.push_back(Effect::GoOn);
        }
    }

    /// Does more of the work that an earlier input put off. A promise voids it: kept sums stay kept
    /// for the next generation.
    pub fn go_on(&mut self, now: Time) {
        if self.pace.is_promised() {
            self.round.kept.clear();
        }
        self.merge_kept();
        self.advance(now);
    }

    /// Keeps account of the device's reports. Returns a report if it is of this generation.
    pub(super) fn follow_device(&mut self, report: Report) -> Option<Report> {
        let device = &mut self.holdings.device;
        match report {
            Report::Entered { generation, owned } => {
                device.entered(generation);
                if generation == self.plan.generation() {
                    self.holdings.progress.entered();
                    #[cfg(feature = "planted")]
                    self.measure_anew();
                    for (shard, version, digest) in owned {
                        self.entered(shard, version, digest);
                    }
                }
                Some(Report::Entered { generation, owned: Vec::new() })
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
        self.updating.remove(&shard);
        self.digests.insert(shard, digest);
    }
}
