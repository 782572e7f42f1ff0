//! Three members over eight data shards and three parameter shards of two copies.

use std::net::Ipv4Addr;

use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Cause, DataShard, Device, Generation, Member, ModelPlace, NodeName, Ownership, Prepared, Rank,
    Record, Shard, Step, Term, WorkerId,
};
use everstep_worker::step::plan::MemberPlan;

pub const DATA_SHARDS: u32 = 8;
/// Three parameter shards.
pub const PARAMETERS: usize = 2_500;
pub const GENERATION: Generation = Generation(4);
/// The members, by rank.
pub const MEMBERS: [WorkerId; 3] = [WorkerId(11), WorkerId(12), WorkerId(13)];
/// A worker that is not a member.
pub const STRANGER: WorkerId = WorkerId(14);

/// A record of the members that compute these data shards and own these parameter shards.
pub fn record_of(data_shards: &[&[u32]], owners: &[&[u32]]) -> Record {
    let member = |(rank, shards): (usize, &&[u32])| Member {
        worker: WorkerId(11 + rank as u64),
        name: NodeName::parse(&format!("worker-{rank}")).expect("a valid name"),
        address: (Ipv4Addr::LOCALHOST, 1).into(),
        data_shards: shards.iter().copied().map(DataShard).collect(),
    };
    let ownership = |(shard, owners): (usize, &&[u32])| Ownership {
        first: Shard(shard as u32),
        count: 1,
        owners: owners.iter().copied().map(Rank).collect(),
    };
    Record {
        number: GENERATION,
        predecessor: Generation(3),
        term: Term(1),
        cause: Cause::Start,
        members: data_shards.iter().enumerate().map(member).collect(),
        owners: owners.iter().enumerate().map(ownership).collect(),
        resume: Step(0),
        commit: None,
        waiting: false,
    }
}

/// Member `rank` computes `[0, 1, 2]`, `[3, 4, 5]` or `[6, 7]`, is primary of the shard of its own
/// number, and backup of the one before.
pub fn record() -> Record {
    record_of(&[&[0, 1, 2], &[3, 4, 5], &[6, 7]], &[&[0, 1], &[1, 2], &[2, 0]])
}

pub fn plan_of(worker: WorkerId) -> MemberPlan {
    MemberPlan::new(record(), worker, PARAMETERS, DATA_SHARDS).expect("a member of a sound record")
}

/// The vote that the plan expects of the member of `rank`. Data shard `d` has loss `d`, and
/// parameter shard `p` has a gradient of `10 + p` squared.
pub fn vote_of(rank: u32, step: Step) -> Prepared {
    let record = record();
    let owned = record.owned_by(Rank(rank));
    let primaries = owned.iter().filter(|(_, primary)| *primary);
    let squared = |shard: Shard| f64::from((10 + shard.0) * (10 + shard.0));
    let part = |data_shard: &DataShard| Contribution {
        data_shard: *data_shard,
        loss: f64::from(data_shard.0),
        weight: 1.0,
        samples: vec![u64::from(data_shard.0); 2],
        samples_lost: u64::from(data_shard.0 == 1),
        samples_repeated: u64::from(data_shard.0 == 2),
        evaluation: None,
        scalars: Vec::new(),
    };
    Prepared {
        generation: GENERATION,
        step,
        squares: primaries.map(|(shard, _)| (*shard, squared(*shard))).collect(),
        contributions: record.member(Rank(rank)).data_shards.iter().map(part).collect(),
        digests: owned.iter().map(|(shard, _)| (*shard, 100 + u64::from(shard.0))).collect(),
        compute_seconds: f64::from(rank),
        commit_seconds: f64::from(rank + 1),
    }
}

/// A worker's registration for a model of so many parameters. `model` is where it can write the
/// file.
pub fn registration(
    (parameters, shards, samples): (usize, u32, u64),
    model: Option<ModelPlace>,
) -> Registration {
    let (parameters, model_digest, data) = (parameters as u64, [0; 32], [0; 32]);
    let fingerprint = Fingerprint { model: model_digest, data, parameters, shards, samples };
    let address = (Ipv4Addr::LOCALHOST, 1).into();
    let (zone, device, host, machine) = (None, Device::default(), None, None);
    let (incarnation, probe) = (1, 0);
    Registration { incarnation, address, fingerprint, probe, zone, device, model, host, machine }
}
