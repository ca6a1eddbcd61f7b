"""One collection, and one server of each back-end, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import BACKENDS, Running, make_collection, running

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import ProgramNotFound
from stillweb.replay.pywb.process import find_pywb


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> CertAuthority:
    return CertAuthority.init(tmp_path_factory.mktemp("conformance-certs"))


@pytest.fixture(scope="session")
def collection(tmp_path_factory) -> Collection:
    return make_collection(tmp_path_factory.mktemp("conformance") / "collections")


@pytest.fixture(
    scope="session",
    params=[pytest.param(n, marks=[] if n.startswith("native") else pytest.mark.pywb) for n in BACKENDS],
)
def backend(request, collection, authority) -> Iterator[Running]:
    if not request.param.startswith("native"):
        try:
            find_pywb()
        except ProgramNotFound as error:
            pytest.skip(f"{error}; {error.hint}")
    with running(request.param, collection, authority) as started:
        yield started
