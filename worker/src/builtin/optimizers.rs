//! The optimizers that every program has. Settings that a run does not state have the values that
//! the papers propose.

use everstep_kernels::optimizer::{Optimizer, Rule};
use everstep_transport::protocol::run::{OptimizerSpec, SpecError};

use crate::registry::{Registry, of_setting};

/// Makes the rule that a run's optimizer asks for.
type MakeRule = fn(&OptimizerSpec) -> Result<Rule, SpecError>;

/// Adds `adamw`, `lion` and `sgd`.
pub(crate) fn register(registry: Registry) -> Registry {
    let rules: [(&str, MakeRule); 3] = [("adamw", adamw), ("lion", lion), ("sgd", sgd)];
    rules.into_iter().fold(registry, |registry, (name, rule)| {
        registry.checked_optimizer(name, move |run| {
            let spec = &run.optimizer;
            spec.options.only(&[]).map_err(|error| error.of("optimizer.options"))?;
            Optimizer::new(rule(spec)?, spec.weight_decay as f32).map_err(of_setting)
        })
    })
}

fn adamw(spec: &OptimizerSpec) -> Result<Rule, SpecError> {
    spec.only(&["betas", "epsilon"])?;
    let [beta1, beta2] = spec.betas.unwrap_or([0.9, 0.95]).map(|beta| beta as f32);
    Ok(Rule::AdamW { beta1, beta2, epsilon: spec.epsilon.unwrap_or(1e-8) as f32 })
}

fn lion(spec: &OptimizerSpec) -> Result<Rule, SpecError> {
    spec.only(&["betas"])?;
    let [beta1, beta2] = spec.betas.unwrap_or([0.9, 0.99]).map(|beta| beta as f32);
    Ok(Rule::Lion { beta1, beta2 })
}

fn sgd(spec: &OptimizerSpec) -> Result<Rule, SpecError> {
    spec.only(&["momentum"])?;
    Ok(Rule::Sgd { momentum: spec.momentum.unwrap_or(0.9) as f32 })
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::RunSpec;
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::run::OptionValue;

    use super::*;

    fn run(kind: &str) -> RunSpec {
        let mut run = exemplars::run();
        run.optimizer.kind = kind.into();
        run
    }

    /// Other defaults would give every run another hash.
    #[test]
    fn what_a_run_does_not_state_is_as_it_always_was() {
        let spec = run("any").optimizer;
        let (beta1, beta2) = (0.9, 0.95);
        assert_eq!(adamw(&spec), Ok(Rule::AdamW { beta1, beta2, epsilon: 1e-8 }));
        assert_eq!(sgd(&spec), Ok(Rule::Sgd { momentum: 0.9 }));
        assert_eq!(lion(&spec), Ok(Rule::Lion { beta1: 0.9, beta2: 0.99 }));
    }

    #[test]
    fn stated_settings_reach_their_rule() {
        let mut spec = run("any").optimizer;
        (spec.betas, spec.epsilon) = (Some([0.5, 0.25]), Some(0.125));
        let (beta1, beta2) = (0.5, 0.25);
        assert_eq!(adamw(&spec), Ok(Rule::AdamW { beta1, beta2, epsilon: 0.125 }));
        spec.epsilon = None;
        assert_eq!(lion(&spec), Ok(Rule::Lion { beta1, beta2 }));
        (spec.betas, spec.momentum) = (None, Some(0.0));
        assert_eq!(sgd(&spec), Ok(Rule::Sgd { momentum: 0.0 }));
    }

    #[test]
    fn settings_of_other_rules_and_options_are_refused_by_their_key() {
        type Change = fn(&mut OptimizerSpec);
        let table: [(&str, Change, &str); 5] = [
            ("adamw", |spec| spec.momentum = Some(0.5), "optimizer.momentum"),
            ("lion", |spec| spec.epsilon = Some(0.5), "optimizer.epsilon"),
            ("sgd", |spec| spec.betas = Some([0.5; 2]), "optimizer.betas"),
            ("sgd", |spec| spec.kind = "sdg".into(), "optimizer.kind"),
            (
                "lion",
                |spec| drop(spec.options.0.insert("nesterov".into(), OptionValue::Flag(true))),
                "optimizer.options.nesterov",
            ),
        ];
        for (kind, change, key) in table {
            let mut run = run(kind);
            assert_eq!(Registry::new().validate(&run), Ok(()));
            change(&mut run.optimizer);
            let error = Registry::new().validate(&run).expect_err("it is refused");
            assert_eq!(error.key, key, "{error}");
        }
    }
}
