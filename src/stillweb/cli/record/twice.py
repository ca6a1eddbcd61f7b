"""`stillweb record crawl --twice`: options, progress and what is told of the second recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import stderr
from stillweb.cli.record.limits import CrawlProgress
from stillweb.cli.record.shared import until_signal
from stillweb.collections.layout import Collection
from stillweb.record.crawl.twice import Twice, record_again
from stillweb.record.options import CrawlOptions

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 10


def twice_options(command: F) -> F:
    """Add whether to record a second time."""
    keep = click.option("--keep-second", is_flag=True, help="Keep the second recording as NAME@twice.")
    twice = click.option(
        "--twice",
        is_flag=True,
        help="Then record the same pages again with another clock and seed, and learn what varies by itself.",
    )
    return twice(keep(command))


def twice_after(
    collection: Collection, ca: CertAuthority, options: CrawlOptions, given: dict[str, Any]
) -> Twice:
    """Record a crawl's pages again; Ctrl-C keeps the first recording, and the second for --append."""
    with CrawlProgress() as bar:
        bar.say("recording the same pages again")
        try:
            again = record_again(collection, ca, options, bar.show, keep=given["keep_second"])
            return until_signal(again)
        except click.Abort:
            bar.say("the first recording is whole; the same with --append goes on with the second")
            raise


def tell_twice(name: str, twice: Twice) -> None:
    """Print what the second recording came to."""
    learned = twice.learned
    click.echo(f"{name}: {len(learned.rules)} rules learned from {twice.pages} pages recorded twice")
    for rule in learned.rules:
        click.echo(f"  {rule.where} {rule.name or '(bare)'} of {rule.host}{rule.path}: {rule.shape}")
    console = stderr()
    for each in learned.rejected[:_SHOWN]:
        place = f"{each.where} {each.name or '(bare)'} of {each.host}{each.path}"
        console.print(f"not learned: {place}: {each.why}", markup=False, soft_wrap=True)
    for url, why in twice.failed.items():
        console.print(f"not recorded again: {url}: {why}", markup=False, soft_wrap=True)
    if twice.kept:
        click.echo(f"the second recording: {twice.kept}")
