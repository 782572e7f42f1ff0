//! The end of the run: what a member has found, and who wants its master weights.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use everstep_transport::protocol::WorkerId;

use super::event::Summary;

/// How far a member has come after the last step.
#[derive(Debug, Default)]
pub struct Finish {
    /// What the device found.
    summary: Option<Summary>,
    /// Workers that write the model, and asked for master weights before they were final.
    asked: BTreeSet<WorkerId>,
}

impl Finish {
    /// The device is done; returns who waits for master weights.
    pub fn finished(&mut self, summary: Summary) -> BTreeSet<WorkerId> {
        self.summary = Some(summary);
        std::mem::take(&mut self.asked)
    }

    /// A worker asks for master weights; says whether they are final.
    pub fn ask(&mut self, from: WorkerId) -> bool {
        let is_final = self.summary.is_some();
        if !is_final {
            self.asked.insert(from);
        }
        is_final
    }

    /// What the device found, once it has.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }
}
