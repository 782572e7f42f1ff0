//! Scenarios: whole runs of the production cores under seeded schedules.

mod honest;
mod meddled;
mod skipped;
mod support;
