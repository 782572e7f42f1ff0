//! The `everstep` program, with the models and data sets that come with Everstep.

use std::process::ExitCode;

use everstep_worker::builtin;

fn main() -> ExitCode {
    everstep::program(builtin::registry())
}
