//! Models and data sets by name: the meaning of `kind` in a run specification.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use everstep_kernels::compute::Compute;
use everstep_kernels::device::DeviceChoice;
use everstep_kernels::models::ModelPlan;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::run::Precision;

use crate::data::Dataset;

type BuildModel =
    Box<dyn Fn(&RunSpec, DeviceChoice) -> Result<Box<dyn Compute>, String> + Send + Sync>;
type PlanModel = Box<dyn Fn(&RunSpec) -> Result<ModelPlan, String> + Send + Sync>;
type BuildDataset = Box<dyn Fn(&RunSpec) -> Result<Arc<dyn Dataset>, BuildError> + Send + Sync>;

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

impl From<RegistryError> for BuildError {
    fn from(error: RegistryError) -> Self {
        let reason = error.to_string();
        match error {
            RegistryError::Build { error: Self::Place(_), .. } => Self::Place(reason),
            RegistryError::Build { .. } | RegistryError::Unknown { .. } => Self::Run(reason),
        }
    }
}

/// The models and data sets that a program can train.
///
/// Every process of a cluster runs the same program, so all of them know the same names. A name
/// that begins with a dot is the program's own, and users are not offered it.
#[derive(Default)]
pub struct Registry {
    models: BTreeMap<String, BuildModel>,
    /// For models with known sizes before they are built.
    plans: BTreeMap<String, PlanModel>,
    datasets: BTreeMap<String, BuildDataset>,
}

/// A run names a model or a data set that this program does not have, or cannot build.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No model or data set is registered under the name.
    #[error("there is no {what} named \"{name}\"; this program has {known}")]
    Unknown {
        /// `model` or `data set`.
        what: &'static str,
        /// The name that the run asks for.
        name: String,
        /// The registered names.
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
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a model under a name. `build` makes it for a run, on the device that its user has
    /// chosen. A model that knows one device only may ignore the choice.
    pub fn model<F>(mut self, name: &str, build: F) -> Self
    where
        F: Fn(&RunSpec, DeviceChoice) -> Result<Box<dyn Compute>, String> + Send + Sync + 'static,
    {
        self.models.insert(name.to_string(), Box::new(build));
        self.plans.remove(name);
        self
    }

    /// States the size of the model of this name, for a run: building it would allocate as much.
    /// The worker refuses a model that does not fit into memory before it builds it.
    pub fn plan<F>(mut self, name: &str, plan: F) -> Self
    where
        F: Fn(&RunSpec) -> Result<ModelPlan, String> + Send + Sync + 'static,
    {
        self.plans.insert(name.to_string(), Box::new(plan));
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
        self.datasets.insert(name.to_string(), Box::new(build));
        self
    }

    /// Whether a data set of this name is registered.
    pub fn has_dataset(&self, name: &str) -> bool {
        self.datasets.contains_key(name)
    }

    /// Builds the run's model.
    pub fn build_model(
        &self,
        run: &RunSpec,
        device: DeviceChoice,
    ) -> Result<Box<dyn Compute>, RegistryError> {
        let name = &run.model.kind;
        let (found, known) = (self.models.get(name), self.models.keys());
        build("model", name, found, known, |make| Ok(make(run, device)?))
    }

    /// Builds the run's model on the CPU and in f32, whatever precision and device train it.
    /// Callers look at it, or compute a little with the trained weights.
    pub fn build_model_on_host(&self, run: &RunSpec) -> Result<Box<dyn Compute>, RegistryError> {
        let mut run = run.clone();
        run.model.precision = Precision::F32;
        self.build_model(&run, DeviceChoice::Cpu)
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
        let found = self.plans.get(name)?;
        Some(build("model", name, Some(found), self.models.keys(), |plan| Ok(plan(run)?)))
    }

    /// Builds the run's data set.
    pub fn build_dataset(&self, run: &RunSpec) -> Result<Arc<dyn Dataset>, RegistryError> {
        let name = &run.data.kind;
        build("data set", name, self.datasets.get(name), self.datasets.keys(), |make| make(run))
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
        let offered = known.map(String::as_str).filter(|name| !name.starts_with('.'));
        let known = offered.collect::<Vec<_>>().join(", ");
        return Err(RegistryError::Unknown { what, name, known });
    };
    make(found).map_err(|error| RegistryError::Build { what, name, error })
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("models", &self.models.keys())
            .field("datasets", &self.datasets.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_those_that_are_for_users() {
        let models = [".measure", "gpt", "mlp"].map(String::from);
        let error = build("model", "gtp", None::<&()>, models.iter(), |()| Ok(()));
        let error = error.expect_err("it is unknown");
        let words = "there is no model named \"gtp\"; this program has gpt, mlp";
        assert_eq!(BuildError::from(error), BuildError::Run(words.into()));
    }

    #[test]
    fn an_error_of_the_place_stays_one() {
        let reason = || Err::<(), _>(BuildError::Place("the disk says no".into()));
        let error = build("data set", "text", Some(&()), [].iter(), |()| reason());
        let error = BuildError::from(error.expect_err("it cannot be built"));
        assert_eq!(error.inability(), Inability::Place);
        assert_eq!(error.to_string(), "cannot build the data set \"text\": the disk says no");
    }
}
