//! The rule of the replicated state: it holds values, and makes no sentences of them.
//!
//! All coordinators must come to the same bytes, also while some of them run an earlier build. A
//! sentence that one of the builds words in another way would make their states differ (I14).

use super::names::{is_production, production};
use super::source::Source;

/// The replicated state and its modules.
const STATE: [&str; 2] = ["coordinator/src/state.rs", "coordinator/src/state/"];

/// What makes a sentence of a value, or of a literal.
const SENTENCES: [&str; 4] = ["format!(", "to_string", "\".into()", "String::from(\""];

/// The lines of the replicated state that make a sentence.
pub fn problems(sources: &[Source]) -> Vec<String> {
    let is_state = |path: &str| STATE.iter().any(|place| path.starts_with(place));
    let of_state =
        sources.iter().filter(|source| is_state(&source.path) && is_production(&source.path));
    let problems = of_state.flat_map(|source| {
        (1..).zip(production(&source.text).lines()).filter_map(|(number, line)| {
            let code = line.split("//").next().unwrap_or_default();
            let word = SENTENCES.into_iter().find(|word| code.contains(word))?;
            let place = format!("{}:{number}", source.path);
            Some(format!("{place}: `{word}` makes a sentence: keep a value, and word it outside"))
        })
    });
    problems.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        problems(&[Source { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn a_sentence_that_the_state_makes_is_found() {
        for line in [
            "let why = format!(\"{worker} is gone\");",
            "let why = rejection.to_string();",
            "let why = labels.map(ToString::to_string);",
            "let why = \"it was cancelled\".into();",
            "let why = String::from(\"it was cancelled\");",
        ] {
            for path in ["coordinator/src/state.rs", "coordinator/src/state/a/b.rs"] {
                assert_eq!(found(path, line), 1, "{path}: {line}");
            }
            assert_eq!(found("transport/src/protocol/outcome/sentence.rs", line), 0, "{line}");
            assert_eq!(found("coordinator/src/state/a/tests.rs", line), 0, "{line}");
            let test = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{line}\n}}\n");
            assert_eq!(found("coordinator/src/state/a.rs", &test), 0, "{line}");
        }
        assert_eq!(found("coordinator/src/state.rs", "// no format!( here\nlet a = b.into();"), 0);
    }
}
