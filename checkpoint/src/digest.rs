//! Digests: the leaf of the state hash, and how digests are written.

use std::fmt::{self, Debug, Display};
use std::str::FromStr;

use everstep_transport::protocol::Step;
use serde::{Deserialize, Serialize};

use crate::bytes_of::Encoder;

/// A BLAKE3 digest, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// The digest of a parameter shard at a step: BLAKE3 of the step, the master weights and the
/// moments, little-endian, in this order. It is the leaf of the run's state hash.
pub fn shard_digest<'a>(step: Step, slots: impl IntoIterator<Item = &'a [f32]>) -> Digest {
    let mut hasher = ShardHasher::new(step);
    let mut encoder = Encoder::default();
    for values in slots {
        encoder.each(values, &mut |bytes| hasher.update(bytes));
    }
    hasher.finish()
}

/// Takes [`shard_digest`] of bytes that arrive piece by piece.
pub(crate) struct ShardHasher(blake3::Hasher);

impl ShardHasher {
    pub(crate) fn new(step: Step) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&step.0.to_le_bytes());
        Self(hasher)
    }

    /// The next values, little-endian.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Text that is not 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 hexadecimal digits in lower case")]
pub struct DigestError;

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Result<u8, DigestError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(DigestError),
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_was_written_and_in_no_other_form() {
        let digest = Digest::of(b"abc");
        let text = digest.to_string();
        assert!(text.starts_with("6437b3ac38465133ffb63b75273a8db5"));
        assert_eq!(text.parse(), Ok(digest));
        for wrong in [&text[1..], &text.to_uppercase(), &format!("{text}0"), &"g".repeat(64)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
        assert!("ä".repeat(32).parse::<Digest>().is_err());
    }

    #[test]
    fn a_shards_digest_is_that_of_step_weights_and_moments_in_this_order() {
        let (master, moment) = ([1.0f32, -0.0, f32::NAN], [3.5f32, 4.0, 5.0]);
        let mut bytes = 500_u64.to_le_bytes().to_vec();
        master.iter().chain(&moment).for_each(|value| bytes.extend(value.to_le_bytes()));
        assert_eq!(shard_digest(Step(500), [&master[..], &moment]), Digest::of(&bytes));
        assert_ne!(shard_digest(Step(501), [&master[..], &moment]), Digest::of(&bytes));
    }
}
