"""How many requests get an answer that is not theirs: native beside pywb, over the wire, as JSON.

    python bench/wrong_answers.py [--backends native,pywb,pywb-fuzzy]

The cases are those of tests/conformance (`unseen_*`): each is asked in plain and through CONNECT and TLS, in
a session of its own. An answer is *wrong* if it is a 2xx of another recording; "pywb" is the sidecar as
stillweb starts it, "pywb-fuzzy" with the rules that pywb comes with. Beside it: how many recorded requests
(with HEAD and a range for each page, and JSON bodies spelled otherwise) get their exact status and body.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conformance"))

from backends import BACKENDS, UNSEEN, Running, make_collection, requested_again, running, verdicts

from stillweb.certs import CertAuthority


def measured(backend: Running) -> tuple[dict[str, Any], dict[str, str]]:
    """The totals of a back-end, and what it makes of each case."""
    found = verdicts(backend)
    counts = Counter(found.values())
    again = [requested_again(backend, scheme) for scheme in ("https", "http")]
    again.append(requested_again(backend, "https", respelled=True))
    totals = {
        "asked": len(found),
        "wrong": counts["wrong"],
        "right": counts["right"],
        "missed": counts["miss"],
        "right_but_missed": sum(case.must and verdict == "miss" for case, verdict in found.items()),
        "recorded_asked": sum(requests for requests, _ in again),
        "recorded_not_exact": sum(len(wrong) for _, wrong in again),
    }
    return totals, {case.name: verdict for case, verdict in found.items()}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default=",".join(BACKENDS))
    chosen = parser.parse_args().backends.split(",")
    totals: dict[str, dict[str, Any]] = {}
    cases: dict[str, dict[str, Any]] = {
        case.name: {"why": case.why, "must_be_answered": case.must, "has_an_answer": case.right is not None}
        for case in UNSEEN
    }
    with tempfile.TemporaryDirectory() as folder:
        authority = CertAuthority.init(Path(folder) / "certs")
        collection = make_collection(Path(folder) / "collections")
        for name in chosen:
            with running(name, collection, authority) as backend:
                totals[name], found = measured(backend)
            for case, verdict in found.items():
                cases[case][name] = verdict
    sys.stdout.write(json.dumps({"totals": totals, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
