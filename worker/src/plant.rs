//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the simulator's own tests build this (feature `planted`). A plant is set on a core or a
//! device, and asked for at the place that it breaks; what finds it is never at that place.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The step leader commits when it and all members but one have voted.
    CommitEarly,
    /// A primary takes every partial for the next one of the tree: it adds in order of arrival.
    ReduceAsTheyCome,
    /// A member takes pieces of steps, and of generations, that are over.
    AcceptOld,
    /// A device takes its samples by its own count of data shards, not by the data shard.
    SampleByRank,
    /// An owner updates when it has voted, by the norm of its own shards.
    UpdateEarly,
    /// A pass does not wait for parameters: they are loaded while it is under way.
    LoadUnderWay,
    /// The step leader does not compare the owners' digests.
    TrustDigests,
}
