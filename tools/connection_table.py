"""Write docs/reference/connection.md from `stillweb.http.tunnel`; with --check, fail if it is stale."""

import sys
from collections.abc import Iterator
from pathlib import Path

from stillweb.http.tunnel import TRANSITIONS, State, Trigger

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "connection.md"
HEAD = """\
# States of a proxy connection

Written by `make docs` from `stillweb.http.tunnel`; do not edit.

Every client connection of replay follows this table: those of the native server, of its workers and of the
`--on-miss` front. The first table omits the triggers that end a connection from most states. The last
table has all.
"""
# Triggers that lead somewhere from nearly every state.
_COMMON = frozenset({Trigger.END_OF_DATA, Trigger.SHUTDOWN, Trigger.CLOSE, Trigger.TLS_ERROR, Trigger.REFUSE})


def diagram() -> Iterator[str]:
    """Yield a line for each state: the states that follow it, and the triggers between them."""
    yield "| from | trigger | to |"
    yield "|---|---|---|"
    for state, row in TRANSITIONS.items():
        for trigger, after in row.items():
            if trigger not in _COMMON and after is not state:
                yield f"| {state.name} | {trigger.name} | {after.name} |"
    for after in (State.CLOSING, State.FINAL, State.REFUSED):
        yield f"| {after.name} | {Trigger.CLOSE.name} | {State.CLOSED.name} |"


def table() -> Iterator[str]:
    """Yield the transitions as a Markdown table: a state a row, a trigger a column; "-" is impossible."""
    yield f"| | {' | '.join(trigger.name for trigger in Trigger)} |"
    yield "|---" * (len(Trigger) + 1) + "|"
    for state, row in TRANSITIONS.items():
        cells = (row[trigger].name if trigger in row else "-" for trigger in Trigger)
        yield f"| **{state.name}** | {' | '.join(cells)} |"


def legend(kind: type[State] | type[Trigger], title: str) -> Iterator[str]:
    """Yield the members of an enum with their descriptions."""
    yield f"| {title} | |"
    yield "|---|---|"
    for member in kind:
        yield f"| {member.name} | {member.value} |"


def page() -> str:
    """Return the page."""
    parts = (
        ("Usual path", diagram()),
        ("States", legend(State, "state")),
        ("Triggers", legend(Trigger, "trigger")),
        ("Transitions", table()),
    )
    return HEAD + "".join(f"\n## {title}\n\n{chr(10).join(lines)}\n" for title, lines in parts)


def main() -> int:
    """Write the page, or compare it."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page())
    elif TARGET.read_text() != page():
        sys.stderr.write("docs/reference/connection.md is stale; run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
