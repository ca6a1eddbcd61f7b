"""The shared sites as recordings reach them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx
import pytest

from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

SITES_CA = Path(os.environ.get("STILLWEB_SITES_CA", "~/.cache/stillweb-sites/ca.pem")).expanduser()
RESOLVE = ("*.test=127.0.0.1:8443", "*.test:80=127.0.0.1:8480")


def sites_up(*names: str) -> RecordOptions:
    """Return how the shared sites are recorded; skips where one of those named does not answer."""
    how = f"sites.py up {' '.join(names)}"
    if not SITES_CA.is_file():
        pytest.skip(f"the shared sites are not up: no {SITES_CA} ({how})")
    with httpx.Client(verify=ssl.create_default_context(cafile=SITES_CA), trust_env=False) as client:
        for name in names:
            host = f"{name}.test"
            try:
                answer = client.get(
                    "https://127.0.0.1:8443/", headers={"Host": host}, extensions={"sni_hostname": host}
                )
            except httpx.HTTPError as error:
                pytest.skip(f"{host} is not up: {error} ({how})")
            if answer.is_server_error:  # nginx runs, the site behind it does not
                pytest.skip(f"{host} is not up: it answers {answer.status_code} ({how})")
    return RecordOptions(resolve=parse_all(RESOLVE), upstream_ca=SITES_CA)
