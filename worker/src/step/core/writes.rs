//! The worker that writes the model: on the leader's request it gathers every master weight.
//!
//! A member writes. If no member has a directory, a worker beside the generation that has one
//! writes. The writer asks the primaries, so they send nothing that the file does not take. If the
//! run has a store of checkpoints, the store's thread then copies the file there.
//!
//! A thread of its own writes the file. A directory that does not answer keeps the worker from
//! nothing else, so another worker can write with this one's weights.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_kernels::buffer::Shared;
use everstep_transport::protocol::{
    Chunk, Generation, Message, ModelPlace, RunSpec, Shard, Step, Term, WorkerId,
};
use everstep_transport::time::Time;

use super::{Core, Phase};
use crate::step::event::{Admission, Effect, FileJob, FileReport, Report, StoreJob};
use crate::step::model_writer::{ModelWriter, WriterAction};
use crate::step::sized_record::SizedRecord;

/// The core's account of the model's file.
#[derive(Debug, Default)]
pub(super) struct ModelWrites {
    /// Where this worker would write it. None if it has no directory.
    place: Option<ModelPlace>,
    /// The leader has told this worker to write it, in this generation.
    is_requested: bool,
    /// The file under way, if any.
    writer: Option<ModelWriter>,
    /// The file is durable. It stays so in generations that begin after the last step.
    written: bool,
    /// The store's thread copies the file that became complete in this generation.
    storing: Option<Generation>,
    /// The place in the run's store where the model is durable, with the same validity as the file.
    stored: Option<ModelPlace>,
}

impl ModelWrites {
    /// A model of which only the place is known.
    pub(super) fn of(place: Option<ModelPlace>) -> Self {
        Self { place, ..Self::default() }
    }

    /// Why the file cannot be written. None while it can.
    pub(super) fn error(&self) -> Option<String> {
        self.writer.as_ref()?.error().map(str::to_string)
    }

    /// The place of the durable file. None before it is durable.
    pub(super) fn durable(&self) -> Option<&ModelPlace> {
        self.place.as_ref().filter(|_| self.written)
    }
}

impl Core {
    /// Another generation begins. The leader tells its writer again. A durable file counts only in
    /// a generation that begins after the last step.
    pub(super) fn renew_model(&mut self, is_last: bool) {
        let model = &mut self.model;
        model.is_requested = false;
        model.written &= is_last;
        model.storing.take_if(|_| !is_last);
        model.stored.take_if(|_| !is_last);
        if model.writer.take().is_some() {
            self.out.push_back(Effect::File(FileJob::Close));
        }
    }

    /// The leader asks this worker to write the model's file.
    pub(super) fn write(&mut self, term: Term, generation: Generation) {
        if self.obeys(term, generation) {
            self.model.is_requested = true;
            self.report_written();
        }
    }

    /// Tells the leader where the model is durable, if it is. After a promise the worker says
    /// nothing (I15): the next generation may go back to an earlier step.
    pub(super) fn report_written(&mut self) {
        if self.membership.generation() != self.generation() {
            return;
        }
        if let Some(place) = self.model.durable().cloned() {
            self.send_to_leader(Message::Written(place));
        }
        if let Some(place) = self.model.stored.clone() {
            self.send_to_leader(Message::Stored(place));
        }
    }

    /// The file is complete: the store's thread copies it, if the run has a store.
    fn store_model(&mut self) {
        if self.run().is_some_and(|run| run.checkpoint.is_some()) {
            let generation = self.generation();
            self.model.storing = Some(generation);
            self.out.push_back(Effect::Store(StoreJob::Model { generation }));
        }
    }

    /// The worker restores a checkpoint, for which the store's thread drops a copy that the store
    /// has failed so far. After a rollback to the last step the file is still that of the run.
    pub(super) fn store_model_again(&mut self) {
        if let Some(generation) = self.model.storing {
            self.out.push_back(Effect::Store(StoreJob::Model { generation }));
        }
    }

    /// The model is durable in the run's store.
    pub(super) fn stored(&mut self, generation: Generation, place: ModelPlace) {
        if self.model.storing == Some(generation) {
            (self.model.storing, self.model.stored) = (None, Some(place));
            self.report_written();
        }
    }

    /// Opens the file, once the leader has asked for it and the last step is trained.
    pub(super) fn begin_to_write(&mut self, now: Time) {
        let ModelWrites { is_requested, writer, written, .. } = &self.model;
        if !is_requested
            || *written
            || writer.is_some()
            || self.membership.generation() != self.generation()
        {
            return;
        }
        let is_due = match &self.phase {
            Phase::Training(member) => member.has_finished(),
            Phase::Joining(_) => true,
            _ => false,
        };
        if let Some(sized_record) = self.sized_record().filter(|_| is_due) {
            let bytes = 4 * sized_record.parameters() as u64;
            self.model.writer = Some(ModelWriter::begin(now, sized_record.shards(), bytes));
            self.open_file();
        }
    }

    fn open_file(&mut self) {
        let generation = self.generation();
        self.out.push_back(Effect::File(FileJob::Open { generation }));
    }

    /// Handles a report on the file of a generation. A report of an earlier file says nothing.
    pub(super) fn follow_file(&mut self, now: Time, generation: Generation, report: FileReport) {
        if generation != self.generation() {
            return;
        }
        let Some(writer) = &mut self.model.writer else { return };
        match report {
            FileReport::Opened => {
                writer.opened(now);
                self.ask_for_masters(now);
            }
            FileReport::Taken => writer.taken(),
            FileReport::Unwritten(reason) => writer.failed(now, reason),
            FileReport::Written => {
                (self.model.written, self.model.writer) = (true, None);
                self.store_model();
                self.report_written();
            }
        }
    }

    /// Takes this worker's own master weights, if it writes the file. Returns any other report.
    pub(super) fn follow_master(&mut self, now: Time, report: Report) -> Option<Report> {
        match report {
            Report::Exported { to, shard, values }
                if self.model.writer.is_some() && self.membership.is(to) =>
            {
                self.take_master(now, shard, values);
                None
            }
            other => Some(other),
        }
    }

    /// Whether this worker asked for a chunk of master weights. After an error of the file some
    /// chunks are still on their way: the worker takes and discards them.
    pub(super) fn admit_master(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        let asked = self.model.writer.is_some() || self.model.written;
        let planned = |sized_record: &SizedRecord| {
            sized_record.is_primary(from, chunk.shard)
                && chunk.count as usize == sized_record.length(chunk.shard)
        };
        let last = self.run().is_some_and(|run| chunk.step == Step(run.steps));
        let taken = asked && last && self.sized_record().is_some_and(planned);
        if taken { Admission::Take } else { Admission::Drop }
    }

    /// Master weights have arrived.
    pub(super) fn take_master(&mut self, now: Time, shard: Shard, values: Shared) {
        if self.model.writer.as_mut().is_some_and(|writer| writer.takes(now, shard)) {
            self.out.push_back(Effect::File(FileJob::Write { shard, values }));
        }
    }

    /// Time passes: opens the file again after a pause, or asks the owners again.
    pub(super) fn continue_writing(&mut self, now: Time) {
        match self.model.writer.as_mut().and_then(|writer| writer.tick(now)) {
            Some(WriterAction::Open) => self.open_file(),
            Some(WriterAction::Ask) => self.ask_for_masters(now),
            None => {}
        }
    }

    fn ask_for_masters(&mut self, now: Time) {
        let (Some(writer), Some(sized_record)) = (&self.model.writer, self.sized_record()) else {
            return;
        };
        let generation = sized_record.generation();
        let missing = writer.missing();
        let owners: BTreeSet<WorkerId> =
            missing.iter().map(|shard| sized_record.primary(*shard)).collect();
        if self.membership.generation() != generation {
            return; // I15: the worker sends nothing of the generation after a promise.
        }
        for to in owners {
            let message = Message::FetchMasters { generation };
            match &mut self.phase {
                Phase::Training(member) if self.membership.is(to) => member.peer(now, to, message),
                _ => self.out.push_back(Effect::SendToPeer { to, message }),
            }
        }
    }

    fn sized_record(&self) -> Option<&SizedRecord> {
        match &self.phase {
            Phase::Joining(joiner) => Some(joiner.sized_record()),
            Phase::Training(member) => Some(member.plan().sized_record()),
            _ => None,
        }
    }

    pub(super) fn run(&self) -> Option<&RunSpec> {
        match &self.phase {
            Phase::Joining(joiner) => Some(&joiner.setup().run),
            Phase::Training(member) => Some(&member.setup().run),
            _ => None,
        }
    }
}
