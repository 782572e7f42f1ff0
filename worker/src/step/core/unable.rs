//! A run that this worker cannot compute, for a reason that would recur on every worker.
//!
//! The worker says so, drops what it holds, and stays for the next run. It says so again whenever
//! its word may have been lost; the run is the coordinator's to end.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::Message;

use super::{Core, Phase};

impl Core {
    /// The model or the data cannot be built, or fail on the way.
    pub(super) fn unable(&mut self, reason: String) {
        let run = match self.leave() {
            Some((setup, _)) => setup.run.clone(),
            None => match &self.phase {
                Phase::Building(run) => (**run).clone(),
                _ => return, // It is of a run that is over.
            },
        };
        self.model.renew(false);
        self.phase = Phase::Unable(Box::new(run), reason);
        self.say_unable();
    }

    /// Says again why the run cannot be computed here.
    pub(super) fn say_unable(&mut self) {
        if let Phase::Unable(_, reason) = &self.phase {
            let reason = reason.clone();
            self.tell(Message::Unable { reason });
        }
    }
}
