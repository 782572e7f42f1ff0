"""What can be counted in a Rust file that rustfmt has formatted.

Each function takes the lines of a text. rustfmt is relied upon: an item ends with the first closing
brace, or the semicolon, at the indentation of its first line.
"""
import re
from typing import Dict, Iterable, Iterator, List, Tuple

Lines = List[str]

VISIBLE = r"(?:pub(?:\([^)]*\))? )?"
FUNCTION = re.compile(rf'\s*{VISIBLE}(?:default |const |async |unsafe |extern "C" )*fn \w')
TYPE = re.compile(rf"\s*{VISIBLE}(?:struct|enum|trait|union) (\w+)")
ALIAS = re.compile(rf"{VISIBLE}type (\w+)")
STRUCT = re.compile(rf"\s*{VISIBLE}struct (\w+).*\{{$")
IMPL = re.compile(r"(?:unsafe )?impl(?:<.*?>)? (?:.+ for )?(?:\w+::)*(\w+)")
FIELD = re.compile(rf"{VISIBLE}\w+: ")
TEST = re.compile(r"\s*#\[cfg\((?:test|all\(.*\btest\b.*\))\)\]$")
UNSAFE = re.compile(r"(?<!\w)unsafe (?:\{|fn |impl|trait |extern )")
# A string, or what may hold a quotation mark and is none.
STRING = re.compile(r"//[^\n]*|b?'(?:\\.[^']*|[^\\'])'|r#\"(.*?)\"#|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
# A string of fewer words is a name, a key or a path.
FEWEST_WORDS = 3
PRONOUN = re.compile(r"\b(?:who|whoever|whom|whose|whomever)\b", re.IGNORECASE)
WHATEVER = re.compile(r"\b(?:what|which|where|when|how)ever\b", re.IGNORECASE)
# Words that stand for a subject without its name.
UNNAMED = re.compile(r"\b(?:one|ones|other|others|another|nobody|nothing|none|somebody|something"
                     r"|anybody|anything|everybody|everything)\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
# A parameter's type that is a tuple, or a reference to a tuple.
TUPLE = re.compile(r"(?:&(?:'\w+ )?(?:mut )?)?\(.*,.*\)$", re.DOTALL)
PLANTED = re.compile(r"#\[cfg\(.*feature = \"planted\"")


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def item_end(lines: Lines, start: int) -> int:
    """The index of the last line of the item that begins at `start`."""
    depth = indentation(lines[start])
    for at in range(start, len(lines)):
        line = lines[at]
        if not line.strip() or indentation(line) != depth:
            continue
        one_line = line.endswith("}") and "{" in line
        if line.lstrip().startswith("}") or line.endswith(";") or one_line:
            return at
    return len(lines) - 1


def split_tests(lines: Lines) -> Tuple[Lines, Lines]:
    """The lines of production, and the items that only a test's build has."""
    production, tests, at = [], [], 0
    while at < len(lines):
        if not TEST.match(lines[at]):
            production.append(lines[at])
            at += 1
            continue
        start = at
        while at + 1 < len(lines) and lines[at].lstrip().startswith(("#", "//")):
            at += 1
        end = item_end(lines, at)
        tests += lines[start:end + 1]
        at = end + 1
    return production, tests


def kinds(lines: Lines) -> Tuple[int, int, int]:
    """Lines of code, comment lines, blank lines."""
    blank = sum(not line.strip() for line in lines)
    comment = sum(line.lstrip().startswith("//") for line in lines)
    return len(lines) - blank - comment, comment, blank


def functions(lines: Lines) -> List[int]:
    """The length of each function with a body, from its signature to its brace."""
    starts = [at for at, line in enumerate(lines) if FUNCTION.match(line)]
    ends = [item_end(lines, at) for at in starts]
    return [end - at + 1 for at, end in zip(starts, ends) if not lines[end].endswith(";")]


def types(lines: Lines) -> List[str]:
    """The names of the types that are defined here. Types that belong to a trait are not."""
    found = (TYPE.match(line) or ALIAS.match(line) for line in lines)
    return [match.group(1) for match in found if match]


def fields(lines: Lines) -> Iterator[Tuple[str, int]]:
    """Each struct with named fields, and how many it has."""
    for at, line in enumerate(lines):
        struct = STRUCT.match(line)
        if struct:
            depth = indentation(line) + 4
            inside = (it for it in lines[at + 1:item_end(lines, at)] if indentation(it) == depth)
            yield struct.group(1), sum(bool(FIELD.match(it.lstrip())) for it in inside)


def methods(lines: Lines) -> Dict[str, int]:
    """How many functions the `impl` blocks of each type have."""
    found: Dict[str, int] = {}
    for at, line in enumerate(lines):
        block = IMPL.match(line)
        if block:
            inside = lines[at + 1:item_end(lines, at)]
            count = sum(bool(FUNCTION.match(it)) and indentation(it) == 4 for it in inside)
            found[block.group(1)] = found.get(block.group(1), 0) + count
    return found


def prose(lines: Lines) -> Tuple[int, int, int]:
    """Words, pronouns and semicolons of the comments, but for the code in them."""
    return counted(comments(lines))


def style(lines: Lines) -> Tuple[int, int, int, int]:
    """Words, sentences, words like "whatever", and words that name no subject, of the comments."""
    text = "\n".join(comments(lines))
    found = [len(pattern.findall(text)) for pattern in (SENTENCE_END, WHATEVER, UNNAMED)]
    return (len(text.split()), *found)


def comments(lines: Lines) -> Lines:
    """The texts of the comments, but for the code in them."""
    texts, is_code = [], False
    for line in lines:
        if not line.lstrip().startswith("//"):
            continue
        text = re.sub(r"^//[/!]?", "", line.lstrip())
        if text.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            texts.append(text)
    return texts


def counted(texts: Iterable[str]) -> Tuple[int, int, int]:
    """Words, pronouns and semicolons."""
    text = "\n".join(texts)
    return len(text.split()), len(PRONOUN.findall(text)), text.count(";")


def messages(lines: Lines) -> Lines:
    """The strings that say something to people: those of three words and more."""
    found = (match.group(1) or match.group(2) for match in STRING.finditer("\n".join(lines)))
    # Without the breaks of long lines, and without the names of values.
    texts = (re.sub(r"\\\n\s*|\{[^}]*\}", "", text) for text in found if text)
    return [text for text in texts if len(re.findall(r"[A-Za-z]{2,}", text)) >= FEWEST_WORDS]


def short_docs(lines: Lines) -> int:
    """Documentation comments of one line and three words or fewer."""
    def is_doc(at: int) -> bool:
        return 0 <= at < len(lines) and lines[at].lstrip().startswith(("///", "//!"))

    return sum(is_doc(at) and not is_doc(at - 1) and not is_doc(at + 1) and len(line.split()) <= 4
               for at, line in enumerate(lines))


def planted(lines: Lines) -> int:
    """Lines that compile a bug for the simulator in."""
    return sum(bool(PLANTED.search(line)) for line in lines)


def signatures(lines: Lines) -> Iterator[str]:
    """The text of each function, from its first line to its brace or semicolon."""
    for at, line in enumerate(lines):
        if FUNCTION.match(line):
            signature = line
            while not line.rstrip().endswith(("{", ";", "}")) and at + 1 < len(lines):
                at += 1
                line = lines[at]
                signature += line
            yield signature


def text_errors(lines: Lines) -> int:
    """Functions that return an error as text."""
    returned = (signature.rpartition("->")[2] for signature in signatures(lines))
    return sum(bool(re.search(r"Result<.*, String>", it)) for it in returned)


def split_at(text: str, mark: str) -> List[str]:
    """The parts of a text between the marks that no bracket encloses, up to the closing bracket."""
    parts, depth = [""], 0
    for before, letter in zip(" " + text, text):
        # The arrow of `Fn() -> T` closes no bracket.
        closes = letter in ")]}" or letter == ">" and before != "-"
        depth += (letter in "([{<") - closes
        if depth < 0:
            break
        if depth == 0 and letter == mark:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parameters(signature: str) -> List[str]:
    """The parameters of a function, each with its type."""
    rest = signature[re.search(r"\bfn \w+", signature).end():]
    if rest.startswith("<"):
        generics = split_at(rest[1:], ",")
        rest = rest[len(",".join(generics)) + 2:]
    return split_at(rest[1:], ",")


def tuple_parameters(lines: Lines) -> int:
    """How many parameters of functions are tuples, or references to tuples."""
    code = [line for line in lines if not line.lstrip().startswith("//")]
    types = (split_at(parameter, ":")[-1].strip()
             for signature in signatures(code) for parameter in parameters(signature))
    return sum(bool(TUPLE.match(it)) for it in types)


def unsafe_without_reason(lines: Lines) -> int:
    """Unsafe blocks, functions and implementations without `SAFETY:` in the comment before them.

    A reason counts up to five lines before, since a statement may begin before its unsafe block.
    """
    def has_reason(at: int) -> bool:
        first = at
        while first > 0 and lines[first - 1].lstrip().startswith(("//", "#[")):
            first -= 1
        near = lines[min(first, max(at - 5, 0)):at + 1]
        return any("SAFETY:" in line or "# Safety" in line for line in near)

    code = (line.partition("//")[0] for line in lines)
    return sum(bool(UNSAFE.search(line)) and not has_reason(at) for at, line in enumerate(code))
