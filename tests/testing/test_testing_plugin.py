"""The pytest plugin: the example of docs/how-to/pytest.md runs as it stands, and wrong use is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_site import build

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "pytest.md"


def blocks():
    """Return the files of the document, by the name in their first line."""
    found = re.findall(r"```\w+\n# (\S+)\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    return dict(found)


@pytest.mark.browser
def test_the_example_of_the_document_runs(pytester):
    build(pytester.path / "collections")
    for name, text in blocks().items():
        (pytester.path / name).write_text(text + ("filterwarnings = error\n" if name == "pytest.ini" else ""))
    # In a process of its own: Playwright's synchronous API cannot run within our tests' loops.
    result = pytester.runpytest_subprocess("-q", "--strict-markers", timeout=120)
    result.assert_outcomes(passed=4)
    assert (pytester.path / "certs").is_dir()


def test_sessions_are_the_tests_own_and_wrong_use_is_reported(pytester):
    build(pytester.path / "collections")
    pytester.makeini(
        """
        [pytest]
        stillweb_collection = small
        filterwarnings = error
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        """
    )
    pytester.makepyfile(
        """
        import httpx, pytest, ssl

        def get(replay, path):
            trust = ssl.create_default_context(cafile=replay.ca_file)
            with httpx.Client(proxy=replay.proxy, verify=trust) as client:
                return client.get("https://small.test" + path).status_code

        seen = []

        @pytest.mark.parametrize("turn", [1, 2])
        def test_each_has_its_own(stillweb_replay, turn):
            seen.append(stillweb_replay.session)
            assert stillweb_replay.ledger().entries == ()
            assert get(stillweb_replay, "/second") == 200
            assert [entry.tier for entry in stillweb_replay.ledger().entries] == ["exact"]
            stillweb_replay.reset()
            assert stillweb_replay.ledger().entries == ()
            assert len(set(seen)) == turn

        async def test_in_a_loop(stillweb_replay):
            assert get(stillweb_replay, "/absent") == 404
            assert stillweb_replay.misses() == ["GET https://small.test/absent"]

        @pytest.mark.stillweb(collection="missing")
        def test_no_such_collection(stillweb_replay): pass

        @pytest.mark.stillweb("small")
        def test_by_position(stillweb_choice): pass

        @pytest.mark.stillweb(collection="a", seed=1)
        class TestNearest:
            @pytest.mark.stillweb(collection="b")
            def test_marker(self, stillweb_choice):
                assert (stillweb_choice.collection, stillweb_choice.seed) == ("b", 1)
        """
    )
    result = pytester.runpytest_subprocess("-q", timeout=120)
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["*no collection*missing*", "*by name*"])


def test_nothing_is_imported_unless_it_is_used(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_light():
            heavy = {"playwright", "httptools", "stillweb.replay", "stillweb.env"}
            assert "stillweb.testing.plugin" in sys.modules
            assert heavy & set(sys.modules) == set()
        """
    )
    pytester.runpytest_subprocess("-q", timeout=60).assert_outcomes(passed=1)
