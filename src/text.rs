//! The text of a run, as the launcher knows it: its files, and the loss of a bigram model on them.

use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::DataSpec;
use everstep_worker::data::{Text, bigram, default_text, text_files};

use crate::config::Resolved;
use crate::failure::{Exit, Failure};

/// The packages that Everstep was built from. Their sources are the default text.
const LOCKFILE: &str = include_str!("../Cargo.lock");
/// Bytes of held-out text at the beginning of a sample.
const PROMPT: usize = 96;

/// The source of a run's data.
pub(crate) enum RunText {
    /// A data set that is not text: tokens, or one that the program has registered.
    NotText,
    /// A path that the user named.
    Named,
    /// The default text: these files of cargo's sources.
    Default(Vec<PathBuf>),
}

/// What the end of a run is told with.
#[derive(Default)]
pub(crate) struct TextFacts {
    /// The cross-entropy of a bigram model on the run's held-out text, nats a byte.
    pub(crate) bigram: Option<f64>,
    /// The beginning of the held-out text.
    pub(crate) prompt: Option<Vec<u8>>,
}

impl RunText {
    /// Finds the text of a resolved run.
    pub(crate) fn find(resolved: &Resolved) -> Result<Self, Failure> {
        let data = &resolved.run.data;
        if data.kind != "text" {
            return Ok(Self::NotText);
        }
        if !data.path.is_empty() {
            return Ok(Self::Named);
        }
        let files = default_text::default_text(LOCKFILE, &cargo_home()).map_err(|error| {
            Failure::new(Exit::Usage, "there is no default text on this machine")
                .because(error)
                .next("name a file or a directory of text with --data")
        })?;
        Ok(Self::Default(files))
    }

    /// The text of a run that has begun. A default text is [`Self::Named`] here, too: by then the
    /// specification has the path of its list.
    pub(crate) fn of(run: &RunSpec) -> Self {
        if run.data.kind == "text" { Self::Named } else { Self::NotText }
    }

    /// The data with the path that every worker reads. The files of the default text are listed in
    /// `folder`. A path that the user stated stays.
    pub(crate) fn listed_in(&self, folder: &Path, data: &DataSpec) -> Result<DataSpec, Failure> {
        let Self::Default(files) = self else { return Ok(data.clone()) };
        let list = folder.join("data.list");
        let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
        std::fs::write(&list, lines).map_err(|error| {
            Failure::new(Exit::Failed, "the list of the default text cannot be written")
                .at(list.display())
                .because(error)
                .next("make room or choose another --dir")
        })?;
        Ok(DataSpec { path: format!("@{}", list.display()), ..data.clone() })
    }

    /// Reads the text. Without a text, or if it cannot be read any more, there are no facts.
    pub(crate) fn facts(&self, run: &RunSpec) -> TextFacts {
        let Some(text) = self.load(run) else { return TextFacts::default() };
        let held_out = text.held_out();
        let start = held_out.iter().position(|byte| *byte == b'\n').map_or(0, |line| line + 1);
        let prompt = &held_out[start..(start + PROMPT).min(held_out.len())];
        TextFacts {
            bigram: bigram::cross_entropy(text.training(), held_out),
            prompt: (!prompt.is_empty()).then(|| prompt.to_vec()),
        }
    }

    fn load(&self, run: &RunSpec) -> Option<Text> {
        if matches!(self, Self::NotText) {
            return None;
        }
        let files = text_files::resolve(&run.data.path);
        let text = files.and_then(|files| Text::load(&files, run.data.validation));
        text.inspect_err(|error| tracing::warn!(%error, "the text of the run cannot be read")).ok()
    }
}

fn cargo_home() -> PathBuf {
    let stated = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    stated.or_else(home).unwrap_or_else(|| ".cargo".into())
}
