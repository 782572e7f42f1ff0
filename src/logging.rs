//! Logs: text or JSON on stderr, filtered by `EVERSTEP_LOG`. Also the last message of a verb, which
//! no filter hides.

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::json;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::cli::LogStyle;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::trace::Trace;

const VARIABLE: &str = "EVERSTEP_LOG";

/// The log format of this process, once it logs.
static FORMAT: OnceLock<LogStyle> = OnceLock::new();

/// Starts logging text at `level` and above, or as `EVERSTEP_LOG` says. Called once a process.
pub(crate) fn start(level: &str) -> Result<(), Failure> {
    start_as(level, LogStyle::Text)
}

/// As [`start`], in the given format.
pub(crate) fn start_as(level: &str, format: LogStyle) -> Result<(), Failure> {
    start_traced(level, format, None).map(drop)
}

/// As [`start_as`], with a trace. The caller drops it at the end.
pub(crate) fn start_traced(
    level: &str,
    format: LogStyle,
    trace: Option<&Path>,
) -> Result<Option<Trace>, Failure> {
    let directives = std::env::var(VARIABLE).unwrap_or_else(|_| level.to_string());
    let filter = filter(&directives)?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let trace = trace.map(begin_trace).transpose()?;
    let logs = fmt::layer().with_writer(std::io::stderr);
    let logs = match format {
        LogStyle::Text => logs.with_ansi(colour).with_filter(filter).boxed(),
        LogStyle::Json => logs.json().with_filter(filter).boxed(),
    };
    registry().with(logs).with(trace.as_ref().map(Trace::layer)).init();
    FORMAT.get_or_init(|| format);
    Ok(trace)
}

/// The filter that these directives mean.
fn filter(directives: &str) -> Result<EnvFilter, Failure> {
    let unusable = |why: String| {
        Failure::new(Exit::Usage, "logging cannot start").at(VARIABLE).because(why).next(
            "use error, warn, info, debug or trace, or TARGET=LEVEL for one part, such as \
             everstep_worker=debug",
        )
    };
    // `EnvFilter` takes any other word for a target.
    let is_level = |word: &str| word.is_empty() || word.parse::<LevelFilter>().is_ok();
    let is_directive = |part: &&str| part.contains(['=', '[']) || is_level(part);
    if let Some(word) = directives.split(',').map(str::trim).find(|part| !is_directive(part)) {
        return Err(unusable(format!("\"{word}\" is no level")));
    }
    EnvFilter::try_new(directives).map_err(|error| unusable(error.to_string()))
}

fn begin_trace(path: &Path) -> Result<Trace, Failure> {
    Trace::begin(path).map_err(|error| {
        Failure::new(Exit::Usage, "the trace cannot be written")
            .at(path.display())
            .because(error)
            .next("name a file in a directory that this user may write with --trace")
    })
}

/// Prints why the verb fails, or that it was told to end: a block for people, or one more object of
/// the log.
pub(crate) fn say(failure: &Failure) {
    let level = if failure.is_interruption() { "INFO" } else { "ERROR" };
    last_word(level, failure, failure.exit as u8);
}

/// Prints how a daemon has ended without a failure: a sentence for people, or one more object of
/// the log.
pub(crate) fn conclude(words: impl Display) {
    last_word("INFO", words, 0);
}

fn last_word(level: &str, words: impl Display, exit_code: u8) {
    if FORMAT.get() != Some(&LogStyle::Json) {
        return output::say(words);
    }
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp)); // text takes all
    output::say(json!({
        "timestamp": timestamp, "level": level, "target": module_path!(),
        "fields": { "message": words.to_string(), "exit_code": exit_code },
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_target() {
        for known in
            ["info", "WARN", "off", "", "everstep_worker=debug", "warn,quinn=error", "warn, info"]
        {
            assert!(filter(known).is_ok(), "{known}");
        }
        for unknown in ["foo", "warn,foo", "everstep_worker", "foo=loud"] {
            let words = filter(unknown).expect_err("no level").to_string();
            assert!(words.contains("EVERSTEP_LOG") && words.contains("trace"), "{words}");
        }
    }
}
