"""Compare derived answers with a live site: unseen values in each proved form, sent to both by curl.

    python bench/writes.py NAME --root DIR --reset-command CMD [--address 127.0.0.1:8443] [--ca FILE]
                           [--login URL user=demo password=demo] [--pages 6] [--only TEXT]

DIR/collections/NAME has forms that `stillweb record forms` proved; the site runs, and CMD puts it back. The
program opens the page of each form, fills its free fields with each set of values, sends it, follows
redirects, and requests pages: the one that it led to, again, the form's page, the start page, and some others
by lot. Both sides get the same steps; hidden fields are those that each side's own page holds. Nothing here
uses the code that derives answers: forms are read with html.parser, and both sides answer curl.

An answer is *wrong* if it differs from the live one in status, redirect or body. Only the clock, long tokens,
and what two live visits with the same values differ in may differ. Misses are no answers. ORDINARY values are
what people write; NASTY ones try markup, lengths, spaces, duplicates and scripts. Exit status 1 if an answer
is wrong. Prints JSON, and a Markdown table on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from stillweb.certs import CertAuthority
from stillweb.collections.branches import FormOutcome, read_forms
from stillweb.collections.layout import Collection
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.model import HTML_TYPES
from stillweb.replay import ReplayClient, ReplayOptions, serve

ORDINARY = (
    "Lamp", "works well", "Bought two lamps", "Very good value", "Would buy again, thanks.",
    "Not what I expected: too small.", "The colour is nice", "Delivered on time",
    "Looks great in our kitchen",
    "My mother likes it a lot.", "Please call before delivery", "Meeting notes", "Buy milk and bread",
    "Hall 12 is too cold", "Fix the broken link", "Is this still available?", "Thanks for the quick answer!",
    "It works, but it is loud - very loud.", "See you on Monday", "Quality is fine; price is high",
)  # fmt: skip
NASTY = (
    "", " ", "x", "a", "Aa", "zz", " padded ", "two  spaces", "tab\there", "007", "42", "-5", "3.14", "1e5",
    "UPPER", "iPhone CamelCase", "FAQ about USB", "<b>bold</b>", "</textarea><script>alert(1)</script>",
    "a & b", "&amp; &lt;", 'say "hi"', "it's", "{}", '{"a": 1}', "{{ 7*7 }}", "${x}", "%s %d 50%", "a+b=c",
    "back\\slash", "first\nsecond", "line\n", "first\n\nsecond\n\nthird", "**bold** _it_", "[[start]]",
    "[a](http://b.example/)", "http://a.example/x", "mail@a.example", "grüße Ärger", "日本語", "😀 smile",
    "e\u0301 combining", "\u0130stanbul", "\u202eright to left", "null", "true", "../..", "a/b c?d#e",
    "word " * 60, "x" * 300, "lorem ipsum " * 900, "a\u00a0b", "wait... a--b", "640x480", "#1 @you", "- item",
    "mango", "Welcome", "l'eau d'été", "O'Neil & Sons <Ltd>", "; DROP TABLE x; --", "\u200bzero", "yes?!",
)  # fmt: skip
_TYPED = ("text", "search", "email", "number", "date", "textarea", "")
_NUMBERS, _DATES = ("3", "07", "19", "25", "0", "-1", "1000000"), ("2031-09-09", "2033-01-31", "1999-12-31")
_MAILS = ("ann@mail.example", "bob.lee@shop.example", "UPPER@mail.example", "a+b@c.example", "no mail")
# Masked on all sides: clocks, seconds since 1970, quoted tokens, dates with a time zone.
_MASKS = re.compile(
    rb"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(\s?[ap]\.?m\b\.?)?|\b1[78]\d{8}(\d{3}|\.\d+)?\b"
    rb"|\b(?=[\w.~=+/-]*\d)(?=[\w.~=+/-]*[A-Z])(?=[\w.~=+/-]*[a-z])[\w.~=+/-]{32,}|\b[0-9a-f]{32}\b",
)
MASKED: list[re.Pattern[bytes]] = []
"""Parts that no recording can know (`--mask`), such as the list of pages that the visitor has seen."""
_ATOMS = re.compile(rb"[A-Za-z0-9]+|[^A-Za-z0-9]")
_REDIRECTS, _SHOWN = 5, 3


@dataclass
class Form:
    """A form as its page has it."""

    action: str
    method: str
    multipart: bool
    fields: list[dict[str, str]] = field(default_factory=list)


class FormParser(HTMLParser):
    """Reads the forms of a page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base, self.forms, self._area, self._select = base, list[Form](), None, None
        self._inside = False  # a form in a form is none (HTML §13.2.6.4.7)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in reversed(attrs)}  # the first one counts
        if tag == "form" and not self._inside:
            self._inside = True
            multipart = given.get("enctype", "") == "multipart/form-data"
            action = urljoin(self.base, given.get("action", "") or self.base)
            self.forms.append(Form(action.partition("#")[0], given.get("method", "get").upper(), multipart))
        if not self.forms:
            return
        if tag in ("input", "button"):
            kind = given.get("type", "submit" if tag == "button" else "text").lower()
            self.forms[-1].fields.append({"value": "on" if kind == "checkbox" else "", **given, "type": kind})
        elif tag == "textarea":
            self._area = {**given, "type": "textarea", "value": ""}
            self.forms[-1].fields.append(self._area)
        elif tag == "select":
            self._select = {**given, "type": "select", "value": ""}
            self.forms[-1].fields.append(self._select)
        elif tag == "option" and self._select is not None:
            if "selected" in given or ("first" not in self._select and "multiple" not in self._select):
                self._select["value"] = given.get("value", "")
                self._select["chosen"] = "chosen"
            self._select["first"] = "seen"
            self._select["filled"] = self._select.get("filled") or given.get("value", "")

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._area["value"] += data if self._area["value"] else data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "form"
        self._area = None if tag == "textarea" else self._area
        self._select = None if tag == "select" else self._select


@dataclass(frozen=True)
class Answer:
    """A side's answer to one request."""

    url: str
    status: int
    location: str
    mime: str
    body: bytes


@dataclass
class Visitor:
    """One visit by curl, with cookies of its own."""

    options: list[str]
    cookies: dict[tuple[str, str], str] = field(default_factory=dict)

    async def fetch(self, url: str, body: bytes | None = None, kind: str = "", referer: str = "") -> Answer:
        """Request a URL."""
        host = urlsplit(url).netloc
        cookies = "; ".join(f"{name}={value}" for (on, name), value in self.cookies.items() if on == host)
        fields = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
        fields |= {"Referer": referer, "Cookie": cookies, "Content-Type": kind}
        given = [each for name, value in fields.items() if value for each in ("-H", f"{name}: {value}")]
        posted = ["--data-binary", "@-"] if body is not None else []
        command = ["curl", "-sS", "-i", "--http1.1", "--suppress-connect-headers", "--max-time", "60"]
        process = await asyncio.create_subprocess_exec(
            *command, *self.options, *given, *posted, url,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said, error = await process.communicate(body)
        if process.returncode:
            raise SystemExit(f"{url}: curl: {error.decode()}")
        head, _, content = said.partition(b"\r\n\r\n")
        if head.split()[1] == b"100":
            head, _, content = content.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        named = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self._keep(host, [value for name, value in named if name == "set-cookie"])
        found = dict(named)
        return Answer(
            url, int(first.split()[1]), found.get("location", ""), found.get("content-type", ""), content
        )

    def _keep(self, host: str, stated: Sequence[str]) -> None:
        for each in stated:
            name, _, value = each.partition(";")[0].partition("=")
            if value.strip('"') in ("", "deleted") or "max-age=0" in each.lower():
                self.cookies.pop((host, name.strip()), None)
            else:
                self.cookies[host, name.strip()] = value


def form_data(form: Form, values: dict[str, str], button: str) -> list[tuple[str, str | None]]:
    """Return what a browser sends."""
    data: list[tuple[str, str | None]] = []
    for each in form.fields:
        name, kind = each.get("name", ""), each["type"]
        if not name or "disabled" in each or kind in ("button", "reset"):
            continue
        if kind in ("submit", "image"):
            data += [(name, each["value"])] if name == button else []
        elif kind == "file":
            data.append((name, None))
        elif kind == "select" and "chosen" not in each:
            continue
        elif kind == "select" and "required" in each and not each["value"]:
            data.append((name, each.get("filled", "")))  # the browser requires a choice
        elif name in values and kind in _TYPED:
            data.append((name, values[name]))
        elif kind not in ("checkbox", "radio") or "checked" in each:
            data.append((name, each["value"]))
    return data


def encoded(data: list[tuple[str, str | None]], *, multipart: bool) -> tuple[bytes, str]:
    """Return body and type, lines as CRLF as browsers send them."""
    lines = [(name, value and re.sub(r"\r?\n", "\r\n", value)) for name, value in data]
    if not multipart:
        return urlencode([(n, v or "") for n, v in lines]).encode(), "application/x-www-form-urlencoded"
    parts = b""
    for name, value in lines:
        more = '; filename=""\r\nContent-Type: application/octet-stream' if value is None else ""
        parts += f'--XbenchX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        parts += (value or "").encode() + b"\r\n"
    return parts + b"--XbenchX--\r\n", "multipart/form-data; boundary=XbenchX"


@dataclass(frozen=True)
class Target:
    """A proved form: its page, target, button and free fields."""

    page: str
    method: str
    action: str
    button: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, outcome: FormOutcome) -> Target:
        """Read the name of an outcome: METHOD ACTION [BUTTON] FIELD+FIELD."""
        found = re.fullmatch(r"(\w+) (\S+)(?: \[(.+?)\])? (.+)", outcome.name)
        assert found, outcome.name
        return cls(outcome.page, found[1], found[2], found[3] or "", tuple(found[4].split("+")))


async def visit(
    visitor: Visitor, target: Target, values: dict[str, str], pages: Sequence[str]
) -> list[Answer] | None:
    """Take the steps; None if the page has no such form."""
    opened = await visitor.fetch(target.page)
    parser = FormParser(target.page)
    parser.feed(opened.body.decode("utf-8", "replace"))
    form = next((each for each in parser.forms if (each.method, each.action) == (target.method, target.action)
                 and set(target.names) <= {one.get("name") for one in each.fields}), None)  # fmt: skip
    if form is None:
        return None
    data = form_data(form, values, target.button)
    body, kind = encoded(data, multipart=form.multipart and target.method == "POST")
    if target.method == "POST":
        answers = [await visitor.fetch(form.action, body, kind, target.page)]
    else:
        answers = [
            await visitor.fetch(f"{form.action.partition('?')[0]}?{body.decode()}", referer=target.page)
        ]
    while answers[-1].status in (301, 302, 303) and len(answers) <= _REDIRECTS:
        url = urljoin(answers[-1].url, answers[-1].location)
        answers.append(await visitor.fetch(url, referer=target.page))
    again = [answers[-1].url] if len(answers) > 1 else []
    for url in dict.fromkeys([*again, *pages] if target.method == "POST" else []):
        answers.append(await visitor.fetch(url))
    return answers


def atoms(text: bytes) -> list[bytes]:
    for mask in (*MASKED, _MASKS):
        text = mask.sub(b"~", text)
    return _ATOMS.findall(text)


def texts_of(answer: Answer) -> bytes:
    return f"{answer.status} {answer.location} {answer.mime}\n".encode() + answer.body


def difference(given: Answer, one: Answer, other: Answer | None) -> str:
    """Return where an answer differs from live ones, "" if only where these differ from each other."""
    mine, live = atoms(texts_of(given)), atoms(texts_of(one))
    again = atoms(texts_of(other)) if other else live
    if len(live) != len(again):
        return "unstable"
    if len(mine) != len(live):
        places = [n for n, (a, b) in enumerate(zip(mine, live, strict=False)) if a != b and b == again[n]]
        place = places[0] if places else min(len(mine), len(live))
    else:
        places = [n for n, (a, b, c) in enumerate(zip(mine, live, again, strict=True)) if a != b and b == c]
        if not places:
            return ""
        place = places[0]
    around = [
        b"".join(each[max(0, place - 30) : place + 30]).decode("utf-8", "replace") for each in (mine, live)
    ]
    return " / ".join(map(repr, around))


@dataclass
class Result:
    """Counts of one form."""

    form: str
    writes: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Comparison:
    """Sends the forms of one collection to the live site and to its replay."""

    def __init__(self, args: argparse.Namespace, collection: Collection) -> None:
        self._args, self._collection = args, collection
        self._ca = args.root / "certs" / "ca.pem"
        self._rng = random.Random(7)
        captures = collection.captures()
        documents = {
            c.url for c in captures if c.method == "GET" and c.status == 200 and c.mime in HTML_TYPES
        }
        left_out = re.compile(args.exclude) if args.exclude else None
        self._documents = sorted(url for url in documents if not (left_out and left_out.search(url)))

    def _live(self) -> Visitor:
        reach = ["--connect-to", f"::{self._args.address}"] if self._args.address else []
        trust = ["--cacert", self._args.ca] if self._args.ca else []
        return Visitor([*reach, *trust])

    async def _reset(self) -> None:
        if self._args.reset_command:
            process = await asyncio.create_subprocess_exec(*shlex.split(self._args.reset_command))
            if await process.wait():
                raise SystemExit("the reset command failed")

    async def _logged_in(self) -> Visitor:
        await self._reset()
        visitor = self._live()
        if self._args.login:
            page, *pairs = self._args.login
            typed = dict(pair.split("=", 1) for pair in pairs)
            opened = await visitor.fetch(page)
            parser = FormParser(page)
            parser.feed(opened.body.decode("utf-8", "replace"))
            form = next(f for f in parser.forms if set(typed) <= {e.get("name") for e in f.fields})
            data = [(n, typed.get(n, v)) for n, v in form_data(form, {}, "")]
            body, kind = encoded(data, multipart=form.multipart)
            answer = await visitor.fetch(form.action, body, kind, page)
            if answer.status >= 400:
                raise SystemExit(f"login answers {answer.status}")
        return visitor

    async def _replayed(
        self, client: ReplayClient, target: Target, values: dict[str, str], pages: Sequence[str]
    ) -> tuple[list[Answer] | None, list[Any]]:
        session = await client.open_session(self._collection.name)
        options = ["--proxy", session.proxy, "--cacert", str(self._ca)]
        answers = await visit(Visitor(options), target, values, pages)
        entries = (await client.ledger(session.id)).entries
        await client.close_session(session.id)
        return answers, list(entries)

    async def form(self, client: ReplayClient, outcome: FormOutcome) -> dict[str, Result]:
        """Compare one form for all values."""
        target = Target.of(outcome)
        results = {}
        for name, values in (("ordinary", ORDINARY), ("nasty", NASTY)):
            results[name] = Result(outcome.name)
            for number in range(0, len(values), self._args.every):
                await self._value(client, target, self._filled(target, values, number), results[name])
                sys.stderr.write(
                    f"\r{name} {number} {dict(results[name].writes)} wrong {len(results[name].wrong)}   "
                )
        return results

    def _filled(self, target: Target, values: Sequence[str], number: int) -> dict[str, str]:
        """Return a value for each field: the wanted one in one field, others that people write."""
        special = number % len(target.names)
        filled = {}
        for place, name in enumerate(target.names):
            if re.search(r"e-?mail", name, re.IGNORECASE):
                filled[name] = _MAILS[number % (2 if values is ORDINARY else len(_MAILS))]
            elif re.search(r"quantity|amount|priority|number", name, re.IGNORECASE):
                filled[name] = _NUMBERS[number % (1 if values is ORDINARY else len(_NUMBERS))]
            elif re.search(r"date", name, re.IGNORECASE):
                filled[name] = _DATES[number % (2 if values is ORDINARY else len(_DATES))]
            else:
                filled[name] = values[number] if place == special else ORDINARY[(number + 3 + 7 * place) % 20]
        return filled

    async def _value(
        self, client: ReplayClient, target: Target, values: dict[str, str], result: Result
    ) -> None:
        others = self._rng.sample(self._documents, min(self._args.pages, len(self._documents)))
        pages = [target.page, *others]
        given, entries = await self._replayed(client, target, values, pages)
        if given is None:
            result.writes["no form at replay"] += 1
            return
        # One entry for each request; the first is the form's page.
        tiers = [(str(each.tier), each.reason) for each in entries][1:]
        assert len(tiers) == len(given), (len(tiers), len(given), entries)
        result.writes[tiers[0][0]] += 1
        if tiers[0][0] == "miss":
            result.reasons[_reason(tiers[0][1])] += 1
            return
        live = await visit(await self._logged_in(), target, values, pages)
        if live is None:
            raise SystemExit(f"{target.page}: the live page has no such form")
        again: list[Answer] | None = None
        for number, (answer, (tier, reason)) in enumerate(zip(given, tiers, strict=True)):
            result.answers[tier] += 1
            if tier == "miss":
                result.reasons[_reason(reason)] += 1
                continue
            mine = next((e for e in live[number:] + live if e.url == answer.url), None)
            if mine is None:
                result.wrong.append(
                    f"{values}: {answer.url}: the live site leads elsewhere: {live[0].location}"
                )
                break
            if not difference(answer, mine, None):
                continue
            if again is None:
                again = await visit(await self._logged_in(), target, values, pages)
                assert again is not None
            twin = next((e for e in again[number:] + again if e.url == answer.url), None)
            why = difference(answer, mine, twin)
            if why == "unstable":
                result.answers["unstable"] += 1
            elif why:
                result.wrong.append(f"{values}: {tier} {answer.url}: {why}")


def _reason(text: str) -> str:
    """Return a reason without its values."""
    text = text.rpartition("form: ")[2]
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "*", text)[:110]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Compare all proved forms."""
    collection = Collection.open(args.root / "collections", args.name)
    ca = CertAuthority.load_or_init(args.root / "certs")
    forms = read_forms(collection)
    if forms is None:
        raise SystemExit("no form was recorded: stillweb record forms")
    proved = [each for each in forms.outcomes if not each.refused and " then " not in each.name
              and not each.name.startswith("script ") and not each.name.endswith(" as it is")
              and (not args.only or any(part in each.name for part in args.only))]  # fmt: skip
    policy = Policy(unrecorded=UnrecordedAnswers(derived=True))
    options = ReplayOptions(port=0, session_ports=None, policy=policy)
    found: dict[str, Any] = {}
    comparison = Comparison(args, collection)
    async with serve([collection], ca, options) as server, ReplayClient(server.url) as client:
        for outcome in proved:
            results = await comparison.form(client, outcome)
            found[outcome.name] = {name: vars(each) for name, each in results.items()}
            for name, each in results.items():
                counts = f"{dict(each.writes)} | {dict(each.answers)} | {len(each.wrong)}"
                reasons = each.reasons.most_common(_SHOWN)
                sys.stderr.write(f"\n| {outcome.name} | {name} | {counts} | {reasons} |\n")
                for wrong in each.wrong[:_SHOWN]:
                    sys.stderr.write(f"    WRONG {wrong}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--reset-command", default="")
    parser.add_argument("--address", default="", help="HOST:PORT that has all hosts; default: as named")
    parser.add_argument("--ca", default="", help="PEM file of the site's CA")
    parser.add_argument("--login", nargs="+", default=[], metavar="URL NAME=VALUE")
    parser.add_argument("--pages", type=int, default=6, help="other pages behind each write")
    parser.add_argument("--every", type=int, default=1, help="take every Nth value")
    parser.add_argument("--only", action="append", default=[], help="part of a form's name")
    parser.add_argument("--exclude", default="", help="expression of pages that are not requested")
    parser.add_argument("--mask", action="append", default=[], help="expression of what is not compared")
    args = parser.parse_args()
    MASKED.extend(re.compile(each.encode(), re.DOTALL) for each in args.mask)
    found = asyncio.run(measure(args))
    print(json.dumps(found, indent=1))
    sys.exit(any(each["wrong"] for form in found.values() for each in form.values()))


if __name__ == "__main__":
    main()
