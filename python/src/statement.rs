//! The run that a script states: its specification, made of what Python tells.
//!
//! In: the settings of an `everstep.Run`. Out: the specification that goes to the launcher, and the
//! comparison with the run that the cluster trains. Everything that decides the bits is in it, as a
//! value or as a digest, so a script that would compute something else is refused.

use std::num::NonZero;
use std::thread::available_parallelism;

use everstep::script::{HANG_AFTER_MS, KIND, THREADS};
use everstep_kernels::device::{DeviceInfo, PeakFlops};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::chunk::Encoding;
use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, InitSpec, LossUnit, ModelSpec, OptimizerSpec, OptionMap, OptionValue,
    Precision, Rounding, ScheduleKind, SpecError, TargetUnit,
};
use serde::Deserialize;

/// The name of the optimizer.
pub const OPTIMIZER: &str = "torch";

/// The most threads that share the updates while a GPU computes: the host has other workers.
const MAX_UPDATE_THREADS: usize = 8;

/// Bytes of the UUID of a device.
const UUID_BYTES: usize = 16;

/// What Python tells of a run, as JSON.
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    name: String,
    seed: u64,
    steps: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of held-out samples.
    pub held_out: u64,
    data_shards: u32,
    micro_batch: u32,
    accumulate: u32,
    clip_norm: Option<f64>,
    copies: u32,
    threads: u32,
    /// The threads that share the updates of parameter shards. No bit depends on them. None while a
    /// GPU computes, and the cores are free.
    update_threads: Option<u32>,
    /// The loss is multiplied by a scale, so that gradients of fp16 do not vanish.
    loss_scaling: bool,
    /// The kind of CPU, and what else decides bits there. No part of the run.
    pub processor: String,
    /// The GPU on which the script computes. No part of the run.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// A digest of some samples, held-out ones among them, and of their weights, hexadecimal.
    pub data_digest: String,
    /// A digest of what the model has beside its trained parameters, hexadecimal.
    fixed_digest: String,
    /// The version of PyTorch, if it computes.
    #[serde(default)]
    torch: Option<String>,
    /// The versions of JAX and the settings that decide its bits, if it computes.
    #[serde(default)]
    jax: Option<String>,
}

/// An NVIDIA GPU, as PyTorch describes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Gpu {
    /// Its number among those that the process sees.
    index: usize,
    capability: [u32; 2],
    /// Its UUID, hexadecimal and with hyphens.
    uuid: String,
    memory_bytes: usize,
    multiprocessors: u32,
}

impl Gpu {
    /// The device, under the name of all that decides its bits. None if it has no UUID by which its
    /// figures are found. What its maker states of its speed is for models whose operations are
    /// counted, and a script's are not.
    pub fn info(&self, name: &str) -> Option<DeviceInfo> {
        let digits = self.uuid.replace('-', "");
        let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
        let uuid: Vec<u8> = (0..UUID_BYTES).map(byte).collect::<Option<_>>()?;
        let [major, minor] = self.capability;
        Some(DeviceInfo {
            kind: "cuda".into(),
            index: self.index,
            name: name.into(),
            architecture: format!("sm_{major}{minor}"),
            capability: format!("{major}.{minor}"),
            uuid: uuid.try_into().ok()?,
            memory_bytes: self.memory_bytes,
            peak_flops: PeakFlops::default(),
            multiprocessors: Some(self.multiprocessors),
            is_usable: true,
        })
    }
}

/// The digests of what a run starts with.
pub struct InitialDigests {
    /// The digest of the initial weights, in hexadecimal digits.
    pub weights: String,
    /// The digest of the names and shapes of the tensors, in hexadecimal digits.
    pub tensors: String,
}

/// The optimizer of a script, as the specification states it.
pub struct StatedRule<'a> {
    /// The name of the update rule.
    pub name: &'a str,
    /// The digest of the rule and its settings, in hexadecimal digits.
    pub table: String,
    /// The learning rate of the first step.
    pub learning_rate: f64,
}

impl Settings {
    /// The shape of the global batch.
    pub fn batch(&self) -> BatchSpec {
        let Self { data_shards, micro_batch, accumulate, .. } = *self;
        BatchSpec { data_shards, micro_batch, accumulate }
    }

    /// The threads that share the updates of parameter shards.
    pub fn update_threads(&self) -> usize {
        let cores = available_parallelism().map_or(1, NonZero::get);
        self.update_threads.map_or(cores.min(MAX_UPDATE_THREADS), |threads| threads as usize)
    }

    /// The seed of the order of samples.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The specification.
    ///
    /// # Errors
    /// If no run can have these values.
    pub fn run(&self, initial: InitialDigests, rule: StatedRule<'_>) -> Result<RunSpec, SpecError> {
        let InitialDigests { weights, tensors } = initial;
        let text = |text: &str| OptionValue::Text(text.into());
        let model_options = [
            ("data".to_string(), text(&self.data_digest)),
            ("fixed".to_string(), text(&self.fixed_digest)),
            ("tensors".to_string(), text(&tensors)),
            (THREADS.to_string(), OptionValue::Integer(self.threads.into())),
        ];
        let frameworks = [("torch", &self.torch), ("jax", &self.jax)];
        let frameworks = frameworks
            .iter()
            .filter_map(|(name, version)| Some((name.to_string(), text(version.as_ref()?))));
        let model_options = model_options.into_iter().chain(frameworks).collect();
        let StatedRule { name, table, learning_rate } = rule;
        let rule_options = [("rule".to_string(), text(name)), ("table".to_string(), text(&table))];
        let run = RunSpec {
            name: self.name.clone(),
            seed: self.seed,
            steps: self.steps,
            min_workers: 1,
            start_workers: 1,
            model: ModelSpec {
                kind: KIND.into(),
                layers: 1,
                heads: 1,
                width: 1,
                context: 1,
                vocabulary: ModelSpec::VOCABULARY,
                precision: if self.loss_scaling { Precision::F16 } else { Precision::F32 },
                recompute: false,
                init: Some(InitSpec { path: KIND.into(), digest: weights }),
                unit: TargetUnit::Sample,
                loss_unit: LossUnit::None,
                options: OptionMap(model_options),
            },
            data: DataSpec {
                kind: KIND.into(),
                path: KIND.into(),
                validation: 0.0,
                dtype: None,
                validation_every: 0,
            },
            batch: self.batch(),
            optimizer: OptimizerSpec {
                kind: OPTIMIZER.into(),
                learning_rate,
                warmup_steps: 0,
                schedule: ScheduleKind::Constant,
                floor: OptimizerSpec::FLOOR,
                weight_decay: 0.0,
                clip_norm: self.clip_norm,
                betas: None,
                epsilon: None,
                momentum: None,
                options: OptionMap(rule_options.into()),
            },
            all_gather: Encoding::F32,
            rounding: Rounding::Nearest,
            copies: self.copies,
            give_up_after_ms: None,
            hang_after_ms: HANG_AFTER_MS,
            checkpoint: None,
        };
        run.validate()?;
        Ok(run)
    }
}

/// Why this script cannot compute for the run of the cluster: the parts of the specification in
/// which they differ. None if it can.
pub fn contradiction(stated: &RunSpec, trained: &RunSpec) -> Option<String> {
    let options = [stated, trained].map(|run| &run.model.options.0);
    let differs = |name: &str| options[0].get(name) != options[1].get(name);
    let parts = [
        ("its seed", stated.seed != trained.seed),
        ("its number of steps", stated.steps != trained.steps),
        ("its initial weights", stated.model.init != trained.model.init),
        ("its model", differs("fixed") || differs("tensors")),
        ("its loss scaling", stated.model.precision != trained.model.precision),
        ("its number of threads", differs(THREADS)),
        ("its version of PyTorch", differs("torch")),
        ("its version or settings of JAX, or its number of devices", differs("jax")),
        ("its data", differs("data")),
        ("the steps in which it evaluates", stated.data != trained.data),
        ("its batch", stated.batch != trained.batch),
        ("its optimizer or its schedule", stated.optimizer != trained.optimizer),
    ];
    let differing: Vec<_> =
        parts.iter().filter(|(_, differs)| *differs).map(|(it, _)| *it).collect();
    (!differing.is_empty()).then(|| {
        format!(
            "this worker's script does not state the run that the cluster trains: {} differ. Start \
             it with the same script and arguments, and seed the weights of its model \
             (torch.manual_seed, jax.random.key)",
            differing.join(", ")
        )
    })
}
