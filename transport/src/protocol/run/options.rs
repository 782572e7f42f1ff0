//! Options of a registered model or optimizer: a small map of named values.
//!
//! The map crosses the wire and is part of the replicated log, so its size is bounded. This file
//! does not know which options there are: the builder of the model or the optimizer asks for them.

use std::collections::BTreeMap;
use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use super::{SpecError, refuse};

/// Most options of one map.
pub const MAX_OPTIONS: usize = 256;
/// Most bytes of an option's name.
pub const MAX_OPTION_NAME: usize = 64;
/// Most bytes of an option's text.
pub const MAX_OPTION_TEXT: usize = 4096;

/// Named values, in the order of their names.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Debug,
    Default,
    PartialEq,
)]
#[serde(transparent)]
pub struct OptionMap(pub BTreeMap<String, OptionValue>);

/// The value of an option, as TOML and JSON write it.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq,
)]
#[serde(untagged)]
pub enum OptionValue {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction or an exponent. Finite.
    Number(f64),
    /// A text.
    Text(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Integer(integer) => write!(f, "{integer}"),
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A builder cannot use an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The value has another type than the builder needs.
    #[error("the option {name} is {found}, but must be {wanted}")]
    Type {
        /// The name of the option.
        name: String,
        /// The value that it has.
        found: String,
        /// The values that would do.
        wanted: &'static str,
    },
    /// The builder knows no option of this name.
    #[error("there is no option {name}: {}", listed(.known))]
    Unknown {
        /// The name that the run states.
        name: String,
        /// The names that the builder knows.
        known: Vec<String>,
    },
}

impl OptionError {
    /// The error as one of a run's value. `section` is the map's key in a configuration:
    /// `model.options`.
    pub fn of(self, section: &str) -> SpecError {
        match self {
            Self::Type { name, found, wanted } => SpecError {
                key: format!("{section}.{name}").into(),
                problem: format!("is {found}, but must be {wanted}"),
            },
            Self::Unknown { name, known } => {
                let problem = format!("is no option here: {}", listed(&known));
                SpecError { key: format!("{section}.{name}").into(), problem }
            }
        }
    }
}

impl From<OptionError> for String {
    fn from(error: OptionError) -> Self {
        error.to_string()
    }
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "there are none".into(),
        known => format!("the options are {}", known.join(", ")),
    }
}

impl OptionMap {
    /// Whether the run states no option.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The whole number of this name. `None` if the run does not state it.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, OptionError> {
        self.read(name, "a whole number", |value| match value {
            OptionValue::Integer(integer) => Some(*integer),
            _ => None,
        })
    }

    /// The number of this name, which may be written as a whole one. `None` if the run does not
    /// state it.
    pub fn number(&self, name: &str) -> Result<Option<f64>, OptionError> {
        self.read(name, "a number", |value| match value {
            OptionValue::Integer(integer) => Some(*integer as f64),
            OptionValue::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// The flag of this name. `None` if the run does not state it.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, OptionError> {
        self.read(name, "true or false", |value| match value {
            OptionValue::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The text of this name. `None` if the run does not state it.
    pub fn text(&self, name: &str) -> Result<Option<&str>, OptionError> {
        self.read(name, "text in quotes", |value| match value {
            OptionValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Refuses any option but these.
    pub fn only(&self, known: &[&str]) -> Result<(), OptionError> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let known = known.iter().map(ToString::to_string).collect();
                Err(OptionError::Unknown { name: name.clone(), known })
            }
        }
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        wanted: &'static str,
        value: impl FnOnce(&'a OptionValue) -> Option<T>,
    ) -> Result<Option<T>, OptionError> {
        let Some(stated) = self.0.get(name) else { return Ok(None) };
        value(stated).map(Some).ok_or_else(|| OptionError::Type {
            name: name.into(),
            found: stated.to_string(),
            wanted,
        })
    }

    /// Checks the bounds. `section` is the map's key in a configuration.
    pub(super) fn validate(&self, section: &'static str) -> Result<(), SpecError> {
        if self.0.len() > MAX_OPTIONS {
            let problem = format!("has {} options, but may have {MAX_OPTIONS}", self.0.len());
            return refuse(section, problem);
        }
        for (name, value) in &self.0 {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if name.is_empty() || name.len() > MAX_OPTION_NAME || !name.chars().all(is_plain) {
                let problem = format!(
                    "has an option with the name {name:?}, but a name has 1 to {MAX_OPTION_NAME} \
                     letters, digits, _ or -"
                );
                return refuse(section, problem);
            }
            let problem = match value {
                OptionValue::Number(number) if !number.is_finite() => "a finite number",
                OptionValue::Text(text) if text.len() > MAX_OPTION_TEXT => {
                    "a text of at most 4096 bytes"
                }
                _ => continue,
            };
            let key = format!("{section}.{name}");
            return Err(SpecError { key: key.into(), problem: format!("must be {problem}") });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> OptionMap {
        serde_json::from_str(r#"{"classes": 3, "dropout": 0.5, "tied": true, "name": "x"}"#)
            .expect("it is an option map")
    }

    #[test]
    fn an_option_is_read_as_its_type_or_refused_by_name() {
        let map = map();
        assert_eq!(map.integer("classes"), Ok(Some(3)));
        assert_eq!(map.number("classes"), Ok(Some(3.0)));
        assert_eq!(map.number("dropout"), Ok(Some(0.5)));
        assert_eq!(map.flag("tied"), Ok(Some(true)));
        assert_eq!(map.text("name"), Ok(Some("x")));
        assert_eq!(map.text("missing"), Ok(None));
        let error = map.integer("dropout").expect_err("it has a fraction").to_string();
        assert_eq!(error, "the option dropout is 0.5, but must be a whole number");
    }

    #[test]
    fn unknown_options_are_refused_with_the_known_ones() {
        assert_eq!(map().only(&["classes", "dropout", "tied", "name"]), Ok(()));
        let error = map().only(&["classes", "dropout"]).expect_err("two more").to_string();
        assert_eq!(error, "there is no option name: the options are classes, dropout");
        let error = map().only(&[]).expect_err("none").to_string();
        assert_eq!(error, "there is no option classes: there are none");
        let error = map().only(&["classes"]).expect_err("more").of("model.options").to_string();
        let words = "model.options.dropout is no option here: the options are classes";
        assert_eq!(error, words);
    }

    #[test]
    fn a_map_is_written_as_it_is_read() {
        let text = serde_json::to_string(&map()).expect("it can be written");
        assert_eq!(text, r#"{"classes":3,"dropout":0.5,"name":"x","tied":true}"#);
    }

    #[test]
    fn maps_beyond_the_bounds_are_refused() {
        let with = |name: &str, value| OptionMap([(name.to_string(), value)].into());
        let flag = OptionValue::Flag(true);
        for map in [
            with("", flag.clone()),
            with("two words", flag.clone()),
            with(&"x".repeat(65), flag.clone()),
            with("x", OptionValue::Number(f64::NAN)),
            with("x", OptionValue::Text("x".repeat(4097))),
            OptionMap((0..257).map(|index| (format!("x{index}"), flag.clone())).collect()),
        ] {
            let error = map.validate("model.options").expect_err("it is out of bounds");
            assert!(error.key.starts_with("model.options"), "{error}");
        }
        assert_eq!(map().validate("model.options"), Ok(()));
    }
}
