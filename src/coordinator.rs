//! `everstep coordinator`: the daemon that decides who takes part.
//!
//! Says where it listens in one line of JSON on stdout, then logs on stderr until it is told to go,
//! or cannot keep what it decides. Started again with the same directory and address, however it
//! ended, it goes on with the run.

use std::net::SocketAddr;

use everstep_coordinator::daemon::{self, Addresses, CoordinatorError, Options};
use everstep_coordinator::http::HttpError;
use everstep_coordinator::log::{LogError, StoreError};

use crate::cli::CoordinatorFlags;
use crate::failure::{Exit, Failure};
use crate::{announce, logging, supervision};

/// What to do about files that hold what has happened.
const HISTORY: &str = "if the disk is full, make room and start it again: nothing that it has said \
                       is lost; a damaged file cannot be mended: found a new cluster in another \
                       directory; one of another version needs that version";

/// What to do about an API that everyone could read.
const TOKEN: &str = "keep --http on 127.0.0.1; or make a token that every request has to show: \
                     `openssl rand -hex 32 > FILE; chmod 600 FILE`, and pass --http-token FILE; \
                     nothing is encrypted, so put what speaks TLS in front of it";

pub(crate) fn run(flags: CoordinatorFlags) -> Result<(), Failure> {
    logging::start("info")?;
    if flags.supervised {
        supervision::start()?;
    }
    let CoordinatorFlags { dir, listen, bootstrap, http, .. } = flags;
    let place = format!("{} on {listen}", dir.display());
    let ready = |Addresses { links, api }| {
        let api = api.map(|api: SocketAddr| format!("http://{api}"));
        tracing::info!(address = %links, api = api.as_deref().unwrap_or("none"), "it listens");
        announce(&serde_json::json!({ "address": links, "api": api }));
    };
    daemon::run(Options { dir, listen, bootstrap, http: http.options() }, ready).map_err(|error| {
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
        CoordinatorError::Http(HttpError::Bind { .. }) => {
            (Exit::Failed, "pass another --http; port 0 is always free, and `none` is no API")
        }
        CoordinatorError::Http(_) => (Exit::Usage, TOKEN),
        CoordinatorError::Bind(_) => (Exit::Failed, "pass another --listen; port 0 is always free"),
        _ => (Exit::Failed, "look at the lines above, correct the cause and start it again"),
    }
}
