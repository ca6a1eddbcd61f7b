"""Secrets in GraphQL, XML, OAuth redirects, SAML, hex and base64 do not reach the archive."""

from __future__ import annotations

import base64
import gzip
import io
import json
from urllib.parse import quote

import pytest
from PIL import Image

from stillweb.collections.baselines import DOM, RecordedResponse, write_baseline
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.http.messages import request_block, response_block
from stillweb.matching.keys import request_key
from stillweb.matching.placeholders import Placeholders, spellings
from stillweb.matching.redaction import SecretFields
from stillweb.model import Exchange, Request, Response, header
from stillweb.record.redaction.find import FoundSecret, SecretNames
from stillweb.record.redaction.redactor import Secrets
from stillweb.record.redaction.sweep import sweep

KEY = b"k" * 32
SECRET = "aB3dE6gH9jK2mN5pQ8sT"
WEAK = "demo"
URL = "https://a.test/"
SOAP = "<s:Envelope><u:Username>ada</u:Username><u:Password Type='t'>{}</u:Password></s:Envelope>"


def redacted(request: Request, response: Response | None = None) -> tuple[Exchange, bytes]:
    """Return an exchange without its secrets, and its text."""
    answer = response or Response(200, "OK", (("Content-Type", "text/html"),), b"ok")
    made, _, _ = Secrets(Placeholders(KEY), SecretNames()).redact(Exchange(request, answer, "20240101000000"))
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
        ("application/graphql", 'mutation {{ login(password: # of ada\n "{}") {{ id }} }}'.format),
        (
            "application/json",
            '{{"query": "mutation {{ login(password # of ada\\n: \\n\\"{}\\") {{ id }} }}"}}'.format,
        ),
        ("application/json", '{{"fields": [{{"name": "password", "value": "{}"}}]}}'.format),
        ("application/json", '{{"fields": [{{"Value": "{}", "Key": "password"}}]}}'.format),
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


def form(field: str, document: str) -> Request:
    return posted("application/x-www-form-urlencoded", f"a=b+c&{field}={quote(document)}")


def part(document: str) -> Request:
    head = 'Content-Disposition: form-data; name="data"'
    return posted("multipart/form-data; boundary=x", f"--x\r\n{head}\r\n\r\n{document}\r\n--x--\r\n")


LOGIN = 'mutation {{ login(password: "{}") {{ id }} }}'
MEMBER = '{{"user": "demo", "password": "{}"}}'
ENCLOSED = {
    "form with JSON": lambda secret: form("payload", MEMBER.format(secret)),
    "part with JSON": lambda secret: part(MEMBER.format(secret)),
    "JSON in JSON": lambda secret: posted(
        "application/json", json.dumps({"body": MEMBER.format(secret), "é": 1}, ensure_ascii=False)
    ),
    "GraphQL in a query": lambda secret: Request("GET", f"{URL}g?query={quote(LOGIN.format(secret))}"),
    "variables in a query": lambda secret: Request("GET", f"{URL}g?variables={quote(MEMBER.format(secret))}"),
    "block string": lambda secret: posted(
        "application/json", json.dumps({"query": LOGIN.replace('"', '"""').format(secret)})
    ),
    "attribute": lambda secret: posted("text/xml", f"<login user='demo' password='{secret}'/>"),
    "CDATA": lambda secret: posted("text/xml", f"<password><![CDATA[{secret}]]></password>"),
    "XML as text": lambda secret: posted("text/plain", f"<password>{secret}</password>"),
}


@pytest.mark.parametrize("secret", [SECRET, "dem0"])
@pytest.mark.parametrize("build", ENCLOSED.values(), ids=ENCLOSED)
def test_a_password_in_an_enclosed_document_is_replaced_and_replay_knows_it(build, secret: str) -> None:
    request = build(secret)
    made, text = redacted(request)
    assert secret.encode() not in text
    placeholders = Placeholders(KEY)
    placeholder = placeholders.of(secret)
    places = {(where, "password"): frozenset({"a.test"}) for where in ("json", "form")}
    assert build(placeholder) == made.request  # every other byte stays
    assert SecretFields(placeholders, places)(request) == made.request


@pytest.mark.parametrize(
    "body",
    [
        f"grant_type=authorization_code&code={SECRET}",
        f"state=xyz&code={SECRET}",
        f"grant_type=device_code&device_code={SECRET}",
        f'{{"grant_type": "authorization_code", "code": "{SECRET}"}}',
    ],
)
def test_a_code_that_is_posted_is_replaced(body: str) -> None:
    mime = "application/json" if body[0] == "{" else "application/x-www-form-urlencoded"
    assert SECRET.encode() not in redacted(posted(mime, body))[1]


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}cb?code={SECRET}&iss=https%3A%2F%2Fa.test",
        f"{URL}cb#access_token={SECRET}&token_type=bearer",
        f"{URL}d/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{SECRET}",
        f"{URL}r?to={quote(f'https://a.test/cb?access_token={SECRET}', safe='')}",
    ],
)
def test_a_token_in_a_url_is_replaced(url: str) -> None:
    redirect = Response(302, "Found", (("Location", url),), b"")
    request = Request("GET", URL if "#" in url else url)
    assert SECRET.encode() not in redacted(request, redirect)[1]


def test_a_password_in_the_address_of_a_link_is_replaced() -> None:
    html = (("Content-Type", "text/html"),)
    page = Response(200, "OK", html, f"<a href='https://ada:{SECRET}@a.test/'>".encode())
    assert SECRET.encode() not in redacted(Request("GET", URL), page)[1]


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
    secrets = Secrets(Placeholders(KEY), SecretNames())
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


@pytest.mark.parametrize(
    "spell",
    [
        lambda secret: "".join(f"\\x{byte:02x}" for byte in secret.encode()).encode(),
        lambda secret: "".join(f"\\u{byte:04X}" for byte in secret.encode()).encode(),
        lambda secret: "".join(f"&#{byte};" for byte in secret.encode()).encode(),
        lambda secret: "".join(f"&#x{byte:X};" for byte in secret.encode()).encode(),
        lambda secret: "".join(f"%{byte:02X}" for byte in secret.encode()).encode(),
        lambda secret: secret.encode("utf-16-le"),
        lambda secret: secret.encode("utf-16-be"),
    ],
)
def test_a_known_secret_is_replaced_in_escapes_and_utf_16(spell) -> None:
    request = Request("GET", URL, (("Authorization", f"Bearer {SECRET}"),), b"")
    body = b"<p>" + spell(SECRET) + b"</p>"
    made, text = redacted(request, Response(200, "OK", (("Content-Type", "text/html"),), body))
    assert spell(SECRET) not in text
    placeholder = header(made.request.headers, "authorization").removeprefix("Bearer ")
    assert spell(placeholder) in text


@pytest.mark.parametrize(
    "body", ['[{"name": "csrfToken", "value": "%s"}]', '[{"value": "%s", "id": "csrfToken"}]']
)
def test_a_token_in_a_list_of_fields_is_learned(body: str) -> None:
    answer = Response(200, "OK", (("Content-Type", "application/json"),), (body % SECRET).encode())
    _, text = redacted(Request("GET", URL, (), b""), answer)
    assert SECRET.encode() not in text


def test_an_entry_that_names_no_secret_stays() -> None:
    body = json.dumps({"fields": [{"name": "page", "value": SECRET}]})
    made, _ = redacted(posted("application/json", body))
    assert made.request.raw_body == body.encode()


def message(*fields: tuple[int, bytes]) -> bytes:
    """Return a Protocol Buffers message of length-delimited fields."""
    return b"".join(bytes([number << 3 | 2, len(content)]) + content for number, content in fields)


def framed(content: bytes) -> bytes:
    return b"\0" + len(content).to_bytes(4) + content


LOGIN = "https://a.test/shop.v1.Accounts/Login"
MESSAGES = [
    ("application/x-protobuf", bytes),
    ("application/grpc-web+proto", framed),
    ("application/grpc-web-text", lambda content: base64.b64encode(framed(content))),
    ("application/connect+proto", lambda content: framed(b"\x08\x01") + framed(content)),
]


@pytest.mark.parametrize(("mime", "pack"), MESSAGES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_password_in_a_protobuf_login_is_replaced_and_replay_knows_it(mime, pack, nested: bool) -> None:
    fields = ((1, b"ada"), (2, b"correct horse 7"), (6, b"en-US"))
    content = message((3, message(*fields)), (4, b"web")) if nested else message(*fields)
    request = Request("POST", LOGIN, (("Content-Type", mime),), pack(content))
    made, _, redactions = Secrets(Placeholders(KEY), SecretNames()).redact(
        Exchange(request, Response(200, "OK"), "20240101000000")
    )
    (redaction,) = redactions
    assert redaction.name == ("Login#3.2" if nested else "Login#2")
    replaced = pack(content.replace(b"correct horse 7", redaction.placeholder.encode()))
    assert made.request.raw_body == replaced
    placeholders = Placeholders(KEY)
    placeholders.of("correct horse 7")
    fields_of = SecretFields(placeholders, {("form", redaction.name.lower()): frozenset({"a.test"})})
    assert fields_of(request).raw_body == made.request.raw_body


@pytest.mark.parametrize(("mime", "pack"), MESSAGES)
def test_a_known_secret_in_a_protobuf_message_is_replaced(mime, pack) -> None:
    """Field 6 follows: its tag is the character 2, so that the secret is no word of its own."""
    secrets = Secrets(Placeholders(KEY), SecretNames())
    secrets.learn(FoundSecret("given", "given", "", "hunter-2-2"), "a.test")
    body = pack(message((1, b"hunter-2-2"), (6, b"x")))
    request = Request("POST", "https://a.test/Rename", (("Content-Type", mime),), body)
    made, _, _ = secrets.redact(Exchange(request, Response(200, "OK"), "20240101000000"))
    expected = pack(message((1, Placeholders(KEY).of("hunter-2-2").encode()), (6, b"x")))
    assert made.request.raw_body == expected


@pytest.mark.parametrize(
    "body",
    [
        message((1, b"ada"), (2, b"correct horse 7"))[:-1],
        b"\xff" * 40,
        b"\x0a" * 5000,
        b"\0\xff\xff\xff\xffrest",
        message((1, b"ada"), (2, b"a.b-c@example.test")),
    ],
    ids=["cut", "no message", "deep", "a frame without its end", "an e-mail address"],
)
@pytest.mark.parametrize(
    "mime", ["application/x-protobuf", "application/grpc-web", "application/grpc-web-text"]
)
def test_other_bytes_of_a_protobuf_login_stay(mime: str, body: bytes) -> None:
    made, _ = redacted(Request("POST", LOGIN, (("Content-Type", mime),), body))
    assert made.request.raw_body == body


SHOWS = f"key {SECRET} "


def dom(*lines: str) -> str:
    """Return the element tree of a page: `depth box node`, parted by spaces."""
    page = ("0 0,0,300,200 html", "1 0,0,300,200 body", *lines)
    return "\n".join("\t".join("" if part == "-" else part for part in line.split(" ", 2)) for line in page)


def masked_rows(
    collection: Collection, text: str, tree: str, axtree: str = "", damage: bytes = b""
) -> set[int]:
    """Write the baseline of a white page, end its recording, and return the rows that are painted over.

    With `damage`, the file of the element tree has this content.
    """
    white = io.BytesIO()
    Image.new("RGB", (300, 200), "white").save(white, "PNG")
    texts = {"text": text, "axtree": axtree, "dom": tree}
    write_baseline(collection.baseline / "p", white.getvalue(), texts, [], RecordedResponse())
    if damage:
        (collection.baseline / "p" / DOM).write_bytes(damage)
    secrets = Secrets(Placeholders(KEY), SecretNames())
    secrets.learn(FoundSecret("token", "header", "x", SECRET), "a.test")
    with CollectionWriter(collection) as writer:
        sweep(writer, secrets)
    picture = collection.baseline / "p" / "screenshot.png"
    for path in picture.parent.iterdir():
        assert SECRET.encode() not in path.read_bytes()
    with Image.open(picture) as image:
        rows = [image.crop((0, row, 300, row + 1)).getcolors() for row in range(200)]
    assert all(len(colours) == 1 for colours in rows)
    return {number for number, ((_, colour),) in enumerate(rows) if colour != (255, 255, 255)}


@pytest.mark.parametrize(
    ("text", "lines", "rows"),
    [
        ("no secret", ("2 0,0,300,20 p", "3 - #text no secret"), range(0)),
        (SHOWS, ("2 40,60,200,20 p", f"3 - #text {SHOWS}"), range(58, 82)),
        ("", (f'2 40,60,200,20 input type="text" value="{SECRET}"',), range(58, 82)),
        ("", (f'2 - input type="hidden" value="{SECRET}"',), range(0)),
        ("a link", (f'2 0,0,90,20 a href="/?t={SECRET}"', "3 - #text a link"), range(0)),
        (SHOWS, ("2 0,0,300,20 p", f"3 - #text {'x' * 160}~300"), range(200)),
        (SHOWS * 2, ("2 0,60,90,20 p", f"3 - #text {SHOWS}", "2 - p", f"3 - #text {SHOWS}"), range(200)),
        (
            SHOWS,
            ("2 40,60,9,20 iframe", "0 - #frame http://b.test/", "0 0,0,9,9 p", f"1 - #text {SHOWS}"),
            range(58, 82),
        ),
        (SHOWS, ("2 0,500,90,20 p", f"3 - #text {SHOWS}"), range(0)),
    ],
    ids=["none", "text", "input", "hidden", "address", "cut text", "two", "frame", "below"],
)
def test_a_known_secret_in_a_picture_is_painted_over(tmp_path, text: str, lines, rows: range) -> None:
    collection = Collection.create(tmp_path, "a")
    assert masked_rows(collection, text, dom(*lines)) == set(rows)


def test_a_typed_secret_that_only_the_accessibility_tree_has_masks_the_picture(tmp_path) -> None:
    collection = Collection.create(tmp_path, "a")
    assert masked_rows(collection, "", dom("2 0,0,90,20 input"), f"textbox {SECRET}") == set(range(200))


@pytest.mark.parametrize(
    "damage", [b"no gzip", b"\x1f\x8b\x08\x00", gzip.compress(b"0 - html", mtime=0)[:-6]]
)
def test_a_damaged_element_tree_masks_the_whole_picture(tmp_path, damage: bytes) -> None:
    collection = Collection.create(tmp_path, "a")
    assert masked_rows(collection, SHOWS, dom(), damage=damage) == set(range(200))
