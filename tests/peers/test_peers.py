"""What must hold of measurements, tables and the document.

    python3 -m unittest discover tests/peers
"""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import measure  # noqa: E402
import parts  # noqa: E402
import tables  # noqa: E402

DOCS = measure.ROOT / "docs"
DRY_RUN = """\
run             default
parameters      842496
samples         100 (0 held out)
memory          of each of 2 workers, without the data:
  model and activations      26.3 MB
  optimizer share            10.1 MB
  together, about            36.4 MB
"""


def entry(number: int, who: str, **figures) -> dict:
    return {"round": number, "who": who, "mb": 16, "workers": 2, **figures}


def part(rounds_taken: list) -> parts.Part:
    """A part of two trials that notes what is run."""
    def job(name: str):
        return lambda place: rounds_taken.append(name) or {}

    trials = [parts.Trial({"trial": it}, {"everstep": job(f"our {it}"), "peer": job(f"peer {it}")})
              for it in "ab"]
    return parts.Part("some", 3, trials)


def quietly(call, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        return call(*arguments)


class Measuring(unittest.TestCase):
    def test_who_is_first_changes_from_round_to_round(self):
        order = []
        measured = quietly(measure.measure, part(order), None, 2, 1.0)
        self.assertEqual(order[:4], ["our a", "peer a", "our b", "peer b"])
        self.assertEqual(order[4:], ["peer a", "our a", "peer b", "our b"])
        self.assertEqual(measured[4], {"round": 2, "who": "peer", "trial": "a"})

    def test_a_round_that_would_end_too_late_is_not_begun_but_the_first_is(self):
        order = []
        with mock.patch("measure.time.monotonic", side_effect=range(0, 1000, 40)):
            measured = quietly(measure.measure, part(order), None, 3, 1.0)
        self.assertEqual({it["round"] for it in measured}, {1})

    def test_the_file_is_json_with_a_line_for_each_measurement(self):
        entries = [entry(1, "peer"), entry(2, "peer")]
        measured = {"steps": {"commit": "abc", "measurements": entries}}
        text = measure.text(measured)
        self.assertEqual(json.loads(text), measured)
        self.assertEqual(len([line for line in text.splitlines() if '"round"' in line]), 2)

    def test_what_is_missing_is_named_with_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder) / "bin/python"
            true = Path("/bin/true")
            with self.assertRaisesRegex(SystemExit, "cargo build --release"):
                measure.Place(Path(folder) / "everstep", Path(folder), Path(folder)).check()
            with self.assertRaisesRegex(SystemExit, "python is not there"):
                measure.Place(true, Path(folder), Path(folder)).check()
            python.parent.mkdir()
            python.symlink_to("/bin/false")
            with self.assertRaisesRegex(SystemExit, "has no torch"):
                measure.Place(true, Path(folder), Path(folder)).check()

    def test_a_program_that_fails_says_what_it_said(self):
        with self.assertRaisesRegex(parts.Failed, "(?s)ended with 3.*no room"):
            measure.run(["sh", "-c", "echo no room >&2; exit 3"])

    def test_the_exchange_alone_is_of_a_run_of_its_own(self):
        def everstep(*words):
            traced = "--stages" in words
            return json.dumps({"median_ms": 30, "exchange_ms": 15.0} if traced
                              else {"median_ms": 20})

        found = parts.our_all_reduce(mock.Mock(everstep=everstep), 2, 16, 8)
        self.assertEqual(found, {"median_ms": 20, "exchange_ms": 15.0})

    def test_a_dry_run_is_read_and_one_without_memory_refused(self):
        self.assertEqual(parts.predicted(DRY_RUN), {
            "parameters": 842496, "predicted_bytes": 36_400_000,
            "formula_bytes": {"model and activations": 26_300_000, "optimizer share": 10_100_000}})
        with self.assertRaisesRegex(parts.Failed, "prints no memory"):
            parts.predicted(DRY_RUN.replace("together", "all"))


class Tables(unittest.TestCase):
    def test_a_ratio_is_of_medians_and_its_range_of_rounds(self):
        held = [entry(number, who, figure=figure) for who, figures in
                [("everstep", [3, 9, 6]), ("peer", [2, 3, 4])]
                for number, figure in enumerate(figures, 1)]
        # Rounds are matched by number, in whatever order they were measured.
        cells = tables.compare(held[::-1], lambda it: it["figure"], ".0f")
        self.assertEqual(cells, ["6", "3", "**2.00**", "1.50 to 3.00"])

    def test_tokens_per_second_are_those_of_the_median_step(self):
        rate = tables.tokens_per_second({"step_tokens": 100, "step_ms": [900, 10, 20]})
        self.assertEqual(rate, 5000)

    def test_the_exchange_alone_stands_beside_the_whole_step(self):
        peer = entry(1, "peer", times_ms=[10, 5, 90], cpu_seconds_per_gb=1.0)
        ours = entry(1, "everstep", median_ms=20, exchange_ms=15, cpu_seconds_per_gb=2.0)
        self.assertIn("| 16 | 2 | 20.0 | 10.0 | **2.00** | 2.00 to 2.00 | 15.0 | **1.50** | 2.00 |",
                      tables.all_reduce([ours, peer]))

    def test_a_table_takes_the_place_of_the_one_before_and_nothing_else_changes(self):
        document = "a\n<!-- measured: x -->\nold\n<!-- end -->\nb\n<!-- end -->\n"
        filled, missing = tables.fill(document, {"x": r"| \1 |", "y": "none"})
        self.assertEqual(filled, document.replace("old", r"| \1 |"))
        self.assertEqual(missing, ["y"])
        self.assertEqual(tables.fill(filled, {"x": r"| \1 |"})[0], filled)


class Document(unittest.TestCase):
    def test_its_tables_are_those_of_the_measurements(self):
        document = (DOCS / "performance.md").read_text()
        measured = json.loads((DOCS / "performance/measured.json").read_text())
        self.assertEqual(set(measured), set(parts.PARTS), "everything was measured")
        self.assertEqual(tables.fill(document, tables.render(measured)), (document, []))


if __name__ == "__main__":
    unittest.main()
