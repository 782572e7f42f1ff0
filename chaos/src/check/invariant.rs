//! The promises, by their numbers. Each checker's file says which ones it checks.

/// A promise of the design, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// One generation record per number.
    I1,
    /// All members that commit a step record the same norm, loss and decision.
    I2,
    /// Every copy of a parameter shard at one version has the same bits, those of the fault-free
    /// run.
    I3,
    /// Every sample of the plan contributes to exactly one committed step.
    I4,
    /// Settled steps never go backwards, unless a rollback says so.
    I5,
    /// While an owner of every shard lives, no plan gives up a copy that is needed, and no leader
    /// lets all members go without a checkpoint of their last step.
    I6,
    /// No message of an older generation changes anything, nor of one that a promise has ended.
    I7,
    /// No heartbeating worker is evicted, and no run fails, without a fault that explains it.
    I8,
    /// An agreed entry stays under every leader, and each request happens once.
    I9,
    /// No queue grows beyond what the plan bounds, whatever the network does.
    I10,
    /// After the last fault the run goes on, and becomes complete, in a stated time.
    I11,
    /// A checkpoint that is listed can be restored at any number of workers to the same bits.
    I12,
    /// Metrics and events are those of one history: each settled step once, in order.
    I13,
    /// Equal applied index means equal coordinator state.
    I14,
    /// Every member of a record had promised its number to its proposer.
    I15,
    /// Every listed owner can reach the resume version from its own state.
    I16,
    /// A record resumes at its predecessor's step or later, and no settled step is lost.
    I17,
    /// Each partial is added exactly once: where no interceptor repeats a message, no worker
    /// refuses one.
    I18,
    /// All contributions to a step were computed from one history's version before it.
    I19,
    /// Each Pause that can be served ends in a record within a stated time.
    I20,
    /// No rollback while a process that holds a needed copy may live, unless the run allows a
    /// leader to give it up or an operator asks for it.
    I21,
    /// A run is complete only when its model is durable, and its end names the place.
    I22,
    /// Every coordinator reads the entries and the snapshots that it gets, whichever build wrote
    /// them.
    I23,
    /// After a planned change no worker sends more than one sum more than its share takes. After a
    /// loss, at most the orphaned blocks more than before.
    I24,
    /// A tensor that came through shared memory is the one that was announced.
    I25,
    /// A paused run takes no step while the pause is in force. A checkpoint that was asked for is
    /// listed, or an event says why not.
    I26,
    /// While nothing disturbs a run, its data shards come to be shared out so that a step takes at
    /// most a tenth longer than it must.
    I27,
}
