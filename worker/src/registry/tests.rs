//! Names that are registered, and the rules that come with them.

use everstep_kernels::optimizer::{UpdateBlock, UpdateInputs};
use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::run::{OptionMap, OptionValue};

use super::*;

#[test]
fn an_unknown_name_is_answered_with_those_that_are_for_users() {
    let models = [".measure", "gpt", "mlp"].map(String::from);
    let error = build("model", "gtp", None::<&()>, models.iter(), |()| Ok(()));
    let error = error.expect_err("it is unknown");
    let words = "there is no model named \"gtp\". This program has gpt, mlp";
    assert_eq!(BuildError::from(error), BuildError::Run(words.into()));
}

#[test]
fn an_error_of_the_place_stays_one() {
    let reason = || Err::<(), _>(BuildError::Place("the disk says no".into()));
    let error = build("data set", "text", Some(&()), [].iter(), |()| reason());
    let error = BuildError::from(error.expect_err("it cannot be built"));
    assert_eq!(error.inability(), Inability::Place);
    assert_eq!(error.to_string(), "cannot build the data set \"text\": the disk says no");
}

/// A rule with a setting that is an option.
#[derive(Debug)]
struct Scaled(f32);

impl UpdateRule for Scaled {
    fn moments(&self) -> usize {
        0
    }

    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        for (weight, slope) in block.weights.iter_mut().zip(block.gradient) {
            *weight -= self.0 * inputs.learning_rate * slope;
        }
    }
}

fn registry() -> Registry {
    Registry::new().optimizer(".hidden", |_| Err("never".into())).optimizer("scaled", |run| {
        run.optimizer.options.only(&["scale"])?;
        let scale = run.optimizer.options.number("scale")?;
        Ok(Arc::new(Scaled(scale.unwrap_or(1.0) as f32)))
    })
}

fn run_with(kind: &str, options: &[(&str, OptionValue)]) -> RunSpec {
    let mut run = exemplars::run();
    run.optimizer.kind = kind.into();
    let options = options.iter().map(|(name, value)| (name.to_string(), value.clone()));
    run.optimizer.options = OptionMap(options.collect());
    run
}

#[test]
fn an_optimizer_of_ones_own_is_built_by_its_name_with_its_options() {
    let scale = [("scale", OptionValue::Number(0.5))];
    let optimizer = registry().build_optimizer(&run_with("scaled", &scale)).expect("a rule");
    assert_eq!(optimizer.state_vectors(), 1);
    let told = |kind: &str, options: &[(&str, OptionValue)]| {
        let error = registry().validate(&run_with(kind, options)).expect_err("it is refused");
        (error.key.into_owned(), error.problem)
    };
    let (key, problem) = told("scaled", &[("scale", OptionValue::Flag(true))]);
    assert_eq!(key, "optimizer.kind");
    assert!(problem.contains("the option scale is true, but must be a number"), "{problem}");
    let (_, problem) = told("scaled", &[("scales", OptionValue::Number(1.0))]);
    assert!(problem.contains("there is no option scales: the options are scale"), "{problem}");
    let (key, problem) = told("adam", &[]);
    let words = "is \"adam\", which is no optimizer of this program. Use \"adamw\", \
                 \"lion\", \"scaled\" or \"sgd\"";
    assert_eq!((&*key, &*problem), ("optimizer.kind", words));
}

#[test]
fn a_run_keeps_to_the_rules_of_its_model_and_of_its_data_set() {
    let refuse = |key: &'static str| move |_: &RunSpec| Err(SpecError::new(key, "is refused"));
    let rules = Registry::new()
        .model("a", |_, _| Err("never".into()))
        .model_rules("a", refuse("model.kind"))
        .dataset("b", |_| Err("never".into()))
        .dataset_rules("b", refuse("data.kind"));
    let key = |model: &str, data: &str| {
        let mut run = exemplars::run();
        (run.model.kind, run.data.kind) = (model.into(), data.into());
        rules.validate(&run).err().map(|error| error.key.into_owned())
    };
    assert_eq!(key("a", "b").as_deref(), Some("model.kind"));
    assert_eq!(key("other", "b").as_deref(), Some("data.kind"));
    assert_eq!(key("other", "other"), None, "what is not there has no rules");
}
