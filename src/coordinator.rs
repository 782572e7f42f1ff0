//! `everstep coordinator`: the daemon that decides who takes part.
//!
//! Says where it listens in one line of JSON on stdout, then logs on stderr until it is told to go,
//! or cannot keep what it decides. Started again with the same directory and address, however it
//! ended, it goes on with the run.

use everstep_coordinator::daemon::{self, CoordinatorError, Options};
use everstep_coordinator::log::{LogError, StoreError};

use crate::cli::CoordinatorFlags;
use crate::failure::{Exit, Failure};
use crate::{announce, logging, supervision};

/// What to do about files that hold what has happened.
const HISTORY: &str = "if the disk is full, make room and start it again: nothing that it has said \
                       is lost; a damaged file cannot be mended: found a new cluster in another \
                       directory; one of another version needs that version";

pub(crate) fn run(flags: CoordinatorFlags) -> Result<(), Failure> {
    logging::start("info")?;
    if flags.supervised {
        supervision::start()?;
    }
    let CoordinatorFlags { dir, listen, bootstrap, .. } = flags;
    let place = format!("{} on {listen}", dir.display());
    let ready = |address| announce(&serde_json::json!({ "address": address }));
    daemon::run(Options { dir, listen, bootstrap }, ready).map_err(|error| {
        let (exit, next) = advice(&error);
        Failure::new(exit, "the coordinator does not run").at(place).because(error).next(next)
    })
}

fn advice(error: &CoordinatorError) -> (Exit, &'static str) {
    match error {
        CoordinatorError::NothingThere(_) => {
            (Exit::Usage, "name the directory of a cluster, or found one with --bootstrap")
        }
        CoordinatorError::AlreadyThere(_) => {
            (Exit::Usage, "name an empty directory, or leave --bootstrap out to go on")
        }
        CoordinatorError::File { .. } => {
            (Exit::Usage, "name a directory that this user may read and write with --dir")
        }
        CoordinatorError::Log(LogError::Store { source: StoreError::InUse, .. }) => {
            (Exit::Usage, "end the other coordinator, or name another directory")
        }
        CoordinatorError::Log(_) | CoordinatorError::Journal(_) => (Exit::Failed, HISTORY),
        CoordinatorError::Bind(_) => (Exit::Failed, "pass another --listen; port 0 is always free"),
        _ => (Exit::Failed, "look at the lines above, correct the cause and start it again"),
    }
}
