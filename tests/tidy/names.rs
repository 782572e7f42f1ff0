//! The rules of names: one name has one meaning in a crate, and a duration is named by its subject.

use std::collections::BTreeMap;

use super::source::Source;

/// What defines a type.
const DEFINITIONS: [&str; 5] = ["struct ", "enum ", "trait ", "union ", "type "];

/// Type names that a crate's production code defines more than once, and constants without a
/// subject, in words.
pub fn problems(sources: &[Source]) -> Vec<String> {
    let mut types: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| is_production(&source.path)) {
        for (number, line) in (1..).zip(production(&source.text).lines()) {
            let place = format!("{}:{number}", source.path);
            if let Some(name) = defined_type(line) {
                let key = (crate_of(&source.path), name.to_string());
                types.entry(key).or_default().push(place);
            } else if let Some(name) = vague_constant(line) {
                problems.push(format!("{place}: {name} does not say what it bounds"));
            }
        }
    }
    let repeated = types.into_iter().filter(|(_, places)| places.len() > 1);
    problems.extend(repeated.map(|((_, name), places)| {
        format!("{}: {name} is defined more than once: {}", places[0], places[1..].join(", "))
    }));
    problems
}

fn crate_of(path: &str) -> String {
    path.split("src/").next().unwrap_or_default().to_string()
}

/// Whether the file is part of a crate, and no test.
pub fn is_production(path: &str) -> bool {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    (path.starts_with("src/") || path.contains("/src/")) && !is_test
}

/// The text before a module of tests at its end.
pub fn production(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default()
}

/// The name of the type that a line defines. Types that belong to a trait are no definitions.
fn defined_type(line: &str) -> Option<&str> {
    let item = without_visibility(line.trim_start());
    let keyword = DEFINITIONS.into_iter().find(|keyword| item.starts_with(keyword))?;
    if keyword == "type " && line.starts_with(' ') {
        return None;
    }
    item[keyword.len()..].split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

fn without_visibility(item: &str) -> &str {
    match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(item, |(_, it)| it),
        Some(rest) => rest.trim_start(),
        None => item,
    }
}

/// Words that say how somebody feels about a bound, and not what it bounds.
const MOODS: [&str; 9] =
    ["PATIENCE", "PAUSE", "PAUSES", "AGAIN", "SOON", "CALM", "COURTESY", "BREATH", "GLANCE"];

/// The name of a constant without a subject: a duration of one word, or a bound named for a mood.
fn vague_constant(line: &str) -> Option<&str> {
    let item = without_visibility(line.trim_start());
    let item = item.strip_prefix("const ").or_else(|| item.strip_prefix("static "))?;
    let (name, kind) = item.split_once(": ")?;
    let is_vague = kind.starts_with("Duration") && !name.contains('_') || MOODS.contains(&name);
    is_vague.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source { path: path.to_string(), text: text.to_string() };
        problems(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn a_type_name_that_is_defined_twice_in_a_crate_is_found() {
        let twice =
            [("a/src/lib.rs", "pub struct Plan;"), ("a/src/b.rs", "  pub(super) enum Plan {}")];
        let words = found(&twice);
        assert_eq!(words.len(), 1);
        assert!(words[0].contains("Plan") && words[0].contains("a/src/b.rs:1"), "{words:?}");
        let elsewhere = [
            ("a/src/lib.rs", "struct Plan;\n#[cfg(test)]\nmod tests {\n    struct Plan;\n}"),
            ("b/src/lib.rs", "struct Plan;"),
            ("a/src/lib/tests.rs", "struct Plan;"),
            ("a/tests/plan.rs", "struct Plan;"),
            ("a/src/c.rs", "    type Plan = u8;\nstruct Plans;"),
        ];
        assert!(found(&elsewhere).is_empty());
    }

    #[test]
    fn a_constant_without_a_subject_is_found() {
        for vague in ["const LIMIT: Duration = Duration::from_secs(1);", "const PATIENCE: u32 = 3;"]
        {
            assert_eq!(found(&[("a/src/lib.rs", vague)]).len(), 1, "{vague}");
        }
        let named =
            "pub const DIAL_TIMEOUT: Duration = Duration::from_secs(1);\nconst MOST: u64 = 1;";
        assert!(found(&[("a/src/lib.rs", named)]).is_empty());
    }
}
