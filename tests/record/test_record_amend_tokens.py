"""A missed request behind a form is sent with the token that the site gives out now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from shared_sites import sites_up

from stillweb import clock
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed
from stillweb.collections.pack.seal import seal
from stillweb.env.env import Env
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Request, Response
from stillweb.record.amend.amend import AmendOptions, amend
from stillweb.record.amend.origin import LivePage, SentTokens, rules_for, token_fields, with_fresh_tokens
from stillweb.record.amend.plan import SealedIndex
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.record.behaviors.options import parse_behaviors
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.recording import collection_to_fill
from stillweb.replay.client import ReplayClient
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.ledger.misses import gather_misses
from stillweb.replay.server.server import ReplayOptions, serve

HOME = "https://site.test/"
OLD, NEW = "A1b2C3d4E5f6G7h8", "Z9y8X7w6V5u4T3s2"
FORM = """<link rel=icon href=data:,><form method=post action=/add>
<input type=hidden name=csrf_token value={token}><input type=hidden name=item value=7>
<button>Add</button></form>"""


def build(site) -> None:
    """A site that gives each visitor a token and takes no other; what a form leads to has a script."""
    site.page("/", FORM)
    home = site.answers["/"]
    given: dict[str, str] = {}

    def front(request):
        session = clock.new_id()
        given[session] = clock.new_id().replace("-", "")
        body = home.body.replace(b"{token}", given[session].encode())
        return replace(home, body=body, headers=(("Set-Cookie", f"visitor={session}; Path=/"),))

    def add(request):
        session = request.headers.get("cookie", "").removeprefix("visitor=")
        token = parse_qs(request.body.decode()).get("csrf_token", [""])[0]
        if given.get(session) != token:
            return replace(home, body=b"a stale token", status=403)
        return replace(home, body=b"", status=302, headers=(("Location", "/added"),))

    site.answers |= {"/": front, "/add": add}
    site.page("/added", "<script src=/added.js></script><h1>added</h1>")
    site.answers["/added.js"] = replace(home, body=b"document.title = 'added'", type="text/javascript")


async def played(collection: Collection, ca, url: str, button: str) -> tuple[list[Missed], str]:
    """Press a button on the replay; return what was missed, and the title of the page that it led to."""
    options = ReplayOptions(port=0, session_ports=None)
    seal(collection)
    async with (
        serve([collection], ca, options) as server,
        ReplayClient(server.url) as client,
        Env(server.url, level="clock") as env,
    ):
        observation, info = await env.reset(url=url)
        (bid, *_) = [node.bid for node in observation.nodes if (node.role, node.name) == ("button", button)]
        observation, *_ = await env.step({"action": "click", "bid": bid})
        entries = (await client.ledger(info["session"])).entries
    return gather_misses(
        LedgerLine(info["session"], collection.name, "", each) for each in entries
    ), observation.title


async def recorded(root: Path, ca, url: str, reach: RecordOptions) -> Collection:
    options = CrawlOptions(record=reach, scope=ScopeKind.PAGE, behaviors=parse_behaviors("none"))
    with collection_to_fill(root, "site") as collection:
        await crawl([url], collection, ca, options)
    return collection


@pytest.mark.browser
async def test_a_form_is_sent_with_the_live_token_and_answers_that_of_the_recording(
    tmp_path: Path, ca, site
) -> None:
    build(site)
    collection = await recorded(tmp_path, ca, HOME, site.options)
    missed, _ = await played(collection, ca, HOME, "Add")
    assert [(each.method, each.url) for each in missed] == [("POST", f"{HOME}add")]
    assert not read_rules(collection).own

    report = await amend(collection, missed, ca, AmendOptions(unsafe=True, record=site.options))

    assert [(each.outcome, each.status) for each in report.outcomes] == [("recorded", 302)]
    posted = [request for request in site.requests if request.method == "POST"]
    assert len(posted) == 1  # it may have placed an order
    added = [each.url.removeprefix(HOME) for each in collection.captures() if "amend" in each.source]
    assert sorted(added) == ["add", "added", "added.js"]  # the pages it led to, with their subresources
    assert [(rule.where, rule.name, rule.method) for rule in read_rules(collection).own] == [
        (Where.FORM, "csrf_token", "POST")
    ]
    assert await played(collection, ca, HOME, "Add") == ([], "added")
    again = await amend(collection, missed, ca, AmendOptions(unsafe=True, record=site.options))
    assert [each.outcome for each in again.outcomes] == ["present"]


@pytest.mark.browser
@pytest.mark.sites
async def test_a_real_shop_takes_what_was_missed_into_its_basket(tmp_path: Path, ca) -> None:
    reach = sites_up("shop")
    product = "https://shop.test/catalogue/ashdown-secateurs-plum_13/"
    collection = await recorded(tmp_path, ca, product, reach)
    missed, _ = await played(collection, ca, product, "Add to basket")
    assert [each.url for each in missed if each.method == "POST"] == ["https://shop.test/basket/add/13/"]

    report = await amend(collection, missed, ca, AmendOptions(unsafe=True, record=reach))

    assert {each.outcome for each in report.outcomes} == {"recorded"}
    (added,) = (each for each in collection.captures() if each.method == "POST")
    assert added.status == 302  # a stale token is answered with 403
    again, title = await played(collection, ca, product, "Add to basket")
    assert again == []
    assert "secateurs" in title.lower()


FIELDS = (("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-dest", "document"))


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        # Tokens of the form that is sent there, of any other form, and of what scripts read.
        (LivePage([(f"{HOME}x", {"csrf_token": OLD}), (f"{HOME}add", {"csrf_token": NEW})]), NEW),
        (LivePage([(f"{HOME}else", {"csrf_token": NEW})]), NEW),
        (LivePage(metas={"viewport": "width=800", "csrf-token": NEW}), NEW),
        (LivePage([(f"{HOME}add", {"n": "2"})]), OLD),
    ],
)
def test_the_token_of_the_page_is_put_in_and_nothing_else(page: LivePage, sent: str) -> None:
    request = Request("POST", f"{HOME}add", FIELDS, f"csrf_token={OLD}&n=1".encode())
    made = with_fresh_tokens(request, token_fields(request, Rules()), page)
    assert made.raw_body == f"csrf_token={sent}&n=1".encode()
    assert (made.url, made.headers) == (request.url, request.headers)
    rules = rules_for(request, made, HOME, Rules())
    assert bool(rules) == (sent == NEW)
    if rules:
        keys = [{alias.key for alias in Rules(rules).aliases(each)} for each in (request, made)]
        assert keys[0] == keys[1] != set()
        other = Request("POST", f"{HOME}add", FIELDS, made.raw_body + b"&more=1")
        assert keys[0].isdisjoint(alias.key for alias in Rules(rules).aliases(other))


def test_scripts_may_send_the_token_as_a_member_of_json() -> None:
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"))
    sent = f'{{"_csrf":"{OLD}","nonce":"{OLD}","id":[7]}}'
    request = Request("POST", f"{HOME}read", fields, sent.encode())
    page = LivePage([(f"{HOME}add", {"_csrf": NEW, "nonce": NEW})])
    made = with_fresh_tokens(request, token_fields(request, Rules()), page)
    assert json.loads(made.raw_body) == {"_csrf": NEW, "nonce": OLD, "id": [7]}
    rules = Rules(rules_for(request, made, HOME, Rules()))
    keys = [{alias.key for alias in rules.aliases(each)} for each in (request, made)]
    assert keys[0] == keys[1] != set()
    for other in (made.raw_body.replace(b"7", b"8"), made.raw_body.replace(OLD.encode(), NEW.encode())):
        twin = Request("POST", request.url, fields, other)
        assert keys[0].isdisjoint(alias.key for alias in rules.aliases(twin))


def test_a_place_that_a_rule_names_is_a_token_too_and_reads_have_none() -> None:
    rules = Rules.parse("version: 1\nvolatile:\n  - {where: form, name: stamp, shape: token, method: POST}\n")
    request = Request("POST", f"{HOME}add", FIELDS, f"stamp={OLD}".encode())
    page = LivePage([(f"{HOME}add", {"stamp": NEW})])
    made = with_fresh_tokens(request, token_fields(request, rules), page)
    assert made.raw_body == f"stamp={NEW}".encode()
    assert rules_for(request, made, HOME, rules) == ()
    assert token_fields(request, Rules()) == set()
    assert token_fields(Request("GET", f"{HOME}add?csrf_token={OLD}"), rules) == set()


def test_requests_whose_fields_differ_after_redaction_give_no_rule():
    kind = (("Content-Type", "application/json"),)
    request, made = (
        Request("POST", HOME, kind, body) for body in (b'{"csrf": "a"}', b'{"csrf": "b", "c": 1}')
    )
    assert rules_for(request, made, HOME, Rules()) == ()


def test_scripts_send_what_their_page_holds_now() -> None:
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"), ("X-CSRFToken", OLD))
    request = Request("POST", f"{HOME}api", fields, b"{}")
    made = with_fresh_tokens(request, set(), LivePage(cookies={"csrftoken": NEW}, metas={"csrf-token": OLD}))
    assert made.headers == (*fields[:2], ("x-csrftoken", NEW), ("x-csrf-token", OLD))


@pytest.mark.parametrize(
    ("page", "field"),
    [
        (LivePage(cookies={"csrf_token_P5000": NEW}), ("x-csrf-token", NEW)),
        (LivePage(cookies={"_xsrf": OLD}, sent={"x-xsrftoken": NEW}), ("x-xsrftoken", NEW)),
        (LivePage(cookies={"session": NEW}), None),
    ],
)
def test_scripts_send_the_token_of_a_cookie_of_any_name(
    page: LivePage, field: tuple[str, str] | None
) -> None:
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"), ("X-XSRFToken", OLD))
    made = with_fresh_tokens(Request("POST", f"{HOME}api", fields, b"{}"), set(), page)
    assert ("X-XSRFToken", OLD) not in made.headers
    assert (field in made.headers) if field else made.headers == fields[:2]


def test_scripts_send_a_token_that_a_refusal_had_issued() -> None:
    # Transmission's RPC, §2.3.1: a 409 has the value of the field that each further request must send.
    name, tokens = "X-App-Session-Id", SentTokens()
    tokens.note_request({"Content-Type": "application/json", name.lower(): OLD})
    tokens.note_answer(200, {name: NEW, "Content-Type": "application/json"})
    tokens.note_request({name: NEW})
    assert tokens.fields == {}
    tokens.note_answer(409, {name: NEW, "Content-Type": "application/json"})
    tokens.note_request({"content-type": "application/json", name.lower(): NEW, "X-CSRFToken": OLD})
    assert tokens.fields == {name.lower(): NEW, "x-csrftoken": OLD}
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"), (name, OLD))
    page = LivePage(sent={name.lower(): NEW})
    made = with_fresh_tokens(Request("POST", f"{HOME}rpc", fields, b"{}"), set(), page)
    assert made.headers == (*fields[:2], (name.lower(), NEW))


@pytest.mark.parametrize(("field", "recorded"), [("X-App-Session-Id", False), ("X-Request", True)])
def test_a_conflict_that_issues_a_token_is_not_the_answer_to_a_write(
    tmp_path: Path, field: str, recorded: bool
) -> None:
    collection = Collection.create(tmp_path, "site")
    response = Response(409, "Conflict", ((field, NEW),), b"")
    with NewOnlyWriter(collection, SealedIndex(None, Rules()), Rules(), ()) as writer:
        writer.write(Exchange(Request("POST", f"{HOME}rpc", (), b"{}"), response, "20260101000000"))
        assert writer.added == recorded
