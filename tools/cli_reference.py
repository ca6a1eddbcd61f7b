"""Write docs/reference/cli.md from the --help of every command; with --check, fail if it is stale."""

import sys
from pathlib import Path

import click

from stillweb.cli import cli

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
HEAD = "# Command line\n\nWritten by `make docs` from `--help`; do not edit.\n"


def sections(command: click.Command, name: str, parent: click.Context | None = None) -> list[str]:
    """Return the Markdown of a command and, for a group, of all below it."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    depth = min(context.command_path.count(" ") + 2, 4)
    lines = [f"{'#' * depth} {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                lines += sections(found, child, context)
    return lines


def main() -> int:
    """Write the page, or compare it."""
    text = "\n".join([HEAD, *sections(cli, "stillweb")])
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            sys.stderr.write("docs/reference/cli.md is stale; run: make docs\n")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
