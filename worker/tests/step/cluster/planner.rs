//! A record from statuses, by the rules that bind a leader.

use std::net::Ipv4Addr;

use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Cause, Commit, DataShard, Generation, Member, Ownership, Rank, Record, Shard, Step, WorkerId,
};

use super::{Cluster, TERM, name};
use crate::support::DATA_SHARDS;

/// The next record of these members, from their answers to the last Pause. It deals out data shards
/// in turns beginning with the generation's number, so that they move. If nobody holds a shard, the
/// run goes back to its newest checkpoint.
pub fn plan(cluster: &Cluster, members: &[WorkerId], cause: Cause) -> Record {
    let number = cluster.number().next();
    let commit = match cause {
        Cause::Start => None,
        Cause::Rollback => cluster.store.listed.last_key_value().map(|(_, commit)| commit.clone()),
        _ => resumed(cluster),
    };
    let resume = commit.as_ref().map_or(Step(0), |commit| commit.step);
    let world = members.len() as u32;
    let dealt = |rank: u32| {
        let mine = (0..DATA_SHARDS).filter(|shard| (shard / 2 + number.0 as u32) % world == rank);
        mine.map(DataShard).collect()
    };
    let member = |(rank, worker): (usize, &WorkerId)| Member {
        worker: *worker,
        name: name(*worker),
        address: (Ipv4Addr::LOCALHOST, 1).into(),
        data_shards: dealt(rank as u32),
    };
    let anyone = resume == Step(0) || cause == Cause::Rollback;
    let owners = (0..3).map(Shard).map(|shard| {
        let holds = |rank: &u32| {
            let status = &cluster.statuses[&members[*rank as usize]];
            anyone || holds(status, shard, commit.as_ref())
        };
        let mut holders: Vec<Rank> =
            (0..world).map(|k| (k + shard.0) % world).filter(holds).map(Rank).collect();
        holders.truncate(2);
        Ownership { first: shard, count: 1, owners: holders }
    });
    let owners: Vec<Ownership> = owners.collect();
    if let Some(lost) = owners.iter().find(|of| of.owners.is_empty()) {
        assert!(!cluster.store.listed.is_empty(), "parameter shard {} is lost", lost.first);
        return plan(cluster, members, Cause::Rollback);
    }
    Record {
        number,
        predecessor: cluster.number(),
        term: TERM,
        cause,
        members: members.iter().enumerate().map(member).collect(),
        owners,
        resume,
        commit,
        waiting: false,
    }
}

/// The commit that the next record resumes with.
pub fn resumed(cluster: &Cluster) -> Option<Commit> {
    let current = cluster.number();
    let shown = cluster.statuses.values().filter_map(|status| status.commit.clone());
    let newest = shown.filter(|commit| commit.generation == current).max_by_key(|c| c.step);
    let before = || cluster.record.as_ref().and_then(|record| record.commit.clone());
    newest.map(|commit| Commit { hold: false, ..commit }).or_else(before)
}

/// Whether a worker can bring a shard to the resume version by itself.
pub fn holds(status: &Status, shard: Shard, commit: Option<&Commit>) -> bool {
    let (step, generation) =
        commit.map_or((Step(0), Generation(0)), |commit| (commit.step, commit.generation));
    let prepared = status.prepared.contains(&(shard, generation));
    status.versions.iter().any(|(held, version, made_by)| {
        *held == shard
            && ((*version, *made_by) == (step, generation) || version.next() == step && prepared)
    })
}
