//! The rule of `ARCHITECTURE.md`: every invariant that it lists is tested.

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
    fn a_document_without_invariants_is_found() {
        assert_eq!(problems("# Nothing\n", &[]).len(), 1);
    }
}
