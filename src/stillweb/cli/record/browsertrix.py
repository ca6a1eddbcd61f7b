"""`stillweb record crawl --engine browsertrix`: its options, and what becomes of the others."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from click.core import ParameterSource

from stillweb.cli.console import print_json, stderr
from stillweb.cli.record.limits import CrawlProgress, tell
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.record.browsertrix.run import BrowsertrixCrawl, Job, plan
from stillweb.record.browsertrix.settings import IMAGE, Container
from stillweb.record.crawl.report import CrawlReport
from stillweb.record.options import CrawlOptions

__all__ = ["browsertrix_options", "crawl_by_browsertrix", "uses_browsertrix"]

F = TypeVar("F", bound=Callable[..., Any])

BROWSERTRIX, BROWSER = "browsertrix", "browser"

# Parameters of `record crawl` that mean the same to both engines; `settings` says how they are told.
_SHARED = frozenset(
    {
        "urls", "name", "append", "scope", "depth", "limit", "include", "exclude", "jobs", "timezone",
        "locale", "time_limit", "size_limit", "page_timeout", "retries", "delay", "rate", "robots", "sitemap",
        "behaviours", "rules", "upstream_ca", "root", "certs_dir", "as_json", "warc_size", "engine",
    }
)  # fmt: skip
_ITS_OWN = frozenset({"image", "docker", "docker_args", "settings", "browser_profile", "dry_run"})
_PROFILE = "it is logged in by a profile of its own: --browser-profile"
_WHY = {
    "storage_state": _PROFILE,
    "login_steps": _PROFILE,
    "logged_in": _PROFILE,
    "viewport": "its windows are 1920x1080",
    "seed": "it leaves the pages' random numbers and clock alone",
    "keep_secrets": "it redacts nothing, so that all secrets are kept",
}


class SettingParam(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE, the value in YAML."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value!r} is not NAME=VALUE, such as blockAds=true", param, ctx)
        try:
            return name, yaml.safe_load(text)
        except yaml.YAMLError:
            self.fail(f"the value in {value!r} is no YAML", param, ctx)


def browsertrix_options(command: F) -> F:
    """Add which engine records, and what browsertrix alone can be told."""
    options = (
        click.option(
            "--engine",
            type=click.Choice([BROWSER, BROWSERTRIX]),
            default=BROWSER,
            show_default=True,
            help="Who visits the pages: stillweb, or browsertrix-crawler in a container.",
        ),
        click.option(
            "--image", default=IMAGE, show_default=True, help="[browsertrix] The container's image."
        ),
        click.option(
            "--docker",
            default="docker",
            show_default=True,
            help="[browsertrix] Program that runs containers.",
        ),
        click.option(
            "--docker-arg",
            "docker_args",
            multiple=True,
            metavar="ARG",
            help="[browsertrix] One more argument of `docker run`: --docker-arg=--memory=4g. Repeatable.",
        ),
        click.option(
            "--set",
            "settings",
            type=SettingParam(),
            multiple=True,
            help="[browsertrix] One of its own settings: --set blockAds=true. Repeatable.",
        ),
        click.option(
            "--browser-profile",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="[browsertrix] Profile that its create-login-profile has made: recorded as logged in.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="[browsertrix] Print its call and its settings, and end."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def uses_browsertrix(ctx: click.Context, given: dict[str, Any]) -> bool:
    """Tell whether browsertrix is to record.

    Raises:
        UsageError: if an option was given that the engine does not have.
    """
    chosen: bool = given["engine"] == BROWSERTRIX
    strange = _ITS_OWN if not chosen else frozenset(ctx.params) - _SHARED - _ITS_OWN
    for name in ctx.params:
        if name in strange and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in ctx.command.params if each.name == name)
            spelt = (option.secondary_opts if given[name] is False else option.opts)[0]
            if not chosen:
                raise UsageError(f"{spelt} is for --engine {BROWSERTRIX}", hint=f"add --engine {BROWSERTRIX}")
            why = _WHY.get(name, "it has nothing like it")
            hint = f"leave it out, or record with --engine {BROWSER}; docs/browsertrix.md"
            raise UsageError(f"{spelt} cannot be told to browsertrix: {why}", hint=hint)
    return chosen


def crawl_by_browsertrix(ctx: click.Context, given: dict[str, Any], options: CrawlOptions) -> None:
    """Record pages by browsertrix-crawler, as the command line says."""
    container = Container(
        image=given["image"],
        program=given["docker"],
        arguments=given["docker_args"],
        settings=dict(given["settings"]),
        profile=given["browser_profile"],
    )
    job = Job(given["root"], given["name"], given["urls"], options, container, append=given["append"])
    if given["dry_run"]:
        what = plan(job)
        for note in what.notes:
            stderr().print(f"note: {note}", markup=False, soft_wrap=True)
        click.echo(f"{shlex.join(what.call)}\n\n# config.yaml\n{what.yaml}", nl=False)
        return
    crawl = BrowsertrixCrawl(job)
    with CrawlProgress() as bar:
        report = asyncio.run(_run(crawl, bar))
    if given["as_json"]:
        print_json(asdict(report) | {"collection": job.name})
    else:
        tell(report, Collection.open(job.root, job.name))
    if crawl.interrupted:
        raise click.Abort
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)


async def _run(crawl: BrowsertrixCrawl, bar: CrawlProgress) -> CrawlReport:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        crawl.interrupt()
        words = ["it finishes its pages; once more: it ends at once", "it ends; once more: it is killed"]
        bar.say((["", *words, "it is killed"])[min(crawl.interrupted, 3)])

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await crawl.run(bar.show, bar.say)
