"""Bounded fuzzing of what takes bytes from outside: wire core, resolver, readers of archives and packs.

    python bench/fuzz.py [--streams 1000000] [--cases 100000] [--files 2000] [--seed still]
                         [--texts 100000] [--shared ../shared] [--only wire]
                         [--memory 1024]

`fuzzwire`, `fuzzresolver`, `fuzzfiles` and `fuzztexts` state the rules that must hold. Data of the process
may take `--memory` MiB; more is a `MemoryError`, and so a finding. Everything is drawn from the seed and a
number, so that `--only wire --seed S --from N --streams 1` shows a finding again. Progress goes to stderr,
JSON to stdout; the exit status is 1 if anything was found. It is patient: `nice -n 19 ...`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fuzzfiles
import fuzzresolver
import fuzztexts
import fuzzwire

PARTS = ("wire", "resolver", "files", "texts")
MOST = 50  # findings that are kept of each part
HANG = 120  # seconds after which a stream that does not end is shown by its stack


@dataclass
class Part:
    """The result of one part."""

    cases: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    found: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)

    def note(self, number: int, kind: str, what: str, content: str = "") -> None:
        self.found += 1
        if len(self.findings) < MOST:
            self.findings.append(
                {"number": number, "kind": kind, "what": what[:2000], "content": content[:4000]}
            )


Case = tuple[int, str, str, str]  # number, kind, what was found ("" for nothing), on what


def wire(seed: str, numbers: range) -> Iterator[Case]:
    for number in numbers:
        stream = fuzzwire.stream_of(seed, number)
        found = fuzzwire.check(stream, random.Random(f"{seed}:{number}:cuts"))
        yield number, stream.kind, found, stream.data.hex() if found else ""


def run(name: str, cases: Iterator[Case], total: int) -> Part:
    part = Part()
    began = shown = time.monotonic()
    for number, kind, what, content in cases:
        part.cases += 1
        part.kinds[kind] = part.kinds.get(kind, 0) + 1
        if what:
            part.note(number, kind, what, content)
            print(f"{name}: {number}, {kind}: {what[:500]}", file=sys.stderr)
        if part.cases % 20 == 0 and (now := time.monotonic()) - shown > 10:
            shown = now
            faulthandler.dump_traceback_later(HANG, exit=True)
            print(
                f"{name}: {part.cases} of {total}, {part.found} found, {now - began:.0f} s", file=sys.stderr
            )
    faulthandler.cancel_dump_traceback_later()
    part.seconds = round(time.monotonic() - began, 1)
    return part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--memory", type=int, default=1024)
    parser.add_argument("--seed", default="still")
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    only = options.only or PARTS
    seed, start = options.seed, options.start
    parts: dict[str, tuple[int, Callable[[range], Iterator[Case]]]] = {
        "wire": (options.streams, lambda numbers: wire(seed, numbers)),
        "resolver": (options.cases, lambda numbers: fuzzresolver.cases(seed, numbers)),
        "files": (options.files, lambda numbers: fuzzfiles.cases(seed, numbers, options.shared)),
        "texts": (options.texts, lambda numbers: fuzztexts.cases(seed, numbers)),
    }
    resource.setrlimit(resource.RLIMIT_DATA, (options.memory << 20, options.memory << 20))
    faulthandler.dump_traceback_later(HANG, exit=True)
    results = {
        name: run(name, parts[name][1](range(start, start + parts[name][0])), parts[name][0]) for name in only
    }
    print(json.dumps({"seed": seed, **{name: asdict(part) for name, part in results.items()}}, indent=1))
    sys.exit(any(part.found for part in results.values()))


if __name__ == "__main__":
    main()
