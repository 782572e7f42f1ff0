//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the replicas' own tests build this (feature `planted`). A plant is set on a replica, and
//! asked for at the place that it breaks; what finds it is never at that place.

/// A bug that can be planted in a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A vote is not written down.
    ForgetVote,
    /// What is to be said once a batch is durable is said at once.
    SayEarly,
    /// Entries are applied when they are appended.
    ApplyEarly,
    /// A snapshot does not say who the members are.
    ForgetMembers,
    /// A read is answered without asking whether another one leads.
    ReadAtOnce,
    /// Nobody leaves a joint configuration.
    StayJoint,
    /// A leader that stands alone leads before its term is durable.
    LeadEarly,
    /// However much waits for the disk, more is taken in.
    HoldEverything,
}
