//! Assertions of a member on its own work, each with the number of its invariant.
//!
//! A broken one stops the process: silently wrong parameters are worse, and the survivors heal. The
//! member asserts only what this worker alone is responsible for. It refuses what another worker
//! sends, or names it in a [`Divergence`](crate::step::vote_tally::Divergence).
//!
//! A member with a planted bug asserts nothing here: the simulator's checks are to find the bug.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::{Chunk, Commit, Decision, Prepared, Shard, Step};

use super::Member;
use crate::step::event::{Effect, StreamItem};
use crate::step::replica_state::MAX_LINES;
use crate::step::vote_tally::VoteTally;

impl Member {
    /// A vote is about to be sent.
    pub(super) fn check_vote(&self, vote: &Prepared) {
        if self.is_exempt() {
            return;
        }
        assert!(!self.control.is_promised(), "I15: no vote follows a promise");
        let (base, version) = (self.replica.gradients.base(), self.replica.version());
        assert_eq!(base, version, "I19: a vote is of gradients of the last commit's version");
        assert_eq!(
            vote.digests.len(),
            self.plan.owned().len(),
            "I3: a vote has the digest of each owned shard"
        );
        let over = self.is_over();
        let computed = if over { 0 } else { self.plan.data_shards().len() };
        assert!(
            over || vote.contributions.len() == computed,
            "I4: a vote has each data shard of this member once"
        );
        let primary = if over { 0 } else { self.plan.primaries() };
        assert_eq!(vote.squares.len(), primary, "I18: a vote has each shard of this primary once");
    }

    /// The step leader is about to send a commit that the tally allows.
    pub(super) fn check_commit(&self, commit: &Commit, tally: &VoteTally) {
        if self.is_exempt() {
            return;
        }
        assert!(!self.control.is_promised(), "I15: no commit follows a promise");
        assert!(tally.is_complete(&self.plan), "I19: every member has voted for a commit");
        let (data_shards, shards) = tally.covered();
        let all = self.setup.run.batch.data_shards as usize;
        assert_eq!(data_shards, all, "I4: the votes have each data shard once");
        let all = self.plan.shards() as usize;
        assert_eq!(shards, all, "I18: the votes have each parameter shard once");
        assert_eq!(commit.step, self.step(), "I5: a commit is of the step under way");
        let finite = commit.norm.is_finite() && commit.loss.is_finite();
        let applies = commit.decision == Decision::Apply;
        assert_eq!(applies, finite, "I2: a step counts if its norm and loss are finite");
        let before = self.commit().map_or(0, |before| before.updates);
        assert_eq!(commit.updates, before + u64::from(applies), "I2: a commit counts its update");
        let line = (commit.line.step, commit.line.generation);
        assert_eq!(line, (commit.step, self.plan.generation()), "I13: a line is of its commit");
    }

    /// A commit is about to be applied.
    pub(super) fn check_round(&self) {
        if self.is_exempt() {
            return;
        }
        let (reduced, owned) = (self.replica.prepared.len(), self.plan.owned().len());
        assert_eq!(reduced, owned, "I19: each owned shard has the gradient that was voted for");
    }

    /// A commit has been applied. `before` is the step of the commit before it.
    pub(super) fn check_adopted(&self, before: Step) {
        if self.is_exempt() {
            return;
        }
        let committed = self.committed();
        assert_eq!(committed, before.next(), "I5: a commit is the next step's");
        assert!(self.settled() <= committed, "I5: only what is committed is settled");
        assert!(self.replica.lines.len() <= MAX_LINES, "I10: the kept lines are bounded");
    }

    /// A shard has been reduced. `twice` says that this round had its gradient already.
    pub(super) fn check_reduced(&self, shard: Shard, twice: bool) {
        assert!(!twice || self.is_exempt(), "I18: shard {shard} is reduced once in a step");
    }

    /// A chunk that the member has admitted is about to be taken.
    pub(super) fn check_taken(&self, chunk: &Chunk) {
        let (of, own) = (chunk.generation, self.plan.generation());
        assert!(of == own || self.is_exempt(), "I7: a member of {own} takes no chunk of {of}");
    }

    /// An effect is about to leave the worker.
    pub(in crate::step) fn check_effect(&self, effect: &Effect) {
        let generation = match effect {
            Effect::SendToPeer { message, .. } => message.between_workers(),
            Effect::Stream { item: StreamItem::Message(message), .. } => message.between_workers(),
            Effect::Stream { item: StreamItem::Tensor { chunk, .. }, .. } => Some(chunk.generation),
            _ => return,
        };
        if self.is_exempt() {
            return;
        }
        let own = self.plan.generation();
        assert_eq!(generation, Some(own), "I7: a member sends only what is of its generation");
        assert!(!self.control.is_promised(), "I15: a member sends nothing after a promise");
    }

    #[cfg(not(feature = "planted"))]
    fn is_exempt(&self) -> bool {
        false
    }

    #[cfg(feature = "planted")]
    fn is_exempt(&self) -> bool {
        self.replica.plant.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use everstep_kernels::buffer::Pool;
    use everstep_kernels::threads::Threads;
    use everstep_transport::protocol::{
        Cause, ChunkKind, DataShard, Generation, Message, NodeName, Ownership, Rank, Record, Term,
        WorkerId, exemplars, generation,
    };
    use everstep_transport::time::Time;

    use super::*;
    use crate::optimize;
    use crate::step::plan::MemberPlan;
    use crate::step::replica_state::ReplicaState;
    use crate::step::scaling::{GROWTH_INTERVAL, Scaling};
    use crate::step::setup::Setup;

    const SELF: WorkerId = WorkerId(1);

    /// The step leader of two members. It owns both parameter shards and computes one data shard
    /// of two.
    fn leader() -> Member {
        let member = |worker, shard| generation::Member {
            worker: WorkerId(worker),
            name: NodeName::parse("worker").expect("a valid name"),
            address: (Ipv4Addr::LOCALHOST, 1).into(),
            data_shards: vec![DataShard(shard)],
        };
        let record = Record {
            number: Generation(4),
            predecessor: Generation(3),
            term: Term(1),
            cause: Cause::Start,
            members: vec![member(1, 0), member(2, 1)],
            owners: vec![Ownership { first: Shard(0), count: 2, owners: vec![Rank(0)] }],
            resume: Step(0),
            commit: None,
            waiting: false,
        };
        let mut run = exemplars::run();
        run.batch.data_shards = 2;
        let setup = Setup {
            parameters: 2_000,
            trained: 2_000,
            scaling: Scaling::of(run.model.precision, GROWTH_INTERVAL),
            rates: optimize::rates(&run, None),
            tokens_per_step: 16,
            unix_ms_at_zero: 0,
            pool: Pool::new(1 << 20),
            threads: Threads::default(),
            state_parts: 3,
            merge_bytes: 1,
            run,
        };
        let plan = MemberPlan::new(record, SELF, 2_000, 2).expect("a member");
        let replica = ReplicaState::initial(2);
        Member::enter(Time(1), Arc::new(setup), plan, replica).expect("a record to enter")
    }

    fn vote(digests: u32) -> Prepared {
        Prepared {
            generation: Generation(4),
            step: Step(1),
            squares: vec![(Shard(0), 1.0), (Shard(1), 1.0)],
            contributions: Vec::new(),
            digests: (0..digests).map(|shard| (Shard(shard), 0)).collect(),
            compute_seconds: 0.0,
            commit_seconds: 0.0,
        }
    }

    fn said(generation: u64) -> Effect {
        let message = Message::Go { generation: Generation(generation), step: Step(1) };
        Effect::SendToPeer { to: WorkerId(2), message }
    }

    #[test]
    #[should_panic(expected = "I3: a vote has the digest of each owned shard")]
    fn i3_a_vote_without_a_digest_stops_the_process() {
        leader().check_vote(&vote(1));
    }

    #[test]
    #[should_panic(expected = "I4: a vote has each data shard of this member once")]
    fn i4_a_vote_without_a_data_shard_stops_the_process() {
        leader().check_vote(&vote(2));
    }

    #[test]
    #[should_panic(expected = "I7: a member sends only what is of its generation")]
    fn i7_a_message_of_another_generation_stops_the_process() {
        leader().check_effect(&said(4));
        leader().check_effect(&said(3));
    }

    #[test]
    #[should_panic(expected = "I7: a member of 4 takes no chunk of 3")]
    fn i7_a_chunk_of_another_generation_stops_the_process() {
        let chunk = Chunk { generation: Generation(3), ..exemplars::chunk() };
        leader().check_taken(&Chunk { kind: ChunkKind::Partial, ..chunk });
    }

    #[test]
    #[should_panic(expected = "I15: a member sends nothing after a promise")]
    fn i15_a_message_after_a_promise_stops_the_process() {
        let mut member = leader();
        member.promise();
        member.check_effect(&said(4));
    }

    #[test]
    #[should_panic(expected = "I18: shard 1 is reduced once in a step")]
    fn i18_a_second_reduction_stops_the_process() {
        leader().check_reduced(Shard(0), false);
        leader().check_reduced(Shard(1), true);
    }

    #[test]
    #[should_panic(expected = "I19: each owned shard has the gradient that was voted for")]
    fn i19_a_commit_without_its_gradients_stops_the_process() {
        leader().check_round();
    }

    #[test]
    #[should_panic(expected = "I19: every member has voted for a commit")]
    fn i19_a_commit_without_a_vote_stops_the_process() {
        let commit = Commit { step: Step(1), ..commit() };
        leader().check_commit(&commit, &VoteTally::new(Step(1), false));
    }

    #[test]
    #[should_panic(expected = "I5: a commit is the next step's")]
    fn i5_a_step_that_is_left_out_stops_the_process() {
        leader().check_adopted(Step(0));
    }

    fn commit() -> Commit {
        let commits = exemplars::all().into_iter();
        let mut commits = commits.filter_map(|message| match message {
            Message::Commit(commit) => Some(commit),
            _ => None,
        });
        commits.next().expect("each message has an exemplar")
    }
}
