"""Run --help of every command with the interpreter of an installation; print the failures as JSON.

A script for tests/cli/test_installation.py: it must import nothing that is not installed with stillweb.
"""

import json
import sys

import click

from stillweb.cli import cli
from stillweb.cli.extras import extra_not_installed


def walk(command, path):
    context = click.Context(command, info_name=path)
    assert command.get_help(context), path
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            try:
                child = command.get_command(context, name)
            except ModuleNotFoundError as error:
                missing[f"{path} {name}"] = str(getattr(extra_not_installed(error), "hint", error))
                continue
            yield from walk(child, f"{path} {name}")


missing: dict[str, str] = {}
shown = list(walk(cli, "stillweb"))
json.dump({"python": sys.version_info[:2], "shown": shown, "missing": missing}, sys.stdout)
