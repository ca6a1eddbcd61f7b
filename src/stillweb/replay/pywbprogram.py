"""Where pywb is, and what it is told. Pure but for looking at files.

pywb is GPL, changes Python when it is imported and pins packages that trainers need in newer
versions; so it lives in a virtual environment of its own and is only ever a process
(docs/decisions/0004-pywb-sidecar.md). All that it is told stands in a `config.yaml` and in
environment variables. Its flag `--proxy` is never used: that also opens `/live`, a way to the
real web.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from stillweb.certs import CertAuthority
from stillweb.errors import CertError, ProgramNotFound

__all__ = ["PYWB_LOCK", "PYWB_VARIABLE", "Setup", "default_folder", "environment", "find_pywb", "write_setup"]

PYWB_VARIABLE = "STILLWEB_PYWB"
PYWB_LOCK = Path(__file__).with_name("pywb.lock")
_SITE = Path(__file__).with_name("pywb_site")

# With no rules and no normalisation, pywb answers what it has under the exact urlkey, and nothing
# that looks like it: warcserver/index/fuzzymatcher.py returns None where no rule matches.
_NO_RULES: dict[str, Any] = {
    "default_filters": {"fuzzy_search_limit": "100", "not_exts": [], "mimes": [], "url_normalize": []},
    "rules": [],
}


def default_folder() -> Path:
    """Return where `stillweb setup pywb` makes the virtual environment."""
    return platformdirs.user_data_path("stillweb") / "pywb"


def find_pywb(explicit: Path | None = None) -> Path:
    """Return the absolute path of the program `wayback` of a pywb.

    The first of: the path given, the environment variable STILLWEB_PYWB, the virtual environment
    that `stillweb setup pywb` makes, and `wayback` on PATH.

    Raises:
        ProgramNotFound: if there is none, or the one named is not there.
    """
    for named in (explicit, os.environ.get(PYWB_VARIABLE)):
        if named:
            path = Path(named).absolute()
            if not os.access(path, os.X_OK) or path.is_dir():
                raise ProgramNotFound(f"no pywb at {path}", hint="stillweb setup pywb")
            return path
    ours = default_folder() / "bin" / "wayback"
    if os.access(ours, os.X_OK):
        return ours
    if found := shutil.which("wayback"):
        return Path(found).absolute()
    raise ProgramNotFound("pywb is not installed", hint="stillweb setup pywb")


@dataclass(frozen=True, slots=True)
class Setup:
    """What one pywb process is to serve.

    Attributes:
        root: folder of the collections.
        collection: the one that it serves as a proxy.
        timestamp: the moment that it shows, 14 digits; "" for the latest captures.
        fuzzy: whether pywb's own rules may answer with what merely looks like the request.
    """

    root: Path
    collection: str
    timestamp: str = ""
    fuzzy: bool = False


def write_setup(folder: Path, setup: Setup, ca: CertAuthority) -> Path:
    """Write config.yaml and what it names into a folder of the process's own; return its path.

    Raises:
        CertError: if the CA in the form for pywb is missing.
    """
    if not ca.pywb_file.is_file():
        raise CertError(f"{ca.pywb_file}: is missing", hint="stillweb certs init --overwrite")
    templates = folder / "templates"
    templates.mkdir()
    for name in ("not_found.html", "error.html"):  # a page must not learn that it is in an archive
        (templates / name).write_text("")
    proxy: dict[str, Any] = {
        "coll": setup.collection,
        "ca_file_cache": str(ca.pywb_file.resolve()),
        "recording": False,
        "enable_content_rewrite": False,  # bodies byte for byte
        "enable_banner": False,
        "enable_wombat": False,
        "enable_cert_download": False,
        "enable_websockets": False,
        "keepalive_max": 0,  # no limit; by default the 51st tunnel ends keep-alive for all
        # A certificate per host: for wildcards pywb asks the network for the public suffix list.
        "use_wildcard_certs": False,
    }
    if setup.timestamp:
        proxy["default_timestamp"] = setup.timestamp
    config: dict[str, Any] = {
        "collections_root": str(setup.root.resolve()),
        "enable_memento": False,
        "framed_replay": False,
        "proxy": proxy,
    }
    if not setup.fuzzy:
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(_NO_RULES))
        config["rules_file"] = str(rules)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def environment(
    folder: Path, config: Path, ca: CertAuthority, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of the process.

    Args:
        folder: its working folder.
        config: what `write_setup` wrote there.
        ca: whose leaf key it shows.
        inherited: this process's environment; settings of Python and of proxies are dropped from it.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PYTHON", "PYWB_")) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "PYWB_CONFIG_FILE": str(config),
        "PYTHONPATH": str(_SITE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "*",
        "STILLWEB_LEAF_KEY": str(ca.leaf_key_file.resolve()),
        "STILLWEB_PARENT": str(os.getpid()),
        # Where pywb would keep the public suffix list if it could fetch it.
        "TLDEXTRACT_CACHE": str(folder / "tldextract"),
    }
