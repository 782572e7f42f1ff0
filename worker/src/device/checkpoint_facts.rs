//! What a checkpoint states of its run, as every worker of the run knows it.

use std::path::PathBuf;

use everstep_checkpoint::slots::Slots;
use everstep_kernels::layout::Layout;
use everstep_kernels::optimizer::Optimizer;
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::message::Fingerprint;

use super::model_path::run_digest;

/// The facts that all parts and manifests of a run share.
#[derive(Clone, Debug)]
pub struct CheckpointFacts {
    /// The specification of the run.
    pub run: RunSpec,
    /// The identity of the run, as in its manifests. It does not depend on the kind of device, so a
    /// run goes on from its checkpoints on other machines.
    pub run_digest: String,
    /// What all members share.
    pub fingerprint: Fingerprint,
    /// The names and shapes of the model's tensors.
    pub layout: Layout,
    /// The vectors of each shard.
    pub slots: Slots,
    /// The file in which this worker gathers the trained model before it goes to the store.
    pub model: Option<PathBuf>,
}

impl CheckpointFacts {
    /// The facts of a run with this model and optimizer. None if the run writes no checkpoints.
    pub fn of(
        run: &RunSpec,
        fingerprint: &Fingerprint,
        layout: &Layout,
        optimizer: &Optimizer,
    ) -> Option<Self> {
        run.checkpoint.as_ref()?;
        Some(Self {
            run: run.clone(),
            run_digest: run_digest(run, fingerprint, 0),
            fingerprint: fingerprint.clone(),
            layout: layout.clone(),
            slots: slots(optimizer.state_vectors() - 1),
            model: None,
        })
    }
}

/// The names of master weights and so many moments.
fn slots(moments: usize) -> Slots {
    if moments <= 2 {
        return Slots::of_moments(moments);
    }
    let names: Vec<String> = (1..=moments).map(|moment| format!("moment_{moment}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Slots::named(&names).expect("an optimizer has at most 15 moments")
}
