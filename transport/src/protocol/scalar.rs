//! Scalars that a model or a script logs: named numbers beside the loss, and their means over a
//! step.
//!
//! A device adds each scalar of a data shard's micro-batches up, by their weights. The step leader
//! adds the data shards' sums in their order, and divides. So a mean has the same bits for any
//! number of workers. A name that some micro-batches leave out is a mean over the others.

use std::collections::BTreeMap;
use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// The most scalars of a step.
pub const MAX_SCALARS: usize = 16;
/// The most bytes of a name.
pub const MAX_NAME: usize = 32;

/// The name of a scalar: 1 to [`MAX_NAME`] ASCII letters, digits, and `_`, `-`, `.` and `/`. It has
/// a fixed size, so a peer can send no larger one.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScalarName {
    /// The characters, and then zeros.
    bytes: [u8; MAX_NAME],
}

impl ScalarName {
    /// This name, if it can be one.
    pub fn parse(name: &str) -> Option<Self> {
        let is_valid = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed);
        is_valid.then(|| {
            let mut bytes = [0; MAX_NAME];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            Self { bytes }
        })
    }

    /// The name in these bytes. Whatever they are, its characters are allowed ones: bytes from the
    /// first other one on do not count.
    pub fn of_bytes(mut bytes: [u8; MAX_NAME]) -> Self {
        let end = bytes.iter().position(|byte| !is_allowed(*byte)).unwrap_or(MAX_NAME);
        bytes[end..].fill(0);
        Self { bytes }
    }

    /// The characters, and then zeros.
    pub fn bytes(&self) -> &[u8; MAX_NAME] {
        &self.bytes
    }

    /// The name. Only a name that a peer has made up is empty.
    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| !is_allowed(*byte)).unwrap_or(MAX_NAME);
        std::str::from_utf8(&self.bytes[..end]).expect("allowed characters are ASCII")
    }
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./".contains(&byte)
}

impl fmt::Display for ScalarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ScalarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A scalar of a data shard, added up over its micro-batches.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct ScalarSum {
    /// What the script calls it.
    pub name: ScalarName,
    /// The values, each times the weight of its micro-batch.
    pub sum: f64,
    /// The weights of the micro-batches that have a value.
    pub weight: f64,
}

/// A scalar of a step: the mean over its micro-batches.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Scalar {
    /// What the script calls it.
    pub name: ScalarName,
    /// The mean of its values over the step, by the weights of the micro-batches.
    pub value: f64,
}

/// Adds a micro-batch's values to the sums of its data shard, which stay in the order of their
/// names. A data shard has no more than [`MAX_SCALARS`], and leaves out what comes later. A
/// micro-batch that weighs nothing counts for nothing, also if its values are no numbers.
pub fn add_micro_batch(sums: &mut Vec<ScalarSum>, values: &[Scalar], weight: f64) {
    for Scalar { name, value } in values.iter().filter(|_| weight > 0.0) {
        match sums.binary_search_by_key(name, |sum| sum.name) {
            Ok(place) => {
                sums[place].sum += value * weight;
                sums[place].weight += weight;
            }
            Err(place) if sums.len() < MAX_SCALARS => {
                sums.insert(place, ScalarSum { name: *name, sum: value * weight, weight });
            }
            Err(_) => {}
        }
    }
}

/// The means over the data shards whose sums come in their order: the first [`MAX_SCALARS`] by
/// name.
pub fn means<'a>(data_shards: impl Iterator<Item = &'a [ScalarSum]>) -> Vec<Scalar> {
    let mut totals: BTreeMap<ScalarName, (f64, f64)> = BTreeMap::new();
    for sum in data_shards.flatten() {
        let (value, weight) = totals.entry(sum.name).or_default();
        *value += sum.sum;
        *weight += sum.weight;
    }
    let mean =
        |(name, (value, weight)): (ScalarName, (f64, f64))| Scalar { name, value: value / weight };
    totals.into_iter().map(mean).take(MAX_SCALARS).collect()
}

/// Scalars in JSON: an object, so that no name hides a key of the line around it.
pub(super) mod as_object {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Scalar, ScalarName};

    pub fn serialize<S: Serializer>(scalars: &[Scalar], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(scalars.iter().map(|scalar| (scalar.name.as_str(), scalar.value)))
    }

    /// JSON has `null` in the place of a value that is not finite.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Scalar>, D::Error> {
        let found = BTreeMap::<String, Option<f64>>::deserialize(from)?;
        let scalar = |(name, value): (String, Option<f64>)| {
            let odd = || serde::de::Error::custom(format!("no scalar has the name {name:?}"));
            let parsed = ScalarName::parse(&name).ok_or_else(odd)?;
            Ok(Scalar { name: parsed, value: value.unwrap_or(f64::NAN) })
        };
        found.into_iter().map(scalar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ScalarName {
        ScalarName::parse(name).expect("a valid name")
    }

    fn scalar(of: &str, value: f64) -> Scalar {
        Scalar { name: name(of), value }
    }

    #[test]
    fn names_have_one_to_thirty_two_plain_characters() {
        for valid in ["a", "top-1", "grad/norm.x_2", &"n".repeat(32)] {
            assert_eq!(name(valid).as_str(), valid);
            assert_eq!(ScalarName::of_bytes(*name(valid).bytes()), name(valid));
        }
        for odd in ["", "a b", "é", "a\0", "\"", &"n".repeat(33)] {
            assert_eq!(ScalarName::parse(odd), None, "{odd:?}");
        }
        let hostile = ScalarName { bytes: [0xff; MAX_NAME] };
        assert_eq!((hostile.as_str(), ScalarName::of_bytes([0xff; MAX_NAME]).as_str()), ("", ""));
    }

    #[test]
    fn a_mean_is_over_the_micro_batches_that_have_the_name() {
        let mut first = Vec::new();
        add_micro_batch(&mut first, &[scalar("b", 1.0), scalar("a", 4.0)], 1.0);
        add_micro_batch(&mut first, &[scalar("b", 3.0)], 2.0);
        let mut second = Vec::new();
        add_micro_batch(&mut second, &[scalar("a", 1.0)], 3.0);
        add_micro_batch(&mut second, &[scalar("a", f64::NAN), scalar("c", 1.0)], 0.0);
        let means = means([first.as_slice(), second.as_slice()].into_iter());
        assert_eq!(means, [scalar("a", 7.0 / 4.0), scalar("b", 7.0 / 3.0)]);
    }

    #[test]
    fn a_step_has_sixteen_scalars_at_most_the_same_for_any_workers() {
        let many: Vec<Scalar> =
            (0..40).rev().map(|number| scalar(&format!("n{number:02}"), 1.0)).collect();
        let mut sums = Vec::new();
        add_micro_batch(&mut sums, &many, 1.0);
        assert_eq!(sums.len(), MAX_SCALARS);
        let others: Vec<ScalarSum> =
            many.iter().map(|it| ScalarSum { name: it.name, sum: 1.0, weight: 1.0 }).collect();
        let means = means([sums.as_slice(), others.as_slice()].into_iter());
        assert_eq!(means.len(), MAX_SCALARS);
        assert_eq!(means[0].name, name("n00"));
    }
}
