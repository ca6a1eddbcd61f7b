"""The same requests to every back-end, on the same folder; where they differ it is written down.

`EXPECTED_DISAGREEMENTS` lists each answer of pywb that is not the right one, with the reason, and
docs/explanation/backends.md explains them to users. A case that is listed must fail in just the stated way: a
disagreement that went away is as much news as one that came.
"""

from __future__ import annotations

import gzip
import http.client
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from backends import BACKENDS, Running, Seen
from conformance_site import BINARY, CASES, CSS, SCRIPT, SITE, Case

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Disagreement:
    """An answer of a back-end that is not the right one."""

    reason: str
    status: int = 200
    body: bytes | None = None
    headers: tuple[tuple[str, str | None], ...] = ()


_BODY_CUT = "the query made of a POST body is cut at 4096 characters, so long bodies look alike"
_LEAVES = "a JSON body is reduced to the names of its leaves, without the path to them"
_NO_BODY = "the body of a PATCH or DELETE is not read"
_SURT = "urlkeys fold the query's order, the path's case, `www.` and a final slash"
_NOT_READ = "an Origin is answered by fields of pywb's own, whether the site allowed it or not"
_FUZZY = "pywb's rules take what has the same path, or the same beginning"

_ALWAYS = {
    "post-big-other": Disagreement(_BODY_CUT, body=b'{"big": 1}'),
    "post-json-swapped-parents": Disagreement(_LEAVES, body=b"nested"),
    "patch-unseen": Disagreement(_NO_BODY, body=b"patched"),
    "query-order": Disagreement(_SURT, body=b"a before b"),
    "path-case": Disagreement(_SURT, body=b"About with a capital"),
    "www-added": Disagreement(_SURT, body=CSS),
    "www-dropped": Disagreement(_SURT, body=b"with www"),
    "trailing-slash": Disagreement(_SURT, body=CSS),
    "cors-not-allowed-by-the-site": Disagreement(
        _NOT_READ, body=CSS, headers=(("access-control-allow-origin", "https://evil.example"),)
    ),
    "unseen-across-origins": Disagreement(
        "a miss has no CORS fields, so that a page sees a network error and no 404",
        status=404,
        headers=(("access-control-allow-origin", None),),
    ),
    "preflight": Disagreement("a preflight is answered 200, not 204; browsers take both", body=b""),
    "range-from-the-end": Disagreement("a range of the last bytes gets the whole", body=BINARY),
    "accept-datetime": Disagreement(
        "Accept-Datetime is a request of Memento, and a bad one is 400", status=400
    ),
    "cart-after-post": Disagreement(
        "there is one answer to a URL, whatever was posted before", body=b"empty"
    ),
}
_BY_ITS_RULES = {
    "post-json-unseen-id": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "post-json-unseen-operation": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "post-form-unseen": Disagreement(_FUZZY, body=b"form one"),
    "post-multipart-unseen": Disagreement(_FUZZY, body=b"uploaded"),
    "delete-unseen": Disagreement(_FUZZY, body=b"patched"),
    "delete-unseen-beside-posts": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "get-of-what-was-only-posted": Disagreement(_FUZZY, body=b"form one"),
    "post-of-what-was-only-got": Disagreement(_FUZZY, body=CSS),
    "page-unseen": Disagreement(_FUZZY, body=b'{"page": 1}'),
    "query-unseen": Disagreement(_FUZZY, body=CSS),
    "cache-buster-unseen": Disagreement(_FUZZY, body=CSS),
}
# The front asks pywb for reads that were missed, and for nothing else.
_MISSED_READS = (
    *("get-of-what-was-only-posted", "page-unseen", "query-unseen", "cache-buster-unseen", "query-order"),
    *("path-case", "www-added", "www-dropped", "trailing-slash"),
)
EXPECTED_DISAGREEMENTS: dict[tuple[str, str], Disagreement] = {
    **{(name, "on-miss"): (_ALWAYS | _BY_ITS_RULES)[name] for name in _MISSED_READS},
    **{(name, "pywb"): stated for name, stated in _ALWAYS.items()},
    **{(name, "pywb-fuzzy"): stated for name, stated in (_ALWAYS | _BY_ITS_RULES).items()},
}


def answer(backend: Running, case: Case) -> Seen:
    """The answer to a case, in a session of its own."""
    with backend.session() as port:
        for method, url, sent, sends in case.first:
            with closing(backend.connect(port, url)) as client:
                backend.ask(client, method, url, sent, sends)
        with closing(backend.connect(port, case.url)) as client:
            return backend.ask(client, case.method, case.url, case.sent, case.sends)


def as_expected(case: Case, seen: Seen) -> str:
    """Return the fault of an answer, "" if it has none."""
    if seen.status != case.status:
        return f"status {seen.status}, not {case.status}"
    for name, value in case.headers.items():
        if seen.headers.get(name) != value:
            return f"{name}: {seen.headers.get(name)!r}, not {value!r}"
    if case.body is not None and seen.body != case.body:
        return f"body {seen.body[:80]!r}, not {case.body[:80]!r}"
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, backend):
    seen = answer(backend, case)
    wrong = as_expected(case, seen)
    stated = EXPECTED_DISAGREEMENTS.get((case.name, backend.name))
    if stated is None:
        assert not wrong
        return
    assert wrong, f"{backend.name} agrees by now; take it out of EXPECTED_DISAGREEMENTS: {stated.reason}"
    assert seen.status == stated.status
    assert stated.body is None or seen.body == stated.body
    for name, value in stated.headers:
        assert seen.headers.get(name) == value


def test_every_disagreement_names_a_case_and_is_documented():
    names = {case.name for case in CASES}
    text = (REPO / "docs" / "explanation" / "backends.md").read_text(encoding="utf-8")
    for name, backend in EXPECTED_DISAGREEMENTS:
        assert name in names
        assert backend in BACKENDS[1:]  # none of ours: what the native one does is the definition
        assert f"`{name}`" in text


def test_keep_alive_over_many_connections(backend):
    """pywb ends keep-alive for all beyond its 50th tunnel, unless an option prevents it."""
    with backend.session() as port, ThreadPoolExecutor(16) as pool:
        clients = [backend.connect(port, SITE) for _ in range(64)]

        def twice(client: http.client.HTTPConnection) -> set[bytes]:
            first = backend.ask(client, "GET", f"{SITE}/style.css")
            connection = client.sock
            second = backend.ask(client, "GET", f"{SITE}/style.css")
            assert client.sock is connection is not None
            return {first.body, second.body}

        try:
            for _ in range(2):  # all stay open
                assert set().union(*pool.map(twice, clients)) == {CSS}
        finally:
            for client in clients:
                client.close()


LISTENERS = {
    "SOCKS5": ("--socks5-hostname", "127.0.0.1:{port}"),
    "SOCKS5 with a user": ("--proxy", "socks5h://{session}:x@{public}"),
    "HTTPS": ("--proxy", "https://127.0.0.1:{port}", "--proxy-cacert", "{ca}"),
    "HTTPS with a user": (
        *("--proxy", "https://127.0.0.1:{public_port}", "--proxy-user", "{session}:x"),
        *("--proxy-cacert", "{ca}"),
    ),
}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_curl_by_other_kinds_of_proxy(backend, authority, listener, scheme):
    """The user name names the session at the public port; the router of workers cannot read it there."""
    if backend.name.startswith("pywb"):
        pytest.skip("its proxy is pywb's own")
    if backend.name == "native-workers" and listener.endswith("user"):
        pytest.skip("the session may be another worker's: use the session's port")
    with backend.session() as port:
        public = backend.url.partition("://")[2]
        names = {"port": port, "public": public, "public_port": public.rpartition(":")[2]}
        names |= {"session": backend.session_id(port), "ca": authority.ca_file}
        options = [each.format(**names) for each in LISTENERS[listener]]
        url = f"{scheme}{SITE[SITE.index(':') :]}/style.css"
        command = ["curl", "-sS", "--max-time", "20", "--cacert", str(authority.ca_file), *options, url]
        ran = subprocess.run(command, capture_output=True, check=False)
        assert (ran.stderr, ran.stdout) == (b"", CSS)
        assert [entry["status"] for entry in backend.ledger(port)] == [200]


def test_many_requests_on_one_connection(backend):
    with backend.session() as port, closing(backend.connect(port, SITE)) as client:
        for _ in range(20):
            for path, body in (
                ("/style.css", CSS),
                ("/none", b""),
                ("/gzip.js", gzip.compress(SCRIPT, mtime=0)),
            ):
                seen = backend.ask(client, "GET", f"{SITE}{path}", [("Accept-Encoding", "gzip")])
                assert seen.body == body


def test_sessions_do_not_disturb_each_other(backend):
    with backend.session() as one, backend.session() as two:
        for port in (one, two, one):
            with closing(backend.connect(port, SITE)) as client:
                assert backend.ask(client, "GET", f"{SITE}/cart").body == b"empty"
