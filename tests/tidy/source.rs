//! The rules of a source file: its size, its words, its unsafe code, and the names that a core may
//! use.

/// A source file, its path relative to the workspace, with forward slashes.
pub struct Source {
    /// The path.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// Where unsafe code may be: devices and their memory, and the memory of tensors that another
/// runtime owns.
const UNSAFE_HOMES: [&str; 3] = ["kernels/", "python/src/memory.rs", "python/src/engine.rs"];

const LINE_WIDTH: usize = 100;
const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 500;
const TEST_FILE_LINES: usize = 800;

/// The attribute that marks a core module. It is split, as are all words below, so that this file
/// does not contain what it looks for.
pub const CORE_ATTRIBUTE: &str = concat!("#![deny(clippy::", "disallowed_");

const FORBIDDEN: [(&str, &str); 7] = [
    (concat!("#[ig", "nore"), "a test that does not run proves nothing"),
    (concat!("to", "do!("), "finish it, or leave it out"),
    (concat!("unimpl", "emented!("), "finish it, or leave it out"),
    (concat!("TO", "DO"), "finish it, or leave it out"),
    (concat!("FIX", "ME"), "finish it, or leave it out"),
    (concat!("fn g", "et_"), "name it after what it returns"),
    (concat!("allow(dead_", "code)"), "remove what has no use"),
];

const VAGUE_MODULES: [&str; 7] =
    ["manager", "helper", "helpers", "util", "utils", "common", "misc"];

const SHELL: [&str; 9] = [
    "async fn",
    ".await",
    "tokio::",
    "quinn::",
    "actix::",
    "std::thread",
    "std::fs",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// All problems of a file, each with its place.
pub fn problems(source: &Source) -> Vec<String> {
    let mut problems = sizes(source);
    problems.extend(words(source));
    problems.extend(unsafe_code(source));
    problems
}

/// The core modules: the modules with the attribute, and the modules inside them.
pub fn cores(sources: &[Source]) -> Vec<&Source> {
    let declared = |source: &&Source| source.text.lines().any(|l| l.starts_with(CORE_ATTRIBUTE));
    let homes: Vec<&str> = sources
        .iter()
        .filter(declared)
        .map(|source| source.path.trim_end_matches("/mod.rs").trim_end_matches(".rs"))
        .collect();
    let inside = |path: &str| {
        homes.iter().any(|home| {
            path.strip_prefix(home).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    sources.iter().filter(|source| inside(&source.path)).collect()
}

/// Names in a core that only a shell may use.
pub fn shell_in_core(core: &Source) -> Vec<String> {
    let found = |line: &str| SHELL.iter().find(|word| has_word(code(line), word));
    let problem = |(at, word)| place(core, at, &format!("a core does not use `{word}`"));
    numbered(core)
        .filter_map(|(at, line)| found(line).map(|word| (at, word)))
        .map(problem)
        .collect()
}

/// Whether a line has these words, and not only as the beginning of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |rest: &str| {
        word.ends_with(char::is_alphanumeric)
            && rest.starts_with(|next: char| next.is_alphanumeric() || next == '_')
    };
    line.match_indices(word).any(|(at, found)| !is_part(&line[at + found.len()..]))
}

fn sizes(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let is_test =
        format!("/{}", source.path).contains("/tests/") || source.path.ends_with("/tests.rs");
    let most = if is_test { TEST_FILE_LINES } else { FILE_LINES };
    let mut problems = Vec::new();
    if lines.len() > most {
        problems.push(format!("{}: {} lines, at most {most}", source.path, lines.len()));
    }
    for (at, line) in numbered(source) {
        let width = line.chars().count();
        if width > LINE_WIDTH {
            problems.push(place(source, at, &format!("{width} columns, at most {LINE_WIDTH}")));
        }
    }
    for (at, length) in functions(&lines) {
        if length > FUNCTION_LINES {
            let problem = format!("a function of {length} lines, at most {FUNCTION_LINES}");
            problems.push(place(source, at, &problem));
        }
    }
    problems
}

/// The line (from 1) and the length of every function. Relies on rustfmt: a body ends with the
/// first closing brace at the indentation of its `fn`.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let starts = (0..lines.len()).filter(|at| is_function(lines[*at]));
    starts.filter_map(|start| Some((start + 1, 1 + last_line(&lines[start..])?))).collect()
}

fn is_function(line: &str) -> bool {
    let words = ["pub", "const", "async", "unsafe", "extern", "\"C\"", "default"];
    let mut rest = line.trim_start().split(' ');
    let first = rest.find(|word| !words.contains(word) && !word.starts_with("pub("));
    first == Some("fn")
}

/// The index of a function's last line, counted from its first line as 0. None if the text ends
/// before.
fn last_line(lines: &[&str]) -> Option<usize> {
    let depth = indentation(lines[0]);
    lines.iter().position(|line| {
        let own = indentation(line) == depth;
        let declared = own && line.ends_with(';');
        let in_one = own && line.ends_with('}') && line.contains('{');
        own && line.trim_start().starts_with('}') || declared || in_one
    })
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn words(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, line) in numbered(source) {
        for (word, reason) in FORBIDDEN {
            if line.contains(word) {
                problems.push(place(source, at, &format!("`{word}`: {reason}")));
            }
        }
    }
    let path = source.path.trim_end_matches(".rs").replace('/', "_");
    for vague in VAGUE_MODULES {
        if path.split('_').any(|word| word == vague) {
            problems.push(format!("{}: `{vague}` does not say what is in it", source.path));
        }
    }
    problems
}

fn unsafe_code(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut problems = Vec::new();
    for (at, _) in numbered(source).filter(|(_, line)| is_unsafe(line)) {
        if !UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home)) {
            problems.push(place(source, at, "unsafe code outside of its homes"));
        }
        let near = &lines[at.saturating_sub(6)..at];
        if !near.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
            problems.push(place(source, at, "unsafe code without its reason (`// SAFETY:`)"));
        }
    }
    problems
}

fn is_unsafe(line: &str) -> bool {
    let keyword = concat!("uns", "afe");
    code(line).match_indices(keyword).any(|(at, _)| {
        let free = line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let rest = line[at + keyword.len()..].trim_start();
        free && ["{", "fn ", "impl", "trait ", "extern "].iter().any(|word| rest.starts_with(word))
    })
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn numbered(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    source.text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn place(source: &Source, line: usize, problem: &str) -> String {
    format!("{}:{line}: {problem}", source.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    fn function(lines: usize) -> String {
        format!("impl X {{\n    pub fn f() {{\n{}    }}\n}}\n", "        g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_tidy_file_has_no_problems() {
        let text = format!("//! A file.\n{}{}\n", function(70), "x".repeat(100));
        assert_eq!(problems(&source("src/a.rs", &text)), [""; 0]);
    }

    #[test]
    fn long_lines_functions_and_files_are_found() {
        for (path, text, problem) in [
            ("src/a.rs", "ä".repeat(101), "src/a.rs:1: 101 columns, at most 100"),
            ("src/a.rs", function(71), "src/a.rs:2: a function of 71 lines, at most 70"),
            ("src/a.rs", "\n".repeat(501), "src/a.rs: 501 lines, at most 500"),
            ("tests/a.rs", "\n".repeat(801), "tests/a.rs: 801 lines, at most 800"),
            ("x/tests/a.rs", "\n".repeat(801), "x/tests/a.rs: 801 lines, at most 800"),
            ("x/src/tests.rs", "\n".repeat(801), "x/src/tests.rs: 801 lines, at most 800"),
        ] {
            assert_eq!(problems(&source(path, &text)), [problem]);
        }
        assert_eq!(problems(&source("tests/a.rs", &"\n".repeat(800))), [""; 0]);
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let text = "fn one() {}\n\
                    trait T {\n    fn declared(\n        a: u8,\n    ) -> u8;\n}\n\
                    pub(crate) const fn long<T>(\n    a: T,\n)\nwhere\n    T: Copy,\n{\n    \
                    if a {\n    }\n}\n\
                    pub extern \"C\" fn c() {\n}\n\
                    // fn not_me() {\nlet f = |x| x;\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(functions(&lines), [(1, 1), (3, 3), (7, 9), (16, 2)]);
    }

    #[test]
    fn forbidden_words_and_vague_modules_are_found() {
        for (word, _) in FORBIDDEN {
            let text = format!("// {word}\n");
            assert_eq!(problems(&source("src/a.rs", &text)).len(), 1, "{word}");
        }
        for path in ["src/util.rs", "src/task_manager.rs", "src/common/a.rs", "x/src/helpers.rs"] {
            assert_eq!(problems(&source(path, "")).len(), 1, "{path}");
        }
        assert_eq!(problems(&source("src/utility.rs", "")), [""; 0]);
    }

    #[test]
    fn unsafe_code_needs_a_reason_and_a_place_in_kernels() {
        let block = concat!("let a = uns", "afe { f() };\n");
        let reason = "// SAFETY: f reads nothing.\n";
        assert_eq!(problems(&source("kernels/src/a.rs", &format!("{reason}{block}"))), [""; 0]);
        assert_eq!(problems(&source("kernels/src/a.rs", block)).len(), 1);
        assert_eq!(problems(&source("worker/src/a.rs", &format!("{reason}{block}"))).len(), 1);
        let words = concat!("// no uns", "afe { here\n#![forbid(uns", "afe_code)]\n");
        assert_eq!(problems(&source("worker/src/a.rs", words)), [""; 0]);
    }

    #[test]
    fn a_core_is_the_module_with_the_attribute_and_what_is_inside() {
        let attribute = format!("{CORE_ATTRIBUTE}types)]\n");
        let sources = [
            source("worker/src/step.rs", &attribute),
            source("worker/src/step/vote.rs", "use tokio::sync;\n// tokio::spawn\n"),
            source("worker/src/stepping.rs", ""),
            source("worker/src/daemon.rs", &format!("// {attribute}")),
        ];
        let paths: Vec<&str> = cores(&sources).iter().map(|core| &*core.path).collect();
        assert_eq!(paths, ["worker/src/step.rs", "worker/src/step/vote.rs"]);
        assert_eq!(
            shell_in_core(&sources[1]),
            ["worker/src/step/vote.rs:1: a core does not use `tokio::`"]
        );
    }
}
