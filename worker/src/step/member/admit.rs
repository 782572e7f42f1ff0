//! What a member takes: only what its plan, or its feed, expects, and never more.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_kernels::buffer::Buffer;
use everstep_kernels::reduce::Addend;
use everstep_transport::protocol::codec::MAX_CONTROL;
use everstep_transport::protocol::{Chunk, ChunkKind, Step, WorkerId};
use everstep_transport::time::Time;

use super::Member;
use crate::step::catch_up::StateHeader;
use crate::step::event::{Admission, Gradient};
use crate::step::replica_state::ReducedShard;

impl Member {
    /// What to do with a chunk from `from` whose header has arrived. A receiver never allocates for
    /// what it does not expect.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        use std::cmp::Ordering::{Equal, Greater, Less};
        if chunk.generation != self.plan.generation() {
            let newer = chunk.generation > self.plan.generation();
            #[cfg(feature = "planted")]
            if !newer && self.has_plant(crate::plant::Plant::AcceptOld) {
                return Admission::Take;
            }
            return if newer { Admission::Wait } else { Admission::Drop };
        }
        if chunk.kind == ChunkKind::Message {
            let small = chunk.count as usize <= MAX_CONTROL;
            return if small { Admission::Take } else { Admission::Drop };
        }
        if chunk.count as usize != self.plan.length(chunk.shard) {
            return Admission::Drop;
        }
        let Some(due) = self.due(from, chunk) else { return self.admit_to_catch_up(from, chunk) };
        match chunk.step.cmp(&due) {
            #[cfg(feature = "planted")]
            Less if self.has_plant(crate::plant::Plant::AcceptOld) => Admission::Take,
            Less => Admission::Drop,
            Greater => Admission::Wait,
            Equal if self.has(chunk) => Admission::Drop,
            Equal => Admission::Take,
        }
    }

    /// The step of which the plan expects such a chunk from `from` now. None if it expects none.
    fn due(&self, from: WorkerId, chunk: &Chunk) -> Option<Step> {
        let Self { plan, setup, .. } = self;
        let shard = chunk.shard;
        let (expected, due) = match chunk.kind {
            ChunkKind::Partial => {
                (plan.expects_partial(from, shard, Self::node(chunk)), self.step())
            }
            ChunkKind::Reduced => (plan.expects_reduced(from, shard), self.step()),
            ChunkKind::Parameters => {
                let encoded = chunk.encoding == setup.run.all_gather;
                (encoded && plan.expects_parameters(from, shard), self.committed())
            }
            ChunkKind::Master | ChunkKind::State | ChunkKind::Message => (false, self.committed()),
        };
        expected.then_some(due)
    }

    /// Whether a chunk's content is here already.
    fn has(&self, chunk: &Chunk) -> bool {
        match chunk.kind {
            ChunkKind::Reduced => self.replica.prepared.contains_key(&chunk.shard),
            ChunkKind::Parameters => !self.all_gather.expects(chunk.shard),
            _ => false, // The sum itself knows its parts.
        }
    }

    fn admit_to_catch_up(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        let Some(catch_up) = &self.catch_up else { return Admission::Drop };
        catch_up.admit(from, chunk, self.plan.sized_record(), &self.replica)
    }

    /// A chunk that was admitted has arrived whole.
    pub fn on_chunk(&mut self, now: Time, from: WorkerId, chunk: &Chunk, values: Buffer) {
        // The member may have moved on while the body was on its way.
        if self.admit(from, chunk) != Admission::Take || values.len() != chunk.count as usize {
            return self.refuse();
        }
        self.check_taken(chunk);
        let (shard, generation) = (chunk.shard, self.plan.generation());
        match chunk.kind {
            ChunkKind::Partial => self.add(shard, Self::node(chunk), Addend::Owned(values)),
            ChunkKind::Reduced if self.plan.owned().contains_key(&shard) => {
                let reduced =
                    ReducedShard { generation, gradient: Gradient::received(chunk, values) };
                self.replica.prepared.insert(shard, reduced);
            }
            ChunkKind::Reduced => {
                let gradient = Gradient::received(chunk, values);
                self.with_catch_up(|catch_up, context| catch_up.reduced(chunk, gradient, context));
            }
            ChunkKind::Parameters => self.gather(shard, values),
            ChunkKind::State => {
                self.with_catch_up(|catch_up, context| catch_up.part(shard, values, context));
            }
            ChunkKind::Master | ChunkKind::Message => self.refuse(),
        }
        self.advance(now);
    }

    /// The state of a shard begins to arrive.
    pub(super) fn state_begins(&mut self, from: WorkerId, header: StateHeader) {
        if self.with_catch_up(|catch_up, context| catch_up.header(from, header, context))
            != Some(true)
        {
            self.refuse();
        }
    }
}
