//! Logs: text on stderr, filtered by `EVERSTEP_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::failure::{Exit, Failure};

const VARIABLE: &str = "EVERSTEP_LOG";

/// Starts logging at `level` and above, or as `EVERSTEP_LOG` says. To be called once a process.
pub(crate) fn start(level: &str) -> Result<(), Failure> {
    let directives = std::env::var(VARIABLE).unwrap_or_else(|_| level.to_string());
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        Failure::new(Exit::Usage, "logging cannot start")
            .at(VARIABLE)
            .because(error)
            .next("use error, warn, info, debug or trace")
    })?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .init();
    Ok(())
}
