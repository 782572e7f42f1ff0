//! Logs: text or JSON on stderr, filtered by `EVERSTEP_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;
use crate::failure::{Exit, Failure};

const VARIABLE: &str = "EVERSTEP_LOG";

/// Starts logging text at `level` and above, or as `EVERSTEP_LOG` says: once a process.
pub(crate) fn start(level: &str) -> Result<(), Failure> {
    start_as(level, LogFormat::Text)
}

/// The same in that format.
pub(crate) fn start_as(level: &str, format: LogFormat) -> Result<(), Failure> {
    let directives = std::env::var(VARIABLE).unwrap_or_else(|_| level.to_string());
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        Failure::new(Exit::Usage, "logging cannot start")
            .at(VARIABLE)
            .because(error)
            .next("use error, warn, info, debug or trace")
    })?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(colour).init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(())
}
