"""The command line: click commands over the packages, one module for each package.

A command is imported when it is looked up, so that `stillweb --help` and shell completion do not wait for
Playwright. Only `main` turns a `StillwebError` into a message, a hint and an exit status.

Exit status: 0 success; 1 a problem in the data, a peer or a gate that failed; 2 wrong use; 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from stillweb import __version__
from stillweb.cli.console import LogFormatter, echo
from stillweb.cli.extras import extra_not_installed
from stillweb.errors import StillwebError
from stillweb.files import DISK_FULL

# name -> (module, one line for --help)
COMMANDS = {
    "demo": ("stillweb.cli.demo", "Record, seal, replay, run 8 episodes and compare: the whole pipeline."),
    "doctor": ("stillweb.cli.doctor", "Check this machine for everything that stillweb needs."),
    "setup": ("stillweb.cli.setup", "Install a browser, or pywb in a separate environment."),
    "certs": ("stillweb.cli.certs", "Create, show and trust the certificate authority."),
    "record": ("stillweb.cli.record.commands", "Record sites into a collection."),
    "collections": (
        "stillweb.cli.collections.commands",
        "Import, check, learn, seal, share and export collections.",
    ),
    "bundle": ("stillweb.cli.bundle", "Publish a benchmark as one file that others can verify."),
    "search": ("stillweb.cli.search", "Search the text of recorded pages."),
    "replay": ("stillweb.cli.replay.commands", "Serve collections as a proxy that replays real URLs."),
    "run": ("stillweb.cli.run", "Run a command whose HTTP traffic goes to a replay."),
    "env": ("stillweb.cli.env", "Check tasks and try actions on a replayed collection."),
    "serve": ("stillweb.cli.serve", "Serve episodes to trainers over HTTP: leases, steps, screenshots."),
    "monitor": ("stillweb.cli.monitor", "Show the state of a rollout server."),
    "cdp": ("stillweb.cli.cdp", "Start a browser on a replay session, for harnesses that use CDP."),
    "rollout": ("stillweb.cli.episodes.rollout", "Play tasks with an agent, and store every episode."),
    "tasks": ("stillweb.cli.tasks", "Make proved tasks from recordings, and audit task files."),
    "view": ("stillweb.cli.episodes.view", "Look at trajectories in a browser: list, film, side by side."),
    "compare": ("stillweb.cli.episodes.compare", "Compare two rollouts task by task, with intervals."),
    "why": ("stillweb.cli.episodes.why", "Find the step that lost an episode, by forks at each step."),
    "rescore": ("stillweb.cli.episodes.rescore", "Score stored trajectories again, without a browser."),
    "coverage": ("stillweb.cli.coverage", "Measure how often agents leave a recording, and why."),
    "diff": ("stillweb.cli.diff", "Compare a recording with its replay, page by page."),
    "certify": ("stillweb.cli.certify", "Run traces repeatedly; certify that nothing differs."),
}


class CommandGroup(click.Group):
    """A group that lists commands by whole first sentences, and imports some when they are looked up.

    Args:
        lazy: module of each of these commands; its attribute has the command's name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(self._lazy[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click knows no lazy commands, and so suggests none of them.
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            if close := get_close_matches(args[0], self.list_commands(ctx)):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._sentence(ctx, name)) for name in self.list_commands(ctx)])

    def _sentence(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(limit=200)


class _Pipeline(CommandGroup):
    """All commands in the order of the pipeline; their list needs no import of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def _sentence(self, ctx: click.Context, name: str) -> str:
        return COMMANDS[name][1]


@click.group(
    cls=_Pipeline,
    lazy={name: module for name, (module, _) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, given: _print_versions(ctx) if given else None,
    help="Print the version; with -v also those of Python, Playwright, browser and pywb.",
)
@click.option(
    "-v", "--verbose", count=True, is_eager=True, help="Log more to stderr: -v info, -vv every request."
)
def cli(verbose: int) -> None:
    """Record web sites, replay them deterministically, and run agents' episodes on the replay.

    \b
    Example:
      stillweb certs init
      stillweb record crawl https://site.example/ -c site --limit 25
      stillweb replay site
      stillweb diff site
    """
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _print_versions(ctx: click.Context) -> None:
    echo(f"stillweb, version {__version__}")
    if ctx.params["verbose"]:
        from stillweb.cli.doctor import versions

        for name, version in list(versions().items())[1:]:
            echo(f"{name:<12}{version}")
    ctx.exit()


def main() -> None:
    # The tree of a large page is about 100,000 short-lived objects. With the default threshold of 700,
    # garbage collection takes a fifth of the run time (`bench/diff.py`: 16.1 s, with this setting 12.7 s).
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)  # a fifth of the time of `stillweb diff --help` was the collection at exit
    signal.signal(signal.SIGTERM, _stop)
    try:
        # Without `standalone_mode` click returns the value of `ctx.exit`.
        status = cli.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        echo("stopped", err=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = extra_not_installed(error)
        if missing is None:
            raise
        _exit_with(missing)
    except StillwebError as error:
        _exit_with(error)
    except OSError as error:
        # The disk is full, or another user owns a folder: not a fault of the program, so no traceback.
        full = error.errno in DISK_FULL
        if error.filename is None and not full:
            raise
        place = error.filename2 or error.filename or "cannot write"  # a copy names its source first
        echo(f"stillweb: {place}: {error.strerror}", err=True)
        if full:
            echo("  next: free disk space, then run the same command again", err=True)
        if isinstance(error, PermissionError):
            echo(
                "  next: run as the owner of that folder (in containers: STILLWEB_UID, STILLWEB_GID)",
                err=True,
            )
        sys.exit(1)


def _stop(number: int, _: object) -> NoReturn:
    """End the command as Ctrl-C does, so that it removes its temporary files; a second signal kills it."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _exit_with(error: StillwebError) -> NoReturn:
    echo(f"stillweb: {error}", err=True)
    if error.hint:
        echo(f"  next: {error.hint}", err=True)
    sys.exit(error.exit_code)
