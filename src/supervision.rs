//! A supervised process ends when its parent does, however the parent ends.
//!
//! The parent keeps the write end of the process's stdin open and never writes to it. When the
//! parent dies, the read ends. Linux also kills the process, even one that is stopped. There the
//! parent must start it from a thread that lives as long as itself.
//!
//! A process that must not know of a parent is put on a leash: the kernel alone holds it.

use std::io::Read;
use std::process;
use std::thread;

use crate::cli::LeashFlags;

use crate::failure::{Exit, Failure};

/// Begins the watch over the parent.
pub(crate) fn start() -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(refused)?;
    thread::Builder::new().name("parent".into()).spawn(await_parent).map_err(refused)?;
    Ok(())
}

/// Lets the process open as many files as the system allows it. A link within a host takes some
/// dozen for the memory that it shares, any other one takes none. A daemon also has connections of
/// HTTP, files of its data, and libraries. A lower limit is no error.
pub(crate) fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(?current, ?maximum, "the limit of open files is raised"),
        Err(error) => tracing::warn!(?current, ?maximum, %error, "the limit of open files stays"),
    }
}

/// Becomes the program of `flags`, which ends when the parent process does. It need not know of the
/// parent.
#[cfg(target_os = "linux")]
pub(crate) fn leash(flags: &LeashFlags) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt;

    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

    let failed = |why: std::io::Error| {
        let place = flags.program.display();
        Failure::new(Exit::Failed, "the program cannot be started").at(place).because(why)
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    // The kernel does not report a parent that ended before this call.
    if Pid::as_raw(getppid()) != flags.parent {
        return Err(failed(std::io::Error::other("the parent process is gone")));
    }
    Err(failed(process::Command::new(&flags.program).args(&flags.arguments).exec()))
}

/// Becomes the program of `flags`, which ends when the parent process does. It need not know of the
/// parent.
#[cfg(not(target_os = "linux"))]
pub(crate) fn leash(_: &LeashFlags) -> Result<(), Failure> {
    Err(Failure::new(Exit::Failed, "only Linux ends a process with a parent that it does not know"))
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
