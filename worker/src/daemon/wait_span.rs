//! The wait of a member that has computed its data shards, as tracing spans. A span begins with one
//! event and ends with another, on no thread in particular.

use everstep_kernels::compute::STAGES;
use everstep_transport::protocol::Step;
use tracing::{Span, trace_span};

use crate::step::core::Core;
use crate::step::member::{Member, StepWait};

/// The wait under way, if any.
#[derive(Default)]
pub struct WaitSpan {
    current: Option<(Step, StepWait)>,
    span: Option<Span>,
}

impl WaitSpan {
    /// The core has handled an input: a wait may have ended, and another one begun.
    pub fn follow(&mut self, core: &Core) {
        let current = core.member().and_then(Member::waits_for);
        if current == self.current {
            return;
        }
        self.current = current;
        self.span = None; // ends before the next one begins
        self.span = current.map(|(Step(step), wait)| match wait {
            StepWait::ReduceScatter => trace_span!(target: STAGES, "reduce_scatter", step),
            StepWait::Commit => trace_span!(target: STAGES, "commit", step),
        });
    }
}
