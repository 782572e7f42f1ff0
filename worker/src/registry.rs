//! Models, data sets, optimizers and devices by name: the meaning of `kind` in a run specification.
//!
//! The specification itself says only what is valid for any run. The rules of one model or data set
//! are registered with it, and [`Registry::validate`] applies them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use everstep_kernels::compute::Compute;
use everstep_kernels::device::{ChosenDevice, DeviceChoice, DeviceProvider, Devices};
use everstep_kernels::models::ModelPlan;
use everstep_kernels::optimizer::{InvalidSetting, Optimizer, UpdateRule};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::run::{Precision, SpecError};

use crate::builtin::optimizers;
use crate::data::Dataset;

type BuildModel =
    Box<dyn Fn(&RunSpec, ChosenDevice<'_>) -> Result<Box<dyn Compute>, String> + Send + Sync>;
type PlanModel = Box<dyn Fn(&RunSpec) -> Result<ModelPlan, String> + Send + Sync>;
type BuildDataset = Box<dyn Fn(&RunSpec) -> Result<Arc<dyn Dataset>, BuildError> + Send + Sync>;
type BuildOptimizer = Box<dyn Fn(&RunSpec) -> Result<Optimizer, SpecError> + Send + Sync>;
type Rules = Box<dyn Fn(&RunSpec) -> Result<(), SpecError> + Send + Sync>;

/// Why a model or a data set cannot be built, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The reason follows from the run, and would recur on every worker.
    #[error("{0}")]
    Run(String),
    /// The reason lies in this worker's place, such as a lack of memory: it may pass.
    #[error("{0}")]
    Place(String),
}

impl BuildError {
    /// Whether the reason lies in the run or in this worker's place.
    pub fn inability(&self) -> Inability {
        match self {
            Self::Run(_) => Inability::Run,
            Self::Place(_) => Inability::Place,
        }
    }
}

impl From<String> for BuildError {
    fn from(reason: String) -> Self {
        Self::Run(reason)
    }
}

impl From<SpecError> for BuildError {
    fn from(error: SpecError) -> Self {
        Self::Run(error.to_string())
    }
}

impl From<RegistryError> for BuildError {
    fn from(error: RegistryError) -> Self {
        let reason = error.to_string();
        match error {
            RegistryError::Build { error: Self::Place(_), .. } => Self::Place(reason),
            RegistryError::Build { .. } | RegistryError::Unknown { .. } => Self::Run(reason),
        }
    }
}

/// The models, data sets, optimizers and devices that a program can train with.
///
/// Every process of a cluster runs the same program, so all of them know the same names. A name
/// that begins with a dot is the program's own, and users are not offered it.
pub struct Registry {
    models: BTreeMap<String, RegisteredModel>,
    datasets: BTreeMap<String, RegisteredDataset>,
    optimizers: BTreeMap<String, BuildOptimizer>,
    devices: Devices,
}

struct RegisteredModel {
    build: BuildModel,
    /// For a model with known sizes before it is built.
    plan: Option<PlanModel>,
    rules: Option<Rules>,
}

struct RegisteredDataset {
    build: BuildDataset,
    rules: Option<Rules>,
}

/// A run names a model or a data set that this program does not have, or cannot build.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No model or data set is registered under the name.
    #[error("there is no {what} named \"{name}\". This program has {known}")]
    Unknown {
        /// `model` or `data set`.
        what: &'static str,
        /// The name that the run asks for.
        name: String,
        /// The names that are registered, for the user.
        known: String,
    },
    /// The name is registered, but this run's values do not suit it, or this machine does not.
    #[error("cannot build the {what} \"{name}\": {error}")]
    Build {
        /// `model` or `data set`.
        what: &'static str,
        /// The name in the run.
        name: String,
        /// The error of the model or the data set.
        error: BuildError,
    },
}

impl Registry {
    /// A registry without a model or a data set. It has the optimizers `adamw`, `lion` and `sgd`,
    /// and the devices that every program has.
    pub fn new() -> Self {
        optimizers::register(Self {
            models: BTreeMap::new(),
            datasets: BTreeMap::new(),
            optimizers: BTreeMap::new(),
            devices: Devices::default(),
        })
    }

    /// Registers a model under a name. `build` makes it for a run, on the device that its user has
    /// chosen. A model that knows one device only may ignore the choice.
    pub fn model<F>(mut self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec, ChosenDevice<'_>) -> Result<Box<dyn Compute>, String>
            + Send
            + Sync
            + 'static,
    {
        let model = RegisteredModel { build: Box::new(build), plan: None, rules: None };
        self.models.insert(name.to_string(), model);
        self
    }

    /// States the size of the model of this name, for a run: building it would allocate as much.
    /// The worker refuses a model that does not fit into memory before it builds it.
    ///
    /// # Panics
    /// If no model has the name yet.
    pub fn plan<F>(mut self, name: &str, plan: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<ModelPlan, String> + Send + Sync + 'static,
    {
        let model = self.models.get_mut(name).expect("the model is registered before its plan");
        model.plan = Some(Box::new(plan));
        self
    }

    /// Registers what a run of the model of this name must keep to. An error names the key of the
    /// configuration, so that its user is shown the line.
    ///
    /// # Panics
    /// If no model has the name yet.
    pub fn model_rules<F>(mut self, name: &str, rules: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<(), SpecError> + Send + Sync + 'static,
    {
        let model = self.models.get_mut(name).expect("the model is registered before its rules");
        model.rules = Some(Box::new(rules));
        self
    }

    /// Registers a data set under a name.
    pub fn dataset<F>(self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<Arc<dyn Dataset>, String> + Send + Sync + 'static,
    {
        self.placed_dataset(name, move |run| Ok(build(run)?))
    }

    /// As [`Registry::dataset`], for a data set that can tell an error of the place from one of the
    /// run.
    pub fn placed_dataset<F>(mut self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<Arc<dyn Dataset>, BuildError> + Send + Sync + 'static,
    {
        let dataset = RegisteredDataset { build: Box::new(build), rules: None };
        self.datasets.insert(name.to_string(), dataset);
        self
    }

    /// Registers what a run on the data set of this name must keep to, as
    /// [`Registry::model_rules`].
    ///
    /// # Panics
    /// If no data set has the name yet.
    pub fn dataset_rules<F>(mut self, name: &str, rules: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<(), SpecError> + Send + Sync + 'static,
    {
        let dataset =
            self.datasets.get_mut(name).expect("a data set is registered before its rules");
        dataset.rules = Some(Box::new(rules));
        self
    }

    /// Registers an optimizer under a name. `build` makes its rule for a run. It should refuse
    /// options that it does not know by
    /// [`OptionMap::only`](everstep_transport::protocol::run::OptionMap::only).
    pub fn optimizer<F>(self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<Arc<dyn UpdateRule>, String> + Send + Sync + 'static,
    {
        self.checked_optimizer(name, move |run| {
            let rule = build(run).map_err(|error| {
                let kind = &run.optimizer.kind;
                SpecError::new("optimizer.kind", format!("is \"{kind}\", which refuses: {error}"))
            })?;
            Optimizer::of(rule, run.optimizer.weight_decay as f32).map_err(of_setting)
        })
    }

    /// Registers an optimizer that names the key of a value at fault.
    pub(crate) fn checked_optimizer<F>(mut self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<Optimizer, SpecError> + Send + Sync + 'static,
    {
        self.optimizers.insert(name.to_string(), Box::new(build));
        self
    }

    /// Adds a kind of device. `--device NAME` then chooses it.
    pub fn device(mut self, provider: impl DeviceProvider + 'static) -> Self {
        self.devices.add(Arc::new(provider));
        self
    }

    /// The devices that models may be built on.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Whether a data set of this name is registered.
    pub fn has_dataset(&self, name: &str) -> bool {
        self.datasets.contains_key(name)
    }

    /// Checks every value of a run, also by the rules of its model, data set and optimizer. The
    /// error names the first that is not valid. A model or a data set that is not registered has no
    /// rules: the error comes when it is to be built.
    pub fn validate(&self, run: &RunSpec) -> Result<(), SpecError> {
        run.validate()?;
        let model = self.models.get(&run.model.kind).and_then(|model| model.rules.as_ref());
        model.map_or(Ok(()), |rules| rules(run))?;
        let data = self.datasets.get(&run.data.kind).and_then(|data| data.rules.as_ref());
        data.map_or(Ok(()), |rules| rules(run))?;
        self.build_optimizer(run).map(drop)
    }

    /// Builds the run's optimizer.
    pub fn build_optimizer(&self, run: &RunSpec) -> Result<Optimizer, SpecError> {
        let name = &run.optimizer.kind;
        let Some(build) = self.optimizers.get(name) else {
            let known = either(offered(self.optimizers.keys()));
            let problem =
                format!("is \"{name}\", which is no optimizer of this program. Use {known}");
            return Err(SpecError::new("optimizer.kind", problem));
        };
        build(run)
    }

    /// Sets the number of threads with which the CPU computes a model. The bits do not depend on
    /// their number.
    pub fn set_threads(&mut self, threads: usize) {
        self.devices.set_threads(threads);
    }

    /// Builds the run's model.
    pub fn build_model(
        &self,
        run: &RunSpec,
        choice: &DeviceChoice,
    ) -> Result<Box<dyn Compute>, RegistryError> {
        let name = &run.model.kind;
        let device = ChosenDevice { devices: &self.devices, choice };
        let found = self.models.get(name);
        build("model", name, found, self.models.keys(), |model| Ok((model.build)(run, device)?))
    }

    /// Builds the run's model on the CPU and in f32, whatever precision and device train it.
    /// Callers look at it, or compute a little with the trained weights.
    pub fn build_model_on_host(&self, run: &RunSpec) -> Result<Box<dyn Compute>, RegistryError> {
        let mut run = run.clone();
        run.model.precision = Precision::F32;
        self.build_model(&run, &DeviceChoice::Cpu)
    }

    /// The size of the run's model on a host. A model that cannot tell is built.
    pub fn plan_model(&self, run: &RunSpec) -> Result<ModelPlan, RegistryError> {
        match self.known_plan(run) {
            Some(plan) => plan,
            None => Ok(ModelPlan::of(&*self.build_model_on_host(run)?)),
        }
    }

    /// The size of a model that can tell without a build. None for any other model.
    pub fn known_plan(&self, run: &RunSpec) -> Option<Result<ModelPlan, RegistryError>> {
        let name = &run.model.kind;
        let found = self.models.get(name)?.plan.as_ref()?;
        Some(build("model", name, Some(found), self.models.keys(), |plan| Ok(plan(run)?)))
    }

    /// Builds the run's data set.
    pub fn build_dataset(&self, run: &RunSpec) -> Result<Arc<dyn Dataset>, RegistryError> {
        let name = &run.data.kind;
        let found = self.datasets.get(name);
        build("data set", name, found, self.datasets.keys(), |dataset| (dataset.build)(run))
    }
}

/// An optimizer's setting that is out of its bounds, as a value of the run.
pub(crate) fn of_setting(error: InvalidSetting) -> SpecError {
    let InvalidSetting { setting, value, bound } = error;
    SpecError {
        key: format!("optimizer.{setting}").into(),
        problem: format!("is {value}, but must be {bound}"),
    }
}

fn build<'a, F, T>(
    what: &'static str,
    name: &str,
    found: Option<&F>,
    known: impl Iterator<Item = &'a String>,
    make: impl FnOnce(&F) -> Result<T, BuildError>,
) -> Result<T, RegistryError> {
    let name = name.to_string();
    let Some(found) = found else {
        let known = offered(known).join(", ");
        return Err(RegistryError::Unknown { what, name, known });
    };
    make(found).map_err(|error| RegistryError::Build { what, name, error })
}

/// The names that are for users.
fn offered<'a>(known: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    known.map(String::as_str).filter(|name| !name.starts_with('.')).collect()
}

/// Names in quotes: `"a", "b" or "c"`.
fn either(names: Vec<&str>) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    match quoted.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => quoted.concat(),
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("models", &self.models.keys())
            .field("datasets", &self.datasets.keys())
            .field("optimizers", &self.optimizers.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
