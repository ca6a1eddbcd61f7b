"""Run the corpus of hostile archives: written attacks, bombs and mutants of valid archives.

    PYTHONPATH=tests/security python bench/hostile.py [--mutants 300] [--seed still] [--only bombs]

Each archive is imported, checked, sealed, shown, exported and replayed by the command line in a child process
that measures its own memory. Findings are tracebacks, signals, more than 60 s, more than 512 MiB, control
characters on the terminal, and temporary folders that stay. JSON goes to stdout; the exit status is 1 if
anything was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from hostile_archives import HostileArchive, attacks, bombs, mutants, records, warc
from isolated import attack, sealed_pack

from stillweb.certs import CertAuthority


def archives(options: argparse.Namespace) -> Iterator[HostileArchive]:
    if options.only in ("", "attacks"):
        yield from attacks()
    if options.only in ("", "mutants"):
        pack = sealed_pack(Path(tempfile.mkdtemp()), warc(records()))
        yield from mutants(options.seed, options.mutants, pack)
    if options.only in ("", "bombs"):
        yield from bombs(*filter(None, options.name.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="still")
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--only", default="", choices=("", "attacks", "mutants", "bombs"))
    parser.add_argument(
        "--name",
        default="",
        help="run archives whose names start with one of these texts, separated by commas",
    )
    parser.add_argument("--every", type=int, default=1, help="run only each Nth archive")
    parser.add_argument("--output", action="store_true", help="print what the commands print")
    options = parser.parse_args()
    found, count, peak, slowest = [], 0, (0, ""), (0.0, "")
    with tempfile.TemporaryDirectory() as certs:
        ca = CertAuthority.init(Path(certs) / "certs")
        for number, archive in enumerate(archives(options)):
            if not any(map(archive.name.startswith, options.name.split(","))) or number % options.every:
                continue
            findings = attack(archive, ca)
            count += 1
            peak, slowest = (
                max(peak, (findings.peak, archive.name)),
                max(slowest, (findings.seconds, archive.name)),
            )
            if options.output:
                sys.stderr.write(findings.output)
            if findings.wrong:
                found.append(asdict(findings) | {"output": findings.output[-3000:]})
                sys.stderr.write(f"{archive.name}: {findings.wrong[0][:600]}\n")
    result = {"archives": count, "found": len(found), "peak_mib": peak[0] >> 20, "peak_of": peak[1],
              "slowest_seconds": round(slowest[0], 1), "slowest": slowest[1], "findings": found}  # fmt: skip
    print(json.dumps(result, indent=1))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
