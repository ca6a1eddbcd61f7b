"""Fetch what a replay missed, into the same collection, as a new version of it.

The collection is kept as it is (`NAME@1`) before anything is added; then the browser visits missed pages,
pinned as the recording was, and what else was missed is asked for with the fields that the client had and
the cookies of the page that it came from. All passes the recording proxy, so what is written is as
received; `Sieve` leaves out what the collection answers already. Robots exclusion is not asked: these are
requests that an agent made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.amends import Absent, Amend, next_version, read_amends, write_amends
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal, what_changed
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.versions import keep_version, versions
from stillweb.errors import CollectionError
from stillweb.record.amend.plan import Errand, FetchMethod, RefusedMiss, SealedIndex, identity, plan
from stillweb.record.amend.run import AmendJournal, AmendOptions, AmendRun, ErrandOutcome, OnOutcome
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.urls import to_timestamp

__all__ = ["AmendOptions", "AmendReport", "ErrandOutcome", "amend"]


@dataclass(slots=True)
class AmendReport:
    """What was done.

    Attributes:
        version: what the collection is now; that of before if nothing was to be fetched.
        kept: the version that holds it as it was; "" if nothing was to be fetched.
        before, after: environment ids; equal if nothing was added.
        outcomes: of every miss, equal ones once.
        captures: added.
        opened: addresses that were opened because a page that was fetched leads there.
        pages: URLs of pages added.
        notes: what passed without being recorded, with counts.
    """

    version: str = ""
    kept: str = ""
    before: str = ""
    after: str = ""
    outcomes: list[ErrandOutcome] = field(default_factory=list)
    captures: int = 0
    opened: int = 0
    pages: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)


async def amend(
    collection: Collection,
    misses: Iterable[Missed],
    ca: CertAuthority,
    options: AmendOptions,
    on_outcome: OnOutcome = lambda outcome, left: None,
) -> AmendReport:
    """Fetch misses into a collection; one that was cut short goes on, with what is missed now besides.

    Args:
        collection: whose version before is kept.
        misses: of this collection.
        ca: of the recording proxy.
        options: how.
        on_outcome: told of each errand, and how many are left.

    Raises:
        RecordError: if an exchange could not be written, or the browser ended.
        CollectionError: if the collection cannot be read, or another process records into it.
    """
    with locked(collection):
        return await _amend(collection, misses, ca, options, on_outcome)


async def _amend(
    collection: Collection,
    misses: Iterable[Missed],
    ca: CertAuthority,
    options: AmendOptions,
    on_outcome: OnOutcome,
) -> AmendReport:
    journal = AmendJournal.read(collection.path)
    rules = read_rules(collection)
    amends, _ = read_amends(collection.path)
    report = AmendReport(version=amends[-1].version if amends else "1")
    with _sealed(collection) as pack:
        report.before = report.after = pack.environment_id
        known = SealedIndex(pack, rules)
        begun = journal.unfinished if journal else frozenset()
        errands, refusals = plan(misses, known, unsafe=options.unsafe, any_host=options.any_host, begun=begun)
        through = journal.outcomes if journal else {}  # by the run that was cut short: told with the others
        fresh = (each for each in refusals if identity(each.missed.request()) not in through)
        report.outcomes = [_refused(each) for each in fresh]
        if options.dry_run:
            report.outcomes += [_planned(each) for each in errands]
            return report
        if not errands and journal is None:
            return report
        if journal is None:
            number = next_version(versions(collection))
            journal = AmendJournal(str(number + 1), str(number), collection.manifest().state)
            _keep(collection, journal)
        journal.begun += [each.id for each in errands if each.id not in journal.begun]
        journal.write(collection.path)
        recorded_at = pack.manifest.get("recorded_at", "")
        wanted = {each.id for each in errands if not known.answers(each.missed.request())}
        with NewOnlyWriter(collection, known, rules, wanted) as sieve:
            run = AmendRun(collection, ca, options, journal, sieve, on_outcome, str(recorded_at))
            try:
                await run.fetch(errands)
            finally:
                journal.captures += sieve.added
                journal.write(collection.path)
                report.notes, report.opened = dict(run.notes), run.opened
    _finish(collection, journal, report, len(errands))
    return report


def _sealed(collection: Collection) -> Pack:
    """Return the pack of a collection as it is now."""
    if collection.pack.is_dir():
        pack = Pack.open(collection.pack)
        if not what_changed(collection, pack):
            return pack
        pack.close()
    seal(collection)
    return Pack.open(collection.pack)


def _keep(collection: Collection, journal: AmendJournal) -> None:
    """Keep the collection as it is; a version that a killed amend kept is the same, and goes."""
    kept = collection.path / "versions" / journal.kept
    if kept.exists():
        raise CollectionError("there is a version of that name", path=kept)
    keep_version(collection, journal.kept)


def _finish(collection: Collection, journal: AmendJournal, report: AmendReport, asked: int) -> None:
    """Say in the collection what was added and what is absent, and seal it."""
    done = list(journal.outcomes.values())
    at = to_timestamp(now())
    amends, absent = read_amends(collection.path)
    mine = [each for each in done if each.outcome == "absent"]
    answered = {each.id for each in done if each.outcome != "absent"} | {each.id for each in mine}
    absent = [each for each in absent if each.id not in answered]
    absent += [Absent(each.method, each.url, each.reason, at, each.id) for each in mine]
    refused = sum(each.outcome == "refused" for each in report.outcomes)
    counts = (len(done), sum(each.outcome == "recorded" for each in done), len(mine), refused)
    added = Amend(journal.version, journal.kept, at, *counts, journal.captures, tuple(journal.pages))
    if journal.captures or journal.pages:
        amends.append(added)
    write_amends(collection.path, amends, absent)
    collection.write_manifest(replace(collection.manifest(), state=journal.state))
    journal.remove(collection.path)
    report.outcomes += done
    if not journal.captures and not journal.pages:
        remove_collection(collection.path / "versions" / journal.kept)  # it is what it was
        return
    report.version, report.kept = journal.version, journal.kept
    report.captures, report.pages = journal.captures, list(journal.pages)
    report.after = seal(collection).environment_id


def _refused(refusal: RefusedMiss) -> ErrandOutcome:
    missed = refusal.missed
    outcome = "present" if refusal.present else "refused"
    return ErrandOutcome(missed.method, missed.url, outcome, refusal.reason, count=missed.count)


def _planned(errand: Errand) -> ErrandOutcome:
    how = {FetchMethod.PAGE: "the browser visits it", FetchMethod.FRAME: "the browser visits it, as a frame"}
    reason = how.get(errand.kind) or (f"asked with the cookies of {errand.page}" if errand.page else "asked")
    return ErrandOutcome(
        errand.missed.method, errand.missed.url, "planned", reason, 0, errand.count, errand.id
    )
