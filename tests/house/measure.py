#!/usr/bin/env python3
"""The measures of the house, as tables in Markdown: sizes, functions, names, prose.

    tests/house/measure.py                    # the working tree
    tests/house/measure.py 0123abc HEAD       # commits, one a column

Needs git and Python alone, and builds nothing. `vendor/` is third-party code, and is not measured.
"""
import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from math import ceil
from pathlib import Path
from statistics import median
from typing import Dict, Iterable, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).parent))
import rust  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# The crate at the root of the workspace, and the simulator, which is no part of the product.
ROOT_CRATE = "everstep"
SIMULATOR = "chaos"
PARTS = ["production", "inline tests", "src tests", "tests/", "benches, examples"]
TESTS = PARTS[1:4]
OTHER = {"CUDA": (".cu", ".cuh"), "C++": (".cpp", ".h"), "Python": (".py",),
         "shell": (".sh", ".ci/run"), "Markdown": (".md",)}
# How many of the largest structs and types are listed.
LISTED = 5

Row = Tuple[str, str]


class Tree:
    """The files of one commit, or of the working tree, sorted into crates and parts."""

    def __init__(self, files: Dict[str, str]):
        self.files = {path: text for path, text in files.items() if not path.startswith("vendor/")}
        self.crates = members(self.files.get("Cargo.toml", ""))
        # Lines by crate and part, and those of each file of production.
        self.lines: Dict[Tuple[str, str], List[str]] = {}
        self.production: Dict[str, List[str]] = {}
        for path, text in self.files.items():
            if path.endswith(".rs"):
                self.add(path, text.splitlines())

    def add(self, path: str, lines: List[str]):
        crate, part = crate_of(path, self.crates), part_of(path)
        if part == "production":
            lines, inline = rust.split_tests(lines)
            self.production[path] = lines
            self.lines.setdefault((crate, "inline tests"), []).extend(inline)
        self.lines.setdefault((crate, part), []).extend(lines)

    def of(self, crates: Optional[Iterable[str]] = None, parts: Iterable[str] = PARTS) -> List[str]:
        """The lines of these parts of these crates, of all crates by default."""
        parts = list(parts)
        return [line for crate in (self.crates if crates is None else crates) for part in parts
                for line in self.lines.get((crate, part), [])]


def members(manifest: str) -> List[str]:
    """The folders of the workspace's crates. A crate in another one's folder counts as that one."""
    listed = re.search(r"^members = \[(.*?)\]", manifest, re.MULTILINE | re.DOTALL)
    folders = re.findall(r'"(.*?)"', listed.group(1)) if listed else []
    tops = [ROOT_CRATE if it == "." else it.partition("/")[0] for it in folders]
    return list(dict.fromkeys(tops)) or [ROOT_CRATE]


def crate_of(path: str, crates: List[str]) -> str:
    first = path.partition("/")[0]
    return first if first in crates else ROOT_CRATE


def part_of(path: str) -> str:
    folders = path.split("/")
    if "benches" in folders or "examples" in folders:
        return "benches, examples"
    if "src" in folders:
        is_test = "tests" in folders or folders[-1] == "tests.rs"
        return "src tests" if is_test else "production"
    return "tests/"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def read(commit: str) -> Dict[str, str]:
    """The files of a commit, by path."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit))) as archive:
        return {it.name: archive.extractfile(it).read().decode(errors="replace")
                for it in archive if it.isfile()}


def read_working_tree() -> Dict[str, str]:
    """The files that git tracks, and those that it does not ignore."""
    listed = git("ls-files", "-co", "--exclude-standard").decode().splitlines()
    there = (path for path in listed if (ROOT / path).is_file())
    return {path: (ROOT / path).read_text(errors="replace") for path in there}


def ratio(part: int, whole: int, factor: int = 1, form: str = ".1f") -> str:
    return format(factor * part / max(whole, 1), form)


def comment_share(lines: List[str]) -> str:
    code, comments, _ = rust.kinds(lines)
    return ratio(comments, code + comments, 100) + " %"


def python_prose(text: str) -> List[str]:
    """The comments and the documentation in a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
    return found + [words for words in map(ast.get_docstring, nodes) if words]


def prose(tree: Tree) -> List[Row]:
    """The prose of Rust's comments as a whole, of messages to people, and of Python files."""
    python = (text for path, text in tree.files.items() if path.endswith(".py"))
    messages = (rust.messages(lines) for lines in tree.production.values())
    words, sentences, whatever, unnamed = rust.style(tree.of())
    rows = [("comments: words a sentence", ratio(words, sentences)),
            ("comments: whatever, wherever, … in 1,000", ratio(whatever, words, 1000)),
            ("comments: one, other, nobody, something, … in 1,000", ratio(unnamed, words, 1000))]
    for what, texts in [("messages of production", [it for found in messages for it in found]),
                        ("prose of Python", [it for text in python for it in python_prose(text)])]:
        words, pronouns, semicolons = rust.counted(texts)
        rows += [(f"{what}: words", f"{words:,}"),
                 (f"{what}: who-words in 1,000", ratio(pronouns, words, 1000)),
                 (f"{what}: semicolons in 1,000", ratio(semicolons, words, 1000))]
    return rows


def repeated(lines: List[str]) -> int:
    return sum(count > 1 for count in Counter(rust.types(lines)).values())


def shared(tree: Tree) -> List[str]:
    """The type names that more than one crate defines."""
    found = Counter(name for crate in tree.crates
                    for name in set(rust.types(tree.of([crate], PARTS[:1]))))
    return sorted(name for name, count in found.items() if count > 1)


def crates(tree: Tree) -> str:
    """A table with a row for each crate."""
    rows = []
    by_size = sorted(tree.crates, key=lambda it: -len(tree.of([it], PARTS[:1])))
    for names in [*([crate] for crate in by_size), by_size]:
        production = tree.of(names, PARTS[:1])
        words, pronouns, semicolons = rust.prose(tree.of(names))
        twice = sum(repeated(tree.of([name], PARTS[:1])) for name in names)
        rows.append(["**all**" if names is by_size else names[0],
                     *(f"{len(tree.of(names, [part])):,}" for part in PARTS),
                     comment_share(production), str(twice),
                     ratio(pronouns, words, 1000), ratio(semicolons, words, 1000)])
    heads = ["crate", *PARTS, "comments", "names twice", "who-words", "semicolons"]
    return table(heads, rows)


def spread(what: str, lengths: List[int]) -> List[Row]:
    ordered = sorted(lengths) or [0]
    rows = [(f"{what}: median of lines", f"{median(ordered):.0f}")]
    rows += [(f"{what}: {percent}th percentile", f"{ordered[ceil(percent / 100 * len(ordered)) - 1]}")
             for percent in (75, 90, 99)]
    return rows + [(f"{what}: longest", f"{ordered[-1]}")]


def sizes(tree: Tree) -> List[Row]:
    product = len(tree.of([it for it in tree.crates if it != SIMULATOR], PARTS[:1]))
    tests = len(tree.of(parts=TESTS)) + len(tree.of([SIMULATOR], PARTS[:1]))
    rows = [("Rust", f"{len(tree.of()):,}"),
            ("**product**: production, the simulator apart", f"**{product:,}**"),
            ("tests and the simulator", f"{tests:,}"),
            ("those for each line of the product", ratio(tests, product, form=".2f"))]
    for language, ends in OTHER.items():
        texts = (text for path, text in tree.files.items() if path.endswith(ends))
        rows.append((language, f"{sum(len(text.splitlines()) for text in texts):,}"))
    return rows


def shape(tree: Tree) -> List[Row]:
    rows = []
    for what, parts in [("functions", PARTS[:1]), ("functions of tests", TESTS)]:
        lengths = rust.functions(tree.of(parts=parts))
        rows += [(what, f"{len(lengths):,}"), *spread(what, lengths),
                 (f"{what}: of more than 60 lines", f"{sum(it > 60 for it in lengths)}"),
                 (f"{what}: of more than 100 lines", f"{sum(it > 100 for it in lengths)}")]
    lengths = [len(tree.files[path].splitlines()) for path in tree.production]
    return rows + [("files", f"{len(lengths)}"), *spread("files", lengths),
                   ("files: of fewer than 60 lines", f"{sum(it < 60 for it in lengths)}")]


def objects(tree: Tree) -> List[Row]:
    """The structs with most fields, and the types with most functions, wherever those are."""
    fields, methods = Counter(), Counter()
    for path, lines in tree.production.items():
        for name, count in rust.fields(lines):
            key = f"{crate_of(path, tree.crates)}::{name}"
            fields[key] = max(count, fields[key])
        for name, count in rust.methods(lines).items():
            methods[f"{crate_of(path, tree.crates)}::{name}"] += count
    rows = []
    for what, counted in [("fields", fields), ("methods", methods)]:
        listed = [f"`{name}` {count}" for name, count in counted.most_common(LISTED)]
        listed += ["none"] * (LISTED - len(listed))
        rows += [(f"most {what}, number {place}", it) for place, it in enumerate(listed, 1)]
    return rows


def manners(tree: Tree) -> List[Row]:
    production = list(tree.production.values())
    return [(what, f"{sum(map(count, production))}") for what, count in [
        ("doc comments of three words or fewer", rust.short_docs),
        ("signatures with `Result<_, String>`", rust.text_errors),
        ("parameters that are tuples", rust.tuple_parameters),
        ("unsafe without `SAFETY:`", rust.unsafe_without_reason),
        ("lines `#[cfg(feature = \"planted\")]`", rust.planted)]] + [
        ("type names of more than one crate", f"{len(shared(tree))}")]


def table(heads: List[str], rows: List[List[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def report(trees: Dict[str, Tree]) -> str:
    """A table with a column for each tree, and a table of its crates for each."""
    measured = [[row for section in (sizes, shape, objects, manners, prose) for row in section(tree)]
                for tree in trees.values()]
    rows = [[same[0][0], *(value for _, value in same)] for same in zip(*measured)]
    written = [table(["measure", *trees], rows)]
    return "\n".join(written + [f"{name}:\n\n{crates(tree)}" for name, tree in trees.items()])


def main():
    try:
        trees = {commit: Tree(read(commit)) for commit in sys.argv[1:]}
        print(report(trees or {"working tree": Tree(read_working_tree())}), end="")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {error.stderr.decode().strip()}\n  next: name commits of this repository")


if __name__ == "__main__":
    main()
