"""What must hold of the measures of the house.

    python3 -m unittest discover tests/house
"""
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import measure  # noqa: E402
import rust  # noqa: E402

FILE = '''\
//! A file; it has one function.

/// Its size.
pub struct Plan<T> {
    /// How many steps
    /// the run has.
    pub steps: u64,
    whole: T,
}

impl<T> Iterator for Plan<T> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        None
    }
}

pub fn load(
    path: &str,
) -> Result<Vec<u8>, String> {
    // The leader asks.
    unsafe { read(path) }
}

#[cfg(test)]
mod tests {
    struct Plan;

    fn short() {}
}
'''


class Rust(unittest.TestCase):
    def setUp(self):
        self.production, self.tests = rust.split_tests(FILE.splitlines())

    def test_items_of_a_tests_build_are_not_production(self):
        self.assertEqual((len(self.production), len(self.tests)), (25, 6))
        self.assertEqual(self.tests[0], "#[cfg(test)]")
        kept, declared = rust.split_tests(["#[cfg(test)]", "mod tests;", "fn f() {}"])
        self.assertEqual((kept, declared), (["fn f() {}"], ["#[cfg(test)]", "mod tests;"]))
        loom = ["#[cfg(all(test, loom))]", "mod loom {", "}"]
        self.assertEqual(rust.split_tests(loom), ([], loom))

    def test_lines_are_code_comments_or_blank(self):
        self.assertEqual(rust.kinds(self.production), (15, 5, 5))

    def test_functions_are_measured_from_signature_to_brace(self):
        self.assertEqual(rust.functions(self.production), [3, 6])
        self.assertEqual(rust.functions(self.tests), [1])
        self.assertEqual(rust.functions(["trait T {", "    fn declared(&self);", "}"]), [])

    def test_types_fields_and_methods_are_counted(self):
        self.assertEqual(rust.types(self.production), ["Plan"])
        self.assertEqual(list(rust.fields(self.production)), [("Plan", 2)])
        self.assertEqual(rust.methods(self.production), {"Plan": 1})

    def test_prose_is_counted_without_its_code(self):
        self.assertEqual(rust.prose(self.production), (17, 0, 1))
        code = ["/// Whoever asks", "// ```", "// a; b; c", "// ```"]
        self.assertEqual(rust.prose(code), (2, 1, 0))

    def test_style_counts_sentences_and_words_without_a_name(self):
        code = ["/// Whatever one asks, the other", "/// answers. It is done!"]
        self.assertEqual(rust.style(code), (9, 2, 1, 2))
        self.assertEqual(rust.style(["// It waits 1.5 s."]), (4, 1, 0, 0))

    def test_lines_of_planted_bugs_are_counted(self):
        code = ['#[cfg(feature = "planted")]', '#[cfg(all(test, feature = "planted"))]',
                '#[cfg(feature = "loom")]', "let planted = true;"]
        self.assertEqual(rust.planted(code), 2)

    def test_messages_are_counted_without_names_keys_and_values(self):
        code = ['fn f(c: char) -> bool { c == \'"\' } // "no string of code"',
                'let name = "a_key"; let why = "it waits; {who} leads";',
                'say("a long \\', '     message says more")', 'let path = r#"one "raw" string here"#;']
        self.assertEqual(rust.messages(code), ["it waits;  leads", "a long message says more",
                                               'one "raw" string here'])
        self.assertEqual(rust.counted(["it waits;  leads", "whose is it"]), (6, 1, 1))

    def test_prose_of_python_is_its_comments_and_documentation(self):
        text = '"""A file."""\n\ndef f():\n    """Waits."""\n    return "no prose"  # a note\n'
        self.assertEqual(measure.python_prose(text), ["# a note", "A file.", "Waits."])

    def test_short_documentation_and_errors_as_text_are_found(self):
        self.assertEqual(rust.short_docs(self.production), 1)
        self.assertEqual(rust.text_errors(self.production), 1)

    def test_parameters_that_are_tuples_are_counted(self):
        code = ["fn f(", "    &self,", "    // A pair, of numbers.", "    (a, b): (u8, u8),",
                "    c: &mut (A, B),", ") {", "}",
                "fn g<F: Fn((u8, u8)) -> u8>(f: F, unit: (), one: [(u8, u8); 2]) -> (u8, u8);",
                "fn h<'a>(a: &'a (A, B), b: impl FnOnce() -> (A, B), c: Vec<(A, B)>) {}"]
        self.assertEqual(rust.tuple_parameters(code), 3)
        self.assertEqual(rust.tuple_parameters(self.production), 0)

    def test_unsafe_code_without_its_reason_is_found(self):
        self.assertEqual(rust.unsafe_without_reason(self.production), 1)
        reasoned = [it.replace("The leader asks.", "SAFETY: none.") for it in self.production]
        self.assertEqual(rust.unsafe_without_reason(reasoned), 0)


# Documentation comments of three words or fewer in production: the number may only fall.
MOST_SHORT_DOCS = 24

# Type names that more than one crate defines: one idea seen from two sides, such as the link of an
# endpoint and the link of a core, general words, or names that only one module knows. The number
# may only fall.
MOST_SHARED_NAMES = 77

# Parameters that are tuples: pairs of one kind, such as the two ends of a road, keys of maps, and
# streams that another crate hands out as a pair. The number may only fall.
MOST_TUPLE_PARAMETERS = 10

# Semicolons in a thousand words. Those of messages are in commands for a shell and in media types.
# The number may only fall.
MOST_IN_THOUSAND = {"messages of production": 0.5, "prose of Python": 4.0}

MANIFEST = """\
[workspace]
members = [
    ".", "chaos", "chaos/failpoint",
    "worker",
]
"""


class Measures(unittest.TestCase):
    def test_the_crates_are_the_members_of_the_workspace(self):
        self.assertEqual(measure.members(MANIFEST), ["everstep", "chaos", "worker"])
        self.assertEqual(measure.members(""), ["everstep"])

    def test_each_file_is_counted_in_its_crate_and_part(self):
        crates = ["everstep", "chaos", "worker", "kernels"]
        for path, crate, part in [
            ("worker/src/step.rs", "worker", "production"),
            ("worker/src/step/tests.rs", "worker", "src tests"),
            ("worker/src/step/tests/vote.rs", "worker", "src tests"),
            ("worker/tests/step.rs", "worker", "tests/"),
            ("kernels/benches/peak.rs", "kernels", "benches, examples"),
            ("chaos/failpoint/src/lib.rs", "chaos", "production"),
            ("src/lib.rs", "everstep", "production"),
            ("tests/tidy/names.rs", "everstep", "tests/"),
        ]:
            found = (measure.crate_of(path, crates), measure.part_of(path))
            self.assertEqual(found, (crate, part), path)

    def test_a_table_has_a_column_for_each_tree_and_a_row_for_each_crate(self):
        before = measure.Tree({"src/a.rs": FILE, "vendor/raft/src/b.rs": FILE})
        after = measure.Tree({"src/a.rs": FILE, "src/b.rs": FILE, "chaos/src/c.rs": FILE,
                              "Cargo.toml": MANIFEST})
        text = measure.report({"before": before, "after": after})
        self.assertIn("| **product**: production, the simulator apart | **25** | **50** |", text)
        self.assertIn("| most methods, number 2 | none | `chaos::Plan` 1 |", text)
        self.assertIn("| unsafe without `SAFETY:` | 1 | 3 |", text)
        self.assertIn("| type names of more than one crate | 0 | 1 |", text)
        self.assertEqual(text.count("| everstep | "), 2)
        self.assertIn("| everstep | 50 | 12 | 0 | 0 | 0 | 25.0 % | 1 | 0.0 | 58.8 |", text)

    def test_every_crate_of_this_repository_has_a_row(self):
        tree = measure.Tree(measure.read_working_tree())
        manifests = [path for path in tree.files if path.endswith("/Cargo.toml")]
        packages = {path.partition("/")[0] for path in manifests} | {measure.ROOT_CRATE}
        self.assertGreater(len(packages), 5)
        self.assertEqual({crate for crate, _ in tree.lines}, packages)
        text = measure.crates(tree)
        for package in packages:
            self.assertRegex(text, rf"(?m)^\| {package} \| [0-9,]*[1-9]", package)
        self.assertGreater(len(rust.functions(tree.of())), 1000)

    def test_short_documentation_becomes_no_more(self):
        tree = measure.Tree(measure.read_working_tree())
        found = {path: rust.short_docs(lines) for path, lines in tree.production.items()}
        most = sorted(found.items(), key=lambda it: -it[1])[:10]
        self.assertLessEqual(sum(found.values()), MOST_SHORT_DOCS, f"most of them in {most}")

    def test_type_names_of_more_than_one_crate_become_no_more(self):
        found = measure.shared(measure.Tree(measure.read_working_tree()))
        self.assertLessEqual(len(found), MOST_SHARED_NAMES, found)

    def test_parameters_that_are_tuples_become_no_more(self):
        tree = measure.Tree(measure.read_working_tree())
        found = {path: rust.tuple_parameters(lines) for path, lines in tree.production.items()}
        where = {path: count for path, count in found.items() if count}
        self.assertLessEqual(sum(found.values()), MOST_TUPLE_PARAMETERS, where)

    def test_messages_and_python_say_things_plainly(self):
        tree = measure.Tree(measure.read_working_tree())
        rows = dict(measure.prose(tree))
        for what, most in MOST_IN_THOUSAND.items():
            self.assertGreater(int(rows[f"{what}: words"].replace(",", "")), 5_000)
            self.assertLess(float(rows[f"{what}: who-words in 1,000"]), 1, what)
            self.assertLessEqual(float(rows[f"{what}: semicolons in 1,000"]), most, what)

    def test_the_document_names_commits_that_exist(self):
        if measure.git("rev-parse", "--is-shallow-repository").strip() != b"false":
            self.skipTest("a shallow clone lacks the history")
        text = (measure.ROOT / "docs/house.md").read_text()
        commands = re.findall(r"^tests/house/measure\.py((?: [0-9a-f]{7,40})+)", text, re.MULTILINE)
        commits = " ".join(commands).split()
        self.assertEqual(len(commits), 2, text[:500])
        for commit in commits:
            measure.git("merge-base", "--is-ancestor", commit, "HEAD")
            self.assertIn(f"## {commit}", text)


if __name__ == "__main__":
    unittest.main()
