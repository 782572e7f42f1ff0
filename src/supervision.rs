//! A supervised process ends when its parent does, however the parent ends.
//!
//! The parent keeps the write end of the process's stdin open and never writes to it: when the
//! parent dies, the read ends. Linux kills the process besides, even one that is stopped; there the
//! parent must start it from a thread that lives as long as itself.

use std::io::Read;
use std::process;
use std::thread;

use crate::failure::{Exit, Failure};

/// Begins the watch over the parent.
pub(crate) fn start() -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(refused)?;
    thread::Builder::new().name("parent".into()).spawn(await_parent).map_err(refused)?;
    Ok(())
}

fn await_parent() {
    let mut stdin = std::io::stdin().lock();
    let mut ignored = [0; 64];
    while matches!(stdin.read(&mut ignored), Ok(1..)) {}
    tracing::error!("the parent process is gone: ending too");
    process::exit(Exit::Failed as i32);
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, "the parent process cannot be watched")
        .because(error)
        .next("start the daemon without --supervised")
}
