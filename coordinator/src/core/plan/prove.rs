//! Proves a plan before it is proposed. Each assertion names its invariant, and a broken one stops
//! the process: another coordinator leads then.
//!
//! The answers of workers are what they are. The proof is that the plan follows from them. A plan
//! of a core with a planted bug is proposed without a proof: the simulator's checks are to find the
//! bug.

use std::collections::BTreeSet;

use everstep_transport::protocol::{Record, Shard, WorkerId};

use super::{GenerationBasis, GiveUp, PlanInputs};
use crate::assign::{Occasion, sums};

impl GenerationBasis<'_> {
    /// I15: every member has promised the number. I16: every owner can reach the resume step. I24:
    /// a planned change leaves the data shards in blocks. I26: a paused run starts no step.
    pub(super) fn prove(
        &self,
        inputs: &PlanInputs,
        answered: &BTreeSet<WorkerId>,
        record: &Record,
    ) {
        if inputs.is_exempt {
            return;
        }
        let number = record.number;
        for worker in record.members.iter().map(|member| member.worker) {
            let promised = answered.contains(&worker) && inputs.statuses.contains_key(&worker);
            assert!(promised, "I15: worker {worker} has not promised generation {number}");
        }
        for (run, rank) in
            record.owners.iter().flat_map(|run| run.owners.iter().map(move |r| (run, r)))
        {
            let worker = record.member(*rank).worker;
            for shard in (run.first.0..run.first.0 + run.count).map(Shard) {
                let holds = self.shard_holders.holds(worker, shard);
                assert!(holds, "I16: worker {worker} does not hold parameter shard {shard}");
            }
        }
        let rests = record.waiting || record.resume.0 >= inputs.run.steps;
        assert!(rests || !inputs.asked.rests(), "I26: generation {number} ends a pause by itself");
        if self.occasion(inputs) == Occasion::Planned {
            prove_blocks(record, inputs.run.batch.data_shards);
        }
    }
}

/// No member sends more than one sum more than its share of the data shards takes.
fn prove_blocks(record: &Record, data_shards: u32) {
    for member in &record.members {
        let share = member.data_shards.len();
        let (sent, most) =
            (sums(data_shards, &member.data_shards), share.count_ones() as usize + 1);
        let worker = member.worker;
        assert!(sent <= most, "I24: worker {worker} sends {sent} sums for {share} data shards");
    }
}

impl PlanInputs<'_> {
    /// I21: the run goes back only if an operator asked for it, or if no owner of some shard that
    /// no answer shows may live, or is still waited for. No copy of that shard is needed if its
    /// state `is_saved`.
    pub(super) fn prove_rollback(
        &self,
        orphans: &[Shard],
        answered: &BTreeSet<WorkerId>,
        is_saved: bool,
    ) {
        if self.is_exempt {
            return;
        }
        let asked = matches!(self.give_up, Some(GiveUp::After(_)));
        let is_sure = asked || self.complete;
        assert!(is_sure, "I21: the run goes back though a worker may still answer");
        let given_up = |owner: &WorkerId| match self.give_up {
            Some(GiveUp::Silent(owners)) => owners.contains(owner),
            Some(GiveUp::After(_)) | None => false,
        };
        let is_gone = |owner: WorkerId| {
            answered.contains(&owner) || self.detector.is_dead(owner) || given_up(&owner)
        };
        let is_lost = |shard: &Shard| self.owners_before(*shard).all(is_gone);
        let lost = orphans.iter().any(is_lost) || is_saved && !orphans.is_empty();
        assert!(asked || lost, "I21: the run goes back though an owner of each shard may live");
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{DataShard, Message, exemplars};

    use super::*;

    /// A record of which each member computes these data shards.
    fn record(data_shards: [u32; 4]) -> Record {
        let mut records = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Announce(record) => Some(record),
            _ => None,
        });
        let mut record = records.next_back().expect("each message has an exemplar");
        for member in &mut record.members {
            member.data_shards = data_shards.map(DataShard).to_vec();
        }
        record
    }

    #[test]
    fn i24_data_shards_in_few_blocks_are_proven() {
        prove_blocks(&record([0, 1, 2, 3]), 8);
        prove_blocks(&record([0, 1, 6, 7]), 8);
    }

    #[test]
    #[should_panic(expected = "sends 4 sums for 4 data shards")]
    fn i24_data_shards_in_fragments_stop_the_process() {
        prove_blocks(&record([0, 2, 4, 6]), 8);
    }
}
