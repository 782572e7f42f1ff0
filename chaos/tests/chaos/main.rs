//! Scenarios: whole runs of the production cores under seeded schedules.

mod churn;
mod evidence;
mod honest;
mod intercepted;
mod members;
mod planted;
mod preempted;
mod regressions;
mod scaled;
mod simulated;
mod skipped;
mod stores;
mod support;
mod trained;
mod upgraded;
