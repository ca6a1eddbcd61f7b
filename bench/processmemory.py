"""Memory of a server and all its processes, over time, and whether it stays as it is.

The rule compares the greatest PSS of the last third of the samples with that of the first third. Memory is
*flat* if the increase is at most 3 %, plus 4 MiB, plus the free space of the server's bounded stores. Thirds
are compared instead of ends, since bounded stores are emptied in steps.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def processes(parent: int) -> list[int]:
    """Return a process and all that come from it."""
    found = [parent]
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in children.read_text().split():
            found += processes(int(child))
    return found


def memory(parent: int) -> dict[str, float]:
    """Return RSS, PSS and anonymous memory of a server's processes together, in MiB."""
    total: Counter[str] = Counter()
    for process in processes(parent):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # gone since
            continue
        for line in lines[1:]:
            name, _, value = line.partition(":")
            total[name] += int(value.split()[0])
    return {name: round(total[name] / 1024, 1) for name in ("Rss", "Pss", "Anonymous")}


def verdict(samples: list[dict[str, float]], stored: float) -> dict[str, object]:
    """Return the slope in MiB a minute, and whether memory is flat by the rule above; `kept` is by design."""
    values = [sample["Pss"] for sample in samples]
    third = max(1, len(values) // 3)
    first, last = max(values[:third]), max(values[-third:])
    middle = sum(sample["at"] for sample in samples) / len(samples)
    spread = sum((sample["at"] - middle) ** 2 for sample in samples) or 1.0
    slope = (
        sum((sample["at"] - middle) * value for sample, value in zip(samples, values, strict=True)) / spread
    )
    return {
        "first_third_max": first,
        "last_third_max": last,
        "kept_by_design": round(stored, 1),
        "mib_per_minute": round(slope * 60, 3),
        "flat": last <= first * 1.03 + 4 + stored,
    }
