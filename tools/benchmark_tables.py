"""Write tables of benchmark pages from the output of the scripts; with --check, fail if one is stale.

A script's JSON is stored as docs/benchmarks/data/NAME.json. Its table is between `<!-- table: NAME -->` and
`<!-- end -->` on the page that has these marks.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
_MARKED = re.compile(r"(?s)(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)")
_ENV_ROWS = {
    "browsergym defaults": "browsergym-core, defaults",
    "browsergym zero": "browsergym-core, no delays",
    "stillweb exact": "`exact`",
    "stillweb exact, prepared, no thought": "`exact`, prefetched start, no thought between calls",
    "stillweb exact, prepared, 1 s of thought": "`exact`, prefetched start, 1 s of thought",
}


def env(data: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of `bench/env.py`: medians in seconds, and how many times as fast as BrowserGym."""
    yield ["", "reset, s", "step, s", "reset / defaults", "step / defaults", "step / no delays"]
    for side, label in _ENV_ROWS.items():
        if found := data["seconds"].get(side):
            ratios = [
                data["ratios"].get(f"browsergym {delays} / {side}", {}).get(call)
                for delays, call in (("defaults", "reset"), ("defaults", "step"), ("zero", "step"))
            ]
            yield [
                label,
                *(_short(found[call]["median"]) for call in ("reset", "step")),
                *("" if ratio is None else f"{ratio:g}" for ratio in ratios),
            ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


TABLES: dict[str, Callable[[dict[str, Any]], Iterator[list[str]]]] = {"env": env}


def markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _filled(found: re.Match[str]) -> str:
    begin, name, _, end = found.groups()
    data = json.loads((PAGES / "data" / f"{name}.json").read_text("utf-8"))
    return f"{begin}\n{markdown([*TABLES[name](data)])}\n{end}"


def main() -> int:
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text("utf-8")
        filled = _MARKED.sub(_filled, text)
        if "--check" not in sys.argv[1:]:
            page.write_text(filled, "utf-8")
        elif filled != text:
            stale.append(f"{page.name} differs from its data: run make docs\n")
    sys.stderr.write("".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
