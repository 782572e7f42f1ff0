//! The configuration of a run: flags, environment, file and defaults, resolved once into a valid
//! run.
//!
//! In: the text of a configuration file, if there is one, and the flags (which clap has merged with
//! `EVERSTEP_…` variables). Out: [`Resolved`], or one [`ConfigError`] with the place of the fault,
//! the problem and the advice. A flag wins over its variable, that over the file, that over the
//! default. This module asks for every key that a file may have, once. Any other key in a file is
//! an error.
//!
//! This module does not know how a run is started, nor what is in the data.

mod checkpoint;
mod daemon;
mod error;
mod init;
mod keys;
mod launch;
mod path;
mod value;

use std::path::Path;

use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, InitSpec, ModelSpec, OptimizerSpec, ScheduleKind, SpecError,
};
use everstep_transport::protocol::{Encoding, RunSpec};
use everstep_worker::registry::Registry;

use crate::cli::Overrides;
pub(crate) use checkpoint::{DEFAULT_FOLDER, is_elsewhere};
pub use daemon::complete;
use error::ValueSources;
pub use error::{ConfigError, ValueSource};
pub(crate) use init::{is_init_elsewhere, read_initial_weights};
use keys::Keys;
pub(crate) use launch::{LaunchSettings, part_of_script, read_launch, read_launch_elsewhere};
pub(crate) use path::locate;
use value::{Clip, HangAfter, OptionalDuration, Vocabulary};

/// A valid run, and the launcher's other settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The run. For the data kind `text`, an empty path stands for the default text. A relative
    /// path of the checkpoints is one in the run's own directory.
    pub run: RunSpec,
    /// How many worker processes this machine starts.
    pub workers: u32,
    /// Notes for the user on stderr, one line each.
    pub notes: Vec<String>,
    places: ValueSources,
}

/// Reads the file that `--config` names, if any, and resolves it with the flags.
///
/// In addition to [`resolve`], this makes relative paths of data and checkpoints absolute, since
/// workers may run in other directories. Text and tokens must exist. The path of a program's own
/// data set may be no file. Then it stays as it is.
pub fn read(
    path: Option<&Path>,
    flags: &Overrides,
    registry: &Registry,
) -> Result<Resolved, ConfigError> {
    let text = text_of(path)?;
    let mut resolved = resolve(path.map(|path| (path, text.as_str())), flags, registry)?;
    if let Some(checkpoint) = &mut resolved.run.checkpoint {
        checkpoint::locate(checkpoint, &resolved.places)?;
    }
    read_initial_weights(&mut resolved, registry)?;
    let data = &resolved.run.data;
    if data.path.is_empty() {
        return Ok(resolved);
    }
    let found = locate(&data.path);
    if data.has_files() || found.is_ok() {
        resolved.run.data.path =
            found.map_err(|error| resolved.refusal("data.path", &error.to_string()))?;
    }
    Ok(resolved)
}

/// The text of a configuration file. Empty without one.
fn text_of(path: Option<&Path>) -> Result<String, ConfigError> {
    let Some(path) = path else { return Ok(String::new()) };
    std::fs::read_to_string(path).map_err(|source| ConfigError {
        place: ValueSource::File(path.to_path_buf()),
        problem: format!("the configuration file cannot be read: {source}"),
        advice: "name a TOML file that exists with --config, or leave --config out".into(),
    })
}

/// Resolves the text of a configuration file, if there is one, and the flags into a run that is
/// valid by the rules of `registry`. A pure function.
pub fn resolve(
    file: Option<(&Path, &str)>,
    flags: &Overrides,
    registry: &Registry,
) -> Result<Resolved, ConfigError> {
    let mut keys = Keys::parse(file)?;
    let stated = keys.read("run.start_workers")?;
    let start_workers = flags.start_workers.or(stated);
    let workers = flags.workers.or(start_workers).unwrap_or(DEFAULT_WORKERS);
    if stated.is_none() || flags.start_workers.is_some() {
        keys.set_by_flag("run.start_workers", "--workers");
    }
    let run = RunSpec {
        name: keys.read("run.name")?.unwrap_or_else(|| "default".into()),
        seed: keys.read_or_flag("run.seed", "--seed", flags.seed)?.unwrap_or(1),
        steps: keys.read_or_flag("run.steps", "--steps", flags.steps)?.unwrap_or(400),
        min_workers: min_workers(&mut keys, flags)?,
        start_workers: start_workers.unwrap_or(workers),
        model: model(&mut keys)?,
        batch: batch(&mut keys)?,
        optimizer: optimizer(&mut keys)?,
        all_gather: keys.read("wire.all_gather")?.unwrap_or(Encoding::F32),
        rounding: keys.read("wire.rounding")?.unwrap_or_default(),
        copies: keys.read_or_flag("redundancy.copies", "--copies", flags.copies)?.unwrap_or(2),
        give_up_after_ms: keys
            .read::<OptionalDuration>("redundancy.give_up_after")?
            .and_then(|it| it.0),
        hang_after_ms: keys.read::<HangAfter>("redundancy.hang_after")?.unwrap_or_default().0,
        data: data(&mut keys, flags)?,
        checkpoint: checkpoint::checkpoints(&mut keys, None)?,
    };
    keys.reject_unknown()?;
    let mut resolved = Resolved { notes: Vec::new(), workers, run, places: keys.into_places() };
    resolved.name_data_set(registry)?;
    resolved.check_workers(flags)?;
    registry.validate(&resolved.run).map_err(|error| resolved.refuse(&error))?;
    resolved.notes = notes(&resolved);
    Ok(resolved)
}

/// The number of worker processes if neither a flag nor the file states it.
const DEFAULT_WORKERS: u32 = 2;
/// The most worker processes that one machine starts.
const MAX_LOCAL_WORKERS: u32 = 1_024;

fn min_workers(keys: &mut Keys<'_>, flags: &Overrides) -> Result<u32, ConfigError> {
    let stated = keys.read("run.min_workers")?.unwrap_or(1);
    Ok(flags.start_workers.map_or(stated, |start| start.min(stated)))
}

fn model(keys: &mut Keys<'_>) -> Result<ModelSpec, ConfigError> {
    Ok(ModelSpec {
        kind: keys.read("model.kind")?.unwrap_or_else(|| "gpt".into()),
        layers: keys.read("model.layers")?.unwrap_or(4),
        heads: keys.read("model.heads")?.unwrap_or(4),
        width: keys.read("model.width")?.unwrap_or(128),
        context: keys.read("model.context")?.unwrap_or(128),
        vocabulary: keys.read::<Vocabulary>("model.vocabulary")?.unwrap_or_default().0,
        precision: keys.read("model.precision")?.unwrap_or_default(),
        recompute: keys.read("model.recompute")?.unwrap_or_default(),
        init: keys.read::<String>("model.init")?.map(InitSpec::unread),
        unit: keys.read("model.unit")?.unwrap_or_default(),
        loss_unit: keys.read("model.loss_unit")?.unwrap_or_default(),
        options: keys.read_options("model.options")?,
    })
}

/// An empty kind means that the user stated none. So does an empty path.
fn data(keys: &mut Keys<'_>, flags: &Overrides) -> Result<DataSpec, ConfigError> {
    let path: Option<String> = keys.read_or_flag("data.path", "--data", flags.data.clone())?;
    if path.as_deref() == Some("") {
        let problem = "is empty, but must name a file or a directory, or be left out";
        return Err(keys.places().refusal("data.path", problem));
    }
    Ok(DataSpec {
        kind: keys.read("data.kind")?.unwrap_or_default(),
        path: path.unwrap_or_default(),
        validation: keys.read("data.validation")?.unwrap_or(0.05),
        dtype: keys.read("data.dtype")?,
        validation_every: keys.read("data.validation_every")?.unwrap_or(0),
    })
}

fn batch(keys: &mut Keys<'_>) -> Result<BatchSpec, ConfigError> {
    Ok(BatchSpec {
        data_shards: keys.read("batch.data_shards")?.unwrap_or(8),
        micro_batch: keys.read("batch.micro_batch")?.unwrap_or(4),
        accumulate: keys.read("batch.accumulate")?.unwrap_or(1),
    })
}

fn optimizer(keys: &mut Keys<'_>) -> Result<OptimizerSpec, ConfigError> {
    let Clip(clip_norm) = keys.read("optimizer.clip_norm")?.unwrap_or(Clip(Some(1.0)));
    Ok(OptimizerSpec {
        kind: keys.read("optimizer.kind")?.unwrap_or_else(|| "adamw".into()),
        learning_rate: keys.read("optimizer.learning_rate")?.unwrap_or(1e-3),
        warmup_steps: keys.read("optimizer.warmup_steps")?.unwrap_or(20),
        schedule: keys.read("optimizer.schedule")?.unwrap_or(ScheduleKind::Cosine),
        floor: keys.read("optimizer.floor")?.unwrap_or(OptimizerSpec::FLOOR),
        weight_decay: keys.read("optimizer.weight_decay")?.unwrap_or(0.1),
        clip_norm,
        betas: keys.read("optimizer.betas")?,
        epsilon: keys.read("optimizer.epsilon")?,
        momentum: keys.read("optimizer.momentum")?,
        options: keys.read_options("optimizer.options")?,
    })
}

fn notes(resolved: &Resolved) -> Vec<String> {
    let mut notes = Vec::new();
    let (start, here) = (resolved.run.start_workers, resolved.workers);
    if start > here {
        notes.push(format!(
            "the run starts when {start} workers are there: {here} start here, and the others join \
             with `everstep worker`"
        ));
    }
    notes
}

impl Resolved {
    /// An error about a key's value, found by a user of that value. It shows where the value was
    /// set.
    pub fn refusal(&self, key: &str, problem: &str) -> ConfigError {
        self.places.refusal(key, problem)
    }

    /// Puts the checkpoints into the run's own directory, wherever the user stated that they go: a
    /// benchmark trains runs that must not meet in one store.
    pub(crate) fn keep_checkpoints_by_the_run(&mut self) {
        if let Some(checkpoint) = &mut self.run.checkpoint {
            checkpoint.path = DEFAULT_FOLDER.into();
        }
    }

    fn refuse(&self, error: &SpecError) -> ConfigError {
        self.refusal(&error.key, &error.problem)
    }

    /// Workers that start here are some of those that the run starts with. A higher number here is
    /// an error.
    fn check_workers(&self, flags: &Overrides) -> Result<(), ConfigError> {
        let (here, start) = (self.workers, self.run.start_workers);
        let key = self.places.of("run.start_workers");
        let place = flags.workers.map_or(key.clone(), |_| ValueSource::Flag("--workers"));
        let (problem, advice) = if flags.workers == Some(0) {
            (
                "--workers is 0, but must be 1 or more".into(),
                "pass --workers 1, or another number".into(),
            )
        } else if here > start && start > 0 {
            (
                format!("--workers is {here}, more than run.start_workers, which is {start}"),
                format!("pass at most --workers {start}, or raise run.start_workers ({key})"),
            )
        } else if here > MAX_LOCAL_WORKERS {
            (
                format!("{here} workers would start here, at most {MAX_LOCAL_WORKERS} can"),
                format!("pass at most --workers {MAX_LOCAL_WORKERS}"),
            )
        } else {
            return Ok(());
        };
        Err(ConfigError { place, problem, advice })
    }

    /// If the user stated no kind, a data set registered under the model's name goes with that
    /// model.
    fn name_data_set(&mut self, registry: &Registry) -> Result<(), ConfigError> {
        let (model, kind) = (&self.run.model.kind, &self.run.data.kind);
        if !kind.is_empty() {
            if kind != "text" && !registry.has_dataset(kind) {
                let problem = format!(
                    "is \"{kind}\", which is no data set of this program. Use \"text\", \"tokens\" \
                     or a name that the program registered"
                );
                return Err(self.refusal("data.kind", &problem));
            }
        } else if registry.has_dataset(model) {
            self.run.data.kind.clone_from(model);
        } else {
            self.run.data.kind = "text".into();
        }
        Ok(())
    }
}
