//! What is wrong with a configuration, and where its values came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used: the caller stops, and the user changes something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}; {advice}")]
pub struct ConfigError {
    /// Where the fault is.
    pub place: Place,
    /// What is wrong there.
    pub problem: String,
    /// What to do next.
    pub advice: String,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of the configuration file, from 1.
    Line(PathBuf, usize),
    /// The configuration file as a whole.
    File(PathBuf),
    /// A flag, or the variable that stands for it.
    Flag(&'static str),
    /// Nobody set it.
    Default,
}

impl fmt::Display for Place {
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

/// Where each key that somebody set was set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Places {
    pub(super) path: Option<PathBuf>,
    pub(super) lines: BTreeMap<String, usize>,
    pub(super) flags: BTreeMap<&'static str, &'static str>,
}

impl Places {
    /// Where `key` was set: the flag that won, else the line, else the file that leaves it out.
    pub(super) fn of(&self, key: &str) -> Place {
        match (self.flags.get(key), self.lines.get(key), &self.path) {
            (Some(flag), ..) => Place::Flag(flag),
            (None, Some(line), Some(path)) => Place::Line(path.clone(), *line),
            (None, None, Some(path)) => Place::File(path.clone()),
            (None, _, None) => Place::Default,
        }
    }

    /// An error about the value of `key`.
    pub(super) fn refusal(&self, key: &str, problem: &str) -> ConfigError {
        let place = self.of(key);
        let advice = match &place {
            Place::Line(..) => "change the value, or remove the line to have the default".into(),
            Place::Flag(flag) => format!("pass another value with {flag}"),
            Place::File(_) => format!("no line sets {key}, so this is its default: set it"),
            Place::Default => format!("set {key} in a file, and name that with --config"),
        };
        ConfigError { place, problem: format!("{key} {problem}"), advice }
    }
}
