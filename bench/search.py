"""Full-text search over a million captures: time and size of the index, time of queries, equal results.

    python bench/search.py --home DIR [--captures 1000000] [--repeat 100]

Makes the collection in DIR if it does not exist (`scalegen`): a fifth of its captures are pages of words. The
queries have a word that one page has, one that few have, one that most have, two words, and a phrase; each is
sent `--repeat` times, and a digest covers all of its answers. Prints JSON; read ratios, since the machine may
be shared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import time
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

from scalegen import make_collection, words_of

from stillweb.collections.search import build_index, find, open_index

QUERIES = {
    "one page": "only500000",
    "few pages": "w15013",
    "most pages": "w1",
    "two words": "w1 w15013",
    "a phrase": '"w2 w3"',
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--captures", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=1_200)
    parser.add_argument("--repeat", type=int, default=100)
    options = parser.parse_args()
    collection = make_collection(options.home, options.captures, options.body_bytes, words_of)
    wall, cpu = time.perf_counter(), time.process_time()
    index = build_index(collection)
    built = {
        "wall_s": round(time.perf_counter() - wall, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "index_mb": round(index.stat().st_size / 1e6),
        "archive_mb": round(sum(each.stat().st_size for each in collection.archive.iterdir()) / 1e6),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    queries = {}
    with closing(open_index(collection)) as database:
        (pages,) = database.execute("SELECT count(*) FROM pages").fetchone()
        for name, query in QUERIES.items():
            queries[name] = {"query": query, **measured(database, query, options.repeat)}
    print(
        json.dumps(
            {"captures": options.captures, "pages": pages, "index": built, "queries": queries}, indent=1
        )
    )


def measured(database: Any, query: str, repeat: int) -> dict[str, Any]:
    """Return the number of results, times in ms, and the number of different answers."""
    times, answers = [], set()
    hits = []
    for _ in range(repeat):
        began = time.perf_counter()
        hits = find(database, query, 20)
        times.append(1000 * (time.perf_counter() - began))
        answers.add(hashlib.sha256(repr([astuple(hit) for hit in hits]).encode()).hexdigest())
    return {
        "results": len(hits),
        "first_ms": round(times[0], 2),
        "median_ms": round(statistics.median(times), 2),
        "max_ms": round(max(times), 2),
        "answers": len(answers),
    }


if __name__ == "__main__":
    main()
