//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the simulator's own tests build this (feature `planted`). A test sets a plant on a core or
//! a device. The code at the broken place asks for it. The check that finds the bug is never at
//! that place.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The step leader commits when it and all members but one have voted.
    CommitEarly,
    /// A primary takes every partial for the next one of the tree, so it adds in order of arrival.
    ReduceAsTheyCome,
    /// A member takes pieces of steps, and of generations, that are over.
    AcceptOld,
    /// A device takes its samples by its own count of data shards, not by the data shard.
    SampleByRank,
    /// An owner updates when it has voted, by the norm of its own shards.
    UpdateEarly,
    /// A pass does not wait for parameters. The device loads them while the pass is under way.
    LoadUnderWay,
    /// The step leader does not compare the owners' digests.
    TrustDigests,
    /// A worker takes a commit of a generation when it has promised a newer one.
    BreakPromise,
    /// A member that has missed the recorded commit takes its results of that step for those of the
    /// next.
    RedoOtherSamples,
    /// A member keeps the reduced shards of an aborted try after a change of generation.
    StaleReduced,
    /// A member that has missed the recorded commit relabels its shards without applying it.
    SkipRollForward,
    /// A joiner applies a reduced shard though one before it never came.
    FeedGap,
    /// A worker shows its last commit as one of the generation that it is in.
    OldRecordCommit,
    /// A worker carries no lines over a change of generation.
    ForgetLine,
    /// A redo of a step adds a kept sum to itself.
    AddIntoKept,
    /// A generation begins with the loss scale of the first step.
    ForgetScale,
    /// A primary states a wrong digest of some gradients.
    MisstateDigest,
    /// A device does not check whether a gradient is what its primary made.
    BelieveGradients,
    /// A member forgets the usual time of its device in every generation.
    MeasureAnew,
    /// A member does not time the updates of a device that has a data shard to compute after them.
    IgnoreUpdates,
    /// A worker writes into a store that another cluster has claimed since.
    IgnoreClaim,
    /// A worker says that it has written a manifest, although not all parts are there.
    BelieveOrder,
    /// A worker takes zeros for a shard whose bytes in the store are not those that were written.
    AcceptTorn,
}
