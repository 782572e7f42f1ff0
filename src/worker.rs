//! `everstep worker`: the daemon that computes.
//!
//! Says its name and where it listens in one line of JSON on stdout, then logs on stderr until its
//! run is over, or until it has left: after SIGTERM it hands over what only it holds.

mod list;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use everstep_worker::daemon::{self, Ended, Options, Ready, WorkerError};
use everstep_worker::registry::Registry;

use crate::cli::WorkerFlags;
use crate::cluster::Directory;
use crate::failure::{Exit, Failure};
use crate::{announce, logging, supervision};
pub(crate) use list::run as list;

pub(crate) fn run(flags: WorkerFlags, registry: Arc<Registry>) -> Result<(), Failure> {
    let _trace = logging::start_traced("info", flags.daemon.log_format, flags.trace.as_deref())?;
    if flags.daemon.supervised {
        supervision::start()?;
    }
    let named = flags.coordinators.join(",");
    let coordinators: Result<Vec<_>, _> =
        flags.coordinators.iter().map(|name| address(name)).collect();
    let options = Options {
        coordinators: coordinators?,
        token: token(&flags.join, "join.token")?,
        listen: flags.listen,
        zone: flags.zone,
        dir: flags.dir.or_else(|| token_file(&flags.join).and_then(Directory::around)),
        device: flags.device,
        overlap: !flags.no_overlap,
    };
    let ready = |ready: &Ready| {
        announce(&serde_json::json!({ "name": ready.name, "address": ready.address }));
    };
    match daemon::run(options, registry, ready) {
        Ok(Ended::Dismissed) => Ok(()),
        Ok(Ended::Drained) => {
            let failure =
                Failure::new(Exit::Terminated, "the worker has left before its run was over");
            Err(failure.because("it was told to drain; the run goes on without it"))
        }
        Err(error) => {
            let (exit, next) = advice(&error);
            let failure = Failure::new(exit, "the worker ended before its run was over");
            Err(failure.at(format!("coordinators {named}")).because(error).next(next))
        }
    }
}

fn advice(error: &WorkerError) -> (Exit, &'static str) {
    match error {
        WorkerError::Token(_) => {
            (Exit::Usage, "pass --join @DIR/join.token with the directory of a run")
        }
        WorkerError::Enrol(_) => {
            (Exit::Failed, "check the addresses, the token, and that a coordinator runs there")
        }
        WorkerError::Bind(_) => (Exit::Failed, "pass another --listen; port 0 is always free"),
        _ => (Exit::Failed, "look at the lines above and at the coordinator's log"),
    }
}

/// The address of `HOST:PORT`; of a host with several, the first.
pub(crate) fn address(name: &str) -> Result<SocketAddr, Failure> {
    let refused = |why: String| {
        Failure::new(Exit::Usage, "a coordinator's address cannot be used")
            .at("--coordinators")
            .because(format!("\"{name}\": {why}"))
            .next("pass HOST:PORT, as in the run's DIR/cluster.json")
    };
    let mut found = name.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
    found.next().ok_or_else(|| refused("the host has no address".into()))
}

/// The join token itself; `@FILE` names a file that holds it, which is called so where it was made.
pub(crate) fn token(join: &str, name: &str) -> Result<String, Failure> {
    let Some(path) = token_file(join) else { return Ok(join.to_string()) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(Exit::Usage, "the join token cannot be read")
            .at(path.display())
            .because(error)
            .next(format!("pass --join @DIR/{name} with the directory of a coordinator"))
    })?;
    Ok(text.trim().to_string())
}

fn token_file(join: &str) -> Option<&Path> {
    join.strip_prefix('@').map(Path::new)
}
