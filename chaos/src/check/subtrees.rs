//! I24: churn leaves no fragments. After a planned change no worker sends more than one sum more
//! than its share takes. After a loss a survivor sends at most the orphaned blocks in addition to
//! its sums before, one of them cut to the survivor's part of it.

use std::collections::BTreeSet;

use everstep_kernels::reduce::Tree;
use everstep_transport::protocol::{Cause, Member, Record};

use super::{Breach, Invariant};

/// The log has a new record of a run with `data_shards` data shards.
pub(super) fn recorded(
    record: &Record,
    before: Option<&Record>,
    data_shards: u32,
) -> Result<(), Breach> {
    let tree = Tree::new(data_shards);
    let sums = |leaves: &BTreeSet<u32>| tree.subtrees(leaves).len();
    let lost = before.filter(|_| matches!(record.cause, Cause::Lost | Cause::Rollback));
    let orphaned = lost.map_or(0, |before| {
        let gone = |member: &&Member| record.rank(member.worker).is_none();
        sums(&before.members.iter().filter(gone).flat_map(leaves).collect())
    });
    for member in &record.members {
        let now: BTreeSet<u32> = leaves(member).collect();
        let kept = lost.map_or(0, |before| {
            let held = before.rank(member.worker).map(|rank| leaves(before.member(rank)));
            let held: BTreeSet<u32> = held.into_iter().flatten().collect();
            let more = now.difference(&held).count();
            sums(&held) + orphaned + more.max(1).ilog2() as usize
        });
        let fresh = now.len().count_ones() as usize;
        let (sent, most) = (sums(&now), kept.max(fresh + 1));
        if sent > most {
            let (number, worker) = (record.number, member.worker);
            let seen = format!(
                "worker {worker} sends {sent} sums in generation {number}, at most {most} are \
                 needed for data shards {now:?}"
            );
            return Err((Invariant::I24, seen));
        }
    }
    Ok(())
}

fn leaves(member: &Member) -> impl Iterator<Item = u32> {
    member.data_shards.iter().map(|shard| shard.0)
}
