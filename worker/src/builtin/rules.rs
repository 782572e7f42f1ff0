//! What runs of the built-in models, and on the built-in data sets, must keep to.

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::{ModelSpec, SpecError};

use super::size;

/// Heads share the width. There are no options.
pub(super) fn gpt(run: &RunSpec) -> Result<(), SpecError> {
    let ModelSpec { width, heads, .. } = run.model;
    if !width.is_multiple_of(heads) {
        let problem = format!("is {heads}, which does not divide model.width = {width}");
        return Err(SpecError::new("model.heads", problem));
    }
    no_options(run)?;
    size::check(run, &size::gpt(run))
}

/// There is nothing to compute again, and there are no options.
pub(super) fn mlp(run: &RunSpec) -> Result<(), SpecError> {
    if run.model.recompute {
        let problem = "is true, and model.kind is \"mlp\", which has no blocks to compute again. \
                       Set it to false, or leave it out";
        return Err(SpecError::new("model.recompute", problem));
    }
    no_options(run)?;
    size::check(run, &size::mlp(run))
}

fn no_options(run: &RunSpec) -> Result<(), SpecError> {
    run.model.options.only(&[]).map_err(|error| error.of("model.options"))
}

/// Every byte is a token of the vocabulary.
pub(super) fn text(run: &RunSpec) -> Result<(), SpecError> {
    let vocabulary = run.model.vocabulary;
    if vocabulary < ModelSpec::VOCABULARY {
        let problem = format!(
            "is {vocabulary}, and data.kind is \"text\", of which every byte is a token, so it \
             must be {} or more",
            ModelSpec::VOCABULARY
        );
        return Err(SpecError::new("model.vocabulary", problem));
    }
    if run.data.dtype.is_some() {
        let problem = "is stated, and data.kind is \"text\", of which every byte is a token, so it \
                       must be left out";
        return Err(SpecError::new("data.dtype", problem));
    }
    Ok(())
}

/// There are no tokens by default.
pub(super) fn tokens(run: &RunSpec) -> Result<(), SpecError> {
    if run.data.path.is_empty() {
        let problem = "is not stated, and data.kind is \"tokens\". Name a file of tokens, a \
                       directory of such, or @LIST";
        return Err(SpecError::new("data.path", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::run::{OptionValue, TokenType};

    use crate::builtin::registry;

    use super::*;

    #[test]
    fn a_run_that_does_not_suit_its_model_or_data_is_refused_by_the_key_at_fault() {
        type Change = fn(&mut RunSpec);
        let table: [(Change, &str, &str); 7] = [
            (|r| r.model.heads = 3, "model.heads", "does not divide model.width = 8"),
            (
                |r| (r.model.kind, r.model.recompute) = ("mlp".into(), true),
                "model.recompute",
                "\"mlp\", which has no blocks",
            ),
            (
                |r| drop(r.model.options.0.insert("tied".into(), OptionValue::Flag(true))),
                "model.options.tied",
                "is no option here: there are none",
            ),
            (|r| r.model.vocabulary = 255, "model.vocabulary", "it must be 256 or more"),
            (|r| r.data.dtype = Some(TokenType::U16), "data.dtype", "it must be left out"),
            (
                |r| (r.data.kind, r.data.path) = ("tokens".into(), String::new()),
                "data.path",
                "Name a file of tokens",
            ),
            (|r| r.model.width = 0, "model.width", "is 0"),
        ];
        assert_eq!(registry().validate(&exemplars::run()), Ok(()));
        for (change, key, words) in table {
            let mut run = exemplars::run();
            change(&mut run);
            let error = registry().validate(&run).expect_err(key);
            assert_eq!(error.key, key);
            assert!(error.problem.contains(words), "{error}");
        }
    }
}
