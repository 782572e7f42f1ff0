//! What the figures of a run count: targets of which kind, and losses of which unit.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// What a model predicts: one target, by which its throughput is counted.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum TargetUnit {
    /// A token of a text. A sample has several.
    #[default]
    Token,
    /// A whole sample, such as an image.
    Sample,
}

/// The unit of a model's loss.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum LossUnit {
    /// The loss is a cross-entropy by natural logarithms.
    #[default]
    Nats,
    /// The loss has no unit, or only its model's author knows it.
    None,
}

/// The units of a run's figures.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
pub struct Units {
    /// What its throughput counts: `token` or `sample`.
    #[serde(default)]
    pub unit: TargetUnit,
    /// The unit of its losses: `nats` or `none`.
    #[serde(default)]
    pub loss_unit: LossUnit,
}

impl Units {
    /// A loss as a person reads it, with its unit: `2.250 nats`, or `2.250`.
    pub fn loss(self, loss: impl fmt::Display) -> String {
        match self.loss_unit {
            LossUnit::Nats => format!("{loss} nats"),
            LossUnit::None => loss.to_string(),
        }
    }

    /// A throughput as a person reads it: `51234 tokens/s`.
    pub fn throughput(self, per_second: f64) -> String {
        let targets = match self.unit {
            TargetUnit::Token => "tokens",
            TargetUnit::Sample => "samples",
        };
        format!("{per_second:.0} {targets}/s")
    }
}

impl TargetUnit {
    /// Whether it is the default.
    pub(super) fn is_token(&self) -> bool {
        *self == Self::Token
    }
}

impl LossUnit {
    /// Whether it is the default.
    pub(super) fn is_nats(&self) -> bool {
        *self == Self::Nats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_units_of_their_model() {
        let text = Units::default();
        assert_eq!((text.loss("2.250"), text.throughput(51_234.4)), {
            ("2.250 nats".into(), "51234 tokens/s".into())
        });
        let images = Units { unit: TargetUnit::Sample, loss_unit: LossUnit::None };
        assert_eq!((images.loss("0.125"), images.throughput(99.5)), {
            ("0.125".into(), "100 samples/s".into())
        });
    }
}
