//! `everstep bench`: measures this machine.

use crate::cli::Bench;
use crate::failure::Failure;
use crate::later;

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let Bench::AllReduce(_) = bench;
    Err(later("everstep bench all-reduce"))
}
