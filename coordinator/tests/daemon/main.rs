//! A coordinator in a process of its own, and workers and operators on real links.

mod access;
mod client;
mod http;
mod killed;
mod linear;
mod operator;
mod refusal;
mod repeated_requests;
mod restart;
mod run;
mod several;
mod support;

/// Not a test by itself, but the process that the others start. They end it with SIGKILL.
#[test]
fn a_coordinator_runs_where_another_test_wants_one() {
    support::be_a_coordinator();
}
