//! `[model] init`: the initial weights of a run.
//!
//! In: the place that the configuration states. Out: the same place as every worker finds it, and
//! the digest of the weights there. The program reads all of them once, so that a run which is
//! submitted has one beginning, whatever becomes of the files.

use std::path::Path;

use everstep_checkpoint::import::{ImportError, InitialWeights, WeightsPlace};
use everstep_checkpoint::store::{Environment, Place};
use everstep_transport::protocol::run::InitSpec;
use everstep_worker::registry::Registry;

use super::path::absolute;
use super::{ConfigError, Resolved};
use crate::checkpoint::ReadProgress;

/// Makes the path absolute, checks that the weights are those of the run's model, and puts their
/// digest into the run.
pub(crate) fn read_initial_weights(
    resolved: &mut Resolved,
    registry: &Registry,
) -> Result<(), ConfigError> {
    let Some(init) = resolved.run.model.init.clone() else { return Ok(()) };
    let refused = |problem: String| {
        resolved.refusal("model.init", &format!("is \"{}\", which {problem}", init.path))
    };
    let place = init.path.parse::<WeightsPlace>();
    let place = place.map_err(|error| refused(format!("is no place: {}", error.why)))?;
    let path = match place.place {
        Place::Directory(_) => absolute(Path::new(&init.path)),
        _ => Ok(init.path.clone()),
    };
    let path = path.map_err(|error| refused(error.to_string()))?;
    let plan = registry.plan_model(&resolved.run);
    let plan = plan.map_err(|error| resolved.refusal("model.kind", &error.to_string()))?;
    let place = path.parse::<WeightsPlace>().map_err(ImportError::from);
    let digest = place.and_then(|place| {
        let weights = InitialWeights::open(&place, &Environment::of_process(), &plan.layout)?;
        let count = plan.layout.count() as u64;
        let mut progress = ReadProgress::new("initial weights".into(), count);
        weights.digest(&mut |_, values| progress.add(values.len() as u64))
    });
    let digest = digest.map_err(|error| refused(format!("cannot be used: {error}")))?;
    resolved.run.model.init = Some(InitSpec { path, digest: digest.to_string() });
    Ok(())
}

/// Why workers on other machines would not find the weights: their path is relative. None if they
/// would.
pub(crate) fn is_init_elsewhere(init: &InitSpec) -> Option<String> {
    let path = &init.path;
    (!path.contains("://") && !path.starts_with('/')).then(|| {
        format!(
            "model.init is \"{path}\", a relative path: every worker looks for it in its own \
             working directory, on its own machine"
        )
    })
}
