//! The rule of the replicated state: it holds values, and makes no sentences of them.
//!
//! All coordinators must come to the same bytes, also while some of them run an earlier build. A
//! sentence that one of the builds words in another way would make their states differ (I14). The
//! core proposes the entries that change the state, so it puts no sentence of its own into them.
//! The rule sees that only where the value and its sentence stand on one line.

use super::names::{is_production, production};
use super::source::Source;

/// The replicated state and its modules.
const STATE: [&str; 2] = ["coordinator/src/state.rs", "coordinator/src/state/"];

/// The core, and what a value of an entry that it proposes begins with.
const CORE: [&str; 2] = ["coordinator/src/core.rs", "coordinator/src/core/"];
const PROPOSED: [&str; 4] = ["Command::", "EventKind::", "Reason::", "Cause::"];

/// What makes a sentence of a value, or of a literal.
const SENTENCES: [&str; 4] = ["format!(", "to_string", "\".into()", "String::from(\""];

/// The lines of the replicated state, and of what is proposed for it, that make a sentence.
pub fn problems(sources: &[Source]) -> Vec<String> {
    let is_in = |places: [&str; 2], path: &str| places.iter().any(|place| path.starts_with(place));
    let problems = sources.iter().filter(|source| is_production(&source.path)).flat_map(|source| {
        let (is_state, is_core) = (is_in(STATE, &source.path), is_in(CORE, &source.path));
        (1..).zip(production(&source.text).lines()).filter_map(move |(number, line)| {
            let code = line.split("//").next().unwrap_or_default();
            let is_proposed = is_core && PROPOSED.iter().any(|value| code.contains(value));
            let is_sentence = |word: &&str| (is_state || is_proposed) && code.contains(word);
            let word = SENTENCES.into_iter().find(is_sentence)?;
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

    #[test]
    fn a_sentence_that_the_core_puts_into_an_entry_is_found() {
        for (line, problems) in [
            ("let loss = LossReason::ProcessEnded(\"has ended\".into());", 1),
            ("Command::Note { run, kind: EventKind::Failed { reason: why.to_string() } }", 1),
            ("let cause = UnableCause::Words(format!(\"{lack} is missing\"));", 1),
            ("let cause = UnableCause::Words(bounded(&words));", 0),
            ("let status = format!(\"{worker} is away\");", 0),
        ] {
            for path in ["coordinator/src/core.rs", "coordinator/src/core/a/b.rs"] {
                assert_eq!(found(path, line), problems, "{path}: {line}");
            }
            assert_eq!(found("coordinator/src/core/tests.rs", line), 0, "{line}");
        }
    }
}
