"""Options of `record crawl` that say what is done with a page and as whom, and `record login`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.cli.options import certs_option
from stillweb.cli.record.shared import until_signal
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import LOGIN
from stillweb.errors import UsageError
from stillweb.record.behaviors.behaviors import Behavior, Budget, parse_behaviours
from stillweb.record.login.manual import ByHand, log_in_by_hand
from stillweb.record.login.steps import Login, parse_sign, read_login, read_storage_state
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

__all__ = ["login_command", "login_given", "login_options", "tell_stranger", "visit_given", "visit_options"]

F = TypeVar("F", bound=Callable[..., Any])

_USUAL = Budget()
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def visit_options(command: F) -> F:
    """Add what is done with a page, and as whom; `visit_given` reads them."""
    options = (
        click.option(
            "--behaviours",
            default="all",
            show_default=True,
            metavar="LIST",
            help=f"What is done with a page: all, none, or some of {','.join(Behavior)}.",
        ),
        click.option(
            "--scroll-screens",
            type=click.IntRange(1),
            default=_USUAL.screens,
            show_default=True,
            help="Screens of one page scrolled at most.",
        ),
        click.option(
            "--behaviour-seconds",
            type=click.FloatRange(1),
            default=_USUAL.seconds,
            show_default=True,
            help="Seconds for each behaviour on one page.",
        ),
    )
    command = login_options(command)
    for option in reversed(options):
        command = option(command)
    return command


def login_options(command: F) -> F:
    """Add as whom sites are visited; `login_given` reads it."""
    options = (
        click.option(
            "--storage-state",
            type=_FILE,
            help="Be logged in by cookies and local storage, as Playwright saves them.",
        ),
        click.option(
            "--login", "login_steps", type=_FILE, help="Log in by the steps of a YAML file (docs/login.md)."
        ),
        click.option(
            "--logged-in",
            metavar="text:T|selector:CSS|url:PART",
            help="What shows that the login holds; asked again during the crawl.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def visit_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of `CrawlOptions`.

    Raises:
        UsageError: if a behaviour, a file or a sign is none.
    """
    return {
        "behaviours": parse_behaviours(given["behaviours"]),
        "budget": Budget(screens=given["scroll_screens"], seconds=given["behaviour_seconds"]),
        "login": login_given(given),
    }


def login_given(given: Mapping[str, Any]) -> Login | None:
    """Return as whom sites are visited; None for nobody.

    Raises:
        UsageError: if a file or a sign is none, or there are two ways to log in.
    """
    state, steps, said = given["storage_state"], given["login_steps"], given["logged_in"]
    if state and steps:
        raise UsageError("--storage-state and --login are two ways to log in", hint="give one of them")
    if steps and said:
        raise UsageError("--logged-in goes with --storage-state", hint="write logged_in into the steps file")
    if state:
        return read_storage_state(state, parse_sign(said) if said else None)
    if said:
        raise UsageError("--logged-in goes with --storage-state", hint="say how to log in")
    return read_login(steps) if steps else None


def tell_stranger(collection: Collection, login: Login | None) -> None:
    """Say so if a recording that is logged in is added to as nobody."""
    if login is None and collection.manifest().extra.get(LOGIN):
        click.echo(
            f"{collection.name} was recorded logged in, and is added to as nobody: "
            "--login or --storage-state logs in",
            err=True,
        )


@click.command("login")
@click.argument("url")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File for the storage state.",
)
@click.option("--until", metavar="text:T|selector:CSS|url:PART", help="End by itself when a page shows this.")
@click.option(
    "--resolve", "rules", multiple=True, metavar="HOST[:PORT]=ADDR[:PORT]", help="As in `record crawl`."
)
@click.option("--upstream-ca", type=_FILE, help="PEM file of a CA that the site uses besides the system's.")
@certs_option
def login_command(**given: Any) -> None:
    """Log in by hand, in a browser with a window, and save the storage state.

    The file lets whoever has it in: it is written for you alone (mode 0600), and nothing else is recorded.

    \b
    Example:
      stillweb record login https://site.example/login --save state.json
      stillweb record crawl https://site.example/ -c site --storage-state state.json
    """  # noqa: D301  click reads \b itself
    chosen = ByHand(
        given["url"],
        given["save"],
        parse_sign(given["until"]) if given["until"] else None,
        RecordOptions(resolve=parse_all(given["rules"]), upstream_ca=given["upstream_ca"]),
        Profile(),
    )
    ca = CertAuthority.load_or_init(given["certs_dir"])
    told = "log in there; it ends by itself" if chosen.until else "log in there, then press Enter here"
    state = until_signal(log_in_by_hand(ca, chosen, lambda _: click.echo(told, err=True)))
    click.echo(f"{given['save']}: {len(state['cookies'])} cookies, {len(state['origins'])} origins")
