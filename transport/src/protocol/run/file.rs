//! A run as JSON in a file of its own, which states the number of its format.

use serde_json::Value;

use super::RunSpec;

/// The number of the format that is written and read.
const FORMAT: u64 = 1;
/// The key of the number. A file without it is of the first format.
const FORMAT_KEY: &str = "format";

/// Why a text is no run.
#[derive(Debug, thiserror::Error)]
pub enum RunFileError {
    /// It is no JSON, or no JSON of a run.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A later build wrote it.
    #[error(
        "it has format {found}, and this build of Everstep reads format {FORMAT}: use the build \
         that wrote it, or a later one"
    )]
    OtherFormat {
        /// What it states as its format.
        found: Value,
    },
}

/// A run with the number of its format.
#[derive(serde::Serialize)]
struct RunFile<'a> {
    format: u64,
    #[serde(flatten)]
    run: &'a RunSpec,
}

impl RunSpec {
    /// The text of the file.
    pub fn to_file(&self) -> String {
        let file = RunFile { format: FORMAT, run: self };
        serde_json::to_string_pretty(&file).expect("a specification is plain data") + "\n"
    }

    /// The run in the text of a file. The values may not be valid.
    ///
    /// # Errors
    /// [`RunFileError`].
    pub fn from_file(text: &[u8]) -> Result<Self, RunFileError> {
        let mut run: Value = serde_json::from_slice(text)?;
        let found = run.as_object_mut().and_then(|keys| keys.remove(FORMAT_KEY));
        match found {
            Some(found) if found != FORMAT => Err(RunFileError::OtherFormat { found }),
            _ => Ok(serde_json::from_value(run)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exemplars;

    #[test]
    fn i23_a_run_s_file_states_its_format_and_is_read_by_it_or_refused_by_it() {
        let run = RunSpec { seed: u64::MAX, ..exemplars::run() };
        let text = run.to_file();
        assert!(text.starts_with("{\n  \"format\": 1,\n  \"name\": "), "{text}");
        assert_eq!(RunSpec::from_file(text.as_bytes()).expect("a run"), run);
        let bare = serde_json::to_vec(&run).expect("JSON");
        assert_eq!(RunSpec::from_file(&bare).expect("of a build without the number"), run);
        let later = text.replace("\"format\": 1", "\"format\": 2");
        let refused = RunSpec::from_file(later.as_bytes()).expect_err("a later format").to_string();
        assert!(refused.starts_with("it has format 2, and this build"), "{refused}");
        for text in ["", "3", "{}", "{\"format\": 1}", "[1]"] {
            let refused = RunSpec::from_file(text.as_bytes());
            assert!(matches!(refused, Err(RunFileError::Json(_))), "{text}");
        }
    }
}
