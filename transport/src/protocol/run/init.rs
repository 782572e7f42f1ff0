//! Initial weights that come from elsewhere.

use rkyv::{Archive, Deserialize, Serialize};

use super::SpecError;

/// Where the initial weights of a model are, and which ones they must be.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Debug,
    PartialEq,
    Eq,
)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// A safetensors file or a folder of weights: a path that all workers see, or a URL.
    pub path: String,
    /// BLAKE3 of all weights in the order of the model's flat vector, f32, little-endian, as 64
    /// hexadecimal digits. It decides the bits of the run, and the path does not.
    pub digest: String,
}

impl InitSpec {
    /// The longest path or URL, bytes.
    const LONGEST_PATH: usize = 4_096;

    /// Weights that nothing has read yet: their digest is of zeros.
    pub fn unread(path: String) -> Self {
        Self { path, digest: "0".repeat(64) }
    }

    /// Checks both values. The error names the first that is not valid.
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let path = &self.path;
        if path.is_empty() || path.len() > Self::LONGEST_PATH || path.contains(char::is_control) {
            let problem = "must be a file, a folder or a URL, without control characters";
            return Err(SpecError::new("model.init", problem));
        }
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if self.digest.len() != 64 || !self.digest.bytes().all(is_digit) {
            let problem = "has a digest that is not 64 hexadecimal digits";
            return Err(SpecError::new("model.init", problem));
        }
        Ok(())
    }
}
