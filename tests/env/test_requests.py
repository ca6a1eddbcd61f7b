"""The evaluator `request`: rules for values, paths into bodies, patterns, order, and nothing else written."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
import yaml
from click.testing import CliRunner
from pydantic import ValidationError

from stillweb.cli.tasks import tasks
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.tasks.evaluators import NetworkEvaluator
from stillweb.env.tasks.evidence import Evidence
from stillweb.env.tasks.native import native_tasks
from stillweb.env.tasks.requests import FieldRule, RequestEvaluator, RequestPattern
from stillweb.env.tasks.task import task_from_dict, task_to_dict
from stillweb.env.tasks.writes import request_evidence
from stillweb.errors import TaskError, UsageError
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayOptions, ensure_sealed, serve

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
SHOP = "https://shop.test"


def entry(method="POST", url=SHOP + "/cart", body="", kind=FORM, tier="miss", mode="navigate"):
    raw = body if isinstance(body, bytes) else (json.dumps(body) if kind == JSON else body).encode()
    fields = [["content-type", kind], ["sec-fetch-mode", mode]]
    request = {"fields": fields} | ({"size": len(raw), "body": b64encode(raw).decode()} if raw else {})
    return {"method": method, "url": url, "status": 404, "tier": tier, "asked": request}


def score(evaluator, *entries, rules=None):
    requests = request_evidence(entries, bodies=True, rules=rules)
    return RequestEvaluator.model_validate({"type": "request", **evaluator}).score(
        Evidence(requests=requests)
    )


def one(pattern, *entries, **more):
    return score({"requests": {"url": SHOP + "/cart", **pattern}, **more}, *entries).reward


@pytest.mark.parametrize(
    ("rule", "values", "typed", "right"),
    [
        ("a", ["a"], False, True),
        ("a", ["A"], False, False),
        ("a", [], False, False),
        ("a", ["a", "a"], False, True),
        ("a", ["a", "b"], False, False),
        (["a", "b"], ["a", "b"], False, True),
        (["b", "a"], ["a", "b"], False, False),
        (2, ["2"], False, True),
        (True, ["true"], False, True),
        (2, [2.0], True, True),
        (2, ["2"], True, False),
        ("2", [2], True, False),
        (1, [True], True, False),
        (None, [None], True, True),
        ({"exact": {"a": [1]}}, [{"a": [1.0]}], True, True),
        ({"ignore_case": "Ada  Lovelace"}, [" ada lovelace"], False, True),
        ({"ignore_case": "Ada"}, ["ada l"], False, False),
        ({"include": "LAMP"}, ["a red lamp"], False, True),
        ({"number": 1234.5}, ["$1,234.50"], False, True),
        ({"number": 10, "tolerance": 0.5}, [10.4], True, True),
        ({"number": 10, "tolerance": 0.5}, [10.6], True, False),
        ({"number": 1}, [True], True, False),
        ({"number": 1}, ["one"], False, False),
        ({"number": 1}, ["NaN"], False, False),
        ({"date": "2024-05-06"}, ["2024-05-06T23:30:00Z"], False, True),
        ({"date": "2024-05-06"}, ["6 May 2024"], False, True),
        ({"date": "2024-05-06"}, ["05/06/2024"], False, False),  # ambiguous without a format
        ({"date": "2024-05-06", "format": "%m/%d/%Y"}, ["05/06/2024"], False, True),
        ({"date": "2024-05-06"}, [1714953600], True, True),
        ({"date": "2024-05-06"}, ["1714953600000"], False, True),
        ({"date": "2024-05-06"}, ["soon"], False, False),
        ({"regex": r"\d+"}, ["42"], False, True),
        ({"regex": r"\d+"}, ["42!"], False, False),
        ({"one_of": ["a", 2]}, ["2"], False, True),
        ({"one_of": ["a", 2]}, ["2"], True, False),
        ({"any": True}, [""], False, True),
        ({"any": True}, [], False, False),
        ({"absent": True}, [], False, True),
        ({"absent": True}, [""], False, False),
    ],
)
def test_rules_for_values(rule, values, typed, right):
    given = rule if isinstance(rule, dict) else {"exact": rule}
    mismatch = FieldRule.model_validate(given).mismatch(values, typed=typed)
    assert (not mismatch) is right, mismatch


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, {"exact": 1, "any": True}, {"number": 1, "format": "%Y"}, {"date": "6 May"}),
        *({"regex": "(?=a)"}, {"any": True, "tolerance": 1}, {"any": False}, {"other": 1}),
    ],
)
def test_rules_that_cannot_be(wrong):
    with pytest.raises(ValidationError):
        FieldRule.model_validate(wrong)


MULTIPART = (
    b'--x\r\nContent-Disposition: form-data; name="title"\r\n\r\nHello\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc\r\n--x--\r\n'
)
MUTATION = {
    "query": "mutation AddItem($id: ID!) { add(id: $id) { id } }",
    "variables": {"id": 7, "n": [1, 2]},
}
QUERY = {"query": "query Cart { cart { id } }", "variables": {}}


@pytest.mark.parametrize(
    ("body", "kind", "rules", "right"),
    [
        ("id=7&note=a+b&note=c", FORM, {"id": 7, "note": ["a b", "c"]}, True),
        ("id=7", FORM, {"id": 8}, False),
        ("user[name]=Ada", FORM, {"user[name]": "Ada"}, True),
        ('variables={"id": 7}&op=x', FORM, {"variables.id": {"number": 7}}, True),
        (
            {"user": {"name": "Ada", "tags": ["x", "y"]}},
            JSON,
            {"user.name": "Ada", "user.tags[1]": "y"},
            True,
        ),
        ({"items": [{"sku": "a"}, {"sku": "b"}]}, JSON, {"items[].sku": ["a", "b"]}, True),
        ({"items": [{"sku": "a"}, {"sku": "b"}]}, JSON, {"items[].sku": {"one_of": ["a"]}}, False),
        ({"items": [{"sku": "a"}]}, JSON, {"items[1].sku": {"absent": True}}, True),
        ({"odd.name": 1}, JSON, {'["odd.name"]': 1}, True),
        ({"a": 1}, JSON, {"": {"exact": {"a": 1}}}, True),
        (MULTIPART, "multipart/form-data; boundary=x", {"title": "Hello", "file": "a.txt"}, True),
        ("plain text", "text/plain", {"": {"include": "plain"}}, True),
        (MUTATION, JSON, {"variables.id": 7, "variables.n[0]": 1}, True),
        ("", FORM, {"id": {"any": True}}, False),
    ],
)
def test_paths_into_bodies(body, kind, rules, right):
    assert one({"body": rules}, entry(body=body, kind=kind)) == float(right)


def test_urls_and_parameters():
    sent = entry(url=SHOP + "/cart/a%20b?id=7&x=1#top")
    assert score({"requests": {"url": SHOP + "/cart/*"}}, sent).reward == 1.0
    assert score({"requests": {"url": SHOP + "/cart/a b", "query": {"id": 7}}}, sent).reward == 1.0
    assert score({"requests": {"url": SHOP + "/cart/*", "query": {"id": 8}}}, sent).reward == 0.0
    assert score({"requests": {"url_regex": r"https://shop\.test/cart/.*id=7.*"}}, sent).reward == 1.0
    assert score({"requests": {"url": [SHOP + "/a", SHOP + "/cart/*"], "method": "put"}}, sent).reward == 0.0
    with pytest.raises(ValidationError, match="write parameters as `query`"):
        RequestPattern(url=SHOP + "/cart?id=7")


def test_graphql_operations_and_batches():
    batch = entry(url=SHOP + "/graphql", body=[QUERY, MUTATION], kind=JSON)
    pattern = {"url": SHOP + "/graphql", "operation": "AddItem", "body": {"variables.id": 7}}
    assert score({"requests": pattern}, batch).reward == 1.0
    assert score({"requests": {**pattern, "operation": "Other"}}, batch).reward == 0.0
    assert score({"requests": {**pattern, "body": {"variables.id": 8}}}, batch).reward == 0.0


def test_how_many_and_which_tiers():
    twice = [entry(body="id=1"), entry(body="id=2", tier="exact")]
    assert one({}, *twice) == 1.0
    assert one({"at_most": 1}, *twice) == 0.0
    assert one({"at_least": 2}, *twice) == 1.0
    assert one({"at_least": 2}, *twice, misses=False) == 0.0
    assert one({"at_least": 0, "at_most": 0}, entry(tier="noise")) == 1.0
    beacon = entry(tier="noise", mode="no-cors")  # replay does not call it a miss; a task may ask to send it
    assert one({"method": "POST"}, beacon) == 1.0
    assert one({"method": "POST"}, beacon, misses=False) == 0.0
    alone = Evidence(requests=request_evidence([beacon]))  # of a task without the evaluator `request`
    assert NetworkEvaluator(url=SHOP + "/cart", misses=True).score(alone).reward == 1.0
    assert NetworkEvaluator(url=SHOP + "/cart").score(alone).reward == 0.0
    assert one({}, entry(method="GET")) == 0.0
    assert one({"method": "GET"}, entry(method="GET", tier="exact")) == 1.0


def test_order():
    first, second = ({"url": f"{SHOP}/{name}"} for name in "ab")
    sent = [entry(url=SHOP + "/b"), entry(url=SHOP + "/a")]
    assert score({"requests": [first, second]}, *sent).reward == 1.0
    result = score({"requests": [first, second], "ordered": True}, *sent)
    assert (result.reward, result.reasons[-1]) == (0.0, "the requests are not in the expected order")
    assert score({"requests": [second, first], "ordered": True}, *sent).reward == 1.0
    with pytest.raises(ValidationError, match="the order of reads"):
        RequestEvaluator(requests=[{"url": "x", "method": "GET"}], ordered=True)


def test_nothing_else_may_have_been_written():
    right = entry(body="id=1")
    assert one({"body": {"id": 1}}, right, only=True) == 1.0
    assert one({"body": {"id": 1}}, right, entry(url=SHOP + "/log"), only=True) == 0.0
    assert one({"body": {"id": 1}}, right, entry(body="id=2"), only=True) == 0.0
    beacon = entry(url=SHOP + "/log", mode="no-cors")
    query = entry(url=SHOP + "/graphql", body=QUERY, kind=JSON)
    search = entry(url=SHOP + "/search")
    assert one({}, right, beacon, query, entry(tier="noise"), only=True, reads=[SHOP + "/search"]) == 1.0
    assert one({}, right, search, only=True, reads=[SHOP + "/search"]) == 1.0
    assert one({}, right, search, only=True) == 0.0
    mutation = entry(url=SHOP + "/graphql", body=[QUERY, MUTATION], kind=JSON)
    assert one({}, right, mutation, only=True) == 0.0


def test_no_other_fields_but_those_that_vary():
    rules = Rules.parse(
        "version: 1\nvolatile:\n  - {where: form, name: csrf, shape: any}\n"
        "  - {where: query, name: t, shape: any}\n"
    )
    pattern = {"url": SHOP + "/cart", "body": {"id": 1}, "other_fields": False}
    assert score({"requests": pattern}, entry(body="id=1")).reward == 1.0
    sent = entry(url=SHOP + "/cart?t=5", body="id=1&csrf=abcd1234")
    assert score({"requests": pattern}, sent, rules=rules).reward == 1.0
    result = score({"requests": pattern}, sent)
    assert (result.reward, result.reasons) == (0.0, (f"0 times write {SHOP}/cart (field t is not expected)",))
    nested = entry(body={"a": {"b": 1}, "c": [{"d": 1}]}, kind=JSON)
    assert one({"body": {"a": {"any": True}, "c[].d": 1}, "other_fields": False}, nested) == 1.0
    assert one({"body": {"a.b": 1}, "other_fields": False}, nested) == 0.0


def test_evidence_that_is_missing_is_an_error_and_no_reward():
    evaluator = RequestEvaluator(requests={"url": "*"})
    for requests in (None, request_evidence([entry()])):
        with pytest.raises(TaskError, match="does not hold"):
            evaluator.score(Evidence(requests=requests))
    long = entry(body="x" * 10)
    del long["asked"]["body"]
    with pytest.raises(TaskError, match="its body of 10 bytes was not stored"):
        evaluator.score(Evidence(requests=request_evidence([long], bodies=True)))


def test_placeholders_replace_secrets():
    sent = entry(body="password=real")
    sent["asked"]["redacted"] = b64encode(b"password=fake").decode()
    (stored,) = request_evidence([sent], bodies=True)
    assert stored["body"] == b64encode(b"password=fake").decode()


def test_in_a_task_file():
    text = f"""
stillweb_tasks: 1
tasks:
  - id: order
    goal: Order a lamp
    start_url: {SHOP}/
    evaluate:
      - type: request
        only: true
        requests:
          - {{method: POST, url: "{SHOP}/cart", body: {{id: 7, qty: {{number: 2}}}}}}
"""
    (task,) = native_tasks(text, source="t.yaml")
    assert task.needs == frozenset()
    assert task.evaluation.requests[0].body["qty"].number == 2
    stored = json.loads(json.dumps(task_to_dict(task)))
    assert stored["evaluation"]["requests"][0]["body"] == {"id": {"exact": 7}, "qty": {"number": 2.0}}
    assert task_from_dict(stored, "here") == task
    wrong = text.replace("number: 2", "numbr: 2")
    with pytest.raises(TaskError, match=r"t\.yaml:11: .*numbr"):
        native_tasks(wrong, source="t.yaml")


RECORDED = [
    ("POST", SHOP + "/cart?t=1", "id=7&note=hello&csrf_token=8d1f", FORM),
    ("POST", SHOP + "/graphql", json.dumps([QUERY, MUTATION]), JSON),
    ("POST", SHOP + "/graphql", json.dumps(QUERY), JSON),
    ("GET", SHOP + "/", "", ""),
]


@pytest.fixture
def recorded(tmp_path):
    collection = Collection.create(tmp_path, "shop")
    with CollectionWriter(collection) as writer:
        for number, (method, url, body, kind) in enumerate(RECORDED):
            request = Request(method, url, (("Content-Type", kind),) if kind else (), body.encode())
            writer.write(Exchange(request, Response(200, "OK"), f"2024050607080{number}"))
    (collection.path / "rules.yaml").write_text(
        "version: 1\nvolatile:\n  - {where: form, name: csrf_token, shape: any}\n"
    )
    return tmp_path


async def test_the_server_states_the_rules_by_which_episodes_are_scored(recorded, ca):
    collection = Collection(recorded, "shop")
    ensure_sealed(collection)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        info = await server.info()
    assert [rule.name for rule in Rules.parse(info.manifests["shop"]["rules"]).own] == ["csrf_token"]


def ran(root, *arguments):
    result = CliRunner().invoke(tasks, ["request", "shop", "--collections", str(root), *arguments])
    return result


def test_a_recorded_write_becomes_an_evaluator(recorded):
    listed = json.loads(ran(recorded, "--json").stdout)["writes"]
    assert [(row["number"], row["url"]) for row in listed] == [(1, RECORDED[0][1]), (2, RECORDED[1][1])]
    (shown,) = yaml.safe_load(ran(recorded, "--from", "1", "--only").stdout)
    assert shown == {
        "type": "request",
        "requests": [
            {
                "method": "POST",
                "url": SHOP + "/cart",
                "query": {"t": "1"},
                "body": {"id": "7", "note": "hello"},
            }
        ],
        "only": True,
    }
    given = ran(recorded, "--from", "/cart", "--field", "id", "--field", "note", "--any", "note", "--json")
    (pattern,) = json.loads(given.stdout)["requests"]
    assert pattern["body"] == {"id": "7", "note": {"any": True}}
    own = entry(url=SHOP + "/cart", body="id=7&note=my+own&csrf_token=0000")
    assert score({"requests": [pattern]}, own).reward == 1.0
    assert score({"requests": [pattern]}, entry(url=SHOP + "/cart", body="id=8&note=x")).reward == 0.0
    (pattern,) = json.loads(ran(recorded, "--from", "2", "--json").stdout)["requests"]
    assert (pattern["operation"], pattern["body"]["variables.id"]) == ("AddItem", 7)
    assert (
        score({"requests": [pattern]}, entry(url=SHOP + "/graphql", body=MUTATION, kind=JSON)).reward == 1.0
    )


@pytest.mark.parametrize("wrong", [["--from", "3"], ["--from", "shop.test"], ["--from", "1", "--any", "x"]])
def test_a_write_that_there_is_not_is_an_error(recorded, wrong):
    assert isinstance(ran(recorded, *wrong).exception, UsageError)


def test_a_csrf_token_is_no_part_of_the_evaluator(tmp_path):
    collection = Collection.create(tmp_path, "shop")
    body = b"csrfmiddlewaretoken=aXDZKeEFakmTirDDxfirNUe11cJ2TJrv&note=hello"
    request = Request("POST", SHOP + "/cart", (("Content-Type", FORM),), body)
    with CollectionWriter(collection) as writer:
        writer.write(Exchange(request, Response(200, "OK"), "20240506070800"))
    pattern = json.loads(ran(tmp_path, "--from", "1", "--json").stdout)["requests"][0]
    assert pattern["body"] == {"note": "hello"}
    strict = {"requests": [pattern | {"other_fields": False}]}
    own = entry(url=SHOP + "/cart", body="csrfmiddlewaretoken=Zx81KeEFakmTirDDxfirNUe11cJ2TJrv&note=hello")
    assert score(strict, own).reward == 1.0


def test_forms_are_listed_once_and_accept_any_value(recorded):
    collection = Collection(recorded, "shop")
    forms = Collection.create(collection.path, "branches")
    with CollectionWriter(forms) as writer:
        for number, note in enumerate(("Aaq", "zyvun", "Aaq")):
            body = f"id=7&note={note}&token=aXDZKeEFakm{number}".encode()
            request = Request("POST", SHOP + "/note", (("Content-Type", FORM),), body)
            writer.write(Exchange(request, Response(200, "OK"), f"2024050607080{number}"))
    listed = json.loads(ran(recorded, "--json").stdout)["writes"]
    assert [(row["fields"], row["free"]) for row in listed[2:]] == [(["id", "note"], ["note"])]
    (pattern,) = json.loads(ran(recorded, "--from", "/note", "--json").stdout)["requests"]
    assert pattern["body"] == {"id": "7", "note": {"any": True}}
    (pattern,) = json.loads(ran(recorded, "--from", "3", "--field", "id", "--json").stdout)["requests"]
    assert pattern["body"] == {"id": "7"}


def test_a_collection_without_writes_says_how_to_record_some(tmp_path):
    Collection.create(tmp_path, "shop")
    assert isinstance(ran(tmp_path).exception, UsageError)
