"""Redaction of an exchange: the places, the method, its consistency, and the values left alone."""

from __future__ import annotations

import base64
import gzip
import html
import json
import zlib
from urllib.parse import parse_qsl, unquote, urlencode

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stillweb.collections.warc.frames import (
    BINARY,
    TEXT,
    Chunk,
    Chunks,
    Frame,
    Frames,
    chunks_beside,
    frames_beside,
    read_chunks,
    read_frames,
)
from stillweb.http.codec import decode
from stillweb.http.messages import request_block, response_block
from stillweb.matching.keys import request_key
from stillweb.matching.placeholders import Placeholders
from stillweb.matching.redaction import SecretFields
from stillweb.model import Exchange, Request, Response, header
from stillweb.record.redaction.find import (
    FoundSecret,
    SecretNames,
    cookie_texts,
    in_text,
    strong,
    strong_password,
)
from stillweb.record.redaction.redactor import Secrets, SecretSearch

KEY = b"k" * 32
SID = "ab12CD34ef56gh78IJ90"
CSRF = "aB3dE6gH9jK2mN5pQ8sT"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
FORM = ("Content-Type", "application/x-www-form-urlencoded")
URL = "https://a.test/"
TOKENS = st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMN0123456789-_", min_size=8, max_size=64).filter(strong)


def secrets(**names) -> Secrets:
    return Secrets(
        Placeholders(KEY), SecretNames(**{name: frozenset(found) for name, found in names.items()})
    )


def exchange(request: Request | None = None, body: bytes = b"", *fields, mime: str = "text/html") -> Exchange:
    response = Response(200, "OK", (("Content-Type", mime), *fields), body)
    return Exchange(request or Request("GET", URL), response, "20240101000000")


def written(found: Exchange) -> bytes:
    body = decode(found.response.raw_body, header(found.response.headers, "content-encoding"))
    return b"\n".join(
        [request_block(found.request), found.request.url.encode(), response_block(found.response), body]
    )


LOGIN_PAGE = exchange(
    None,
    b'<form><input type="hidden" name="csrfmiddlewaretoken" value="%b"><input type=password name="p">'
    % CSRF.encode(),
    ("Set-Cookie", f"sid={SID}; Path=/; HttpOnly"),
)


def test_a_login_is_reported_in_placeholders_from_page_to_page():
    hiding = secrets()
    first, _, _ = hiding.redact(LOGIN_PAGE)
    body = f"u=demo&p=demo&csrfmiddlewaretoken={CSRF}".encode()
    request = Request("POST", f"{URL}?t={CSRF}", (("Cookie", f"sid={SID}; lang=en"), FORM), body)
    second, _, taken = hiding.redact(exchange(request, f"hello demo {SID}".encode()))
    for found in (first, second):
        assert SID.encode() not in written(found)
        assert CSRF.encode() not in written(found)
    sid = header(first.response.headers, "set-cookie").partition(";")[0].partition("=")[2]
    assert header(second.request.headers, "cookie") == f"sid={sid}; lang=en"
    assert second.response.raw_body == f"hello demo {sid}".encode()
    csrf = second.request.url.partition("t=")[2]
    assert csrf.encode() in first.response.raw_body
    password = second.request.raw_body.split(b"&")[1]
    assert second.request.raw_body == b"u=demo&%b&csrfmiddlewaretoken=%b" % (password, csrf.encode())
    assert password != b"p=demo"
    assert ("password", "form", "p", "a.test") in [(t.kind, t.where, t.name, t.host) for t in taken]


@given(
    TOKENS, st.sampled_from(["", "gzip", "br", "zstd", "deflate"]), st.text(max_size=30), st.text(max_size=30)
)
def test_a_cookie_is_gone_from_bodies_under_any_coding_and_spans_say_where(value, coding, before, after):
    pack = {
        "": bytes,
        "gzip": gzip.compress,
        "br": brotli.compress,
        "zstd": zstandard.ZstdCompressor().compress,
        "deflate": zlib.compress,
    }[coding]
    plain = f"{before} <{value}> {after}".encode()
    raw = pack(plain)
    given = exchange(
        None,
        raw,
        ("Content-Encoding", coding),
        ("Content-Length", str(len(raw))),
        ("Set-Cookie", f"sid={value}"),
    )
    found, _, taken = secrets().redact(given)
    made = decode(found.response.raw_body, coding)
    assert value.encode() not in made
    assert len(made) == len(plain)
    assert header(found.response.headers, "content-length") == str(len(found.response.raw_body))
    head = response_block(Response(200, "OK", found.response.headers))
    placeholder = header(found.response.headers, "set-cookie")[4:].encode()
    spans = {each.part: each.spans for each in taken}
    assert [head[at : at + size] for at, size in spans["response head"]] == [placeholder]
    for at, size in spans["response body"]:
        assert made[at : at + size] == placeholder
        assert plain[at : at + size] == value.encode()
    assert secrets().redact(given)[0] == found


@given(
    st.binary(max_size=200), st.sampled_from(["en", "1", "true", "2024-01-01", "light", "accepted", "home"])
)
def test_what_is_no_secret_stays_byte_by_byte(body, value):
    request = Request(
        "POST", f"{URL}?lang={value}", (("Cookie", f"session={value}; auth={value}"), FORM), b"q=1"
    )
    given = exchange(
        request, body + value.encode(), ("Set-Cookie", f"session={value}; HttpOnly"), ("ETag", '"a1b2"')
    )
    found, _, taken = secrets().redact(given)
    assert found == given
    assert taken == ()


@pytest.mark.parametrize(
    "value",
    [
        *("en", "1", "true", "none", "main.3fa1bc99d1e2.js", "2024-01-01T00:00:00Z", "1763000000123456"),
        *(
            "sign-in-with-email",
            "OrderHistoryPanel",
            "https://a.test/x1Y2z3W4",
            "invalid token",
            "12,345.678901",
        ),
        *("aaaaaaaaaaaaaaaaaaaa1", "application/json", "text-muted-foreground"),
    ],
)
def test_words_numbers_dates_and_names_of_files_are_not_strong(value):
    assert not strong(value)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        # RabbitMQ's console sends the second part in `Authorization`, and finds it by the first.
        ("3761:Z3Vlc3Q6Z3Vlc3Q%253D", ["Z3Vlc3Q6Z3Vlc3Q="]),
        ("3761:Z3Vlc3Q6Z3Vlc3Q%253D|90d6:true", ["Z3Vlc3Q6Z3Vlc3Q="]),
        ("lang=en&sid=4f9a8Bc07dE6215a", ["4f9a8Bc07dE6215a"]),
        (
            "%7B%22token%22%3A%224f9a8Bc07dE6215a%22%2C%22theme%22%3A%22dark%22%7D",
            ["dark", "4f9a8Bc07dE6215a"],
        ),
        ("s%3A4f9a8Bc07dE6215a.sig", ["4f9a8Bc07dE6215a.sig"]),
        ("4f9a8Bc07dE6215a==", ["4f9a8Bc07dE6215a=="]),
        ("4f9a8Bc07dE6215a:91Ab7cD2e3F40516", ["4f9a8Bc07dE6215a:91Ab7cD2e3F40516"]),
        (
            "user:ann|password:hunter2|sid:4f9a8Bc07dE6215a",
            ["user:ann|password:hunter2|sid:4f9a8Bc07dE6215a"],
        ),
        ("dark", ["dark"]),
    ],
)
def test_names_of_a_cookie_s_fields_are_no_secrets(value, texts):
    assert list(cookie_texts(value)) == texts


def test_a_cookie_s_field_has_the_placeholder_of_the_header_that_it_is_sent_in():
    secrets = Secrets(Placeholders(KEY), SecretNames())
    secrets.learn_given(cookie_texts("3761:Z3Vlc3Q6Z3Vlc3Q%253D"))
    headers = (("Cookie", "m=3761:Z3Vlc3Q6Z3Vlc3Q%253D"), ("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q="))
    made = secrets.redact(
        Exchange(Request("GET", "http://site.test/", headers), Response(200, "OK", (), b""), "")
    )
    cookie = header(made[0].request.headers, "cookie").removeprefix("m=3761:")
    assert header(made[0].request.headers, "authorization") == f"Basic {unquote(unquote(cookie))}"
    assert cookie != "Z3Vlc3Q6Z3Vlc3Q%253D"


def test_an_asset_and_its_digest_are_left_alone():
    page = (
        b'<script src="/app.3fa1bc99d1e2.js" integrity="sha384-oqVuAfXRKap7fdgcCY5uykM6+R9GqQ8K"'
        b' nonce="r4nd0mN0nce99xx">'
    )
    assert secrets().redact(exchange(None, page))[0].response.raw_body == page
    script = b'const token = "aB3dE6gH9jK2mN5pQ8sT"; var session = "%b"' % SID.encode()
    assert secrets().redact(exchange(None, script, mime="text/javascript"))[0].response.raw_body == script


def test_a_jwt_keeps_what_it_claims_and_loses_what_proves_it():
    given = exchange(None, json.dumps({"access_token": JWT}).encode(), mime="application/json")
    hiding = secrets()
    placeholder = json.loads(hiding.redact(given)[0].response.raw_body)["access_token"]
    assert placeholder.rpartition(".")[0] == JWT.rpartition(".")[0]
    assert placeholder != JWT
    request = Request("GET", URL, (("Authorization", f"Bearer {JWT}"),))
    assert (
        header(hiding.redact(exchange(request))[0].request.headers, "authorization")
        == f"Bearer {placeholder}"
    )


@pytest.mark.parametrize("password", ["demo", "x", "p w+1!", "pässwörd-99", "密码密码密码", "a&b=c%41"])
@pytest.mark.parametrize("how", ["form", "json", "basic"])
def test_the_right_password_matches_at_replay_and_no_other_does(password, how):
    def request_with(text: str) -> Request:
        if how == "form":
            return Request("POST", URL, (FORM,), urlencode({"u": "demo", "password": text}).encode())
        if how == "json":
            body = json.dumps({"u": "demo", "password": text}).encode()
            return Request("POST", URL, (("Content-Type", "application/json"),), body)
        credentials = base64.b64encode(f"demo:{text}".encode()).decode()
        return Request("POST", URL, (("Authorization", f"Basic {credentials}"),))

    placeholders = Placeholders(KEY)
    found, _, taken = Secrets(placeholders, SecretNames()).redact(exchange(request_with(password)))
    place = (taken[0].where, taken[0].name.lower())
    known = SecretFields(placeholders, {place: frozenset({"a.test"})})

    def key(request: Request) -> tuple[bytes, str]:
        content_type = header(request.headers, "content-type")
        of_body = request_key(request.method, request.url, content_type, request.raw_body)
        return of_body, header(request.headers, "authorization")

    assert key(found.request) != key(request_with(password))
    assert key(known(request_with(password))) == key(found.request)
    assert key(known(request_with(taken[0].placeholder))) == key(
        found.request
    )  # the password of the recorded web
    for wrong in (password + "x", password.upper() + "!", "wrong"):
        assert key(known(request_with(wrong))) != key(found.request)


def test_pieces_of_an_event_stream_keep_their_sizes_and_lose_a_coding():
    body = f"data: {CSRF[:5]}".encode(), f"{CSRF[5:]}\n\ndata: end\n\n".encode()
    hiding = secrets()
    hiding.learn(FoundSecret("token", "answer", "t", CSRF), "a.test")
    timed = Chunks(tuple(Chunk(at, len(piece)) for at, piece in enumerate(body)))
    given = exchange(None, b"".join(body), mime="text/event-stream")
    found, beside, _ = hiding.redact(given, chunks_beside(URL, timed))
    assert CSRF.encode() not in found.response.raw_body
    assert read_chunks(beside.block) == timed
    pack = zlib.compressobj(wbits=31)
    packed = [pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH) for piece in body]
    given = exchange(None, b"".join(packed), ("Content-Encoding", "gzip"), mime="text/event-stream")
    timing = Chunks(tuple(Chunk(at, len(piece)) for at, piece in enumerate(packed)))
    same, beside, _ = hiding.redact(given, chunks_beside(URL, timing))
    assert same.response.raw_body == found.response.raw_body
    assert header(same.response.headers, "content-encoding") == ""
    assert read_chunks(beside.block) == timed


def test_frames_are_redacted_text_and_binary():
    hello = json.dumps({"type": "auth", "password": "demo", "token": CSRF}).encode()
    frames = Frames(
        (
            Frame(1, True, TEXT, hello),
            Frame(2, False, TEXT, json.dumps({"session": SID}).encode()),
            Frame(3, True, BINARY, b"\0\1" + SID.encode() + b"\xff"),
        )
    )
    _, beside, taken = secrets().redact(exchange(), frames_beside("wss://a.test/", frames))
    made = read_frames(beside.block).frames
    assert [len(frame.payload) for frame in made] == [len(frame.payload) for frame in frames.frames]
    texts = b"".join(frame.payload for frame in made)
    assert not any(secret in texts for secret in (CSRF.encode(), SID.encode(), b'"demo"'))
    sid = json.loads(made[1].payload)["session"].encode()
    assert made[2].payload == b"\0\1" + sid + b"\xff"
    assert {each.part for each in taken} == {"beside"}


def test_names_can_be_added_and_excepted():
    body = b'{"visitorKey": "%b", "session": "%b"}' % (SID.encode(), CSRF.encode())
    given = exchange(None, body, mime="application/json")
    assert secrets().redact(given)[0].response.raw_body == body.replace(
        CSRF.encode(), Placeholders(KEY).of(CSRF).encode()
    )
    both = secrets(redact={"visitorkey"}, exempt={"session"}).redact(given)[0].response.raw_body
    assert CSRF.encode() in both
    assert SID.encode() not in both


def test_a_body_that_cannot_be_read_is_reported_of():
    given = exchange(None, b"???", ("Content-Encoding", "dcb"), ("Set-Cookie", f"sid={SID}"))
    _, _, taken = secrets().redact(given)
    assert ("unread", "dcb") in [(each.kind, each.name) for each in taken]


def test_a_secret_of_a_request_is_late_and_one_of_an_answer_is_not():
    hiding = secrets()
    hiding.redact(LOGIN_PAGE)
    assert len(hiding.late) == 0
    hiding.redact(exchange(Request("GET", URL, (("X-Auth-Token", "zZ9yY8xX7wW6vV5uU4"),))))
    assert "zZ9yY8xX7wW6vV5uU4" in hiding.late


def test_what_was_redacted_is_not_redacted_again():
    """A replay recorded once more, or a page that repeats its placeholder, keeps it."""
    hiding = secrets()
    first, _, _ = hiding.redact(LOGIN_PAGE)
    again, _, _ = hiding.redact(first)
    assert again == first


@given(st.lists(TOKENS, min_size=1, max_size=60, unique=True), st.data())
def test_many_secrets_are_found_as_by_replacing_one_by_one(values, data):
    """By the automaton as well as by single searches; none is a part of another here."""
    values = [value for value in values if not any(value != other and value in other for other in values)]
    search, placeholders = SecretSearch(), Placeholders(KEY)
    for value in values:
        search.add(value, placeholders.of(value))
    order = data.draw(st.lists(st.sampled_from(values), max_size=20))
    text = " / ".join(order)
    made, hits = search.sub(text.encode())
    assert made.decode() == " / ".join(placeholders.of(value) for value in order)
    assert [made[hit.at : hit.at + hit.length].decode() for hit in hits] == made.decode().split(" / ") * bool(
        order
    )


def test_a_search_does_not_look_for_each_of_many_secrets_one_by_one():
    class Text(bytes):
        searches = 0

        def find(self, *args):
            Text.searches += 1
            return super().find(*args)

    search, placeholders = SecretSearch(), Placeholders(KEY)
    for number in range(1500):
        search.add(f"{number:04}a1B2c3D4e5F6", placeholders.of(str(number)))
        if number % 100 == 99:
            Text.searches = 0
            assert search.sub(Text(b"0007a1B2c3D4e5F6"))[1][0].secret == 7
            assert Text.searches < 100


def test_of_a_text_only_names_that_may_be_secret_are_looked_at():
    looked_at = []

    class Looking(SecretNames):
        def kind(self, name: str) -> str:
            looked_at.append(name)
            return super().kind(name)

    tokens = [f"a8Fj3kD92mVx7Qp1Lz{number}" for number in range(20)]
    others = " ".join(f'data-n{number}="another value"' for number in range(50))
    text = "".join(f'<p {others}><i csrf-token="{token}" \n id="abcdefgh">é' for token in tokens)
    assert [found.value for found in in_text(text, Looking())] == tokens
    assert set(looked_at) == {"csrf-token"}


def test_a_short_secret_is_found_as_a_whole_word_only():
    search = SecretSearch()
    search.add("a1B2c3D4", "x9Y8z7W6")
    assert (
        search.sub(b"a1B2c3D4 xa1B2c3D4 a1B2c3D45 'a1B2c3D4'")[0]
        == b"x9Y8z7W6 xa1B2c3D4 a1B2c3D45 'x9Y8z7W6'"
    )


def test_weak_passwords_are_looked_for_nowhere_but_in_their_fields():
    assert not any(map(strong_password, ["demo", "password", "12345678", "en"]))
    assert strong_password("shopper-pass-1")


@pytest.mark.parametrize("tail", ["+\\", "+\\\\", "/x9", "/\\"])
@pytest.mark.parametrize("order", ["page first", "request first"])
def test_a_token_is_one_placeholder_however_its_characters_are_escaped(tail, order):
    token = "4fd81a0c3be94c77b2d50f6e1a9c8d27" + tail
    pages = {
        "json": exchange(None, json.dumps({"csrftoken": token}).encode(), mime="application/json"),
        "script": exchange(None, f"<script>var conf = {{csrfToken: {json.dumps(token)}}};</script>".encode()),
        "field": exchange(
            None, f'<input type="hidden" name="csrf_token" value="{html.escape(token)}">'.encode()
        ),
        "attribute": exchange(
            None, f'<div data-conf="{html.escape(json.dumps({"csrfToken": token}))}"></div>'.encode()
        ),
    }
    posted = exchange(Request("POST", URL, (FORM,), urlencode({"token": token, "text": "a"}).encode()))
    sent = exchange(
        Request("POST", URL, (("Content-Type", "application/json"),), json.dumps({"token": token}).encode())
    )
    hiding = secrets()

    exchanges = [*pages.values(), posted, sent] if order == "page first" else [posted, sent, *pages.values()]
    found = [hiding.redact(each)[0] for each in exchanges]

    texts = [written(each) for each in found]
    start = token[:32].encode()
    assert not any(start in text for text in texts)
    by_body = {id(each): made for each, made in zip(exchanges, found, strict=True)}
    form = dict(parse_qsl(by_body[id(posted)].request.raw_body.decode()))
    placeholder = form["token"]
    assert json.loads(by_body[id(sent)].request.raw_body)["token"] == placeholder
    assert json.loads(by_body[id(pages["json"])].response.raw_body)["csrftoken"] == placeholder
    for name in ("script", "field", "attribute"):
        text = html.unescape(by_body[id(pages[name])].response.raw_body.decode())
        assert (placeholder if name == "field" else json.dumps(placeholder)) in text, name
