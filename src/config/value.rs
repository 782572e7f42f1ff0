//! The meaning of a TOML value for a key, by the key's type.
//!
//! This module checks only types and names. The run specification checks whether a number makes
//! sense.

use everstep_transport::protocol::checkpoint::OnFailure;
use everstep_transport::protocol::run::{
    LossUnit, MAX_VOCABULARY, ModelSpec, OptionValue, Precision, ScheduleKind, TargetUnit,
    TokenType,
};
use everstep_transport::protocol::{Encoding, Rounding, RunSpec};
use toml::de::DeValue;

use crate::cli::duration;

/// A type that a key's value may have.
pub(super) trait Value: Sized {
    /// The expected form of the value, for an error about another form.
    const EXPECTED: &'static str;

    /// Reads the value. `None` if it has another form.
    fn from_toml(value: &DeValue<'_>) -> Option<Self>;
}

/// The norm that gradients are clipped to. `"none"` for no clipping.
pub(super) struct Clip(pub(super) Option<f64>);

impl Value for Clip {
    const EXPECTED: &'static str = "a number above 0, or \"none\"";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        if value.as_str() == Some("none") {
            return Some(Self(None));
        }
        f64::from_toml(value).map(|norm| Self(Some(norm)))
    }
}

/// A time in milliseconds, as text with its unit. `"never"` for none.
pub(super) struct OptionalDuration(pub(super) Option<u64>);

impl Value for OptionalDuration {
    const EXPECTED: &'static str = "a time such as \"10m\", or \"never\"";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str()? {
            "never" => Some(Self(None)),
            text => duration(text).ok().map(|span| Self(Some(span.as_millis() as u64))),
        }
    }
}

/// A time in milliseconds. The default is the time until a device is taken to hang.
pub(super) struct HangAfter(pub(super) u64);

impl Default for HangAfter {
    fn default() -> Self {
        Self(RunSpec::HANG_AFTER_MS)
    }
}

impl Value for HangAfter {
    const EXPECTED: &'static str = "a time such as \"10s\"";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        duration(value.as_str()?).ok().map(|span| Self(span.as_millis() as u64))
    }
}

/// The number of a model's tokens. The default is that of bytes.
pub(super) struct Vocabulary(pub(super) u32);

impl Default for Vocabulary {
    fn default() -> Self {
        Self(ModelSpec::VOCABULARY)
    }
}

impl Value for Vocabulary {
    const EXPECTED: &'static str = "a whole number from 2 to 16777216";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        u32::from_toml(value).filter(|tokens| (2..=MAX_VOCABULARY).contains(tokens)).map(Self)
    }
}

impl Value for [f64; 2] {
    const EXPECTED: &'static str = "two numbers, such as [0.9, 0.95]";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let numbers = value.as_array()?.iter().map(|number| f64::from_toml(number.get_ref()));
        numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
    }
}

impl Value for OptionValue {
    const EXPECTED: &'static str = "true, false, a number, or text in quotes";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Boolean(flag) => Some(Self::Flag(*flag)),
            DeValue::Integer(integer) => {
                i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(Self::Integer)
            }
            DeValue::Float(_) => f64::from_toml(value).map(Self::Number),
            DeValue::String(text) => Some(Self::Text(text.to_string())),
            _ => None,
        }
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "a whole number from 1 to 65536";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let integer = value.as_integer()?;
        Self::from_str_radix(integer.as_str(), integer.radix()).ok()
    }
}

impl Value for u64 {
    const EXPECTED: &'static str = "a whole number, not negative, below 2^64";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let integer = value.as_integer()?;
        Self::from_str_radix(integer.as_str(), integer.radix()).ok()
    }
}

impl Value for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) => {
                let integer = i64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
                Some(integer as Self)
            }
            _ => None,
        }
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_bool()
    }
}

impl Value for String {
    const EXPECTED: &'static str = "text in quotes";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().map(str::to_string)
    }
}

/// One text, or several joined by commas, as a flag has them.
pub(super) struct CommaList(pub(super) String);

impl Value for CommaList {
    const EXPECTED: &'static str = "text in quotes, or a list of such";

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let Some(list) = value.as_array() else { return String::from_toml(value).map(Self) };
        let words: Option<Vec<_>> =
            list.iter().map(|word| String::from_toml(word.get_ref())).collect();
        words.map(|words| Self(words.join(",")))
    }
}

/// A type with named values in the file.
macro_rules! names {
    ($type:ident: $what:literal, $($name:literal => $variant:ident),+) => {
        impl Value for $type {
            const EXPECTED: &'static str = $what;

            fn from_toml(value: &DeValue<'_>) -> Option<Self> {
                match value.as_str()? {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

names!(TokenType: "\"u16\" or \"u32\"", "u16" => U16, "u32" => U32);
names!(ScheduleKind: "\"constant\", \"cosine\" or \"linear\"",
    "constant" => Constant, "cosine" => Cosine, "linear" => Linear);
names!(Precision: "\"f32\", \"bf16\" or \"fp16\"",
    "f32" => F32, "bf16" => Bf16, "fp16" => F16);
names!(TargetUnit: "\"token\" or \"sample\"", "token" => Token, "sample" => Sample);
names!(LossUnit: "\"nats\" or \"none\"", "nats" => Nats, "none" => None);
names!(OnFailure: "\"continue\" or \"pause\"", "continue" => Continue, "pause" => Pause);
names!(Encoding: "\"f32\" or \"bf16\"", "f32" => F32, "bf16" => Bf16);
names!(Rounding: "\"nearest\" or \"stochastic\"", "nearest" => Nearest, "stochastic" => Stochastic);
