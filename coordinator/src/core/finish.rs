//! Whether the members' results are those of one history.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Record, Shard, WorkerId};

/// Checks that all owners of every parameter shard report the same digest (I3); else says in words
/// which shard and which workers.
pub(super) fn agreement(
    record: &Record,
    results: &BTreeMap<WorkerId, WorkerResult>,
) -> Result<(), String> {
    let reported = |worker| results.get(worker).map(|result| result.digests.iter().copied());
    let members = record.members.iter().map(|member| reported(&member.worker));
    let digests: Vec<BTreeMap<_, _>> =
        members.map(|digests| digests.into_iter().flatten().collect()).collect();
    for ownership in &record.owners {
        for shard in (ownership.first.0..).take(ownership.count as usize).map(Shard) {
            let mut first = None;
            for rank in &ownership.owners {
                let name = &record.member(*rank).name;
                let digest = digests[rank.0 as usize].get(&shard).ok_or_else(|| {
                    format!("{name} reported no digest of parameter shard {shard}")
                })?;
                let (primary, expected) = *first.get_or_insert((name, digest));
                if digest != expected {
                    return Err(format!(
                        "{primary} and {name} ended with different copies of parameter shard \
                         {shard}"
                    ));
                }
            }
        }
    }
    Ok(())
}
