//! How often each event happened, in figures that only grow.
//!
//! The counts of events begin at the log's beginning, so they outlive a coordinator. The counts of
//! lines and entries are those of one process.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::step::Decision;
use everstep_transport::protocol::{Cause, MetricsLine};

use super::Histogram;

/// The causes of a generation, as events name them.
const CAUSES: [&str; 9] =
    ["start", "lost", "join", "leave", "rebalance", "rollback", "pause", "resume", "checkpoint"];

/// The classes of reasons for the loss of a worker.
const LOSS_CLASSES: [&str; 7] =
    ["link", "process", "silence", "failure", "replaced", "unreachable", "other"];

/// Bounds for the seconds of a log write. An fsync takes milliseconds, on a bad day seconds.
const WRITES: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
/// Bounds for the seconds of a step.
const STEPS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bounds for the seconds that training stands still.
const STALLS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// How often each event happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// How many workers have registered.
    pub registrations: u64,
    /// Workers that the cluster refused.
    pub refusals: u64,
    /// Workers that became members of a run under way.
    pub joins: u64,
    /// Workers that left in good order.
    pub leaves: u64,
    /// Workers that were lost, by the class of the reason. Every class has an entry.
    pub losses: BTreeMap<&'static str, u64>,
    /// Generations by their cause. Every cause has an entry.
    pub generations: BTreeMap<&'static str, u64>,
    /// Generations that did a step again.
    pub redone: u64,
    /// How many times the run went back.
    pub rollbacks: u64,
    /// Checkpoints that were due, or asked for, and failed. Those that were skipped do not count.
    pub failed_checkpoints: u64,
    /// Those of them that had an event since the newest checkpoint was listed.
    pub told_failures: u64,
    /// Settled steps, those that a rollback took back included.
    pub steps: u64,
    /// Settled steps that changed nothing, since the gradient was not finite.
    pub skipped: u64,
    /// Targets that the settled steps trained on.
    pub tokens: u64,
    /// Lines written since the process began.
    pub written: u64,
    /// Entries that this coordinator proposed.
    pub proposed: u64,
    /// Proposed entries that came back, durable.
    pub applied: u64,
    /// The time from an entry's proposal until it was durable and applied.
    pub log_write: Histogram,
    /// How long training stood still at a change of generation, beyond the time of a step.
    pub stalls: Histogram,
    /// How long each settled step took.
    pub step_times: Histogram,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            registrations: 0,
            refusals: 0,
            joins: 0,
            leaves: 0,
            losses: LOSS_CLASSES.iter().map(|class| (*class, 0)).collect(),
            generations: CAUSES.iter().map(|cause| (*cause, 0)).collect(),
            redone: 0,
            rollbacks: 0,
            failed_checkpoints: 0,
            told_failures: 0,
            steps: 0,
            skipped: 0,
            tokens: 0,
            written: 0,
            proposed: 0,
            applied: 0,
            log_write: Histogram::new(WRITES),
            stalls: Histogram::new(STALLS),
            step_times: Histogram::new(STEPS),
        }
    }
}

impl Tally {
    pub(super) fn event(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Registered { .. } => self.registrations += 1,
            EventKind::Refused { .. } => self.refusals += 1,
            EventKind::Joined { .. } => self.joins += 1,
            EventKind::Left { .. } => self.leaves += 1,
            EventKind::Lost { reason, .. } => {
                *self.losses.entry(class(reason)).or_default() += 1;
            }
            EventKind::Generation { cause, redone, .. } => {
                *self.generations.entry(name(*cause)).or_default() += 1;
                self.redone += u64::from(*redone);
            }
            EventKind::Submitted { .. } => self.told_failures = 0,
            EventKind::Rollback { .. } => {
                self.rollbacks += 1;
                self.told_failures = 0;
            }
            EventKind::CheckpointFailed { .. } => {
                self.failed_checkpoints += 1;
                self.told_failures += 1;
            }
            // Some of them had an event of their own.
            EventKind::CheckpointsResumed { count, .. } => {
                self.failed_checkpoints += count.saturating_sub(self.told_failures);
            }
            EventKind::Checkpoint { .. } => self.told_failures = 0,
            _ => {}
        }
    }

    /// Takes a new line. `stall_ms` is how long training stood still before it, if it is a
    /// generation's first, in milliseconds.
    pub(super) fn line(&mut self, line: &MetricsLine, stall_ms: Option<f64>) {
        self.steps += 1;
        self.skipped += u64::from(line.decision == Decision::Skip);
        self.tokens = self.tokens.saturating_add(line.tokens);
        self.step_times.observe(line.seconds);
        if let Some(milliseconds) = stall_ms {
            self.stalls.observe(milliseconds / 1e3);
        }
    }
}

/// The class of the reason of a loss.
fn class(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::LinkClosed(_) => "link",
        LossReason::ProcessEnded(_) => "process",
        LossReason::Silent(_) | LossReason::NoAnswer => "silence",
        LossReason::Failed(_) => "failure",
        LossReason::RegisteredAnew | LossReason::AddressReplaced | LossReason::AddressStated => {
            "replaced"
        }
        LossReason::Unreachable(_) => "unreachable",
        LossReason::FoundDead | LossReason::Revoked | LossReason::Left => "other",
        LossReason::CannotCompute(_) | LossReason::DeviceHangs(_) => "other",
    }
}

fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Start => "start",
        Cause::Lost => "lost",
        Cause::Join => "join",
        Cause::Leave => "leave",
        Cause::Rebalance => "rebalance",
        Cause::Rollback => "rollback",
        Cause::Pause => "pause",
        Cause::Resume => "resume",
        Cause::Checkpoint => "checkpoint",
    }
}
