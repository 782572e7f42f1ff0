//! Runs as format 1 stores them: with an optimizer of three, tokens that are bytes, and no options.

// The types mirror those of that build. Their docs are at today's types.
#![allow(missing_docs)]

use everstep_transport::identity::{AcceptedToken, Identity, TokenId};
use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, ModelSpec, OptimizerSpec, OptionMap, Precision, Rounding, ScheduleKind,
    Units,
};
use everstep_transport::protocol::{
    CoordinatorId, Encoding, Generation, OperatorCommand, RunId, RunSpec, Step, WorkerId,
};
use rkyv::{Archive, Deserialize, Serialize, rancor};

#[derive(Archive, Serialize, Deserialize, Clone)]
pub(super) struct RunSpecV1 {
    name: String,
    seed: u64,
    steps: u64,
    min_workers: u32,
    start_workers: u32,
    model: ModelSpecV1,
    data: DataSpecV1,
    batch: BatchSpec,
    optimizer: OptimizerSpecV1,
    all_gather: Encoding,
    rounding: Rounding,
    copies: u32,
    give_up_after_ms: Option<u64>,
    hang_after_ms: u64,
}

#[derive(Archive, Serialize, Deserialize, Clone)]
struct ModelSpecV1 {
    kind: String,
    layers: u32,
    heads: u32,
    width: u32,
    context: u32,
    precision: Precision,
    recompute: bool,
}

#[derive(Archive, Serialize, Deserialize, Clone)]
struct DataSpecV1 {
    kind: String,
    path: String,
    validation: f64,
}

#[derive(Archive, Serialize, Deserialize, Clone)]
struct OptimizerSpecV1 {
    kind: OptimizerKindV1,
    learning_rate: f64,
    warmup_steps: u64,
    schedule: ScheduleKind,
    floor: f64,
    weight_decay: f64,
    clip_norm: Option<f64>,
}

#[derive(Archive, Serialize, Deserialize, Clone)]
enum OptimizerKindV1 {
    Adamw,
    Sgd,
    Lion,
}

impl RunSpecV1 {
    /// The digest by which format 1 knows the command that submits this run: it is that of the
    /// command's bytes.
    pub(super) fn submit_digest(&self) -> u64 {
        let bytes = rkyv::to_bytes::<rancor::Error>(&OperatorCommandV1::Submit(self.clone()));
        let digest = blake3::hash(&bytes.expect("a command is finite"));
        u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes"))
    }
}

impl From<RunSpecV1> for RunSpec {
    fn from(run: RunSpecV1) -> Self {
        Self {
            name: run.name,
            seed: run.seed,
            steps: run.steps,
            min_workers: run.min_workers,
            start_workers: run.start_workers,
            model: run.model.into(),
            data: run.data.into(),
            batch: run.batch,
            optimizer: run.optimizer.into(),
            all_gather: run.all_gather,
            rounding: run.rounding,
            copies: run.copies,
            give_up_after_ms: run.give_up_after_ms,
            hang_after_ms: run.hang_after_ms,
            checkpoint: None,
        }
    }
}

impl From<ModelSpecV1> for ModelSpec {
    fn from(model: ModelSpecV1) -> Self {
        let ModelSpecV1 { kind, layers, heads, width, context, precision, recompute } = model;
        let (vocabulary, options) = (Self::VOCABULARY, OptionMap::default());
        let (init, Units { unit, loss_unit }) = (None, Units::default());
        Self {
            kind,
            layers,
            heads,
            width,
            context,
            vocabulary,
            precision,
            recompute,
            init,
            unit,
            loss_unit,
            options,
        }
    }
}

impl From<DataSpecV1> for DataSpec {
    fn from(data: DataSpecV1) -> Self {
        let DataSpecV1 { kind, path, validation } = data;
        Self { kind, path, validation, dtype: None, validation_every: 0 }
    }
}

impl From<OptimizerSpecV1> for OptimizerSpec {
    fn from(optimizer: OptimizerSpecV1) -> Self {
        let kind = match optimizer.kind {
            OptimizerKindV1::Adamw => "adamw",
            OptimizerKindV1::Sgd => "sgd",
            OptimizerKindV1::Lion => "lion",
        };
        Self {
            kind: kind.into(),
            learning_rate: optimizer.learning_rate,
            warmup_steps: optimizer.warmup_steps,
            schedule: optimizer.schedule,
            floor: optimizer.floor,
            weight_decay: optimizer.weight_decay,
            clip_norm: optimizer.clip_norm,
            betas: None,
            epsilon: None,
            momentum: None,
            options: OptionMap::default(),
        }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) enum OperatorCommandV1 {
    Submit(RunSpecV1),
    Cancel(RunId),
    Drain(WorkerId),
    CreateToken(AcceptedToken),
    RevokeToken(TokenId),
    Revoke(Identity),
    Remove(CoordinatorId),
    Rollback { run: RunId, step: Step, generation: Generation },
}

impl From<OperatorCommandV1> for OperatorCommand {
    fn from(command: OperatorCommandV1) -> Self {
        match command {
            OperatorCommandV1::Submit(run) => Self::Submit(Box::new(run.into())),
            OperatorCommandV1::Cancel(run) => Self::Cancel(run),
            OperatorCommandV1::Drain(worker) => Self::Drain(worker),
            OperatorCommandV1::CreateToken(token) => Self::CreateToken(token),
            OperatorCommandV1::RevokeToken(token) => Self::RevokeToken(token),
            OperatorCommandV1::Revoke(identity) => Self::Revoke(identity),
            OperatorCommandV1::Remove(coordinator) => Self::Remove(coordinator),
            OperatorCommandV1::Rollback { run, step, generation } => {
                Self::Rollback { run, step, generation }
            }
        }
    }
}
