//! Whether the members' results are those of one history.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Record, Shard, WorkerId};

/// Whether a result is of this generation: of all that the worker owns in it, and of nothing else.
/// A result says of no generation, and may have been on its way when the generation began.
pub(super) fn belongs(record: &Record, result: &WorkerResult) -> bool {
    let Some(rank) = record.rank(result.worker) else { return false };
    let owned: BTreeSet<Shard> =
        record.owned_by(rank).into_iter().map(|(shard, _)| shard).collect();
    let digests: BTreeSet<Shard> = result.digests.iter().map(|(shard, _)| *shard).collect();
    let parts = &record.member(rank).data_shards;
    owned == digests && result.evaluations.iter().all(|found| parts.contains(&found.part))
}

/// Checks that all owners of every parameter shard report the same digest (I3); else says in words
/// which shard and which workers.
pub(super) fn agreement(
    record: &Record,
    results: &BTreeMap<WorkerId, WorkerResult>,
) -> Result<(), String> {
    let mut first = BTreeMap::new();
    for member in &record.members {
        let digests = results.get(&member.worker).map_or(&[][..], |result| &result.digests);
        for (shard, digest) in digests {
            let (name, expected) = *first.entry(shard).or_insert((&member.name, digest));
            if digest != expected {
                return Err(format!(
                    "{name} and {} ended with different copies of parameter shard {shard}",
                    member.name
                ));
            }
        }
    }
    Ok(())
}
