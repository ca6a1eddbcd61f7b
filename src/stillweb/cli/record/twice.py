"""`stillweb record crawl --twice`: options, progress and printed report of the second recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, stderr, until_signal
from stillweb.cli.record.report import CrawlProgress
from stillweb.collections.layout import Collection
from stillweb.record.crawl.twice import Twice, record_again
from stillweb.record.options import CrawlOptions

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 10


def twice_options(command: F) -> F:
    """Add `--twice` and `--keep-second`."""
    keep = click.option("--keep-second", is_flag=True, help="Keep the second recording as NAME@twice.")
    twice = click.option(
        "--twice",
        is_flag=True,
        help="Then record the same pages again with another clock and seed, and learn the volatile values.",
    )
    return twice(keep(command))


def twice_after(collection: Collection, ca: CertAuthority, options: CrawlOptions, keep: bool) -> Twice:
    """Record a crawl's pages again. After Ctrl-C both recordings stay, and --append resumes the second."""
    with CrawlProgress() as bar:
        bar.say("recording the same pages again")
        try:
            return until_signal(record_again(collection, ca, options, bar.show, keep=keep))
        except click.Abort:
            bar.say("the first recording is complete; run again with --append to continue the second")
            raise


def print_twice(name: str, twice: Twice) -> None:
    """Print the rules that the second recording led to."""
    learned = twice.learned
    echo(f"{name}: {len(learned.rules)} rules learned from {twice.pages} pages recorded twice")
    for rule in learned.rules:
        echo(f"  {rule.where} {rule.name or '(bare)'} of {rule.host}{rule.path}: {rule.shape}")
    console = stderr()
    for each in learned.rejected[:_SHOWN]:
        place = f"{each.where} {each.name or '(bare)'} of {each.host}{each.path}"
        console.print(f"not learned: {place}: {each.why}", markup=False, soft_wrap=True)
    for url, why in twice.failed.items():
        console.print(f"not recorded again: {url}: {why}", markup=False, soft_wrap=True)
    if twice.kept:
        echo(f"the second recording: {twice.kept}")
