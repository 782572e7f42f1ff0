//! The vocabulary: every word that crosses a process boundary, with its bounds.
//!
//! Nothing here acts. A message is built by one core, encoded by [`codec`], validated and bounded
//! on arrival, and handed to another core.

pub mod checkpoint;
pub mod chunk;
pub mod cluster;
pub mod codec;
pub mod device;
pub mod exemplars;
pub mod figures;
pub mod format;
pub mod generation;
pub mod ids;
pub mod message;
pub mod model;
pub mod outcome;
pub mod preemption;
pub mod question;
pub mod reason;
pub mod rejection;
pub mod run;
pub mod scalar;
pub mod step;
pub mod version;

pub use checkpoint::{
    CheckpointId, CheckpointSpec, CheckpointView, ListedCheckpoint, ManifestToWrite, OnFailure,
    RunOrigin, SavedPart, Verification, WorkerPart, WrittenManifest,
};
pub use chunk::{Chunk, ChunkKind, Encoding, MemoryPlace};
pub use cluster::{
    ClusterKeys, CoordinatorView, HistoryEntry, HistoryEvent, Lineage, OperatorCommand, RequestId,
    Secret,
};
pub use device::{Accelerator, Device, DeviceKind, DeviceName, Telemetry};
pub use generation::{Cause, Member, Ownership, Record};
pub use ids::{
    CoordinatorId, DataShard, Generation, HostName, MachineId, NodeName, Rank, RunId, Shard, Step,
    Term, WorkerId, WorkerLabel, Zone,
};
pub use message::Message;
pub use model::{ModelAwaited, ModelPlace, WriteFailure};
pub use preemption::{Cloud, PreemptionNotice};
pub use question::{Question, Reply};
pub use run::{Rounding, RunSpec};
pub use step::{Commit, Decision, LossScale, MetricsLine, Prepared};
