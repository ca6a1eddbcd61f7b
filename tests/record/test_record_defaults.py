"""The options of a crawl are the defaults of later recordings into its collection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from members import STEPS, Members

from stillweb.cli import cli
from stillweb.collections.layout import Collection, list_collections
from stillweb.collections.redactions import Redaction, append_redactions
from stillweb.matching.placeholders import key_file
from stillweb.record.defaults import CrawlDefaults, read_defaults, write_defaults
from stillweb.record.login.steps import Login
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind, SecretsOptions
from stillweb.record.proxy.resolve import ResolveRule, parse_all, parse_resolve
from stillweb.record.recording import begin

HOME = "https://site.test/"
ports = st.none() | st.integers(1, 65535)
hosts = st.sampled_from(["*", "*.test", "site.test", "127.0.0.1", "::1", "localhost"])


@given(hosts, ports, hosts.filter(lambda host: "*" not in host), ports)
def test_a_rule_is_written_as_it_is_read(pattern: str, port, address: str, to_port) -> None:
    rule = ResolveRule(pattern, port, address, to_port)

    assert parse_resolve(str(rule)) == rule


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.create(tmp_path / "collections", "site")
    begin(made)
    return made


def test_only_what_differs_from_the_usual_is_stored_and_outside_of_the_collection(
    collection, tmp_path
) -> None:
    write_defaults(collection, CrawlOptions(limit=5))
    assert str(read_defaults(collection)) == ""

    steps = tmp_path / "steps.yaml"
    options = CrawlOptions(
        scope=ScopeKind.PREFIX,
        exclude=("logout",),
        retries=0,
        login=Login("steps", str(steps), secrets=("Pass-word-17",)),
        record=RecordOptions(
            parse_all(["*.test=127.0.0.1:8443"]),
            allow_private=True,
            secrets=SecretsOptions(redact=("visitor",)),
        ),
    )
    before = {path: path.read_bytes() for path in collection.path.rglob("*") if path.is_file()}
    write_defaults(collection, options)
    write_defaults(collection, CrawlOptions(page_timeout=5))  # `--append`, with another option

    found = read_defaults(collection)
    assert str(found) == (
        f"--resolve '*.test=127.0.0.1:8443' --allow-private --login {steps} --redact visitor "
        "--scope prefix --exclude 'logout' --page-timeout 5 --retries 0"
    )
    assert {path: path.read_bytes() for path in collection.path.rglob("*") if path.is_file()} == before
    assert [each.name for each in list_collections(collection.root)] == ["site"]
    stored = (collection.root / ".recorded" / "site.json").read_text()
    assert "Pass-word" not in stored


def test_another_recording_of_the_name_and_a_broken_file_have_no_defaults(collection) -> None:
    write_defaults(collection, CrawlOptions(retries=7))
    assert read_defaults(collection).retries == 7

    collection.write_manifest(replace(collection.manifest(), recorded_at="20200101000001"))
    assert read_defaults(collection) == CrawlDefaults()
    (collection.root / ".recorded" / "site.json").write_text("[")
    assert read_defaults(collection) == CrawlDefaults()


def test_what_is_given_counts_more_than_a_default() -> None:
    defaults = CrawlDefaults(resolve=("*.test=10.0.0.1",), upstream_ca=Path("/old.pem"), redact=("a",))
    given_options = RecordOptions(
        parse_all(["*.test=10.0.0.2"]), upstream_ca=Path("/new.pem"), secrets=SecretsOptions(redact=("b",))
    )

    made = defaults.record_options(given_options)

    assert [str(rule) for rule in made.resolve] == ["*.test=10.0.0.1", "*.test=10.0.0.2"]  # the last one wins
    assert (made.upstream_ca, made.secrets.redact) == (Path("/new.pem"), ("a", "b"))


def recorded(root: Path, ca, *command: str) -> Result:
    where = ("--collections", str(root), "--certs", str(ca.folder))
    return CliRunner().invoke(cli, ["record", *command, *where])


def test_a_missing_key_of_redacted_secrets_is_warned_of(tmp_path: Path, ca) -> None:
    collection = Collection.create(tmp_path, "site")
    secret = Redaction("request body", "password", "form", "p", "site.test", placeholder="xyzz")
    append_redactions(collection.redactions_file, [secret.line("urn:uuid:1")])
    begin(collection)
    assert f"to {tmp_path / '.secrets' / 'site.jsonl'}" in recorded(tmp_path, ca, "harvest", "site").stderr
    key = key_file(tmp_path, "site")
    key.parent.mkdir()
    key.touch()
    assert "warning" not in recorded(tmp_path, ca, "harvest", "site").stderr


@pytest.mark.browser
def test_a_site_is_explored_and_amended_as_it_was_crawled(tmp_path: Path, ca, site, monkeypatch) -> None:
    members = Members(site)
    steps, misses = tmp_path / "steps.yaml", tmp_path / "misses.txt"
    steps.write_text(STEPS)
    misses.write_text(f"{HOME}b?x=1\n")
    monkeypatch.setenv("SITE_PASSWORD", "Pass-word-17")
    reach = ("--resolve", site.resolve, "--upstream-ca", str(site.ca_file), "--login", str(steps))
    crawled = recorded(
        tmp_path, ca, "crawl", HOME, "-c", "site", "--limit", "1", "--behaviors", "none", *reach
    )
    assert crawled.exit_code == 0, crawled.output
    site.requests.clear()

    explored = recorded(tmp_path, ca, "explore", "site", "--budget", "2", "--explore-links", "2")
    amended = recorded(tmp_path, ca, "amend", "site", "--misses", str(misses))

    assert explored.exit_code == amended.exit_code == 0, explored.output + amended.output
    assert f"with the options of the crawl: --resolve '{site.resolve}'" in explored.stderr
    assert len(members.issued) == 1 + 4  # each recording logged in
    paths = ("/", "/home", "/a", "/b", "/c")
    assert [each for each in site.requests if each.path in paths and "cookie" not in each.headers] == []
    assert {"/a", "/b?x=1"} <= {each.path for each in site.requests}
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file() and path.suffix != ".gz"]
    written = b"".join(path.read_bytes() for path in files)
    assert b"Pass-word-17" not in written
    assert str(steps).encode() not in written
