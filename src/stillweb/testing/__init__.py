"""A pytest plugin: a team's own tests on the frozen web.

    @pytest.mark.stillweb(collection="shop")
    def test_basket(stillweb_page):
        stillweb_page.goto("https://shop.example/")

pytest finds it by its entry point and loads `plugin`, which does nothing until a test asks for one of its
fixtures: a replayed collection, a page in its proxy, an environment. See docs/testing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillweb.testing.blocking import BlockingEnv
    from stillweb.testing.replayed import Replayed

__all__ = ["BlockingEnv", "Replayed"]

_HOMES = {"BlockingEnv": "blocking", "Replayed": "replayed"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: every pytest run loads this package, and few use it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
