"""Fixtures for tests on a replayed collection; without a test that requests one, the plugin does nothing.

Every pytest run on a machine with stillweb loads this file, so it imports only pytest at the top. The nearest
marker, or `stillweb_collection` in the ini file, names the collection. Replay servers run in a thread for the
whole test run. Each test has its own session, context and browser, so tests do not share state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

    from stillweb.testing.background import BlockingEnv
    from stillweb.testing.replayed import Choice, Replayed, Servers

_INI = {
    "stillweb_collections": ("folder of the collections", "collections"),
    "stillweb_certs": ("folder of the certificate authority", "certs"),
    "stillweb_collection": ("collection of tests whose marker names none", ""),
    "stillweb_level": ("level of environments: auto, network, clock or exact", "auto"),
    "stillweb_proxy": ("control URL of a running replay server", ""),
}
_MARKER = "stillweb(collection=None, level=None, seed=None): settings of a test's stillweb fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options."""
    for name, (meaning, default) in _INI.items():
        parser.addini(name, f"stillweb: {meaning}", default=default)


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and the asynchronous fixtures if pytest-asyncio is installed."""
    config.addinivalue_line("markers", _MARKER)
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.register(_asynchronous(), "stillweb-asyncio")


@pytest.fixture
def stillweb_choice(request: pytest.FixtureRequest) -> Choice:
    """Return the settings of this test."""
    from stillweb.testing.replayed import Choice

    marked: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("stillweb"))):  # the nearest marker is last
        if unknown := set(marker.kwargs) - {"collection", "level", "seed"} or marker.args:
            raise pytest.UsageError(
                f"marker stillweb takes collection, level and seed by name, not {unknown}"
            )
        marked |= marker.kwargs
    ini = request.config.getini
    collection = marked.get("collection") or ini("stillweb_collection")
    if not collection:
        raise pytest.UsageError(
            f"{request.node.nodeid}: no collection; add @pytest.mark.stillweb(collection=...) "
            "or stillweb_collection in the ini file"
        )
    return Choice(str(collection), str(marked.get("level") or ini("stillweb_level")), marked.get("seed"))


@pytest.fixture(scope="session")
def stillweb_servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Provide the replay servers of this run; folders are relative to that of the ini file."""
    from stillweb.testing.replayed import Servers

    ini, root = request.config.getini, request.config.rootpath
    collections, certs = (root / Path(ini(name)) for name in ("stillweb_collections", "stillweb_certs"))
    servers = Servers(collections, certs, str(ini("stillweb_proxy")))
    yield servers
    servers.close()


@pytest.fixture
def stillweb_replay(stillweb_servers: Servers, stillweb_choice: Choice) -> Iterator[Replayed]:
    """Provide this test's session on the collection: proxy, certificate, ledger."""
    with stillweb_servers.session(stillweb_choice.collection) as replayed:
        yield replayed


@pytest.fixture
def stillweb_page(
    request: pytest.FixtureRequest, stillweb_replay: Replayed, stillweb_choice: Choice
) -> Iterator[Page]:
    """Provide a page of Playwright's synchronous API in the session's proxy, with seeded randomness."""
    from playwright.sync_api import sync_playwright

    from stillweb.testing.pages import open_page

    seed = _seed(stillweb_choice, stillweb_replay)
    if request.config.pluginmanager.hasplugin("playwright"):
        # pytest-playwright keeps one instance for the run, and a thread allows only one.
        shared: Playwright = request.getfixturevalue("playwright")
        with open_page(shared, stillweb_replay, seed=seed) as page:
            yield page
        return
    with sync_playwright() as own, open_page(own, stillweb_replay, seed=seed) as page:
        yield page


@pytest.fixture
def stillweb_env(stillweb_servers: Servers, stillweb_choice: Choice) -> Iterator[BlockingEnv]:
    """Provide a synchronous environment on the collection."""
    from stillweb.env.env import Env
    from stillweb.testing.background import BlockingEnv

    url = stillweb_servers.url(stillweb_choice.collection)
    env = BlockingEnv(
        Env(url, stillweb_choice.collection, level=stillweb_choice.level),
        stillweb_servers.background,
        seed=stillweb_choice.seed,
    )
    yield env
    env.close()


def _seed(choice: Choice, replayed: Replayed) -> int:
    return int(replayed.manifest.get("seed", 0)) if choice.seed is None else choice.seed


def _asynchronous() -> Any:
    from stillweb.testing import asynchronous

    return asynchronous
