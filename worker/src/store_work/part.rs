//! How a worker writes its part of a checkpoint.

use everstep_checkpoint::names::PartName;
use everstep_checkpoint::part::PartSummary;
use everstep_checkpoint::part::writer::{PartPlan, PartWriter};
use everstep_checkpoint::store::{Store, StoreError};
use everstep_transport::protocol::Step;

use super::claim::{ClusterClaim, Permit};
use super::{Attempt, pass_point};
use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::{PartToSave, ShardToSave};

/// Why a part is not saved: this state is not the one that the device made.
fn changed_in_memory(of: &ShardToSave, step: Step) -> Option<String> {
    let ShardToSave { shard, state, digest } = of;
    (state.digest(step.0) != *digest).then(|| {
        format!(
            "parameter shard {shard} changed in memory since step {step}: this machine's memory \
             cannot be trusted"
        )
    })
}

pub(super) fn write_part(
    store: &dyn Store,
    facts: &CheckpointFacts,
    claim: &mut ClusterClaim,
    part: &PartToSave,
) -> Result<Attempt<PartSummary>, StoreError> {
    let number = match claim.ask(store)? {
        Permit::May(number) => number,
        Permit::MayNot(reason) => return Ok(Attempt::MayNot(reason)),
    };
    let plan = PartPlan {
        step: part.commit.step,
        name: PartName { generation: part.generation, worker: part.worker, claim: number },
        run: facts.run_digest.clone(),
        parameters: facts.layout.count(),
        slots: facts.slots.clone(),
        shards: part.shards.iter().map(|of| of.shard).collect(),
    };
    let mut writer = PartWriter::begin(store, plan)?;
    for of in &part.shards {
        // The check brings the state into the cache, where the writer finds it.
        if let Some(reason) = changed_in_memory(of, part.commit.step) {
            return Ok(Attempt::Refused(reason));
        }
        let slots = std::iter::once(&of.state.master).chain(&of.state.moments);
        let slots: Vec<&[f32]> = slots.map(Vec::as_slice).collect();
        writer.write(of.shard, &slots)?;
    }
    pass_point("part.written");
    // Writing may have taken long. The name is this cluster's own, so nothing is written over.
    match claim.ask(store)? {
        Permit::May(_) => {
            let summary = writer.finish()?;
            pass_point("part.placed");
            Ok(Attempt::Done(summary))
        }
        Permit::MayNot(reason) => Ok(Attempt::MayNot(reason)),
    }
}
