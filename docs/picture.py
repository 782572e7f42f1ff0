#!/usr/bin/env python3
"""Makes docs/demo.svg, the picture in the README: one frame of a real `everstep demo`.

    docs/picture.py target/release/everstep docs/demo.svg

It runs the demo in a pseudo-terminal, presses keys at some steps, and draws the screen that the
demo shows a little later. Needs Python alone, and about two minutes.
"""
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from itertools import groupby
from typing import Dict, List, Optional, Tuple

COLUMNS, LINES = 100, 27
DEMO = ["demo", "--workers", "4", "--steps", "160", "--respawn"]
# What is pressed at which step: the user kills a worker, drains another one, kills a third one.
KEYS = {35: b"3k", 70: b"4d", 110: b"2k"}
# The frame that is drawn is the first whole one with these words after the last key: the others
# train on, and the killed worker's successor is on its way.
FRAME = ["lost worker-2", "is brought up to date"]
MOST_SECONDS = 600

# A character's size in the picture, and the space around the screen, pixels.
WIDTH, HEIGHT, MARGIN = 8.4, 18.0, 16.0
PAPER, INK = "#0d1117", "#d7dee6"
COLOURS = ["#484f58", "#ff7b72", "#3fb950", "#e3b341", "#58a6ff", "#d2a8ff", "#39c5cf", "#d7dee6"]
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Where the lines of a box go from the middle of their cell: left, right, up, down.
BOXES = {"─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu"}
BARS = " ▁▂▃▄▅▆▇█"

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[=>()][0B]?|([^\x1b])")


@dataclass(frozen=True)
class Style:
    """How a character is written. No colour is the terminal's own."""
    ink: Optional[str] = None
    paper: Optional[str] = None
    bold: bool = False
    faint: bool = False


@dataclass
class Screen:
    """The cells of a terminal: as much of a terminal as the demo needs."""
    cells: Dict[Tuple[int, int], Tuple[str, Style]] = field(default_factory=dict)
    style: Style = Style()
    line: int = 0
    column: int = 0
    rest: str = ""

    def feed(self, text: str):
        text, at = self.rest + text, 0
        for match in SEQUENCE.finditer(text):
            if match.start() != at:
                break
            at = match.end()
            if match.group(3):
                self.put(match.group(3))
            elif match.group(2):
                self.control(match.group(2), match.group(1))
        # A sequence that is not whole yet.
        self.rest = text[at:]

    def put(self, letter: str):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.line += 1
        else:
            self.cells[self.line, self.column] = (letter, self.style)
            self.column += 1

    def control(self, what: str, arguments: str):
        if what == "H":
            line, column = (arguments.split(";") + ["1"])[:2] if arguments else ("1", "1")
            self.line, self.column = int(line) - 1, int(column) - 1
        elif what == "J":
            self.cells.clear()
        elif what == "m":
            self.paint([int(it or 0) for it in arguments.split(";")])

    def paint(self, codes: List[int]):
        now = dict(vars(self.style))
        while codes:
            code = codes.pop(0)
            if code == 0:
                now = dict(vars(Style()))
            elif code in (1, 2):
                now["bold" if code == 1 else "faint"] = True
            elif code == 22:
                now["bold"] = now["faint"] = False
            elif code in (38, 48):
                kind, number, codes = codes[0], codes[1], codes[2:]
                assert kind == 5, "the demo uses the sixteen colours of a terminal"
                now["ink" if code == 38 else "paper"] = colour(number)
            elif code in (39, 49):
                now["ink" if code == 39 else "paper"] = None
            elif 30 <= code < 38 or 40 <= code < 48:
                now["ink" if code < 40 else "paper"] = colour(code % 10)
        self.style = Style(**now)

    def text(self) -> str:
        rows = ("".join(self.cells.get((line, column), " ")[0] for column in range(COLUMNS))
                for line in range(LINES))
        return "\n".join(rows)


def colour(number: int) -> str:
    """One of the first eight colours, or one of the bright ones. Bright black is grey."""
    return "#8b949e" if number == 8 else COLOURS[number % 8]


def record(program: str) -> Screen:
    """Runs the demo until its frame is there, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm-256color"
            os.execv(program, [program, *DEMO])
        size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        try:
            return watch(terminal)
        finally:
            os.kill(child, signal.SIGTERM)
            while read(terminal, 1.0):
                pass
            os.waitpid(child, 0)


def read(terminal: int, seconds: float) -> bytes:
    """What the demo writes within this time, or nothing, as at its end."""
    if not select.select([terminal], [], [], seconds)[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def watch(terminal: int) -> Screen:
    screen, keys, begun, partial = Screen(), dict(KEYS), time.monotonic(), b""
    while time.monotonic() < begun + MOST_SECONDS:
        # The demo draws a frame at once: a pause is the end of one.
        while read_some := read(terminal, 0.05):
            partial += read_some
            text = partial.decode(errors="ignore")
            partial = partial[len(text.encode()):]
            screen.feed(text)
        found = re.search(r"step (\d+) of", screen.text())
        step = int(found.group(1)) if found else 0
        for due in [it for it in keys if it <= step]:
            os.write(terminal, keys.pop(due))
        if not keys and all(words in screen.text() for words in FRAME):
            return screen
    sys.exit(f"error: the demo did not show {FRAME}\n{screen.text()}")


def draw(screen: Screen) -> str:
    """The screen as SVG. Boxes and bars are drawn, so that no font has to have them."""
    shapes: Dict[str, List[str]] = {}
    lines: Dict[str, List[str]] = {}
    words = []
    for line in range(LINES):
        row = [screen.cells.get((line, column), (" ", Style())) for column in range(COLUMNS)]
        y = MARGIN + line * HEIGHT
        for column, (letter, style) in enumerate(row):
            x = MARGIN + column * WIDTH
            if style.paper:
                shapes.setdefault(style.paper, []).append(rectangle(x, y, 1.0))
            if letter in BOXES:
                lines.setdefault(style.ink or COLOURS[0], []).append(strokes(letter, x, y))
            elif letter in BARS[1:]:
                part = BARS.index(letter) / 8
                shapes.setdefault(style.ink or INK, []).append(rectangle(x, y, part))
        words += texts(row, y)
    width, height = 2 * MARGIN + COLUMNS * WIDTH, 2 * MARGIN + LINES * HEIGHT
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="{FONTS}" font-size="14">',
        "<title>everstep demo: one worker has just been killed, and the others train on</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
        *(f'<path fill="{ink}" d="{"".join(parts)}"/>' for ink, parts in shapes.items()),
        *(f'<path stroke="{ink}" fill="none" d="{"".join(parts)}"/>'
          for ink, parts in lines.items()),
        *words,
        "</svg>",
        "",
    ])


def rectangle(x: float, y: float, part: float) -> str:
    """The lowest part of a cell."""
    top = y + HEIGHT * (1 - part)
    return f"M{x:g} {top:g}h{WIDTH:g}v{HEIGHT * part:g}h{-WIDTH:g}z"


def strokes(letter: str, x: float, y: float) -> str:
    middle = f"M{x + WIDTH / 2:g} {y + HEIGHT / 2:g}"
    ways = {"l": f"h{-WIDTH / 2:g}", "r": f"h{WIDTH / 2:g}", "u": f"v{-HEIGHT / 2:g}",
            "d": f"v{HEIGHT / 2:g}"}
    return "".join(middle + ways[way] for way in BOXES[letter])


def texts(row: List[Tuple[str, Style]], y: float) -> List[str]:
    """The words of a row, as long as their cells whatever the font's width is."""
    written, column = [], 0
    drawn = set(BOXES) | set(BARS)
    plain = [(" " if letter in drawn else letter, style) for letter, style in row]
    for style, cells in groupby(plain, key=lambda cell: cell[1]):
        text = "".join(letter for letter, _ in cells)
        for word in re.finditer(r"\S+(?: \S+)*", text):
            x = MARGIN + (column + word.start()) * WIDTH
            ink = INK if style.ink is None else style.ink
            marks = ' font-weight="bold"' if style.bold else ""
            marks += ' opacity="0.6"' if style.faint else ""
            written.append(
                f'<text x="{x:g}" y="{y + 0.75 * HEIGHT:g}" fill="{ink}"{marks} '
                f'textLength="{len(word.group()) * WIDTH:g}" lengthAdjust="spacingAndGlyphs">'
                f"{html.escape(word.group())}</text>")
        column += len(text)
    return written


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} EVERSTEP FILE.svg")
    program, target = os.path.abspath(sys.argv[1]), sys.argv[2]
    screen = record(program)
    with open(target, "w", encoding="utf-8") as file:
        file.write(draw(screen))
    print(screen.text())


if __name__ == "__main__":
    main()
