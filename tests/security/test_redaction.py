"""Secrets in GraphQL, XML, OAuth redirects, SAML, hex and base64 do not reach the archive."""

from __future__ import annotations

import base64
import json

import pytest

from stillweb.http.messages import request_block, response_block
from stillweb.matching.keys import request_key
from stillweb.matching.redaction import Placeholders, SecretFields, spellings
from stillweb.model import Exchange, Request, Response
from stillweb.record.redaction.find import FoundSecret, Names
from stillweb.record.redaction.redactor import Secrets

KEY = b"k" * 32
SECRET = "aB3dE6gH9jK2mN5pQ8sT"
WEAK = "demo"
URL = "https://a.test/"
SOAP = "<s:Envelope><u:Username>ada</u:Username><u:Password Type='t'>{}</u:Password></s:Envelope>"


def redacted(request: Request, response: Response | None = None) -> tuple[Exchange, bytes]:
    """Return an exchange without its secrets, and its text."""
    answer = response or Response(200, "OK", (("Content-Type", "text/html"),), b"ok")
    made, _, _ = Secrets(Placeholders(KEY), Names()).redact(Exchange(request, answer, "20240101000000"))
    text = b"\n".join([request_block(made.request), made.request.url.encode(), response_block(made.response)])
    return made, text


def posted(mime: str, body: str) -> Request:
    return Request("POST", URL, (("Content-Type", mime),), body.encode())


def graphql(secret: str) -> str:
    return json.dumps({"query": f'mutation {{ login(user: "ada", password: "{secret}") {{ id }} }}'})


@pytest.mark.parametrize("secret", [SECRET, WEAK])
@pytest.mark.parametrize(
    ("mime", "body"),
    [
        ("application/json", graphql),
        ("application/graphql", 'mutation {{ login(password: "{}") {{ id }} }}'.format),
        ("application/soap+xml", SOAP.format),
        ("text/xml; charset=utf-8", "<login><password>{}</password></login>".format),
    ],
)
def test_a_password_in_a_document_is_replaced_and_replay_knows_it(mime, body, secret) -> None:
    request = posted(mime, body(secret))
    made, _ = redacted(request)
    assert secret.encode() not in made.request.raw_body
    assert len(made.request.raw_body) == len(request.raw_body)
    placeholders = Placeholders(KEY)
    placeholders.of(secret)
    hosts = frozenset({"a.test"})
    places = {("json", "password"): hosts, ("form", "password"): hosts}
    replayed = SecretFields(placeholders, places)(request)
    assert replayed.raw_body == made.request.raw_body
    keys = [request_key(each.method, each.url, mime, each.raw_body) for each in (replayed, made.request)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "body", ['{"query": "{ book(title: \\"demo\\") { id } }"}', '{"note": "password: demo"}', '{"a": "b"}']
)
def test_other_literals_stay(body: str) -> None:
    assert redacted(posted("application/json", body))[0].request.raw_body == body.encode()


def test_a_token_in_an_xml_answer_is_learned() -> None:
    answer = Response(
        200, "OK", (("Content-Type", "text/xml"),), f"<r><accessToken>{SECRET}</accessToken></r>".encode()
    )
    assert SECRET.encode() not in redacted(Request("GET", URL), answer)[1]


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}callback?code={SECRET}&state=xyz",
        f"{URL}callback?state=xyz&scope=a&code={SECRET}",
    ],
)
def test_an_authorization_code_is_replaced(url: str) -> None:
    assert SECRET.encode() not in redacted(Request("GET", url))[1]
    redirect = Response(302, "Found", (("Location", url),), b"")
    assert SECRET.encode() not in redacted(Request("GET", URL), redirect)[1]


def test_a_code_without_state_is_no_secret() -> None:
    url = f"{URL}products?code={SECRET}"
    assert redacted(Request("GET", url))[0].request.url == url


def test_a_saml_response_is_replaced() -> None:
    assertion = base64.b64encode(b"<samlp:Response>" + b"ada" * 4000).decode()
    form = "SAMLResponse=" + assertion.replace("+", "%2B").replace("=", "%3D").replace("/", "%2F")
    made, _ = redacted(posted("application/x-www-form-urlencoded", form + "&RelayState=1"))
    assert assertion[:200].encode() not in made.request.raw_body
    assert made.request.raw_body.endswith(b"&RelayState=1")


def hex_upper(raw: bytes) -> bytes:
    return raw.hex().upper().encode()


CODINGS = [base64.b64encode, base64.urlsafe_b64encode, hex_upper, lambda raw: raw.hex().encode()]


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
@pytest.mark.parametrize("encode", CODINGS)
def test_a_known_secret_is_replaced_in_hex_and_base64(before: bytes, encode) -> None:
    secrets = Secrets(Placeholders(KEY), Names())
    secrets.learn(FoundSecret("token", "header", "x", SECRET), "a.test")
    content = b'{"debug": "' + encode(before + SECRET.encode() + b":more") + b'"}'
    cleaned = secrets.content(content)
    core = encode(bytes(len(before)) + SECRET.encode())[len(encode(bytes(len(before)))) + 2 : -4]
    assert core in content
    assert core not in cleaned
    assert len(cleaned) == len(content)


def test_short_secrets_have_no_codings() -> None:
    placeholder = Placeholders(KEY).of("abc12")
    assert b"abc12".hex().encode() not in spellings("abc12", placeholder)
