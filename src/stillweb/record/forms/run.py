"""Record the forms of a collection's pages several times, and prove what their answers depend on.

Each recording of a form is a branch. A fresh visit, with cookies of its own, opens the page and sends the
form. It then requests the page that the form leads to, that page again, and recorded pages of the host. Two
visits request the same pages without sending the form. The exchanges are written to a collection of their
own, `NAME/branches`, so that the recorded answers stay as they are. The templates that they prove are in
`NAME/branches/templates.json.xz`, which `seal` copies into the pack.

Without a reset command, each recording finds what the ones before left on the site. Pages that list all
writes then differ in more than the value, and get no template.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.clock import Deadline
from stillweb.collections.branches import BRANCHES, FormOutcome, RecordedForms, read_forms, write_branches
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.proof import ProvedForm, Refusal, objection, prove, touched_labels
from stillweb.collections.learn.recordings import (
    FormRecordings,
    RecordedBranch,
)
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UpstreamUnreachable
from stillweb.http.codec import decoded_body
from stillweb.matching.derived.branch import Branch
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.resolver import Policy, SessionState, resolve
from stillweb.model import HTML_TYPES, TEXT_TYPES, Capture, Exchange, Tier
from stillweb.options import Option
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import FormValues, Values
from stillweb.record.forms.drive import KeepingWriter, ScriptRun
from stillweb.record.forms.plan import (
    FormVariant,
    PlannedForm,
    first_of_each_kind,
    plan_forms,
)
from stillweb.record.forms.scripts import ScriptForm, read_all_scripts
from stillweb.record.forms.sentinels import NEEDED, NO_VALUES, sentinels
from stillweb.record.forms.visits import FormVisits, Variants, Walk
from stillweb.record.forms.wanted import WantedForms
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import PageFetcher, recorded_fields
from stillweb.record.harvest.keeper import SharedLogin
from stillweb.record.harvest.page import parse_page
from stillweb.record.harvest.resources import fetch_resources
from stillweb.record.harvest.signin import cookies_of, signed_in_state
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.redaction.redactor import Secrets, secrets_of, write_redacted
from stillweb.record.reset import SiteReset

_UNRECORDED, _WORDS = 8, 8  # pages that are not recorded, and words of theirs that are searched for
_ALIKE_REFUSED = 2  # forms that look alike, after which no other one is tried in a limited time
_AS_IT_IS = 2  # sets of values of a form without values: it is sent three times
_NO_TIME = "the time was over before it was proved"


@dataclass(frozen=True, slots=True)
class FormsOptions:
    """Selection of the forms to record, and the reset of the site.

    Attributes:
        wanted: None for all forms.
        avoid: controls that are left alone.
        login: None to record without a login.
        shared: its state, of an earlier stage.
        record: how the sites are reached.
    """

    forms: Annotated[int, Option("Record at most N forms, of those that look alike one first.", min=1)] = 20
    pages: Annotated[int, Option("Request at most N recorded pages after each form.", min=0)] = 40
    page: Annotated[
        tuple[str, ...], Option("Record only forms of this page. Repeatable.", "--page", "URL")
    ] = ()
    pairs: Annotated[
        int,
        Option(
            "Record at most N pairs of proved forms, one after the other in both orders. Each pair takes as "
            "many recordings as a form.",
            min=0,
        ),
    ] = 0
    triples: Annotated[
        int,
        Option(
            "Record at most N sequences of three forms, of those whose pairs (--pairs) are proved.", min=0
        ),
    ] = 0
    reset: SiteReset = field(default_factory=SiteReset)
    script: Annotated[
        tuple[ScriptForm, ...],
        Option(
            "YAML file of forms that a script sends, and the steps that fill and send them. Repeatable.",
            path="existing file",
            parse=read_all_scripts,
            repeat=True,
        ),
    ] = ()
    wanted: WantedForms | None = None
    values: FormValues = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    login: Login | None = None
    shared: SharedLogin = field(default_factory=SharedLogin)
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(slots=True)
class FormsReport:
    """Outcome of each form, and the environment id of the new pack.

    `outside` is the number of forms that are sent out of the scope.
    """

    outcomes: list[FormOutcome] = field(default_factory=list)
    environment_id: str = ""
    outside: int = 0


OnForm = Callable[[FormOutcome, int], None]


async def record_forms(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    options: FormsOptions,
    on_form: OnForm,
    on_read: Callable[[int], None] = lambda _: None,
) -> FormsReport:
    """Record the forms of a collection's pages, prove their answers, and seal the collection.

    Args:
        ca: for a login by steps.
        on_form: called with each outcome and the number of forms that are left.
        on_read: called with the number of documents that have been read for their forms.

    Raises:
        RecordError: if the reset command fails.
        UpstreamUnreachable: if the site does not answer a reset.
        CollectionError: if another process records, or the archive cannot be written.
    """
    deadline = Deadline.after(options.wanted.seconds if options.wanted else None)
    with locked(collection):
        collection.require_archive()
        fields = recorded_fields(collection)
        state, record = await signed_in_state(collection, ca, options.login, options.record, options.shared)
        options = replace(options, record=record)
        stored = Collection(collection.path, BRANCHES)
        if not stored.archive.exists():  # an import has the proved forms without their recordings
            stored.make_folders()
        async with PageFetcher(options.record, fields, cookies=cookies_of(state)) as fetcher:
            with KeepingWriter(stored, prefix="form") as writer:
                run = _FormsRun(collection, writer, scope, options, fetcher, deadline)
                try:
                    await run.run(on_form, on_read)
                    await run.run_scripts(ca, state, on_form)
                    run.complete = not (deadline.is_over or options.page)
                finally:  # a recording that was stopped keeps what it has proved
                    run.write_branches()
                    secrets = secrets_of(collection, options.record.secrets)
                    await asyncio.to_thread(_add_resources, collection, run.resources, secrets)
        report = FormsReport(run.outcomes, outside=run.outside)
        report.environment_id = (await asyncio.to_thread(seal, collection)).environment_id
        return report


def _add_resources(collection: Collection, loaded: Sequence[Exchange], secrets: Secrets | None) -> None:
    """Add what pages behind forms load to a collection, unless its pack answers it: an icon of a history."""
    if not loaded:
        return
    seal(collection)
    with Pack.open(collection.pack) as pack:
        policy = Policy().under(pack.manifest.get("rules", ""))
        missed = [e for e in loaded if resolve(e.request, pack, SessionState(), policy).tier is Tier.MISS]
    if missed:
        with CollectionWriter(collection, prefix="form") as writer:
            for exchange in missed:
                write_redacted(writer, secrets, exchange)


def _with_earlier(forms: RecordedForms, earlier: RecordedForms) -> RecordedForms:
    """Return recorded forms with those of an earlier recording that this one left out."""
    if not forms.vocabulary.words:
        return earlier  # the time was over before all documents were read
    reached = {each.name for each in forms.outcomes if each.refused != _NO_TIME}
    unreached = tuple(branch for branch in earlier.branches if " then ".join(branch.path) not in reached)
    outcomes = tuple(each for each in earlier.outcomes if each.name not in reached)
    known = {each.name for each in outcomes}
    ours = tuple(each for each in forms.outcomes if each.name not in known)
    return replace(forms, branches=(*forms.branches, *unreached), outcomes=(*ours, *outcomes))


class _FormsRun:
    def __init__(
        self,
        collection: Collection,
        writer: KeepingWriter,
        scope: Scope,
        options: FormsOptions,
        fetcher: PageFetcher,
        deadline: Deadline,
    ) -> None:
        self._collection = collection
        self._deadline = deadline
        self._writer = writer
        secrets = secrets_of(collection, options.record.secrets)
        self._visits = FormVisits(writer, fetcher, secrets, options.reset, options.login, options.values)
        self._scope = scope
        self._options = options
        self._fetcher = fetcher
        self._rules = read_rules(collection)
        self._documents: list[Capture] = []
        self._linked: set[str] = set()
        self._words: list[str] | None = None
        self._variants: list[FormVariant] = []
        self._form_pages: list[str] = []
        self._script_pages: list[str] = []
        self.vocabulary = Vocabulary()
        self.proved: list[Branch] = []
        self.resources: list[Exchange] = []
        self.outcomes: list[FormOutcome] = []
        self.outside = 0
        self.complete = False
        self._recorded = {capture.url for capture in collection.captures()}

    async def run(self, on_form: OnForm, on_read: Callable[[int], None]) -> None:
        """Record the planned forms."""
        try:
            planned = (await asyncio.to_thread(self._plan, on_read))[: self._options.forms]
        except TimeoutError:
            self.vocabulary = Vocabulary()
            return
        if self._options.pairs:
            self._form_pages = [each.variant.page for each in planned if each.variant.posts]
        refused: Counter[Hashable] = Counter()
        for number, each in enumerate(planned):
            if self._deadline.is_over:
                break
            if self._options.wanted and refused[each.variant.alike] >= _ALIKE_REFUSED:
                continue
            outcome = await self._form(each)
            refused[each.variant.alike] += bool(outcome.refused)
            self.outcomes.append(outcome)
            on_form(outcome, len(planned) - number - 1)
        pairs = _pairs(self._variants)[: self._options.pairs]
        await self._sequences(pairs, on_form)
        proved = {each.path for each in self.proved}
        longer = [
            (*pair, variant)
            for pair in pairs
            for variant in self._variants
            if _names(pair) in proved and _names((pair[1], variant)) in proved
        ]
        await self._sequences(longer[: self._options.triples], on_form)

    async def _sequences(self, sequences: Sequence[Variants], on_form: OnForm) -> None:
        """Record forms one after the other; the last of each sequence is the one to prove."""
        for number, each in enumerate(sequences):
            outcome = await self._form(PlannedForm(each[-1]), each[:-1])
            self.outcomes.append(outcome)
            on_form(outcome, len(sequences) - number - 1)

    async def run_scripts(self, ca: CertAuthority, state: Mapping[str, Any], on_form: OnForm) -> None:
        """Record the forms that scripts send."""
        run = ScriptRun(
            self._collection,
            self._writer,
            self._scope,
            self._options.record,
            self._fetcher,
            self._options.reset,
            self._options.avoid,
            self.vocabulary,
            self._visits.stored,
            self._deadline,
            self.proved,
            self.resources,
        )

        def note(outcome: FormOutcome, left: int) -> None:
            self.outcomes.append(outcome)
            on_form(outcome, left)

        pages = self._script_pages[: self._options.forms]
        await run.run(ca, state, self._options.script, pages, note)

    def write_branches(self) -> None:
        """Write what is proved; unless the recording is complete, forms that it left out stay as before."""
        found = tuple(self.proved), tuple(self.outcomes), self.vocabulary
        forms = RecordedForms(*found, bool(self._options.reset))
        earlier = None if self.complete else read_forms(self._collection)
        write_branches(self._collection, _with_earlier(forms, earlier) if earlier else forms)

    def _plan(self, on_read: Callable[[int], None]) -> list[PlannedForm]:
        """Read the recorded documents for their forms and their words."""
        only, wanted = self._options.wanted, frozenset(self._options.page)
        pages = []
        seen: set[str] = set()
        for capture in self._collection.captures():
            self._deadline.check()
            if capture.method != "GET" or capture.status != 200 or capture.mime not in TEXT_TYPES:
                continue
            body = decoded_body(self._collection.read_capture(capture).response) or b""
            self.vocabulary.add(body.decode("utf-8", "replace"))
            if capture.url in seen or not self._scope.contains(capture.url):
                continue
            seen.add(capture.url)
            self._documents.append(capture)
            on_read(len(self._documents))
            if capture.mime not in HTML_TYPES or (only and not only.may_be_on(capture.url, body)):
                continue
            page = parse_page(capture.url, body)
            if b"<script" in body.lower() and (not wanted or capture.url in wanted):
                self._script_pages.append(capture.url)
            self._linked.update(
                link.url
                for link in page.links
                if self._scope.contains(link.url) and not self._options.avoid.forbids(link.text, link.url)
            )
            if not wanted or capture.url in wanted:
                pages.append((capture.url, page.forms, page.posts))
        order = {page.url: number for number, page in enumerate(self._collection.page_list())}
        pages.sort(key=lambda each: (order.get(each[0], len(order)), each[0]))
        if only:
            self._script_pages = [url for url in only.script_pages if url in seen]
        planned = plan_forms(pages, self._options.avoid)
        inside = [each for each in planned if self._scope.contains(each.variant.form.action)]
        self.outside = len(planned) - len(inside)
        return _chosen(inside, only.targets if only else None)

    async def _form(self, planned: PlannedForm, after: Variants = ()) -> FormOutcome:
        variant = planned.variant
        name = " then ".join(each.name for each in (*after, variant))
        if planned.refused:
            return FormOutcome(name, variant.page, planned.refused)
        try:
            async with asyncio.timeout(self._deadline.left):
                return await self._proved(name, variant, after)
        except TimeoutError:
            return FormOutcome(name, variant.page, _NO_TIME)
        except (UpstreamUnreachable, TooLarge) as error:
            return FormOutcome(name, variant.page, str(error))

    async def _proved(self, name: str, variant: FormVariant, after: Variants) -> FormOutcome:
        recordings = await self._record(variant, after)
        if isinstance(recordings, str):
            return FormOutcome(name, variant.page, recordings)
        result = await self._prove(recordings)
        if isinstance(result, Refusal):
            return FormOutcome(name, variant.page, result.reason, result.left_out)
        if result.branch.searches and (word := await self._found_unrecorded(variant, recordings)):
            reason = f"the search finds {word!r}, a word of a page that is not recorded"
            return FormOutcome(name, variant.page, reason, result.left_out)
        for step in recordings.branches[0].steps:
            await self._fetch_resources(step.exchange)
        self.proved.append(result.branch)
        if variant.posts and not after:
            self._variants.append(variant)
        return FormOutcome(name, variant.page, "", result.left_out, len(result.branch.reads))

    async def _fetch_resources(self, shown: Exchange) -> None:
        """Fetch the resources of a page behind a form that no recorded page has."""

        async def fetch(url: str, destination: str, referer: str) -> Exchange | None:
            if url in self._recorded:
                return None
            self._recorded.add(url)
            with suppress(UpstreamUnreachable, TooLarge):
                self.resources.append(await self._fetcher.fetch(url, destination, referer=referer))
                return self.resources[-1]
            return None

        if shown.response.mime in HTML_TYPES:
            page = parse_page(shown.request.url, decoded_body(shown.response) or b"")
            await fetch_resources(fetch, page.resources, shown.request.url)

    async def _prove(self, recordings: FormRecordings) -> ProvedForm | Refusal:
        return await asyncio.to_thread(prove, recordings, self._rules, self._deadline.check)

    async def _record(self, variant: FormVariant, after: Variants) -> FormRecordings | str:
        """Record a form with all sets of values; return why it is not worth it, if the first shows that."""
        path = (*after, variant)
        limits = [limit for each in path for limit in each.limits]
        sets: list[tuple[str, ...]] = [()] * _AS_IT_IS
        if limits:
            words, check = self.vocabulary.words, self._deadline.check
            sets = await asyncio.to_thread(lambda: list(sentinels(limits, words, check=check)))
            if len(sets) < NEEDED:
                return NO_VALUES
        first = await self._visits.record(path, sets[0])
        if isinstance(first, str):
            return first
        probes: tuple[str, ...] = ()
        walk = Walk()
        if variant.posts and first.steps[0].exchange.response.status < 400:
            probes = self._probes(variant, first)
            await self._visits.visit_untouched(variant, probes)
            first = await self._visits.record(path, sets[0], probes, walk)
            if isinstance(first, str):
                return first
        if why := objection(first, searches=not variant.posts):
            return why
        found = self._first_of(path, first, probes)
        touched, _ = await asyncio.to_thread(touched_labels, found, self._deadline.check)
        again = tuple(url for url in probes if url in touched or self._visits.in_order)
        others = []
        for values in sets[1:]:
            branch = await self._visits.record(path, values, again)
            if not isinstance(branch, str):
                others.append(branch)
        # Last, so that ages and other parts that change with time differ from the first recording.
        twin = await self._visits.record(path, sets[0], again)
        if isinstance(twin, str):
            return twin
        branches = (first, twin, *others)
        return replace(found, branches=branches, opened=tuple(walk.opened), wandered=tuple(walk.wandered))

    def _first_of(self, path: Variants, first: RecordedBranch, probes: Sequence[str]) -> FormRecordings:
        twins = [self._visits.untouched(url) for url in probes]
        variant = path[-1]
        fields = tuple((each.form.fields[number].name, kind) for each in path for number, kind in each.free)
        return FormRecordings(
            variant.name,
            variant.page,
            fields,
            not variant.posts,
            (first,),
            (tuple(one for one, _ in twins), tuple(other for _, other in twins)),
            tuple(each.name for each in path[:-1]),
            len(fields) - len(variant.free),
        )

    async def _found_unrecorded(self, variant: FormVariant, recordings: FormRecordings) -> str:
        """Return a word that a search finds though no recorded document has it, "" if it finds none.

        The words are those of linked pages that are not recorded.
        """
        for word in await self._unrecorded_words():
            branch = await self._visits.record((variant,), [word] * len(variant.free))
            if isinstance(branch, str):
                return word
            tried = replace(recordings, branches=(*recordings.branches[:2], branch))
            if isinstance(await self._prove(tried), Refusal):
                return word
        return ""

    async def _unrecorded_words(self) -> list[str]:
        if self._words is None:
            rng = clock.seeded("unrecorded", self._collection.name)
            unrecorded = sorted(self._linked - {capture.url for capture in self._documents})
            words: set[str] = set()
            for url in rng.sample(unrecorded, min(_UNRECORDED, len(unrecorded))):
                with suppress(UpstreamUnreachable, TooLarge):
                    exchange = await self._fetcher.fetch(url)
                    if exchange.response.status == 200 and exchange.response.mime in HTML_TYPES:
                        words |= parse_page(url, decoded_body(exchange.response) or b"").words
            new = sorted(word for word in words if word.isalpha() and not self.vocabulary.has_word(word))
            self._words = rng.sample(new, min(_WORDS, len(new)))
        return self._words

    def _probes(self, variant: FormVariant, first: RecordedBranch) -> tuple[str, ...]:
        """Return recorded documents that a write may change.

        The form's page, pages of further forms of pairs, and links of its answer come first.
        """
        shown = first.steps[-1].exchange
        links = (
            parse_page(shown.request.url, decoded_body(shown.response) or b"").links
            if shown.response.mime in HTML_TYPES
            else []
        )
        documents = [each.url for each in self._documents]
        recorded = frozenset(documents)
        linked = [link.url for link in links if link.url in recorded]
        urls = dict.fromkeys([variant.page, *self._form_pages, *linked, *documents])
        allowed = [url for url in urls if not self._options.avoid.forbids("", url)]
        return tuple(allowed[: self._options.pages + 1])


def _chosen(planned: list[PlannedForm], targets: Sequence[str] | None) -> list[PlannedForm]:
    """Return the POST forms with own text that are sent to some targets, in their order; or all forms.

    Forms that look alike come after the first of their kind.
    """
    if targets is None:
        return planned
    order = {target: number for number, target in enumerate(targets)}

    def target_of(each: PlannedForm) -> str:
        return each.variant.form.action.partition("?")[0]

    found = [e for e in planned if e.variant.posts and e.variant.free and target_of(e) in order]
    return first_of_each_kind(sorted(found, key=lambda each: order[target_of(each)]))


def _names(variants: Variants) -> tuple[str, ...]:
    return tuple(each.name for each in variants)


def _pairs(variants: Sequence[FormVariant]) -> list[tuple[FormVariant, FormVariant]]:
    """Return all ordered pairs; both orders of two forms are adjacent, and a form after itself comes last."""
    both = [
        pair
        for number, later in enumerate(variants)
        for earlier in variants[:number]
        for pair in ((earlier, later), (later, earlier))
    ]
    return [*both, *((each, each) for each in variants)]
