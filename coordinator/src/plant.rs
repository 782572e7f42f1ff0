//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the simulator's own tests build this (feature `planted`). A plant is set on a core, and
//! asked for at the place that it breaks; what finds it is never at that place.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A watcher is told the newest line that it has once more.
    CountLinesTwice,
    /// A rollback does not cut the file of metrics lines.
    KeepUndoneLines,
    /// Members are told that lines are written which are not on the leader's disk.
    AcknowledgeEarly,
    /// A worker's id is given again when the worker is gone.
    ReuseId,
    /// A request that comes into the log again is carried out again.
    ApplyTwice,
    /// A coordinator tells a worker that it is evicted without asking whether it still leads.
    EvictUnconfirmed,
    /// A change is planned from what workers said at earlier Pauses as well.
    AnyStatus,
    /// Commits of older generations count for the resume step.
    ResumeFromOld,
    /// A member that answered no Pause stays one.
    ListUnpromised,
    /// Whoever is to own a shard is listed as its owner, whether it holds it or not.
    ListNonHolder,
    /// A shard that nobody who answered holds makes the run go back at once.
    HastyRollback,
    /// Ten seconds of silence count as death.
    ImpatientRollback,
    /// A backup that is promoted is listed alone, whoever else holds its shard.
    LoseTheBackup,
    /// Data shards are dealt out one by one, whatever the tree.
    IgnoreTree,
    /// Nobody is suspected for a device that hangs.
    IgnoreHangs,
    /// A generation is recorded whoever led when it was proposed.
    IgnoreTerm,
    /// A run is complete when its members are done, whether its model is durable or not.
    FinishUnwritten,
    /// A coordinator is shut out when the log does without it as far as one other knows.
    ShutOutEarly,
    /// A worker that states the address of another, whose link is lost, proves that one's death.
    AddressIsProof,
    /// A refused port counts as death.
    RefusalIsProof,
    /// A worker that shall leave may take the last copy of a shard with it.
    LastCopiesLeave,
    /// A coordinator is shut out though it may be the only one that can tell the leader of history
    /// that this lacks.
    ShutOutTellers,
}
