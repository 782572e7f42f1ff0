//! `everstep coordinator`: the daemon that decides which workers take part.
//!
//! The daemon prints its addresses in one line of JSON on stdout. Then it logs on stderr until a
//! signal or the cluster ends it, or its disk fails. Started again with the same directory and
//! address, it goes on with the run, however it ended before.

mod add;
pub(crate) mod directory_wait;
mod recover;
mod remove;
mod status;
mod transfer;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Instant;

use everstep_coordinator::daemon::{
    self, Addresses, CoordinatorError, CoordinatorOptions, Ended, Start,
};
use everstep_coordinator::http::{ApiPort, HttpError};
use everstep_coordinator::log::{LogError, ReplicaStoreError};

use self::directory_wait::{DirectoryWait, Lacking, WaitLog};
use crate::cli::{CoordinatorFlags, CoordinatorTask};
use crate::failure::{Exit, Failure, disk_advice, shortage_advice};
use crate::{announce, logging, supervision, worker};

/// The advice for damaged files of the history.
const DAMAGE_ADVICE: &str = "a damaged file cannot be mended: if most of the coordinators live, \
                             remove this one and let another join with an empty directory, else \
                             `everstep coordinator recover` makes a cluster of one that is whole. \
                             A file of another version needs that version";

/// The advice for an API that every user could read.
const OPEN_API_ADVICE: &str = "keep --http on 127.0.0.1, or make a token that every request has to \
                               show: `(umask 077; openssl rand -hex 32 > FILE)`, and pass \
                               --http-token FILE. Nothing is encrypted, so put what speaks TLS in \
                               front of it";

pub(crate) fn run(flags: CoordinatorFlags) -> Result<(), Failure> {
    logging::start_as("info", flags.daemon.log_format)?;
    if flags.daemon.supervised {
        supervision::start()?;
    }
    supervision::allow_open_files();
    let start = start(&flags)?;
    let CoordinatorFlags { dir, listen, http, .. } = flags;
    let files = dir.display().to_string();
    let place = format!("{files} on {listen}");
    let (served, waits) = (Cell::new(None), WaitLog::default());
    let is_new = !matches!(start, Start::Again);
    let reached = || StopState::of(is_new, served.get().is_some(), waits.lacking());
    let options = CoordinatorOptions { dir, listen, start, http: http.options() };
    match serve(options, &served, &waits) {
        Ok(Ended::Stopped) => Err(stopped(Exit::Terminated, "SIGTERM", reached()).at(place)),
        Ok(Ended::Interrupted) => Err(stopped(Exit::Interrupted, "SIGINT", reached()).at(place)),
        Ok(Ended::Removed) => {
            logging::conclude(format_args!(
                "the coordinator was removed: the others go on without it, and need nothing of \
                 {files}"
            ));
            Ok(())
        }
        Err(error) => {
            let (exit, next) = advice(&error);
            let next = disk_advice(&error).filter(|_| is_of_a_file(&error)).unwrap_or(next);
            let next = shortage_advice(&error).unwrap_or(next);
            let has_begun = served.get().is_some();
            let next = if has_begun && directory_wait::is_gone(&error) {
                directory_wait::GONE
            } else {
                next
            };
            let failure = Failure::new(exit, "the coordinator does not run");
            Err(failure.at(place).because(error).next(next))
        }
    }
}

/// Runs the coordinator to its end. A directory that cannot be used for a while ends nothing: the
/// process waits for it, and runs the coordinator again. Once the coordinator listens, `served` has
/// its addresses. While it waits, `waits` knows for what.
fn serve(
    first: CoordinatorOptions,
    served: &Cell<Option<Addresses>>,
    waits: &WaitLog,
) -> Result<Ended, CoordinatorError> {
    let (mut options, mut deadline) = (first.clone(), None);
    let mut api_port = ApiPort::default();
    let log = Cell::new(None);
    loop {
        let began = Instant::now();
        let ended = daemon::run(options, &mut api_port, |addresses| {
            waits.end();
            let Addresses { links, api } = addresses;
            let api = api.map(|api: SocketAddr| format!("http://{api}"));
            let shown = api.as_deref().unwrap_or("none");
            tracing::info!(address = %links, api = shown, "coordinator listens");
            // The parent heard the addresses the first time. They have not changed.
            if served.replace(Some(addresses)).is_none() {
                log.set(directory_wait::log_inode(&first.dir));
                announce(&serde_json::json!({ "address": links, "api": api }));
            }
        });
        let (Err(error), Some(addresses)) = (&ended, served.get()) else { return ended };
        if began.elapsed() >= directory_wait::DIRECTORY_WAIT_TIMEOUT {
            deadline = None; // The directory could be used for long enough: the wait begins anew.
        }
        let by = *deadline
            .get_or_insert_with(|| Instant::now() + directory_wait::DIRECTORY_WAIT_TIMEOUT);
        match directory_wait::await_directory(&first.dir, log.get(), error, by, waits) {
            DirectoryWait::Usable => {}
            DirectoryWait::InVain => return ended,
            DirectoryWait::Signalled(ended) => return Ok(ended),
        }
        options =
            CoordinatorOptions { listen: addresses.links, start: Start::Again, ..first.clone() };
    }
}

/// The end of a coordinator that stopped in good order. It is like that of a drained worker.
fn stopped(exit: Exit, signal: &str, StopState { state, next }: StopState) -> Failure {
    Failure::new(exit, "the coordinator has stopped")
        .because(format_args!("it was told to by {signal}, and {state}"))
        .next(next)
}

/// How far a coordinator had come when it was told to stop, and how it goes on.
struct StopState {
    state: &'static str,
    next: &'static str,
}

impl StopState {
    /// `is_new` is whether this start was to make it a coordinator, and `has_served` whether it has
    /// listened. It may have waited for what it lacked.
    fn of(is_new: bool, has_served: bool, lacking: Option<Lacking>) -> Self {
        let (state, next) = match (has_served, lacking) {
            (false, _) => (
                if is_new { "it was no coordinator yet" } else { "it did not listen yet" },
                "start it again with the same flags",
            ),
            (true, None) => (
                "what it has agreed to is on its disk",
                "start it again with the same --dir and --listen, and it goes on",
            ),
            (true, Some(Lacking::Port)) => (
                "it waited for its port, which another process has",
                "start it again with the same --dir and --listen once the port is free",
            ),
            (true, Some(Lacking::Directory)) => (
                "it waited for its directory, which could not be used",
                "see that the directory takes files and is the one that it wrote, and start it \
                 again with the same --dir and --listen",
            ),
        };
        Self { state, next }
    }
}

/// The operator's commands for the coordinators of a cluster.
pub(crate) fn operate(task: &CoordinatorTask) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        CoordinatorTask::Status(flags) => status::run(flags),
        CoordinatorTask::TransferLeader(flags) => transfer::run(flags),
        CoordinatorTask::Add(flags) => add::run(flags),
        CoordinatorTask::Remove(flags) => remove::run(flags),
        CoordinatorTask::Recover(flags) => recover::run(flags),
    }
}

/// The start that the flags ask for.
fn start(flags: &CoordinatorFlags) -> Result<Start, Failure> {
    let CoordinatorFlags { bootstrap, ephemeral, join, coordinators, .. } = flags;
    let Some(join) = join else {
        return Ok(match bootstrap {
            true => Start::Bootstrap { ephemeral: *ephemeral },
            false => Start::Again,
        });
    };
    let token = worker::token(join, "coordinator.token")?;
    let coordinators: Result<_, _> = coordinators.iter().map(|name| worker::place(name)).collect();
    Ok(Start::Join { token, coordinators: coordinators? })
}

/// Whether a disk may be the cause. An address can be forbidden, too.
fn is_of_a_file(error: &CoordinatorError) -> bool {
    matches!(
        error,
        CoordinatorError::File { .. }
            | CoordinatorError::Log(_)
            | CoordinatorError::History(_)
            | CoordinatorError::Membership(_)
            | CoordinatorError::Authority { .. }
            | CoordinatorError::Identity(_)
    )
}

fn advice(error: &CoordinatorError) -> (Exit, &'static str) {
    match error {
        CoordinatorError::NothingThere(_) => {
            (Exit::Usage, "name the directory of a coordinator, or found a cluster, or join one")
        }
        CoordinatorError::AlreadyThere(_) => {
            (Exit::Usage, "name an empty directory, or leave --bootstrap and --join out to go on")
        }
        CoordinatorError::NotJoined(_) => {
            (Exit::Usage, "start it with --join and --coordinators, as the first time")
        }
        CoordinatorError::Unspecified(_) | CoordinatorError::Loopback { .. } => {
            (Exit::Usage, "pass --listen with an address of this machine that the others reach")
        }
        CoordinatorError::JoinToken(_) => {
            (Exit::Usage, "pass --join @DIR/coordinator.token with the directory of a coordinator")
        }
        CoordinatorError::Enrol(_) => {
            (Exit::Failed, "check the addresses, the token, and that a coordinator runs there")
        }
        CoordinatorError::Unanswered(_) => {
            (Exit::Capacity, "see that most of the coordinators run, and start it again as before")
        }
        CoordinatorError::File { .. } => {
            (Exit::Usage, "name a directory that this user may read and write with --dir")
        }
        CoordinatorError::InUse(_)
        | CoordinatorError::Log(LogError::Store { source: ReplicaStoreError::InUse, .. }) => {
            (Exit::Usage, "end the other coordinator, or name another directory")
        }
        CoordinatorError::Log(_)
        | CoordinatorError::Authority { .. }
        | CoordinatorError::Changed(_)
        | CoordinatorError::History(_)
        | CoordinatorError::Membership(_)
        | CoordinatorError::Node(_) => (Exit::Failed, DAMAGE_ADVICE),
        CoordinatorError::Http(HttpError::Bind { .. }) => {
            (Exit::Failed, "pass another --http: port 0 is always free, and `none` is no API")
        }
        CoordinatorError::Http(HttpError::Public(_)) => (
            Exit::Usage,
            "`chmod o= FILE`, and draw another token if another user may have read it",
        ),
        CoordinatorError::Http(HttpError::Same) => {
            (Exit::Usage, "draw another token for reading: `openssl rand -hex 32`")
        }
        CoordinatorError::Http(_) => (Exit::Usage, OPEN_API_ADVICE),
        CoordinatorError::Bind(_) => (Exit::Failed, "pass another --listen: port 0 is always free"),
        _ => (Exit::Failed, "look at the lines above, correct the cause and start it again"),
    }
}
