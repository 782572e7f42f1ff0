//! Errors of a configuration, and the places of its values.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used. The caller stops, and the user changes something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}; {advice}")]
pub struct ConfigError {
    /// The place of the fault.
    pub place: ValueSource,
    /// The problem at that place.
    pub problem: String,
    /// The next thing to do.
    pub advice: String,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A line of the configuration file, from 1.
    Line(PathBuf, usize),
    /// The configuration file as a whole.
    File(PathBuf),
    /// A flag, or its variable.
    Flag(&'static str),
    /// What the program takes if the user states nothing.
    Default,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Flag(flag) => {
                let variable = flag.trim_start_matches('-').to_uppercase().replace('-', "_");
                write!(f, "{flag} (or EVERSTEP_{variable})")
            }
            Self::Default => f.write_str("the default configuration"),
        }
    }
}

/// The places of all keys that were set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ValueSources {
    pub(super) path: Option<PathBuf>,
    pub(super) lines: BTreeMap<String, usize>,
    pub(super) flags: BTreeMap<&'static str, &'static str>,
}

impl ValueSources {
    /// The place where `key` was set: the flag that won, else the line, else the file that leaves
    /// it out.
    pub(super) fn of(&self, key: &str) -> ValueSource {
        match (self.flags.get(key), self.lines.get(key), &self.path) {
            (Some(flag), ..) => ValueSource::Flag(flag),
            (None, Some(line), Some(path)) => ValueSource::Line(path.clone(), *line),
            (None, None, Some(path)) => ValueSource::File(path.clone()),
            (None, _, None) => ValueSource::Default,
        }
    }

    /// An error about the value of `key`.
    pub(super) fn refusal(&self, key: &str, problem: &str) -> ConfigError {
        let place = self.of(key);
        let advice = match &place {
            ValueSource::Line(..) => {
                "change the value, or remove the line to have the default".into()
            }
            ValueSource::Flag(flag) => format!("pass another value with {flag}"),
            ValueSource::File(_) => format!("no line sets {key}, so this is its default: set it"),
            ValueSource::Default => format!("set {key} in a file, and name that with --config"),
        };
        ConfigError { place, problem: format!("{key} {problem}"), advice }
    }
}
