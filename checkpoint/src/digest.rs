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

/// How many bytes BLAKE3 gets at once. It works on many chunks of 1 KiB side by side only where
/// they begin at a multiple of their number, and the step before the values shifts all of them.
const HASHED_AT_ONCE: usize = 64 << 10;

/// Takes [`shard_digest`] of bytes that arrive piece by piece.
pub(crate) struct ShardHasher {
    hasher: blake3::Hasher,
    /// Bytes that the hasher does not have yet: fewer than [`HASHED_AT_ONCE`].
    waiting: Vec<u8>,
}

impl ShardHasher {
    pub(crate) fn new(step: Step) -> Self {
        let mut waiting = Vec::with_capacity(HASHED_AT_ONCE);
        waiting.extend(step.0.to_le_bytes());
        Self { hasher: blake3::Hasher::new(), waiting }
    }

    /// The next values, little-endian.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = HASHED_AT_ONCE - self.waiting.len();
            let (next, later) = bytes.split_at(room.min(bytes.len()));
            self.waiting.extend_from_slice(next);
            if self.waiting.len() == HASHED_AT_ONCE {
                self.hasher.update(&self.waiting);
                self.waiting.clear();
            }
            bytes = later;
        }
    }

    pub(crate) fn finish(mut self) -> Digest {
        self.hasher.update(&self.waiting);
        Digest(*self.hasher.finalize().as_bytes())
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

    #[test]
    fn a_shards_digest_does_not_depend_on_the_pieces_in_which_its_bytes_come() {
        let values: Vec<u8> = (0..2 * HASHED_AT_ONCE + 5).map(|at| (at % 251) as u8).collect();
        let whole = [&9_u64.to_le_bytes()[..], &values].concat();
        let edges = [1, HASHED_AT_ONCE - 8, HASHED_AT_ONCE, values.len()];
        for piece in edges.into_iter().chain([4_096, 65_529]) {
            let mut hasher = ShardHasher::new(Step(9));
            values.chunks(piece).for_each(|bytes| hasher.update(bytes));
            assert_eq!(hasher.finish(), Digest::of(&whole), "pieces of {piece} bytes");
        }
    }
}
