from __future__ import annotations

import pytest
import shop_site


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """The small shop as a sealed collection."""
    return shop_site.build(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="session")
def site(shop):
    from stillweb.benchmarks.site import read_site

    return read_site(shop)
