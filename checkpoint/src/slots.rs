//! The vectors that an owner holds of each shard: the master weights and the optimizer's moments.

use serde::{Deserialize, Serialize};

/// The first slot's name.
const MASTER: &str = "master";
/// Most slots of a checkpoint.
const MOST: usize = 16;

/// The names of a checkpoint's vectors, the master weights' first. A tensor's name in a part is the
/// shard's number and the slot's name: `000123.master`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Slots(Vec<String>);

impl Slots {
    /// Master weights, and so many moments of a built-in optimizer: none, `m`, or `m` and `v`.
    ///
    /// # Panics
    /// If there are more than two moments. An optimizer with more of them names them by
    /// [`Slots::named`].
    pub fn of_moments(count: usize) -> Self {
        assert!(count <= 2, "built-in optimizers have at most two moments");
        let moments = ["m", "v"].into_iter().take(count);
        Self(std::iter::once(MASTER).chain(moments).map(str::to_string).collect())
    }

    /// Master weights, and the named moments of a user's own optimizer.
    ///
    /// # Errors
    /// If two moments have one name, a name is not 1 to 32 lower-case letters, digits and `_`, or
    /// there are more than 15.
    pub fn named(moments: &[&str]) -> Result<Self, SlotsError> {
        let names = std::iter::once(MASTER).chain(moments.iter().copied());
        names.map(str::to_string).collect::<Vec<_>>().try_into()
    }

    /// The names in order, `master` first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The number of vectors, at least one.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The bytes that they take for each parameter.
    pub fn bytes_per_parameter(&self) -> u64 {
        4 * self.0.len() as u64
    }
}

/// Names that no checkpoint's slots have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "slots are \"master\" and at most 15 other names of 1 to 32 lower-case letters, digits and _"
)]
pub struct SlotsError;

impl TryFrom<Vec<String>> for Slots {
    type Error = SlotsError;

    fn try_from(names: Vec<String>) -> Result<Self, SlotsError> {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_name = |name: &String| (1..=32).contains(&name.len()) && name.bytes().all(is_plain);
        let is_repeated = |(at, name): (usize, &String)| names[..at].contains(name);
        let fits = names.first().is_some_and(|first| first == MASTER)
            && names.len() <= MOST
            && names.iter().all(is_name)
            && !names.iter().enumerate().any(is_repeated);
        if fits { Ok(Self(names)) } else { Err(SlotsError) }
    }
}

impl From<Slots> for Vec<String> {
    fn from(slots: Slots) -> Self {
        slots.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_built_in_optimizers() {
        for (moments, names) in
            [(0, vec!["master"]), (1, vec!["master", "m"]), (2, vec!["master", "m", "v"])]
        {
            let slots = Slots::of_moments(moments);
            assert_eq!(slots.names().collect::<Vec<_>>(), names);
            assert_eq!(slots.bytes_per_parameter(), 4 * names.len() as u64);
            assert_eq!(Slots::try_from(Vec::from(slots.clone())), Ok(slots));
        }
    }

    #[test]
    fn moments_of_an_own_optimizer_have_names_of_their_own() {
        let slots = Slots::named(&["factor_rows", "factor_columns", "step_2"]).expect("names");
        assert_eq!(slots.count(), 4);
        let long = "x".repeat(33);
        for wrong in [&["m", "m"][..], &["master"], &[""], &["M"], &["a.b"], &[long.as_str()]] {
            assert_eq!(Slots::named(wrong), Err(SlotsError), "{wrong:?}");
        }
        assert_eq!(Slots::try_from(vec![]), Err(SlotsError));
        assert_eq!(Slots::try_from(vec!["m".to_string()]), Err(SlotsError));
    }
}
