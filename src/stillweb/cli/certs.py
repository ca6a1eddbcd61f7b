"""`stillweb certs`: create, show and trust the certificate authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from stillweb.certs import TARGETS, CertAuthority, install_nss, spki_flag, trust_recipe, write_bundle
from stillweb.certs.authority import CA_DAYS, host_name
from stillweb.cli import CommandGroup
from stillweb.cli.console import echo, print_json
from stillweb.cli.options import FOLDER, certs_option, collections_option, json_option
from stillweb.errors import BadHostname, UsageError


@click.group(cls=CommandGroup)
def certs() -> None:
    """Create, show and trust the certificate authority.

    \b
    Example:
      stillweb certs init
      stillweb certs trust chromium
    """


@certs.command()
@certs_option
@click.option("--days", default=CA_DAYS, show_default=True, help="Days until the CA expires.")
@click.option("--name", default="stillweb replay CA", show_default=True, help="Common name of the CA.")
@click.option(
    "--constrain",
    metavar="NAME",
    multiple=True,
    help="Constrain the CA to the hosts of this collection and their subdomains. Repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace the CA; programs must then trust the new one.")
@collections_option
@json_option
def init(certs_dir: Path, constrain: tuple[str, ...], root: Path, as_json: bool, **made: Any) -> None:
    """Create a CA with keys that only you can read.

    A program that trusts a constrained CA accepts its certificates for the hosts of the collections only.

    \b
    Example:
      stillweb certs init --days 365
      stillweb certs init --constrain shop
    """
    hosts = sorted({host for each in constrain for host in _recorded_hosts(root, each)})
    ca = CertAuthority.init(certs_dir, hosts=hosts, **made)
    _describe(ca, as_json)
    echo(f"created a CA in {certs_dir}; keep it out of version control", err=True)


@certs.command()
@certs_option
@json_option
def show(certs_dir: Path, as_json: bool) -> None:
    """Show the CA's fingerprint, expiry and SPKI hashes.

    \b
    Example:
      stillweb certs show --json
    """
    _describe(CertAuthority.load(certs_dir), as_json)


@certs.command()
@click.argument("targets", nargs=-1, type=click.Choice(TARGETS), metavar="[TARGET]...")
@certs_option
@click.option("--install", type=click.Choice(["nss"]), help="Install the CA into Chromium's store (nss).")
@click.option(
    "--db",
    type=FOLDER,
    default=Path("~/.pki/nssdb"),
    show_default=True,
    help="NSS database for --install nss.",
)
@json_option
def trust(targets: tuple[str, ...], certs_dir: Path, install: str | None, db: Path, as_json: bool) -> None:
    """Print how to make a program trust the CA; without TARGET for all programs.

    \b
    TARGET: chromium firefox system docker node python pywb mitmproxy
    Example:
      stillweb certs trust node
      stillweb certs trust --install nss

    Anyone with ca-key.pem can impersonate any site to a program that trusts the CA:
    trust it on training machines only.
    """
    ca = CertAuthority.load(certs_dir)
    if (install or _STORES & {*(targets or TARGETS)}) and not ca.is_constrained:
        echo(
            f"warning: anyone with {ca.folder}/ca-key.pem can impersonate any site to programs that "
            "read a store with the CA; "
            "stillweb certs init --constrain NAME limits the CA to the hosts of a collection",
            err=True,
        )
    if install == "nss":
        install_nss(ca, db.expanduser())
        echo(f"{db.expanduser()} trusts {ca.ca_file}", err=True)
        if not targets:
            return
    recipes = [trust_recipe(ca, target) for target in targets or TARGETS]
    if any(one.target == "python" for one in recipes):
        echo(f"wrote {write_bundle(ca)}", err=True)
    if as_json:
        print_json({one.target: {"what": one.what, "text": one.text} for one in recipes})
        return
    for one in recipes:
        echo(f"# {one.target}: {one.what}", err=len(recipes) == 1)
        echo(one.text if len(recipes) == 1 else one.text + "\n")


_STORES = {"firefox", "system", "docker"}
"""Targets that trust the CA for everything that a user does."""


def _recorded_hosts(root: Path, name: str) -> set[str]:
    """Return the hosts of a collection's captures, without those that no certificate can contain."""
    from stillweb.collections.layout import Collection

    collection = Collection.open(root, name)
    collection.require_archive()
    hosts = {urlsplit(capture.url).hostname or "" for capture in collection.captures()}
    certain = {host for host in hosts if _has_certificate(host)}
    if not certain:
        raise UsageError(f"{name} has no host to which a CA could be constrained")
    return certain


def _has_certificate(host: str) -> bool:
    try:
        host_name(host)
    except BadHostname:
        return False
    return bool(host)


def _describe(ca: CertAuthority, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "folder": str(ca.folder),
        "fingerprint": ca.fingerprint,
        "not_after": ca.not_after.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "spki": ca.spki,
        "ca_spki": ca.ca_spki,
        "chromium_flag": spki_flag(ca),
    }
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        echo(f"{key:<14}{value}")
