"""A page as Markdown: rendered headings, lists, tables, code and links.

Made from the survey, not from HTML by a library: HTML does not say what is hidden, and contains neither
frames nor shadow trees nor field values. Links are absolute.
"""

from __future__ import annotations

import re

from stillweb.browser.observe.survey import Survey, SurveyItem

_HEADING = re.compile(r"h([1-6])")
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "s": "~~", "del": "~~"}
_ESCAPED = re.compile(r"([\\`*_\[\]])")
_BLANKS = re.compile(r"[^\S\n]+")
_IN_TABLE_NOT = frozenset(
    ("table", "ul", "ol", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "hr")
)


def markdown_text(survey: Survey) -> str:
    writer = _MarkdownWriter(survey)
    for index, entering in survey.walk():
        item = survey.items[index]
        if not item.tag:
            if entering:
                writer.text(item)
        elif entering:
            writer.enter(index, item)
        else:
            writer.leave(index, item)
    writer.flush()
    return "\n".join(writer.lines).strip("\n")


def plain_text(survey: Survey) -> str:
    """Return the text of a page, one line per block."""
    lines: list[str] = []
    line: list[str] = []
    for index, entering in survey.walk():
        item = survey.items[index]
        if not item.tag and entering:
            line.append(item.text)
        elif item.tag and not item.inline:
            lines.extend(" ".join(part.split()) for part in "".join(line).split("\n"))
            line.clear()
    lines.append(" ".join("".join(line).split()))
    return "\n".join(text for text in lines if text)


def _data_tables(survey: Survey) -> set[int]:
    """Return the tables whose cells are single lines; others are layout."""
    tables = {index for index, item in enumerate(survey.items) if item.tag == "table"}
    for item in survey.items:
        if item.tag not in _IN_TABLE_NOT:
            continue
        above = item.parent
        while above >= 0:
            tables.discard(above)
            above = survey.items[above].parent
    return tables


def _escaped(text: str) -> str:
    return _ESCAPED.sub(r"\\\1", text)


class _MarkdownWriter:
    """Finished lines, the current line, and its containers."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.lines: list[str] = []
        self._line: list[str] = []
        self._around: list[str] = []  # prefix of each line: quotes, and the indentation of lists
        self._before: list[str] = []  # the prefix of the previous block
        self._counts: list[int] = []  # for each open list, the number of the next item; -1 for bullets
        self._marker = ""  # prefix of a list item's first line
        self._pre = 0
        self._tight = False
        self._tables = _data_tables(survey)
        self._rows: list[int] = []  # for each open data table, its number of rows so far

    def text(self, item: SurveyItem) -> None:
        if self._pre:
            self._line.append(item.text)
        else:
            text = _escaped(item.text)
            self._line.append(text.replace("|", "\\|") if self._rows else text)

    def enter(self, index: int, item: SurveyItem) -> None:
        tag = item.tag
        if item.inline and self._enter_inline(item):
            return
        if not item.inline and not self._rows:
            self.flush()
        if match := _HEADING.fullmatch(tag):
            self._line.append("#" * int(match[1]) + " ")
        elif tag in ("ul", "ol", "menu"):
            self._counts.append(1 if tag == "ol" else -1)
        elif tag == "li":
            self._enter_item()
        elif index in self._tables:
            self._rows.append(0)
        elif tag in ("td", "th") and self._rows:
            self._line.append("| ")
        else:
            self._enter_other(tag, item)

    def _enter_other(self, tag: str, item: SurveyItem) -> None:
        if tag == "blockquote":
            self._around.append("> ")
        elif tag == "pre":
            self._pre += 1
        elif tag == "hr":
            self._write(["---"])
        elif tag == "img":
            self._image(item)

    def leave(self, index: int, item: SurveyItem) -> None:
        tag = item.tag
        if item.inline and self._leave_inline(item):
            return
        if tag in ("td", "th") and self._rows:
            self._line.append(" ")
            return
        if tag == "tr" and self._rows:
            self._leave_row(item)
        elif self._rows and index not in self._tables and tag != "caption":
            self._line.append(" ")
        elif tag == "pre":
            self._leave_code()
        elif not item.inline or tag == "caption":
            self.flush()
        self._leave_container(index, tag)

    def _leave_container(self, index: int, tag: str) -> None:
        if tag in ("ul", "ol", "menu"):
            self._counts.pop()
            self._tight = bool(self._counts)
        elif tag == "li" and self._counts:
            self._around.pop()
            self._marker = ""
            self._tight = True
        elif tag == "blockquote":
            self._around.pop()
        elif index in self._tables:
            self._rows.pop()
            self._tight = False

    def _enter_item(self) -> None:
        if not self._counts:
            return
        count = self._counts[-1]
        self._marker = "- " if count < 0 else f"{count}. "
        if count > 0:
            self._counts[-1] += 1
        self._around.append(" " * len(self._marker))

    def _enter_inline(self, item: SurveyItem) -> bool:
        if item.tag == "a" and item.url:
            self._line.append("[")
        elif item.tag in _MARKS and not self._pre:
            self._line.append(f"\0{_MARKS[item.tag]}")
        elif item.tag in ("code", "kbd", "samp", "tt") and not self._pre:
            self._line.append("`")
            self._pre += 1
        elif item.tag == "img":
            self._image(item)
        else:
            return item.tag not in ("ul", "ol", "menu", "li", "blockquote", "pre", "table")
        return True

    def _leave_inline(self, item: SurveyItem) -> bool:
        if item.tag == "a" and item.url:
            self._close("[", f"]({item.url})", item.name)
        elif item.tag in _MARKS and not self._pre:
            self._close(f"\0{_MARKS[item.tag]}", _MARKS[item.tag])
        elif item.tag in ("code", "kbd", "samp", "tt") and self._line_has("`"):
            self._pre -= 1
            self._close("`", "`")
        else:
            return item.tag not in ("ul", "ol", "menu", "li", "blockquote", "pre", "table")
        return True

    def _line_has(self, sign: str) -> bool:
        return sign in self._line

    def _close(self, begin: str, end: str, name: str = "") -> None:
        """End a span that `begin` opened; drop an empty one, move blanks outside."""
        if begin not in self._line:  # a block inside has ended the line
            return
        at = len(self._line) - 1 - self._line[::-1].index(begin)
        inside = "".join(self._line[at + 1 :])
        del self._line[at:]
        text = inside.strip() or _escaped(name)
        if not text:
            self._line.append(inside)
            return
        lead = inside[: len(inside) - len(inside.lstrip())]
        tail = inside[len(inside.rstrip()) :] if inside.strip() else ""
        self._line.append(f"{lead}{begin.lstrip(chr(0))}{text}{end}{tail}")

    def _image(self, item: SurveyItem) -> None:
        if item.name:
            url = "" if item.url.startswith("data:") else item.url
            self._line.append(f"![{_escaped(item.name)}]({url})")

    def _leave_row(self, item: SurveyItem) -> None:
        cells = sum(
            self.survey.items[i].tag in ("td", "th") for i in self.survey.children[self._index_of(item)]
        )
        line = " ".join("".join(self._line).split())
        self._line.clear()
        if not line:
            return
        self._tight = self._rows[-1] > 0
        self._write([f"{line} |"])
        self._rows[-1] += 1
        if self._rows[-1] == 1:
            self._tight = True
            self._write(["|" + " --- |" * max(1, cells)])
        self._tight = True

    def _index_of(self, item: SurveyItem) -> int:
        # An item knows its parent only; a table section has few rows.
        return next(i for i in self.survey.children[item.parent] if self.survey.items[i] is item)

    def _leave_code(self) -> None:
        self._pre -= 1
        code = "".join(self._line).strip("\n")
        self._line.clear()
        if code.strip():
            self._write(["```", *code.split("\n"), "```"])

    def flush(self) -> None:
        """End the current line."""
        if self._pre:
            return
        text = _BLANKS.sub(" ", "".join(self._line).replace("\0", ""))
        self._line.clear()
        lines = [line.strip() for line in text.split("\n")]
        lines = [line for line in lines if line.strip("# ")]
        if lines:
            self._write(lines)

    def _write(self, lines: list[str]) -> None:
        if self.lines and not self._tight:
            shared = [
                mine for mine, before in zip(self._around, self._before, strict=False) if mine == before
            ]
            self.lines.append("".join(shared[: len(self._around) - bool(self._marker)]).rstrip())
        self._before = list(self._around)
        marker, self._marker = self._marker, ""
        around = "".join(self._around)
        for number, line in enumerate(lines):
            begin = around[: len(around) - len(marker)] + marker if number == 0 and marker else around
            self.lines.append((begin + line).rstrip())
        self._tight = False
