//! The names of everything in a store: pure functions, and their inverses.
//!
//! A name comes from a listing or from a manifest, so it is hostile until it is an [`ObjectName`].
//! Only the canonical spelling of a name is one: no `..`, no absolute path, no second spelling of
//! the same step. So a name can neither leave the store nor stand for another object.

use std::fmt::{self, Display};
use std::str::FromStr;

pub use everstep_transport::protocol::checkpoint::{MODEL_FILE, step_folder};
use everstep_transport::protocol::{CheckpointId, Generation, Step, WorkerId};
use serde::{Deserialize, Serialize};

/// The longest name of a plain file, bytes: most file systems take no longer ones.
const LONGEST_FILE_NAME: usize = 200;

/// The name of one object in a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// `claims/000007.json`: a cluster's claim to write here.
    Claim(u64),
    /// `probes/00f1e2d3c4b5a697`: what a [probe](crate::store::probe) writes and deletes.
    Probe(u64),
    /// `step-000500/manifest.json`: the content list of a checkpoint. It makes the checkpoint
    /// complete.
    Manifest(Step),
    /// `step-000500/g0007-w12.safetensors`: the shards of one primary.
    Part(Step, PartName),
    /// A file at the top: `model.safetensors`, `config.json`.
    File(FileName),
    /// `history/000500-g0007.metrics.jsonl`: the metrics lines up to a checkpoint, from the one
    /// before.
    Lines(CheckpointId),
    /// `history/000500-g0007.events.jsonl`: the events up to a checkpoint, from the one before.
    Events(CheckpointId),
}

impl ObjectName {
    /// The folder of the object, without a slash. Empty at the top.
    pub fn folder(&self) -> String {
        match self {
            Self::Claim(_) => "claims".into(),
            Self::Probe(_) => "probes".into(),
            Self::Manifest(step) | Self::Part(step, _) => step_folder(*step),
            Self::File(_) => String::new(),
            Self::Lines(_) | Self::Events(_) => "history".into(),
        }
    }

    /// The step of the checkpoint that the object belongs to.
    pub fn step(&self) -> Option<Step> {
        match self {
            Self::Manifest(step) | Self::Part(step, _) => Some(*step),
            Self::Claim(_) | Self::Probe(_) | Self::File(_) => None,
            // It outlives the checkpoint.
            Self::Lines(_) | Self::Events(_) => None,
        }
    }
}

impl Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(number) => write!(f, "claims/{number:06}.json"),
            Self::Probe(nonce) => write!(f, "probes/{nonce:016x}"),
            Self::Manifest(step) => write!(f, "{}/manifest.json", step_folder(*step)),
            Self::Part(step, part) => write!(f, "{}/{part}", step_folder(*step)),
            Self::File(name) => write!(f, "{name}"),
            Self::Lines(id) => write!(f, "history/{}.metrics.jsonl", Saved(*id)),
            Self::Events(id) => write!(f, "history/{}.events.jsonl", Saved(*id)),
        }
    }
}

impl FromStr for ObjectName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let name = match text.split_once('/') {
            None => FileName::from_str(text).ok().map(Self::File),
            Some(("claims", file)) => file.strip_suffix(".json").and_then(number).map(Self::Claim),
            Some(("history", file)) => saved(file),
            Some(("probes", nonce)) => u64::from_str_radix(nonce, 16).ok().map(Self::Probe),
            Some((folder, file)) => {
                let step = folder.strip_prefix("step-").and_then(number).map(Step);
                match file {
                    "manifest.json" => step.map(Self::Manifest),
                    _ => step.zip(part(file)).map(|(step, part)| Self::Part(step, part)),
                }
            }
        };
        canonical(name, text)
    }
}

/// A checkpoint in a file's name: `000500-g0007`.
struct Saved(CheckpointId);

impl Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}-g{:04}", self.0.step.0, self.0.generation.0)
    }
}

/// The file name of a checkpoint's part: `g0007-w12.safetensors`, or `g0007-w12-c2.safetensors` if
/// the second cluster that has claimed the store wrote it. Its writer is the worker of one
/// registration in one generation of one cluster, so no two writers ever share a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartName {
    /// The generation in which the part was written. Its step may be of an earlier one.
    pub generation: Generation,
    /// The primary that wrote the part.
    pub worker: WorkerId,
    /// The number of its cluster's [claim](crate::claims), from 1.
    pub claim: u64,
}

impl Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{:04}-w{}", self.generation.0, self.worker.0)?;
        if self.claim > 1 {
            write!(f, "-c{}", self.claim)?;
        }
        f.write_str(".safetensors")
    }
}

impl FromStr for PartName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        canonical(part(text), text)
    }
}

impl TryFrom<String> for PartName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<PartName> for String {
    fn from(name: PartName) -> Self {
        name.to_string()
    }
}

/// The name of a file at the top of a store: letters, digits, `.`, `_` and `-`, at most 200 bytes.
/// It does not begin with a dot, so it is not hidden, and it is no folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

impl FileName {
    /// The weights that `transformers` and Everstep read.
    pub fn weights() -> Self {
        Self(MODEL_FILE.into())
    }

    /// The list of weight files of a model that has several.
    pub fn weights_index() -> Self {
        Self("model.safetensors.index.json".into())
    }

    /// The description of a model that `transformers` reads.
    pub fn config() -> Self {
        Self("config.json".into())
    }
}

impl Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FileName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = (1..=LONGEST_FILE_NAME).contains(&text.len()) && text.bytes().all(plain);
        // A reserved name would be the folder of other objects. A partial file is not whole.
        let is_free = !["claims", "probes", "history"].contains(&text) && !text.ends_with(PARTIAL);
        if fits && is_free && !text.starts_with('.') && !text.starts_with("step-") {
            return Ok(Self(text.into()));
        }
        Err(NameError { name: shown(text) })
    }
}

/// A name that nothing in a store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is not the name of anything in a store")]
pub struct NameError {
    name: String,
}

/// The end of the name of an unfinished file in a directory.
pub(crate) const PARTIAL: &str = ".partial";

/// Foreign text for a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    let safe = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(80).map(safe).collect()
}

fn canonical<T: Display>(name: Option<T>, text: &str) -> Result<T, NameError> {
    let same = name.filter(|name| name.to_string() == text);
    same.ok_or_else(|| NameError { name: shown(text) })
}

fn part(file: &str) -> Option<PartName> {
    let numbers = file.strip_prefix('g')?.strip_suffix(".safetensors")?;
    let (generation, worker) = numbers.split_once("-w")?;
    let (worker, claim) = worker.split_once("-c").unwrap_or((worker, "1"));
    let (generation, worker) = (Generation(number(generation)?), WorkerId(number(worker)?));
    Some(PartName { generation, worker, claim: number(claim)? })
}

/// What goes along with a checkpoint, by its file's name.
fn saved(file: &str) -> Option<ObjectName> {
    let (checkpoint, kind) = file.split_once('.')?;
    let (step, generation) = checkpoint.split_once("-g")?;
    let (step, generation) = (Step(number(step)?), Generation(number(generation)?));
    let id = CheckpointId { step, generation };
    match kind {
        "metrics.jsonl" => Some(ObjectName::Lines(id)),
        "events.jsonl" => Some(ObjectName::Events(id)),
        _ => None,
    }
}

/// A number that consists of digits alone: `parse` would take a sign, too.
fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_name() -> impl Strategy<Value = ObjectName> {
        let part = |(generation, worker, claim): (u64, u64, u64)| PartName {
            generation: Generation(generation),
            worker: WorkerId(worker),
            claim: claim.max(1),
        };
        let id = |(step, generation)| CheckpointId {
            step: Step(step),
            generation: Generation(generation),
        };
        prop_oneof![
            any::<(u64, u64)>().prop_map(move |it| ObjectName::Lines(id(it))),
            any::<(u64, u64)>().prop_map(move |it| ObjectName::Events(id(it))),
            any::<u64>().prop_map(ObjectName::Claim),
            any::<u64>().prop_map(ObjectName::Probe),
            any::<u64>().prop_map(|step| ObjectName::Manifest(Step(step))),
            (any::<u64>(), any::<(u64, u64, u64)>())
                .prop_map(move |(step, it)| ObjectName::Part(Step(step), part(it))),
            "[A-Za-z0-9_][A-Za-z0-9._-]{0,30}"
                .prop_filter_map("a file's name", |text| text.parse().ok().map(ObjectName::File)),
        ]
    }

    /// Pieces of names, in any order.
    const PIECES: &str =
        "(step-|claims|probes|history|-?g|\\.\\.|[0-9]{1,7}|/|\\.json|manifest|-w|[a-z.]){0,8}";

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(name in any_name()) {
            prop_assert_eq!(name.to_string().parse(), Ok(name));
        }

        #[test]
        fn whatever_is_a_name_stays_inside_the_store_and_has_one_spelling(
            text in PIECES
        ) {
            if let Ok(name) = text.parse::<ObjectName>() {
                prop_assert_eq!(name.to_string(), text.clone());
                prop_assert!(text.split('/').count() <= 2);
                prop_assert!(text.split('/').all(|it| !it.is_empty() && !it.starts_with('.')));
            }
        }
    }

    #[test]
    fn names_by_table() {
        let part = PartName { generation: Generation(7), worker: WorkerId(12), claim: 1 };
        let other = PartName { claim: 2, ..part };
        let id = CheckpointId { step: Step(500), generation: Generation(7) };
        for (name, text) in [
            (ObjectName::Part(Step(500), part), "step-000500/g0007-w12.safetensors"),
            (ObjectName::Part(Step(500), other), "step-000500/g0007-w12-c2.safetensors"),
            (ObjectName::Manifest(Step(500)), "step-000500/manifest.json"),
            (ObjectName::Manifest(Step(12_345_678)), "step-12345678/manifest.json"),
            (ObjectName::Lines(id), "history/000500-g0007.metrics.jsonl"),
            (ObjectName::Events(id), "history/000500-g0007.events.jsonl"),
            (ObjectName::Claim(7), "claims/000007.json"),
            (ObjectName::Probe(0xab), "probes/00000000000000ab"),
            (ObjectName::File(FileName::weights()), "model.safetensors"),
        ] {
            assert_eq!((name.to_string().as_str(), text.parse()), (text, Ok(name)));
        }
    }

    #[test]
    fn hostile_names_are_none() {
        for text in [
            "",
            "/",
            "..",
            "../manifest.json",
            "step-000500/../../etc/passwd",
            "/etc/passwd",
            "step-500/manifest.json",
            "step-+00500/manifest.json",
            "step-0000500/manifest.json",
            "step-99999999999999999999999/manifest.json",
            "step-000500/manifest.json/",
            "step-000500//manifest.json",
            "step-000500/g7-w12.safetensors",
            "step-000500/g0007-w012.safetensors",
            "step-000500/g0007-w12-c0.safetensors",
            "step-000500/g0007-w12-c1.safetensors",
            "step-000500/g0007-w12-c02.safetensors",
            "step-000500/g0007-w12-c2-c3.safetensors",
            "step-000500/g0007-w12.safetensors.partial",
            "step-000500",
            "claims/7.json",
            "claims",
            "history",
            "history/500-g0007.metrics.jsonl",
            "history/000500-g0007.jsonl",
            "history/000500.metrics.jsonl",
            "probes/AB00000000000000",
            ".hidden",
            "a\0b",
            "a b",
            "ä",
            "x.partial",
        ] {
            assert!(text.parse::<ObjectName>().is_err(), "{text:?}");
        }
        assert!("x".repeat(201).parse::<ObjectName>().is_err());
        let told = "a\u{1b}[2Jb/c".parse::<ObjectName>().unwrap_err().to_string();
        assert!(!told.contains('\u{1b}'), "a terminal would obey: {told:?}");
    }
}
