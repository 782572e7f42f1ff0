//! The rules of `ARCHITECTURE.md`: every invariant that it lists is tested, and the table below the
//! invariants lists every file that asserts one.

use std::collections::BTreeSet;

use super::source::Source;

/// The problems of the document, given all sources.
pub fn problems(text: &str, sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    let listed = invariants(text);
    if listed.is_empty() {
        problems.push("ARCHITECTURE.md: no lines like `- **I1** …` under `Invariants`".into());
    }
    let untested = listed.iter().filter(|name| !sources.iter().any(|s| is_tested_in(s, name)));
    problems.extend(untested.map(|name| format!("ARCHITECTURE.md: no test names {name}")));
    problems
}

/// The files of production that name an invariant in the message of an assertion, and that no row
/// of the table below the invariants lists together with it. A file of the errors of a module
/// counts as the module.
pub fn unlisted_assertions(text: &str, sources: &[Source]) -> Vec<String> {
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let mut problems = Vec::new();
    for source in sources.iter().filter(|it| is_production(&it.path)) {
        let module = source.path.replace("/error.rs", ".rs");
        for name in asserted(&source.text) {
            let lists = |row: &&&str| row.contains(&format!("`{module}`"));
            let mut cells = rows.iter().filter(lists).flat_map(|row| row.rsplit('|').nth(1));
            if !cells.any(|cell| cell.split([',', ' ']).any(|it| it == name)) {
                problems.push(format!("ARCHITECTURE.md: no row says that {module} asserts {name}"));
            }
        }
    }
    problems
}

fn is_production(path: &str) -> bool {
    path.contains("/src/") && !path.contains("/tests") && !path.starts_with("chaos/")
}

/// The invariants that begin a text in quotation marks, before the tests of the file.
fn asserted(text: &str) -> BTreeSet<String> {
    let end = text.find(concat!("#[cfg(", "test)]")).unwrap_or(text.len());
    let begun = text[..end].split("\"I").skip(1);
    let number = |rest: &str| rest.split_once(": ").and_then(|(it, _)| it.parse::<u32>().ok());
    begun.filter_map(number).map(|number| format!("I{number}")).collect()
}

/// The invariants (`I3`) listed in the section with `Invariants` in its heading.
fn invariants(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            inside = line.contains("Invariants");
        } else if inside {
            let name = line.strip_prefix("- **").and_then(|rest| rest.split_once("**"));
            let name = name.map(|(name, _)| name.trim_end_matches(['.', ':']));
            found.extend(name.filter(|name| name.starts_with('I')));
        }
    }
    found
}

/// Whether the tests of a file name an invariant, in a comment (`I3`) or in a name (`i3_…`).
fn is_tested_in(source: &Source, invariant: &str) -> bool {
    let (module, test) = (concat!("#[cfg(", "test)]"), concat!("#[", "test]"));
    let tests = match source.text.find(module) {
        Some(at) => &source.text[at..],
        None if source.text.contains(test) => &source.text,
        None => return false,
    };
    let name = invariant.to_lowercase();
    tests.to_lowercase().split(|c: char| !c.is_alphanumeric()).any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# The house\n- **I99** not here\n## Invariants\n- **I93** Same bits.\n\
                            - **I930.** More.\n- plain\n## Else\n- **I94** nor here\n";

    fn source(text: String) -> [Source; 1] {
        [Source { path: "src/a.rs".into(), text }]
    }

    #[test]
    fn an_invariant_that_no_test_names_is_found() {
        let test = concat!("#[", "test]");
        let sources = source(format!("// about i930\n{test}\nfn i93_copies_agree() {{}}\n"));
        assert_eq!(problems(DOCUMENT, &sources), [""; 0]);
        let sources = source(format!("{test}\nfn copies_agree() {{}} // I930\n"));
        assert_eq!(problems(DOCUMENT, &sources), ["ARCHITECTURE.md: no test names I93"]);
    }

    #[test]
    fn code_outside_tests_does_not_count() {
        let module = concat!("#[cfg(", "test)]");
        let sources = source(format!("// I93 and I930\n{module}\nmod tests {{}}\n"));
        assert_eq!(problems(DOCUMENT, &sources).len(), 2);
        assert_eq!(problems(DOCUMENT, &source("// I93 and I930\n".into())).len(), 2);
    }

    #[test]
    fn an_assertion_that_no_row_lists_is_found() {
        let mark = '"';
        let text = format!("assert!(a, {mark}I93: same{mark}); assert!(b, {mark}I9: b{mark});");
        let source = |path: &str| [Source { path: path.into(), text: text.clone() }];
        let row = "| moment | place | invariants |\n| a | `worker/src/a.rs`, `b.rs` | I9, I93 |\n";
        assert_eq!(unlisted_assertions(row, &source("worker/src/a.rs")), [""; 0]);
        assert_eq!(unlisted_assertions(row, &source("worker/src/a/error.rs")), [""; 0]);
        assert_eq!(unlisted_assertions(row, &source("worker/src/c.rs")).len(), 2);
        assert_eq!(unlisted_assertions(row, &source("worker/tests/c.rs")), [""; 0]);
        let less = row.replace("I93", "I94");
        let problem = "ARCHITECTURE.md: no row says that worker/src/a.rs asserts I93";
        assert_eq!(unlisted_assertions(&less, &source("worker/src/a.rs")), [problem]);
    }

    #[test]
    fn a_document_without_invariants_is_found() {
        assert_eq!(problems("# Nothing\n", &[]).len(), 1);
    }
}
