//! The settings of Raft, with their reasons.

use std::time::Duration;

use super::members::ReplicaId;

/// The shortest tick, used within one place: a heartbeat each 25 ms, an election after 125 to 205
/// ms of silence. `tick_rate.rs` says when a tick is longer.
pub const LAN_TICK: Duration = Duration::from_millis(5);

/// The shortest tick while the cluster is at rest: a heartbeat each 150 ms, an election after 375
/// to 615 ms of silence.
pub(super) const REST_TICK: Duration = Duration::from_millis(15);

/// Ticks between a leader's heartbeats.
pub(super) const HEARTBEAT_TICKS: usize = 5;
/// The same while the cluster is at rest, because each heartbeat costs every replica some wake-ups.
pub(super) const RESTING_HEARTBEAT_TICKS: usize = 10;
/// A replica that has heard a leader elects no other one for this many ticks. A leader has to hear
/// a majority within them. Below the shortest time-out, so that a replica that times out
/// does not find the others bound by a heartbeat that reached them a moment later.
pub(super) const LEASE_TICKS: usize = 20;
/// The shortest and, exclusively, the longest time-out of an election, in ticks.
const ELECTION_TIMEOUT_TICKS: std::ops::Range<usize> = 25..42;

/// Most bytes of entries in a message, unless a single entry is larger.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Most bytes of an entry.
pub const MAX_ENTRY_BYTES: usize = 4 << 20;
/// Most bytes of a change of members.
pub(super) const MAX_CHANGE_BYTES: usize = 1 << 10;
/// Messages with entries that may be under way to one follower.
const MAX_INFLIGHT: usize = 64;
/// Most bytes of entries that a leader has proposed and has not seen agreed.
const MAX_UNCOMMITTED_BYTES: u64 = 16 << 20;
/// Most entries that a leader has proposed and not seen applied.
pub(super) const MAX_UNCOMMITTED: u64 = 16 << 10;

/// The settings of a replica whose state machine is at an index.
pub(super) fn settings(id: ReplicaId, applied: u64) -> ::raft::Config {
    ::raft::Config {
        id: id.0,
        applied,
        election_tick: LEASE_TICKS,
        heartbeat_tick: HEARTBEAT_TICKS,
        min_election_tick: ELECTION_TIMEOUT_TICKS.start,
        max_election_tick: ELECTION_TIMEOUT_TICKS.end,
        // A replica that was cut off comes back without disturbing the others. A removed one never
        // can.
        pre_vote: true,
        // A leader without a majority steps down instead of going on promising.
        check_quorum: true,
        max_size_per_msg: MAX_MESSAGE_BYTES as u64,
        max_inflight_msgs: MAX_INFLIGHT,
        max_uncommitted_size: MAX_UNCOMMITTED_BYTES,
        max_committed_size_per_ready: 4 * MAX_ENTRY_BYTES as u64,
        ..::raft::Config::default()
    }
}

/// How many ticks a replica waits for a leader in a term. Other replicas wait longer or shorter,
/// and each term has another number. Raft would draw it from the system's generator.
pub(super) fn election_ticks(seed: u64, id: ReplicaId, term: u64) -> usize {
    let mut mixed = seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ term.rotate_left(32);
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): neighbours become strangers.
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    ELECTION_TIMEOUT_TICKS.start + (mixed % ELECTION_TIMEOUT_TICKS.len() as u64) as usize
}
