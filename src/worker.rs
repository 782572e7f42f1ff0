//! `everstep worker`: the daemon that computes.
//!
//! It prints its name and its address in one line of JSON on stdout. Then it logs on stderr until
//! its run is over, or until it has left: after SIGTERM it hands over what only it holds.

mod add;
mod directory;
mod list;
mod meant;
mod preemption;

use std::ffi::OsStr;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::quic::HostPort;
use everstep_worker::daemon::{self, CleanExit, Ready, WorkerError, WorkerOptions};
use everstep_worker::registry::Registry;

use crate::cli::WorkerFlags;
use crate::cluster::{Directory, threads_of_worker};
use crate::failure::{Exit, Failure};
use crate::{announce, logging, script, supervision};
pub(crate) use add::run as add;
pub(crate) use list::run as list;
pub(crate) use meant::{meant, unknown};

pub(crate) fn run(flags: WorkerFlags, mut registry: Registry) -> Result<(), Failure> {
    if !flags.script.is_empty() {
        return script::run(&flags);
    }
    registry.set_threads(threads_of_worker(flags.threads, 1) as usize);
    work(flags, Arc::new(registry), |ready| {
        announce(&serde_json::json!({ "name": ready.name, "address": ready.address }));
    })
}

/// Works until the run is over. Calls `ready` once the worker listens.
pub(crate) fn work(
    flags: WorkerFlags,
    registry: Arc<Registry>,
    ready: impl FnOnce(&Ready),
) -> Result<(), Failure> {
    let _trace = logging::start_traced("info", flags.daemon.log_format, flags.trace.as_deref())?;
    if flags.daemon.supervised {
        supervision::start()?;
    }
    supervision::allow_open_files();
    let device = flags.device.clone().unwrap_or_default();
    registry.devices().provider(&device).map_err(|error| {
        Failure::new(Exit::Usage, "the device cannot be used")
            .at(format!("--device {device}"))
            .because(error)
            .next("everstep devices lists what this machine has")
    })?;
    let named = flags.coordinators.join(",");
    let coordinators: Result<Vec<_>, _> =
        flags.coordinators.iter().map(|name| place(name)).collect();
    let dir = home(&flags);
    if let Some(dir) = &dir {
        directory::prepare(dir)?;
    }
    // The launcher that supervises a worker tells of its end itself.
    let kept_in = flags.dir.clone().filter(|_| !flags.daemon.supervised);
    let metadata = preemption::service(&flags);
    let options = WorkerOptions {
        coordinators: coordinators?,
        token: token(&flags.join, "join.token")?,
        listen: flags.listen,
        zone: flags.zone,
        dir,
        kept_in,
        device,
        grace: flags.grace.map(Duration::from_secs),
        metadata,
        overlap: !flags.no_overlap,
        ends_with_run: registry.has_dataset(script::KIND),
        shares_memory: !flags.no_shared_memory,
    };
    match daemon::run(options, registry, ready) {
        Ok(CleanExit::Dismissed) => Ok(()),
        Ok(CleanExit::Drained) => Err(left("nothing depends on it any more")),
        Ok(CleanExit::Overdue) => Err(left("its time ran out before it could do so in good order")),
        Err(error) => {
            let (exit, next) = advice(&error);
            let failure = Failure::new(exit, title(&error));
            Err(failure.at(format!("coordinators {named}")).because(error).next(next))
        }
    }
}

/// The end of a worker that was told to leave. It may have been in a run, or have waited for one.
fn left(state: &str) -> Failure {
    let failure = Failure::new(Exit::Terminated, "the worker has left");
    failure.because(format_args!("it was told to leave, and {state}"))
}

/// Where the worker writes the trained model. None if it cannot.
pub(crate) fn home(flags: &WorkerFlags) -> Option<PathBuf> {
    flags.dir.clone().or_else(|| token_file(&flags.join).and_then(Directory::around))
}

/// The title of an error. A worker that was never admitted has not begun.
fn title(error: &WorkerError) -> &'static str {
    match error {
        WorkerError::Token(_)
        | WorkerError::Enrol(_)
        | WorkerError::Bind(_)
        | WorkerError::Unspecified(_)
        | WorkerError::Loopback { .. } => "the worker has not joined the cluster",
        _ => "the worker cannot go on",
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
        WorkerError::Unspecified(_) | WorkerError::Loopback { .. } => {
            (Exit::Usage, "pass --listen with an address of this machine that the others reach")
        }
        WorkerError::Bind(_) => (Exit::Failed, "pass another --listen: port 0 is always free"),
        _ => (Exit::Failed, "look at the lines above and at the coordinator's log"),
    }
}

/// The place that `HOST:PORT` names. It must have an address now. Each dial resolves the name
/// again.
pub(crate) fn place(name: &str) -> Result<HostPort, Failure> {
    addresses(name)?;
    name.parse().map_err(|error| refused(name, &error))
}

/// All addresses of `HOST:PORT`, at least one.
pub(crate) fn addresses(name: &str) -> Result<Vec<SocketAddr>, Failure> {
    let found: Vec<_> = name.to_socket_addrs().map_err(|error| refused(name, &error))?.collect();
    match found.is_empty() {
        true => Err(refused(name, &"the host has no address")),
        false => Ok(found),
    }
}

fn refused(name: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, "a coordinator's address cannot be used")
        .at("--coordinators")
        .because(format!("\"{name}\": {why}"))
        .next("pass HOST:PORT, as in the run's DIR/cluster.json or a coordinator's `address` line")
}

/// The join token. `@FILE` names a file that holds it: that file is called `name` where it was
/// made. `@-` is stdin.
pub(crate) fn token(join: &OsStr, name: &str) -> Result<String, Failure> {
    let text = match token_file(join) {
        Some(path) => {
            warn_of_readers(path);
            std::fs::read_to_string(path)
        }
        None if join == STDIN => std::io::read_to_string(std::io::stdin()),
        None => return Ok(join.to_string_lossy().into_owned()),
    };
    let text = text.map_err(|error| {
        Failure::new(Exit::Usage, "the join token cannot be read")
            .at(token_file(join).unwrap_or(Path::new("stdin")).display())
            .because(error)
            .next(format!("pass --join @DIR/{name} with the directory of a coordinator"))
    })?;
    Ok(text.trim().to_string())
}

/// The argument that reads the token from stdin.
const STDIN: &str = "@-";

fn token_file(join: &OsStr) -> Option<&Path> {
    let path = join.as_bytes().strip_prefix(b"@").filter(|_| join != STDIN)?;
    Some(Path::new(OsStr::from_bytes(path)))
}

fn warn_of_readers(path: &Path) {
    let mode = path.metadata().map(|found| found.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o004 != 0) {
        let (path, next) = (path.display(), "`chmod o= FILE` keeps them from joining with it");
        tracing::warn!(%path, next, "every user of this machine can read the join token");
    }
}
