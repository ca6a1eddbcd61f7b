"""`stillweb record login`, and the login options of the other recording commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, until_signal
from stillweb.cli.extras import require_extra
from stillweb.cli.options import EXISTING_FILE, FILE, certs_option, options_from
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import LOGIN
from stillweb.errors import UsageError
from stillweb.record.defaults import CrawlDefaults
from stillweb.record.login.run import ManualLogin, record_login
from stillweb.record.login.steps import Login, parse_indicator, read_login, read_storage_state
from stillweb.record.options import RecordOptions

F = TypeVar("F", bound=Callable[..., Any])

_SIGN = "text:T|selector:CSS|url:PART"


def login_options(command: F) -> F:
    """Add how to log in to the sites; `login_from` reads it."""
    for option in (
        click.option(
            "--logged-in",
            metavar=_SIGN,
            help="Sign on a page that the login is still valid; checked again during the recording.",
        ),
        click.option(
            "--login",
            type=EXISTING_FILE,
            help="YAML file with the steps that log in to the site (docs/how-to/login.md).",
        ),
        click.option(
            "--storage-state",
            type=EXISTING_FILE,
            help="Cookies and local storage to start with, as Playwright saves them.",
        ),
    ):
        command = option(command)
    return command


def login_from(given: Mapping[str, Any]) -> Login | None:
    """Return the login that the options describe; None without a login.

    Raises:
        UsageError: if a file or a sign is invalid, or the options contradict each other.
    """
    state, steps, sign = given["storage_state"], given["login"], given["logged_in"]
    if state and steps:
        raise UsageError("--storage-state and --login are alternatives", hint="remove one of them")
    if steps and sign:
        raise UsageError("--logged-in requires --storage-state", hint="write logged_in into the steps file")
    if state:
        return read_storage_state(state, parse_indicator(sign) if sign else None)
    if sign:
        raise UsageError("--logged-in requires --storage-state", hint="add --storage-state FILE")
    return read_login(steps) if steps else None


def login_of(collection: Collection, given: Mapping[str, Any], defaults: CrawlDefaults) -> Login | None:
    """Return the login that the options describe, else that of the collection's crawl.

    Raises:
        UsageError: as `login_from`; also without a login for a recording that was made with one, since
            replay would show pages of a visitor to a session that is logged in.
    """
    login = login_from(given) or defaults.login()
    if login is None and collection.manifest().extra.get(LOGIN):
        raise UsageError(
            f"{collection.name} was recorded with a login; this run has none",
            hint="add --login or --storage-state; a state without cookies records what a visitor sees",
        )
    return login


@click.command("login")
@click.argument("url")
@click.option("--save", type=FILE, required=True, help="File to write the storage state to.")
@click.option("--until", metavar=_SIGN, help="End as soon as a page shows this sign.")
@options_from(RecordOptions, "record", only=("resolve", "allow_private", "upstream_ca"))
@certs_option
def login(url: str, save: Path, until: str | None, record: RecordOptions, certs_dir: Path) -> None:
    """Log in manually, in a browser with a window, and save the storage state.

    The file gives access to your account: it is written with mode 0600. Nothing else is recorded.

    \b
    Example:
      stillweb record login https://site.example/login --save state.json
      stillweb record crawl https://site.example/ -c site --storage-state state.json
    """
    require_extra("record")
    chosen = ManualLogin(url, save, parse_indicator(until) if until else None, record, Profile())
    ca = CertAuthority.load_or_init(certs_dir)
    prompt = "log in there; it ends automatically" if until else "log in there, then press Enter here"
    state = until_signal(record_login(ca, chosen, lambda _: echo(prompt, err=True)))
    echo(f"{save}: {len(state['cookies'])} cookies, {len(state['origins'])} origins")
