//! The optimizer of a run: its rule by name, its settings, and its learning rate.

use rkyv::{Archive, Deserialize, Serialize};

use super::{OptionMap, SpecError, refuse, text, within};

/// How the learning rate goes on after the warm-up.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// The rate stays the full one.
    Constant,
    /// The rate falls along half a cosine.
    Cosine,
    /// The rate falls along a line.
    Linear,
}

/// The optimizer with its settings.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq,
)]
#[serde(deny_unknown_fields)]
pub struct OptimizerSpec {
    /// `adamw`, `sgd`, `lion`, or a name that the user's program registered.
    pub kind: String,
    /// The rate after the warm-up.
    pub learning_rate: f64,
    /// Steps over which the rate rises from zero.
    pub warmup_steps: u64,
    /// How the rate goes on after the warm-up.
    pub schedule: ScheduleKind,
    /// The rate of the last step, as a share of the full rate, if the schedule falls.
    #[serde(default = "floor")]
    pub floor: f64,
    /// Decoupled weight decay, for tensors of two and more dimensions.
    pub weight_decay: f64,
    /// The greatest global norm of the gradient: a larger one is clipped to it. `None`: no
    /// clipping.
    pub clip_norm: Option<f64>,
    /// The shares that the running means of gradient and square keep at each step (adamw, lion).
    /// `None`: those of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// The number added to the root of the mean of squares, against division by zero (adamw).
    /// `None`: 1e-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// The share of the last step's direction that goes into the next one (sgd). `None`: 0.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// Options of an optimizer that the user's program registered.
    #[serde(default, skip_serializing_if = "OptionMap::is_empty")]
    pub options: OptionMap,
}

impl OptimizerSpec {
    /// The default rate of the last step, as a share: it still changes weights.
    pub const FLOOR: f64 = 0.1;

    /// Checks every value, whatever the rule.
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        text("optimizer.kind", &self.kind)?;
        within("optimizer.learning_rate", self.learning_rate, 0.0, 1e3)?;
        within("optimizer.floor", self.floor, 0.0, 1.0)?;
        within("optimizer.weight_decay", self.weight_decay, 0.0, 1e3)?;
        if let Some(norm) = self.clip_norm {
            if norm <= 0.0 {
                return refuse("optimizer.clip_norm", format!("is {norm}, but must be above 0"));
            }
            within("optimizer.clip_norm", norm, 0.0, 1e9)?;
        }
        for beta in self.betas.into_iter().flatten() {
            share("optimizer.betas", beta)?;
        }
        if let Some(momentum) = self.momentum {
            share("optimizer.momentum", momentum)?;
        }
        // As an f32, it must still be above 0.
        if let Some(epsilon) = self.epsilon.filter(|it| !((*it as f32) > 0.0 && *it <= 1.0)) {
            let problem = format!("is {epsilon}, but must be above 0 and at most 1");
            return refuse("optimizer.epsilon", problem);
        }
        self.options.validate("optimizer.options")
    }

    /// Refuses the settings of other rules: a stated one that is not among `known` would change
    /// nothing. The settings are `betas`, `epsilon` and `momentum`.
    pub fn only(&self, known: &[&str]) -> Result<(), SpecError> {
        let stated = [
            ("betas", "optimizer.betas", self.betas.map(|betas| format!("{betas:?}"))),
            ("epsilon", "optimizer.epsilon", self.epsilon.map(|epsilon| epsilon.to_string())),
            ("momentum", "optimizer.momentum", self.momentum.map(|momentum| momentum.to_string())),
        ];
        for (name, key, value) in stated {
            if let Some(value) = value.filter(|_| !known.contains(&name)) {
                let kind = &self.kind;
                let problem = format!(
                    "is {value}, and optimizer.kind is \"{kind}\", which has no such setting"
                );
                return refuse(key, problem);
            }
        }
        Ok(())
    }
}

fn floor() -> f64 {
    OptimizerSpec::FLOOR
}

fn share(key: &'static str, value: f64) -> Result<(), SpecError> {
    // As an f32, it must still be below 1.
    if !(value >= 0.0 && (value as f32) < 1.0) {
        return refuse(key, format!("is {value}, but must be at least 0 and below 1"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::protocol::exemplars;

    #[test]
    fn a_setting_of_another_rule_is_refused_by_name() {
        let mut optimizer = exemplars::run().optimizer;
        assert_eq!(optimizer.only(&[]), Ok(()), "none is stated");
        optimizer.kind = "sgd".into();
        optimizer.betas = Some([0.5, 0.75]);
        assert_eq!(optimizer.only(&["epsilon", "betas"]), Ok(()));
        let told = optimizer.only(&["momentum"]).expect_err("it is of other rules").to_string();
        let words = "optimizer.betas is [0.5, 0.75], and optimizer.kind is \"sgd\", which has no \
                     such setting";
        assert_eq!(told, words);
    }

    #[test]
    fn a_setting_that_no_rule_can_have_is_refused() {
        let refused = |betas, epsilon, momentum| {
            let mut run = exemplars::run();
            let optimizer = &mut run.optimizer;
            (optimizer.betas, optimizer.epsilon, optimizer.momentum) = (betas, epsilon, momentum);
            run.validate().err().map(|error| error.key.into_owned())
        };
        assert_eq!(refused(Some([0.0, 0.999]), Some(1.0), Some(0.0)), None);
        for [low, high] in [[-0.1, 0.9], [0.9, 1.0], [0.9, f64::NAN], [1.0 - 1e-9, 0.9]] {
            let told = refused(Some([low, high]), None, None);
            assert_eq!(told.as_deref(), Some("optimizer.betas"), "{low} {high}");
        }
        for epsilon in [0.0, 1e-60, -1e-8, 1.5, f64::NAN] {
            let told = refused(None, Some(epsilon), None);
            assert_eq!(told.as_deref(), Some("optimizer.epsilon"), "{epsilon}");
        }
        assert_eq!(refused(None, None, Some(1.0)).as_deref(), Some("optimizer.momentum"));
    }
}
