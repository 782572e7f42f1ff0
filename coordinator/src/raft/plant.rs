//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the replicas' own tests build this (feature `planted`). A test sets a plant on a replica,
//! and the broken place asks for it. The check that finds a plant is never at that place.

/// A bug that can be planted in a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftPlant {
    /// The replica does not write down its vote.
    ForgetVote,
    /// The replica sends at once a message that has to wait until a batch is durable.
    SayEarly,
    /// The replica applies entries when it appends them.
    ApplyEarly,
    /// A snapshot does not list the members.
    ForgetMembers,
    /// A leader answers a read without asking whether another replica leads.
    ReadAtOnce,
    /// No leader leaves a joint configuration.
    StayJoint,
    /// A leader that stands alone leads before its term is durable.
    LeadEarly,
    /// However much waits for the disk, the replica takes in more.
    HoldEverything,
}
