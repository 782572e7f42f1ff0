//! A configuration file as flat keys (`model.heads`), each with its value and its line.
//!
//! There is no list of all keys. The known keys are those that the code asks for. At the end this
//! module rejects any other key of the file, and advises the nearest known one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use everstep_transport::protocol::run::{OptionMap, OptionValue};
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ValueSource, ValueSources};
use super::value::Value;

/// The keys in a file, the known keys, and where values were set.
#[derive(Default)]
pub(super) struct Keys<'a> {
    text: &'a str,
    stated: BTreeMap<String, toml::Spanned<DeValue<'a>>>,
    sections: BTreeMap<String, usize>,
    known: BTreeSet<&'static str>,
    places: ValueSources,
}

impl<'a> Keys<'a> {
    /// Parses a TOML text. `None` states nothing.
    pub(super) fn parse(file: Option<(&Path, &'a str)>) -> Result<Self, ConfigError> {
        let Some((path, text)) = file else { return Ok(Self::default()) };
        let root = DeTable::parse(text).map_err(|error| ConfigError {
            place: error.span().map_or(ValueSource::File(path.to_path_buf()), |span| {
                ValueSource::Line(path.to_path_buf(), line(text, span.start))
            }),
            problem: format!("this is not TOML: {}", error.message().replace('\n', ", ")),
            advice: "correct the line. Values look like `steps = 300` below `[run]`".into(),
        })?;
        let mut keys = Self { text, ..Self::default() };
        keys.places.path = Some(path.to_path_buf());
        for (name, value) in root.into_inner() {
            let at = line(text, name.span().start);
            let name = name.into_inner().into_owned();
            let span = value.span();
            match value.into_inner() {
                DeValue::Table(section) => keys.add_section(name, at, section),
                value => keys.add(name, at, toml::Spanned::new(span, value)),
            }
        }
        Ok(keys)
    }

    /// Forgets sections of another reader.
    pub(super) fn leave_out(&mut self, sections: &[&str]) {
        self.sections.retain(|name, _| !sections.contains(&&**name));
        self.stated.retain(|key, _| !sections.contains(&section(key)));
    }

    /// The value of `key` in the file.
    pub(super) fn read<T: Value>(&mut self, key: &'static str) -> Result<Option<T>, ConfigError> {
        self.known.insert(key);
        let Some(stated) = self.stated.get(key) else { return Ok(None) };
        let value = T::from_toml(stated.get_ref());
        value.map(Some).ok_or_else(|| {
            let problem = format!("is {}, but must be {}", self.shown(stated), T::EXPECTED);
            self.places.refusal(key, &problem)
        })
    }

    /// The options in the section `key`, such as `[model.options]`: any names, and plain values.
    pub(super) fn read_options(&mut self, key: &'static str) -> Result<OptionMap, ConfigError> {
        self.known.insert(key);
        let Some(stated) = self.stated.get(key) else { return Ok(OptionMap::default()) };
        let DeValue::Table(table) = stated.get_ref() else {
            let problem = format!(
                "is {}, but must be a section: write [{key}] on a line above the options",
                self.shown(stated)
            );
            return Err(self.places.refusal(key, &problem));
        };
        let mut options = OptionMap::default();
        for (name, value) in table {
            let key = format!("{key}.{}", name.get_ref());
            self.places.lines.insert(key.clone(), line(self.text, name.span().start));
            let Some(option) = OptionValue::from_toml(value.get_ref()) else {
                let problem =
                    format!("is {}, but must be {}", self.shown(value), OptionValue::EXPECTED);
                return Err(self.places.refusal(&key, &problem));
            };
            options.0.insert(name.get_ref().to_string(), option);
        }
        Ok(options)
    }

    /// The value of `flag` if it was given, else the value of `key` in the file.
    pub(super) fn read_or_flag<T: Value>(
        &mut self,
        key: &'static str,
        flag: &'static str,
        given: Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let stated = self.read(key)?;
        if given.is_some() {
            self.set_by_flag(key, flag);
        }
        Ok(given.or(stated))
    }

    /// Notes that the value of `key` comes from a flag.
    pub(super) fn set_by_flag(&mut self, key: &'static str, flag: &'static str) {
        self.places.flags.insert(key, flag);
    }

    /// Where values were set so far.
    pub(super) fn places(&self) -> &ValueSources {
        &self.places
    }

    /// Where values were set.
    pub(super) fn into_places(self) -> ValueSources {
        self.places
    }

    /// Refuses the first section or key of the file that is not known.
    pub(super) fn reject_unknown(&self) -> Result<(), ConfigError> {
        let known_sections: BTreeSet<&str> = self.known.iter().map(|key| section(key)).collect();
        let sections = self.sections.iter().filter(|(name, _)| !known_sections.contains(&***name));
        if let Some((name, line)) = sections.min_by_key(|(_, line)| **line) {
            let near = nearest(name, known_sections.iter().copied(), strsim::damerau_levenshtein);
            let advice = match near {
                Some(near) => format!("did you mean [{near}]?"),
                None => format!("the sections are {}", listed(known_sections.into_iter())),
            };
            return Err(self.unknown(*line, format!("unknown section [{name}]"), advice));
        }
        let keys = self.stated.keys().filter(|key| !self.known.contains(&***key));
        let lines = &self.places.lines;
        match keys.min_by_key(|key| lines.get(*key)) {
            Some(key) => Err(self.unknown_key(key)),
            None => Ok(()),
        }
    }

    fn unknown_key(&self, key: &str) -> ConfigError {
        let own = |known: &&&str| section(known) == section(key);
        let problem = format!("unknown key \"{key}\"");
        let advice = match nearest(key, self.known.iter().copied(), key_distance) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if self.known.iter().any(|known| own(&known)) => {
                let names = self.known.iter().filter(own).map(|known| name(known));
                format!("the keys of [{}] are {}", section(key), listed(names))
            }
            None if self.known.iter().any(|known| section(known) == key) => {
                format!("that is a section: write [{key}] on a line above its keys")
            }
            None => "every key stands in a section, such as `steps = 300` below `[run]`".into(),
        };
        let line = self.places.lines.get(key).copied().unwrap_or(1);
        self.unknown(line, problem, advice)
    }

    fn unknown(&self, line: usize, problem: String, advice: String) -> ConfigError {
        let path = self.places.path.clone().unwrap_or_default();
        ConfigError { place: ValueSource::Line(path, line), problem, advice }
    }

    fn add_section(&mut self, name: String, at: usize, section: DeTable<'a>) {
        for (key, value) in section {
            let at = line(self.text, key.span().start);
            self.add(format!("{name}.{}", key.get_ref()), at, value);
        }
        self.sections.insert(name, at);
    }

    fn add(&mut self, key: String, line: usize, value: toml::Spanned<DeValue<'a>>) {
        self.places.lines.insert(key.clone(), line);
        self.stated.insert(key, value);
    }

    /// The first line of a value, as the file writes it.
    fn shown(&self, value: &toml::Spanned<DeValue<'a>>) -> String {
        let source = self.text.get(value.span()).unwrap_or_default();
        source.lines().next().unwrap_or_default().chars().take(60).collect()
    }
}

/// The line, from 1, of a byte of `text`.
fn line(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// The section of a key.
pub(super) fn section(key: &str) -> &str {
    key.split_once('.').map_or("", |(section, _)| section)
}

/// A key's name within its section.
pub(super) fn name(key: &str) -> &str {
    key.split_once('.').map_or(key, |(_, name)| name)
}

/// How far a misspelt key is from a known one. The right name in a wrong section is near.
fn key_distance(stated: &str, known: &str) -> usize {
    let elsewhere = strsim::damerau_levenshtein(name(stated), name(known)) + 1;
    strsim::damerau_levenshtein(stated, known).min(elsewhere)
}

/// The candidate that `stated` was most likely meant to be, if any is near.
fn nearest<'k>(
    stated: &str,
    candidates: impl Iterator<Item = &'k str>,
    distance: impl Fn(&str, &str) -> usize,
) -> Option<&'k str> {
    let near = candidates.map(|candidate| (distance(stated, candidate), candidate)).min()?;
    (near.0 <= (name(stated).chars().count() / 3).max(1)).then_some(near.1)
}

fn listed<'k>(names: impl Iterator<Item = &'k str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
