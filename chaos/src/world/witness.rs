//! What the checkers see of a worker: its state after every input, and its messages.

use everstep_transport::protocol::{Chunk, ChunkKind, Generation, Message, WorkerId};
use everstep_worker::step::Promise;
use everstep_worker::step::event::{Input, StreamItem};

use super::sim_device::SimDevice;
use super::worker::CoreView;
use super::{NodeId, World};
use crate::check::{Observation, Violation};

impl World {
    /// A worker has taken an input.
    pub(super) fn witness(
        &mut self,
        place: usize,
        before: &CoreView,
        after: &CoreView,
    ) -> Result<(), Violation> {
        if before.worker != after.worker {
            self.rename(place, before.worker, after.worker)?;
        }
        let Some(id) = after.worker else { return Ok(()) };
        if before.promised != after.promised || before.worker != after.worker {
            let Promise { term, generation: number } = after.promised;
            self.observe(Observation::Promised(id, term, number))?;
        }
        let Some(committed) = after.committed else { return Ok(()) };
        if before.generation != after.generation || before.committed.is_none() {
            self.witness_entry(place, id)?;
        } else if before.committed != after.committed {
            let member = self.workers[place].core().member();
            let commit = member.and_then(|member| member.commit()).cloned();
            self.note(format_args!("worker {place} commits {commit:?}"));
            if let Some(commit) = commit.filter(|commit| commit.step == committed) {
                self.observe(Observation::Committed(id, &commit))?;
            }
            self.checkers.liveness.progress(self.now);
        }
        if let Some(settled) = after.settled.filter(|_| before.settled != after.settled) {
            self.observe(Observation::Settled(id, (after.generation, settled)))?;
        }
        Ok(())
    }

    /// The coordinator gave a worker an id, or the worker lost its id with all that it held.
    fn rename(
        &mut self,
        place: usize,
        before: Option<WorkerId>,
        after: Option<WorkerId>,
    ) -> Result<(), Violation> {
        self.note(format_args!("worker {place} was {before:?} and is {after:?}"));
        if let Some(after) = after {
            self.workers.name(after, place);
        }
        before.map_or(Ok(()), |before| self.observe(Observation::Gone(before)))
    }

    fn witness_entry(&mut self, place: usize, id: WorkerId) -> Result<(), Violation> {
        let Some(member) = self.workers[place].core().member() else { return Ok(()) };
        let (record, committed) = (member.plan().record().clone(), member.committed());
        self.note(format_args!("worker {place} enters {record:?}"));
        self.observe(Observation::Entered(id, &record, committed))
    }

    // What a worker says.

    /// A worker's message to the coordinator, which may be the basis of a generation's plan.
    pub(super) fn witness_evidence(
        &mut self,
        place: usize,
        message: &Message,
    ) -> Result<(), Violation> {
        let Message::Status(status) = message else { return Ok(()) };
        match status.commit.as_ref().zip(self.workers[place].id()) {
            Some((commit, id)) => self.observe(Observation::Shown(id, commit)),
            None => Ok(()),
        }
    }

    pub(super) fn witness_words(
        &mut self,
        place: usize,
        message: &Message,
    ) -> Result<(), Violation> {
        let generation = message.between_workers();
        match generation.zip(self.workers[place].id()) {
            Some((generation, id)) => self.observe(Observation::Said(id, generation)),
            None => Ok(()),
        }
    }

    pub(super) fn witness_item(
        &mut self,
        place: usize,
        item: &StreamItem,
    ) -> Result<(), Violation> {
        match item {
            StreamItem::Message(message) => self.witness_words(place, message),
            StreamItem::Tensor { chunk, .. } => {
                let id = self.workers[place].id().unwrap_or_default();
                self.observe(Observation::Said(id, chunk.generation))
            }
        }
    }

    // What a worker refuses.

    /// The name of an input that a member of this generation sends to another one, and that only an
    /// error could make the receiver refuse.
    pub(super) fn expected_of_a_member(&self, place: usize, input: &Input) -> Option<String> {
        let (from, generation, what) = match input {
            Input::Peer { from, message } => match message {
                Message::Prepared(_) | Message::Commit(_) => {
                    (*from, message.between_workers()?, message.name())
                }
                _ => return None,
            },
            Input::Chunk { from, chunk, .. } => (*from, chunk.generation, "a piece"),
            _ => return None,
        };
        let chunk = match input {
            Input::Chunk { chunk, .. } => Some(chunk),
            _ => None,
        };
        let of_members = self.is_between_members(place, from, generation, chunk);
        of_members.then(|| format!("{what} of worker {from}, generation {generation}"))
    }

    /// A worker answered a header with a drop.
    pub(super) fn dropped(
        &mut self,
        place: usize,
        chunk: &Chunk,
        from: WorkerId,
    ) -> Result<(), Violation> {
        self.checkers.refused += 1;
        if chunk.kind == ChunkKind::Message
            || !self.is_between_members(place, from, chunk.generation, Some(chunk))
        {
            return Ok(());
        }
        self.observe(Observation::Refused(format_args!("worker {place} drops {chunk:?}")))
    }

    /// Whether this comes from one member of a worker's generation to another, the receiver has not
    /// promised the next, and it is not about a shard that the receiver only syncs.
    fn is_between_members(
        &self,
        place: usize,
        from: WorkerId,
        generation: Generation,
        chunk: Option<&Chunk>,
    ) -> bool {
        let worker = &self.workers[place];
        let core_view = worker.core_view();
        let current =
            core_view.generation == generation && core_view.promised.generation <= generation;
        let members =
            core_view.committed.is_some() && self.checkers.invariants.lists(generation, from);
        let syncing = chunk.is_some_and(|chunk| match chunk.kind {
            ChunkKind::State => true,
            ChunkKind::Reduced => !worker.receiver_state(chunk.shard).1.owns,
            _ => false,
        });
        current && members && !syncing
    }

    /// What a worker waits for, in words.
    pub(super) fn waits_for(&self, place: usize) -> String {
        let worker = &self.workers[place];
        let core_view = worker.core_view();
        let what = match core_view.committed {
            _ if worker.ended() => "has ended".into(),
            _ if self.faults.is_paused(NodeId::Worker(place)) => "stands still".into(),
            None => format!("is no member, {}", standing(&core_view)),
            Some(committed) => format!(
                "has committed step {committed}, {}: {} streams wait, {} jobs are to do",
                standing(&core_view),
                worker.streams_waiting(),
                worker.sim_device.as_ref().map_or(0, SimDevice::waiting)
            ),
        };
        format!("worker {place} (slot {}) {what}", worker.slot())
    }
}

fn standing(core_view: &CoreView) -> String {
    let CoreView {
        worker,
        generation,
        promised: Promise { term, generation: number },
        settled,
        ..
    } = core_view;
    format!(
        "id {worker:?}, settled {settled:?}, in generation {generation}, has promised {number} to \
         term {term}"
    )
}
