"""Check the prose of the source code against the project's writing rules.

The check reads docstrings, comments, string literals (messages and CLI help) and identifiers of the packages
of `src/stillweb`, of `tests`, `bench`, `tools` and `examples`. It also reads comments and declared names of
JavaScript files, and the words of the documents. Excluded are code in backticks, this file and the demo's
site, whose bytes are recorded. It counts three kinds of faults per package:

- words that plain technical English avoids;
- sentences of docstrings and comments that open without their subject ("What ...", "That ...");
- sentences of docstrings with more than 25 words.

`tools/prose.json` has the permitted number of faults per package, none for a package that it does not list.
The numbers may only fall: `--lower` writes the current counts where they are smaller.

    python tools/prose.py                 # compare with the permitted numbers
    python tools/prose.py --list diff     # print every fault in one package
    python tools/prose.py --lower
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src" / "stillweb"
OTHERS = ("tests", "bench", "tools", "examples")
CEILINGS = REPO / "tools" / "prose.json"
MAX_WORDS = 25

# Word or phrase -> what to write instead.
AVOIDED = {
    r"told|tells?|telling": "returns, reports, raises, logs, sends",
    r"whoever|nobody|somebody": "name the actor",
    r"thereby|therein|thereof|whereby|wherein|thereon|hereby": "so, in it, by which",
    r"shall": "must, will",
    r"save for|but for": "except",
    r"at once": "immediately, simultaneously",
    r"by (?:it|them)(?:self|selves)": "automatically",
    r"mend(?:s|ed|ing)?": "repair, fix",
    r"lies? (?:in|at|on|beside|under|where)": "is in, is stored in",
    r"comes? (?:of|by)|comes? to (?!mind)": "results from, reaches, gets",
    r"(?:is|are|was|were)(?: not)? there(?! (?:is|are))": "exists, is missing",
    r"asks? for|asked for|asking for": "requests",
    r"guises?": "context options",
    r"doubts?": "ambiguity",
    r"kin": "child process",
    r"streets?": "pipeline",
    r"(?-i:rooms?)": "package, space",
    r"(?-i:floors?)": "layer, minimum",
    r"houses?": "codebase",
    r"desks?(?! lamp)": "control",
    r"(?<!front )(?<!front)(?-i:doors?)": "listener",
    r"shelf|shelves": "registry",
    r"sieves?": "filter",
    r"portraits?": "page snapshot",
    r"keepsakes?": "artifacts",
    r"patience": "timeout",
    r"amiss|forsooth|henceforth|hitherto|hence|lest|whence|whither|ere": "plain English",
    r"goes on|go on|went on|going on": "continues, resumes",
}
_WORDS = re.compile(r"(?<![\w./-])(?:" + "|".join(AVOIDED) + r")(?![\w-])", re.IGNORECASE)
_IDENTIFIER_WORDS = frozenset(
    {
        *(
            "told",
            "tell",
            "tells",
            "whoever",
            "nobody",
            "somebody",
            "asked",
            "kept",
            "mend",
            "mends",
            "mended",
        ),
        *(
            "guise",
            "doubt",
            "kin",
            "street",
            "streets",
            "room",
            "rooms",
            "house",
            "desk",
            "door",
            "doors",
            "shelf",
        ),
        *("shelves", "sieve", "portrait", "keepsake", "keepsakes", "patience", "witness"),
    }
)
_OPENING = re.compile(r"(?:What|Whose|Who|Whoever|Which|Of|That|Be it|Whether it is|As it)\b")
_SENTENCES = re.compile(r"(?<=[.:;!?])\s+")
_QUOTED = re.compile(r"`[^`\n]*`")
_SCRIPT_COMMENT = re.compile(r"(?m)^\s*//[^\n]*(?:\n\s*//[^\n]*)*|(?<=\s)//\s[^\n]*$")
_SCRIPT_NAME = re.compile(
    r"\b(?:const|let|var|function|class)\s+(\w+)|(\w+)\s*=>|[(,]\s*(\w+)(?=[\w\s,]*\)\s*=>)"
)
_CODE = re.compile(r"=>|\bconst \b|\bfunction ?\(|;\n|</|\bSELECT\b")
_SECTION = re.compile(r"(?m)^\s*(?:Args|Attributes|Returns|Raises|Yields|Example|Examples):\s*$")


@dataclass(frozen=True, slots=True)
class Fault:
    """One place that breaks a writing rule."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPO)}:{self.line}: {self.kind}: {self.text}"


def package_of(path: Path) -> str:
    """Return a file's package below `stillweb`, "base" directly below it, else its folder of `OTHERS`."""
    if not path.is_relative_to(SOURCE):
        return path.relative_to(REPO).parts[0]
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "base"


def sources() -> list[Path]:
    """Return the modules and scripts to check."""
    folders = (SOURCE, *(REPO / name for name in OTHERS))
    found = (path for folder in folders for kind in ("*.py", "*.js", "*.mjs") for path in folder.rglob(kind))
    return sorted(
        path for path in found if path != Path(__file__).resolve() and "demo_site" not in path.parts
    )


def script_faults(path: Path) -> Iterator[Fault]:
    """Yield the faults in comments and declared names of a JavaScript file."""
    text = path.read_text("utf-8")
    for found in _SCRIPT_COMMENT.finditer(text):
        line = 1 + text.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip()))
        comment = re.sub(r"(?m)^\s*//[ \t]?", "", found[0].lstrip())
        yield from _in_text(path, line, comment)
        yield from _openings(path, line, comment)
    for found in _SCRIPT_NAME.finditer(text):
        name = found[1] or found[2] or found[3]
        for word in _replaced_words(name):
            yield Fault(path, 1 + text.count("\n", 0, found.start()), "name", f"{name} ({word})")


def faults(path: Path) -> Iterator[Fault]:
    """Yield the faults of one file."""
    return script_faults(path) if path.suffix in (".js", ".mjs") else module_faults(path)


def module_faults(path: Path) -> Iterator[Fault]:
    """Yield the faults of one Python module."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    docstrings = dict(_docstrings(nodes))
    for line, docstring in docstrings.values():
        yield from _in_text(path, line, docstring)
        yield from _openings(path, line, docstring)
        yield from _long_sentences(path, line, docstring)
    for node in nodes:
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, str) or id(node) in docstrings:
                continue
            message = " " in node.value and not _CODE.search(node.value)
            if message:
                yield from _in_text(path, node.lineno, node.value)
        elif isinstance(node, _NAMING) and (name := _defined_name(node)):
            for word in _replaced_words(name):
                yield Fault(path, node.lineno, "name", f"{name} ({word})")  # type: ignore[attr-defined]
    for line, comment in _comments(text):
        yield from _in_text(path, line, comment)
        yield from _openings(path, line, comment)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module, unless none of them can have a fault: reading tokens is slow."""
    tails = (line[found.start() :] for line in text.splitlines() for found in re.finditer("#", line))
    if any(_WORDS.search(tail) or any(_openings(SOURCE, 0, tail.lstrip("#! "))) for tail in tails):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#! ")


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, tuple[int, str]]]:
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        literal = first.value if isinstance(first, ast.Expr) else None
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            yield id(literal), (literal.lineno, literal.value)


def _in_text(path: Path, line: int, text: str) -> Iterator[Fault]:
    for found in _WORDS.finditer(_QUOTED.sub(lambda code: "`" * len(code[0]), text)):
        at = line + text.count("\n", 0, found.start())
        yield Fault(path, at, "word", found[0])


def _openings(path: Path, line: int, text: str) -> Iterator[Fault]:
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _SENTENCES.split(" ".join(paragraph.split())):
            if (found := _OPENING.match(sentence)) and not sentence.endswith("?"):
                yield Fault(path, line, f"opening {found[0]!r}", sentence[:80])


def _long_sentences(path: Path, line: int, docstring: str) -> Iterator[Fault]:
    prose = _SECTION.split(docstring)[0]
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", prose):
        if "\n    " in paragraph.replace("\n" + " " * _indent(docstring), "\n") or "::" in paragraph:
            continue  # a table or an example
        for sentence in _SENTENCES.split(" ".join(paragraph.split())):
            if len(words := sentence.split()) > MAX_WORDS:
                yield Fault(path, line, f"sentence of {len(words)} words", sentence[:80])


def _indent(docstring: str) -> int:
    lines = [line for line in docstring.split("\n")[1:] if line.strip()]
    return min((len(line) - len(line.lstrip()) for line in lines), default=0)


_NAMING = (ast.Name, ast.Attribute, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _defined_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else ""
    if isinstance(node, ast.Attribute):
        return node.attr if isinstance(node.ctx, ast.Store) else ""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    return ""


@cache
def _replaced_words(name: str) -> frozenset[str]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return _IDENTIFIER_WORDS.intersection(words)


@cache
def all_faults() -> dict[str, list[Fault]]:
    """Return the faults of every package, and those in documents as "docs"."""
    found: dict[str, list[Fault]] = {
        "docs": [fault for path in documents() for fault in document_faults(path)]
    }
    for path in sources():
        found.setdefault(package_of(path), []).extend(faults(path))
    return found


def documents() -> list[Path]:
    """Return the written documents: generated pages and the changelog are excluded."""
    found = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")]
    return sorted(
        path for path in found if path.name not in ("cli.md", "api.md", "openapi.md", "CHANGELOG.md")
    )


def document_faults(path: Path) -> Iterator[Fault]:
    """Yield the avoided words of a Markdown document outside of code blocks."""
    text = re.sub(
        r"(?ms)^( *)```.*?^\1```", lambda block: "\n" * block[0].count("\n"), path.read_text("utf-8")
    )
    yield from _in_text(path, 1, text)


def ceilings() -> dict[str, int]:
    """Return the permitted number of faults per package; a package that is not listed may have none."""
    permitted: dict[str, int] = json.loads(CEILINGS.read_text("utf-8")) if CEILINGS.exists() else {}
    return permitted


def problems() -> list[str]:
    """Return a sentence for each package with more faults than permitted."""
    permitted = ceilings()
    return [
        f"{name}: {len(found)} faults, permitted {most} (python tools/prose.py --list {name})"
        for name, found in all_faults().items()
        if len(found) > (most := permitted.get(name, 0))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", metavar="PACKAGE", help="print every fault in one package")
    parser.add_argument("--lower", action="store_true", help="lower the permitted numbers")
    options = parser.parse_args()
    if options.list:
        print("\n".join(map(str, all_faults()[options.list])))
        return 0
    if options.lower:
        permitted, counts = ceilings(), {name: len(found) for name, found in all_faults().items()}
        first = not CEILINGS.exists()
        lowered = {n: c if first else min(c, permitted.get(n, 0)) for n, c in sorted(counts.items())}
        CEILINGS.write_text(json.dumps(lowered, indent=2) + "\n", "utf-8")
        return 0
    print("\n".join(problems()), end="\n" if problems() else "")
    return int(bool(problems()))


if __name__ == "__main__":
    sys.exit(main())
