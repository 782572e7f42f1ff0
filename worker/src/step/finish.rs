//! The end of the run: a member's results, and the workers that want its master weights.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_transport::protocol::WorkerId;

use super::event::Summary;

/// How far a member has come after the last step.
#[derive(Debug, Default)]
pub struct Finish {
    /// The device's results. None until it is done.
    summary: Option<Summary>,
    /// Workers that write the model, and asked for master weights before these were final.
    asked: BTreeSet<WorkerId>,
}

impl Finish {
    /// The device is done. Returns the workers that wait for master weights.
    pub fn finished(&mut self, summary: Summary) -> BTreeSet<WorkerId> {
        self.summary = Some(summary);
        std::mem::take(&mut self.asked)
    }

    /// A worker asks for master weights. Returns whether they are final.
    pub fn ask(&mut self, from: WorkerId) -> bool {
        let is_final = self.summary.is_some();
        if !is_final {
            self.asked.insert(from);
        }
        is_final
    }

    /// The device's results. None until it is done.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }
}
