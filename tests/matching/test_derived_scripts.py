"""Writes of scripts: JSON, nested JSON, arrays, numbers, GraphQL variables, and values that scripts make up.

Each derived answer is compared with the one that the site computes for the same request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest

from stillweb.collections.learn.proof import ProvedForm, Refusal, prove
from stillweb.collections.learn.recordings import WRITE, FormRecordings, RecordedBranch, RecordedStep
from stillweb.matching.captures import Entry
from stillweb.matching.derived.branch import dump, load
from stillweb.matching.derived.derive import Branches, DerivedAnswers
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import Exchange, Match, Request, Response, Tier
from stillweb.record.forms.sentinels import sentinels

API = "https://board.test/api"
HOME = "https://board.test/"
JSON = (("Content-Type", "application/json"), ("Referer", HOME))

Body = Callable[[Any, Any, str, int], Any]
QUERY = "mutation add($input: Input!) { add(input: $input) { id title } }"
BODIES: dict[str, Body] = {
    "flat": lambda title, amount, made, width: {"title": title, "amount": amount, "id": made, "w": width},
    "nested": lambda title, amount, made, width: {
        "item": {"meta": {"title": title, "size": {"w": width}}, "amount": amount}, "id": made
    },
    "array": lambda title, amount, made, width: {
        "items": [{"id": "first", "w": 70}, {"id": made, "title": title, "amount": amount, "w": width}],
        "tags": ["red", "blue"],
    },
    "graphql": lambda title, amount, made, width: {
        "operationName": "add",
        "query": QUERY,
        "variables": {"input": {"title": title, "amount": amount, "id": made, "w": width}},
    },
    "made twice": lambda title, amount, made, width: {
        "id": made, "links": [made, "root"], "title": title, "amount": amount, "w": width
    },
}  # fmt: skip


def leaves(value: Any) -> list[tuple[str, Any]]:
    """Return the members that the site reads, wherever they are."""
    if isinstance(value, dict):
        return [pair for name, inner in value.items() for pair in [(name, inner), *leaves(inner)]]
    return [pair for inner in value for pair in leaves(inner)] if isinstance(value, list) else []


@dataclass
class Board:
    """One state of a site whose page sends JSON.

    Attributes:
        show: what the list has of an item; the item has title, amount, id and width.
        accepts: returns a status other than 200 for an item that is rejected.
    """

    show: Callable[[dict[str, Any]], Any] = lambda item: item
    accepts: Callable[[dict[str, Any]], int] = lambda item: 200
    items: list[Any] = field(default_factory=lambda: [{"title": "Welcome", "w": 80}])

    def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return _json({"items": self.items})
        sent = json.loads(request.raw_body)
        item = {name: value for name, value in leaves(sent) if not isinstance(value, dict | list)}
        item.pop("query", None)
        if "mutation" in json.dumps(sent) and QUERY not in json.dumps(sent):
            return _json({"errors": ["unknown query"]})
        status = self.accepts(item)
        if status != 200:
            return _json({"error": "rejected"}, status)
        self.items.append(self.show({**item, "body": sent}))
        return _json({"ok": True, "id": item.get("id")})


def _json(value: Any, status: int = 200) -> Response:
    head = (("Content-Type", "application/json"),)
    return Response(status, "", head, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def post(body: Any) -> Request:
    return Request("POST", API, JSON, json.dumps(body).encode())


def made_up(number: int) -> str:
    return sha256(f"made {number}".encode()).hexdigest()[:16]


def width_of(text: str) -> int:
    return 30 + 7 * len(text)


LIST = Request("GET", API, JSON[1:])


def record(body: Body, board: Callable[[], Board], amount: Callable[[str], Any]) -> FormRecordings:
    sets = list(sentinels([("text", 0), ("number", 0)], {"welcome"}))
    branches = []
    for number, values in enumerate([sets[0], *sets]):
        site = board()
        title = values[0].replace("\r\n", "\n")
        request = post(body(title, amount(values[1]), made_up(number), width_of(title)))
        opened = (
            step(HOME, Request("GET", HOME), _page()).exchange,
            step(API, LIST, site.answer(LIST)).exchange,
        )
        steps = [step(WRITE, request, site.answer(request)), step(API, LIST, site.answer(LIST))]
        branches.append(RecordedBranch((title, values[1]), tuple(steps), opened))
    untouched = tuple((step(API, LIST, board().answer(LIST)),) for _ in range(2))
    fields = (("title", "text"), ("amount", "number"))
    pair = (untouched[0], untouched[1])
    return FormRecordings("board", HOME, fields, False, tuple(branches), pair, opened=branches[0].opened)


def _page() -> Response:
    return Response(200, "", (("Content-Type", "text/html"),), b"<title>Board</title><script>app()</script>")


def step(label: str, request: Request, response: Response) -> RecordedStep:
    return RecordedStep(label, Exchange(request, response, "20261123120000"))


class Pages:
    """The recorded list, as an index of a pack."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def lookup(self, key: bytes) -> list[int]:
        return [0] if key == request_key("GET", API) else []

    def entry(self, row: int) -> Entry:
        place = (request_key("GET", API), "GET", API, "20261123120000", 200, 0, row)
        return Entry(*place, memoryview(b""), memoryview(self.body), "", "application/json", b"")


def branches_of(proved: ProvedForm, board: Callable[[], Board]) -> Branches:
    vocabulary = Vocabulary()
    vocabulary.add(board().answer(LIST).raw_body.decode())
    return Branches((load(json.loads(json.dumps(dump(proved.branch)))),), vocabulary)


def session_of(branches: Branches, board: Callable[[], Board]) -> DerivedAnswers:
    return DerivedAnswers(branches, Pages(board().answer(LIST).raw_body))


NUMBER = {"number": int, "number as string": str}
SITES: dict[str, tuple[Callable[[], Board], bool]] = {
    "echo": (lambda: Board(), True),
    "echo of the whole body": (lambda: Board(show=lambda item: item["body"]), True),
    "title only": (lambda: Board(show=lambda item: [item["title"], item["id"]]), True),
    "total": (lambda: Board(show=lambda item: {**item, "total": 3 * int(item["amount"])}), False),
    "next width": (lambda: Board(show=lambda item: {**item, "right": item["w"] + 1}), False),
    "upper-case id": (lambda: Board(show=lambda item: {**item, "id": item["id"].upper()}), True),
    "digest of the title": (
        lambda: Board(show=lambda item: {**item, "at": sha256(f"{item['title']}".encode()).hexdigest()}),
        True,
    ),
    "strict types": (
        lambda: Board(accepts=lambda item: 200 if isinstance(item["title"], str) else 422),
        True,
    ),
    "small amounts": (lambda: Board(accepts=lambda item: 200 if int(item["amount"]) < 25 else 422), True),
    "no markup": (lambda: Board(accepts=lambda item: 422 if "<" in str(item["title"]) else 200), True),
}  # fmt: skip
TITLES: Sequence[Any] = (
    "Great product", "good", "Tea", "Would buy it again, thanks.", "", " ", "x" * 10_240, "<b>bold</b>",
    'say "yes" & go', "back\\slash", "a\u0000b", "gr\u00fc\u00dfe", "\u65e5\u672c\u8a9e", "\U0001f600",
    "Welcome", "5", "017", "null", "true", 5, 5.5, None, True, ["good"], {"title": "good"}, "line\nbreak",
    "\u2028", "{1}", "%7B", "id", made_up(0), "FAQ", "$input",
)  # fmt: skip
AMOUNTS: Sequence[Any] = (
    "5",
    "17",
    "9",
    "24",
    "30",
    "017",
    "",
    "1e3",
    "-4",
    "5.0",
    " 5",
    "99999999999999999999",
)


def questions(body: Body, amount: Callable[[str], Any]) -> list[Any]:
    """Return bodies that a page, or a program instead of it, may send."""
    found = [body(title, amount("12"), made_up(70), width_of(str(title))) for title in TITLES]
    for text in AMOUNTS:
        found += [body("Great product", text, made_up(71), 121)]
        if text.isdigit():
            found += [body("Great product", int(text), made_up(71), 121)]
    found += [
        body("Great product", amount("12"), made, width)
        for made in (made_up(72), "", "0", "short", "G" * 16, made_up(3).upper(), made_up(1)[:8], 7, None)
        for width in (121, 0, 10_000, "121", 121.5)
    ]
    plain = body("Great product", amount("12"), made_up(73), 121)
    return [
        *found,
        {**plain, "more": 1},
        {name: plain[name] for name in list(plain)[:-1]},
        [plain],
        {"data": plain},
        json.loads(json.dumps(plain).replace("title", "Title")),
        json.loads(json.dumps(plain).replace("Great product", made_up(73))),
        json.loads(json.dumps(plain).replace("mutation add", "mutation remove")),
        json.loads(json.dumps(plain).replace('"operationName": "add"', '"operationName": "other"')),
        json.loads(json.dumps(plain).replace('"red", "blue"', '"blue", "red"')),
        json.loads(json.dumps(plain).replace('"red", "blue"', '"red", "blue", "red"')),
        json.loads(json.dumps(plain).replace('"root"', '"twig"')),
    ]


def count_answered(body: Body, site: str, amount: Callable[[str], Any]) -> tuple[int, int]:
    """Return how many questions are answered, and how many there are, or fail at a wrong answer."""
    board, provable = SITES[site]
    proved = prove(record(body, board, amount))
    requests = questions(body, amount)
    if isinstance(proved, Refusal):
        assert not provable, proved.reason
        return 0, len(requests)
    answered, branches = 0, branches_of(proved, board)
    for question in requests:
        session, live = session_of(branches, board), board()
        found = session.answer(post(question), Match(Tier.MISS, reason="not recorded"), 0)
        if found is None or found[1] is None:
            continue
        answered += 1
        assert _text(found[1]) == live.answer(post(question)).raw_body, question
        after = session.answer(LIST, Match(Tier.EXACT, 0), 0)
        if after is not None and after[1] is not None:
            assert _text(after[1]) == live.answer(LIST).raw_body, question
        else:
            assert after is not None, question  # the recorded list would be the one before the write
    return answered, len(requests)


def _text(entry: Entry) -> bytes:
    return bytes(entry.body)


CASES = [
    *(("flat", site, "number") for site in SITES),
    *((body, "echo of the whole body", number) for body in BODIES if body != "flat" for number in NUMBER),
    ("flat", "strict types", "number as string"),
]


@pytest.mark.parametrize(("body", "site", "amount"), CASES)
def test_a_script_write_is_answered_as_the_site_does_or_missed(body: str, site: str, amount: str) -> None:
    answered, requests = count_answered(BODIES[body], site, NUMBER[amount])  # type: ignore[arg-type]
    assert requests >= 100
    assert answered >= 5 or not SITES[site][1]


def test_a_made_up_value_is_repeated_where_the_site_repeats_it() -> None:
    proved = prove(record(BODIES["flat"], Board, int))
    assert isinstance(proved, ProvedForm)
    session = session_of(branches_of(proved, Board), Board)
    session.answer(post(BODIES["flat"]("Tea", 12, made_up(90), 51)), Match(Tier.MISS), 0)
    found = session.answer(LIST, Match(Tier.EXACT, 0), 0)
    assert found is not None
    assert found[1] is not None
    assert made_up(90) in _text(found[1]).decode()


def test_documents_that_the_write_left_alone_are_answered_as_recorded() -> None:
    other = Request("GET", f"{HOME}settings")
    recordings = record(BODIES["flat"], Board, int)
    answer = _json({"zoom": 1})
    probed = step(other.url, other, answer)
    branches = tuple(
        RecordedBranch(each.values, (*each.steps, probed), each.opened) for each in recordings.branches
    )
    untouched = ((*recordings.untouched[0], probed), (*recordings.untouched[1], probed))
    proved = prove(
        FormRecordings("board", HOME, recordings.fields, False, branches, untouched, opened=recordings.opened)
    )
    assert isinstance(proved, ProvedForm)
    assert request_key("GET", other.url) in proved.branch.clean
