"""Measure how easily the documents read: long sentences and the Flesch-Kincaid grade.

Two public measures over the prose of the Markdown documents. Code blocks, tables and headings are left out; a
list item is a sentence of its own at least.

- share of sentences with more than 25 words
- Flesch-Kincaid grade: 0.39 words/sentence + 11.8 syllables/word - 15.59 (Kincaid et al. 1975). Syllables are
  groups of vowels without a silent final e, so the grade compares texts rather than grades them.

    python tools/readability.py                    # the sum of each folder
    python tools/readability.py --pages            # each page
    python tools/readability.py --sentences        # print every long sentence
    python tools/readability.py --at 07feb1b       # the documents of a commit
    python tools/readability.py --max-share 10     # exit status 1 if more per cent of the sentences are long
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

REPO = Path(__file__).resolve().parents[1]
LONG = 25
GENERATED = ("cli.md", "api.md", "openapi.md", "connection.md", "replay-connection.md", "CHANGELOG.md")

_FENCE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1[^\n]*$")
_NOT_PROSE = re.compile(r"^ *(?:#|\||<|!!!|\?\?\?|===|::: |\[\w+\]: |---)|^    \S(?=.*)")
_ITEM = re.compile(r"^ *(?:[-*+] |\d+\. |> )")
_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[\"(*_`\[]*[A-Z0-9`])")


@dataclass
class Measure:
    """Counts over some documents, and their long sentences."""

    sentences: int = 0
    words: int = 0
    syllables: int = 0
    long: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        words = re.findall(r"[A-Za-z0-9][\w'./-]*", sentence)
        if not words:
            return
        self.sentences += 1
        self.words += len(words)
        self.syllables += sum(map(syllables, words))
        if len(words) > LONG:
            self.long.append(sentence)

    @property
    def share(self) -> float:
        """Per cent of sentences that are long."""
        return 100 * len(self.long) / max(self.sentences, 1)

    @property
    def grade(self) -> float:
        if not self.words:
            return 0.0
        return 0.39 * self.words / self.sentences + 11.8 * self.syllables / self.words - 15.59


def syllables(word: str) -> int:
    """Return the number of vowel groups of a word without its silent final e, at least 1."""
    groups = re.findall(r"[aeiouy]+", word.lower())
    silent = word.lower().endswith("e") and not word.lower().endswith(("le", "ee"))
    return max(1, len(groups) - silent)


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a document's paragraphs and list items."""
    paragraph: list[str] = []
    for line in [*_FENCE.sub("", markdown).splitlines(), ""]:
        ends = not line.strip() or bool(_NOT_PROSE.match(line))
        if (ends or _ITEM.match(line)) and paragraph:
            yield from _END.split(_plain(" ".join(paragraph)))
            paragraph = []
        if not ends:
            paragraph.append(_ITEM.sub("", line).strip())


def _plain(text: str) -> str:
    """Return a text without its markup; code counts as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "Code", text)


def documents(commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of the written documents, of the work tree or of a commit."""
    if commit:
        listed = _git("ls-tree", "-r", "--name-only", commit).splitlines()
        names = [name for name in listed if re.fullmatch(r"[^/]+\.md|docs/.*\.md", name)]
    else:
        found = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")]
        names = [path.relative_to(REPO).as_posix() for path in found]
    for name in sorted(names):
        if PurePosixPath(name).name not in GENERATED:
            yield name, _git("show", f"{commit}:{name}") if commit else (REPO / name).read_text("utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPO, check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", action="store_true", help="a line for each page")
    parser.add_argument("--sentences", action="store_true", help="print every long sentence")
    parser.add_argument("--at", default="", metavar="COMMIT", help="documents of this commit")
    parser.add_argument(
        "--max-share", type=float, metavar="PERCENT", help="permitted share of long sentences"
    )
    options = parser.parse_args()
    rows: dict[str, Measure] = {}
    for name, text in documents(options.at):
        row = name if options.pages else str(PurePosixPath(name).parent)
        for measure in (rows.setdefault(row, Measure()), rows.setdefault("", Measure())):
            for sentence in sentences(text):
                measure.add(sentence)
        if options.sentences:
            for sentence in sentences(text):
                Measure.add(single := Measure(), sentence)
                print("\n".join(f"{name}: {each}" for each in single.long), end="\n" if single.long else "")
    total = rows.pop("", Measure())
    print(f"{'documents':36}  sentences    long   share  grade")
    for row, each in [*sorted(rows.items()), ("all", total)]:
        long = len(each.long)
        print(f"{row:36}  {each.sentences:9}  {long:6}  {each.share:5.1f}%  {each.grade:5.1f}")
    return int(options.max_share is not None and total.share > options.max_share)


if __name__ == "__main__":
    sys.exit(main())
