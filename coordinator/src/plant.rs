//! Bugs on purpose: each breaks a promise in one line, and a simulation must find it.
//!
//! Only the simulator's own tests build this (feature `planted`). A test sets a plant on a core,
//! and the broken place asks for it. The check that finds a plant is never at that place.

/// A bug that a test can plant in a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorePlant {
    /// The core tells a watcher the newest line that it has once more.
    CountLinesTwice,
    /// A rollback does not cut the file of metrics lines.
    KeepUndoneLines,
    /// The core tells members that lines are written which are not on the leader's disk.
    AcknowledgeEarly,
    /// A run ends with its last lines on the leader's disk alone.
    LinesOnOneDisk,
    /// The core gives a worker's id again when the worker is gone.
    ReuseId,
    /// The core carries out a request again that comes into the log again.
    ApplyTwice,
    /// A coordinator tells a worker that it is evicted without asking whether it still leads.
    EvictUnconfirmed,
    /// The core plans a change from Statuses of earlier Pauses as well.
    AnyStatus,
    /// Commits of older generations count for the resume step.
    ResumeFromOld,
    /// A member that answered no Pause stays one.
    ListUnpromised,
    /// A new owner of a shard is listed at once, whether it holds the shard or not.
    ListNonHolder,
    /// The run goes back at once if no worker that answered holds some shard.
    HastyRollback,
    /// Ten seconds of silence count as death.
    ImpatientRollback,
    /// A leader never takes its own network for the cause when many workers fall silent together.
    IgnoreOutages,
    /// A promoted backup is listed alone, though other workers hold its shard, too.
    LoseTheBackup,
    /// The core deals out data shards one by one, whatever the tree.
    IgnoreTree,
    /// The core leaves the data shards where they are, however slow a device is.
    IgnorePace,
    /// The core suspects no worker of a device that hangs.
    IgnoreHangs,
    /// The core records a generation whichever coordinator led at its proposal.
    IgnoreTerm,
    /// A run is complete when its members are done, whether its model is durable or not.
    FinishUnwritten,
    /// A run is complete when a worker has the model's file, whether the store has it or not.
    FinishUnstored,
    /// The core shuts a coordinator out when one other replica knows that the log goes on without
    /// it.
    ShutOutEarly,
    /// A worker that states the address of another one with a lost link proves that worker's death.
    AddressIsProof,
    /// A refused port counts as death.
    RefusalIsProof,
    /// A worker that shall leave may take the last copy of a shard with it.
    LastCopiesLeave,
    /// All workers of a run leave together, whether a checkpoint has what they hold or not.
    LeaveUnsaved,
    /// The core shuts a coordinator out though it may be the only one that can send the leader the
    /// history that the leader lacks.
    ShutOutTellers,
    /// A leader lists a checkpoint whether its step is settled or not.
    ListUnsettled,
    /// A leader lists a checkpoint whether all parts are there or not.
    ListWithoutPart,
    /// A leader has parts swept of checkpoints that are not listed yet.
    SweepAhead,
    /// A leader proposes entries in the newest format of its own build.
    ProposeNewest,
    /// A leader forgets a pause as soon as it is in force.
    ForgetPause,
}
