"""Random walks on the live site, recorded: what pages request depends on what a visitor did before.

A site may keep scripts in local storage, and then request other bundles on the next page. A visit in a fresh
context does not show such requests. A walk clicks, types and chooses in one context for many steps, as an
agent does. Controls that were used seldom are preferred. Requests that the collection answers
already are not written again (`NewOnlyWriter`).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from playwright.async_api import Browser

from stillweb import clock
from stillweb.browser.input.controls import Control, PageState
from stillweb.browser.input.walker import Act, Walker, walking
from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.learn.transports import learn_transports
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.errors import InfraError, RecordError
from stillweb.model import MUTATIONS
from stillweb.record.amend.plan import SealedIndex
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.options import WalkOptions, WalkReport, logged_in
from stillweb.record.explore.values import Values
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.recording import begin_addition, pinning_of
from stillweb.record.tokens import CsrfTokens
from stillweb.urls import page_address

Draw = Callable[[Sequence[Any], Sequence[float]], Any]
"""Returns one of some items, by their weights."""

_STEPS = 30  # of one walk
_MAX_FAULTS = 5  # failures of the browser that end the walks
_ENTER = 0.5  # share of filled fields that Enter is pressed in
_WORD = re.compile(r"[^\W_]{3,}")
_TEXT = frozenset(("textbox", "searchbox", "combobox", "spinbutton"))
_NO_TEXT = frozenset(("submit", "button", "reset", "image", "file", "checkbox", "radio"))


OnStep = Callable[[WalkReport], None]


async def record_walks(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    starts: Sequence[str],
    options: WalkOptions,
    on_step: OnStep = lambda report: None,
) -> WalkReport:
    """Record walks that begin at start pages, until the time is over.

    Raises:
        RecordError: if an exchange cannot be written, or the browser fails repeatedly.
        CollectionError: if the collection cannot be read, or another process records.
    """
    with locked(collection):
        manifest = begin_addition(collection)
        pinned = pinning_of(manifest)
        options = await logged_in(collection, ca, options, pinned, starts[0])
        seal(collection)
        rules = read_rules(collection)
        run = _Walks(scope, starts, options, on_step)
        with (
            Pack.open(collection.pack) as pack,
            NewOnlyWriter(collection, SealedIndex(pack, rules), rules, (), refusals=True) as writer,
        ):
            async with (
                recording_proxy(writer, ca, options.record) as recording,
                launch(spki=ca.spki_hashes(), executable=options.browser) as browser,
            ):
                await run.run(browser, recording, pinned)
            run.report.exchanges = writer.added
        run.tokens.write_rules(collection)
        learn_transports(collection)
    return run.report


class _Walks:
    def __init__(self, scope: Scope, starts: Sequence[str], options: WalkOptions, on_step: OnStep) -> None:
        self._scope = scope
        self._starts = starts
        self._options = options
        self._on_step = on_step
        self._end = clock.monotonic() + options.seconds
        self._used: Counter[str] = Counter()
        self.tokens = CsrfTokens()
        self.report = WalkReport()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return clock.monotonic() >= self._end

    async def run(self, browser: Browser, recording: RecordingProxy, pinned: tuple[Profile, Pinning]) -> None:
        """Walk until the time is over, several walks at a time."""
        profile, pinning = pinned

        async def work(number: int) -> None:
            rng = clock.seeded("walks", self._options.seed, number)

            def draw(items: Sequence[Any], weights: Sequence[float]) -> Any:
                return rng.choices(items, weights)[0]

            while not self.is_over:
                try:
                    async with walking(
                        browser,
                        proxy=recording.url,
                        profile=profile,
                        pinning=pinning,
                        storage_state=self._options.storage_state,
                    ) as walker:
                        await self._walk(walker, draw)
                except InfraError as error:
                    self._note_fault(error, alive=browser.is_connected())
                recording.check()

        async with asyncio.TaskGroup() as group:
            for number in range(self._options.jobs):
                group.create_task(work(number))

    def _note_fault(self, error: InfraError, *, alive: bool) -> None:
        """Count a failure of the browser.

        Raises:
            RecordError: if there were too many, or the browser has ended.
        """
        self.report.faults.append(str(error))
        if len(self.report.faults) >= _MAX_FAULTS or not alive:
            raise RecordError(f"the browser failed {len(self.report.faults)} times: {error}") from error

    async def _walk(self, walker: Walker, draw: Draw) -> None:
        """Take the steps of one walk."""
        start = Act("open", value=self._starts[self.report.walks % len(self._starts)])
        self.report.walks += 1
        act: Act | None = start
        state: PageState | None = None
        for _ in range(_STEPS):
            if self.is_over:
                return
            await walker.do(act or start, state)
            state = await walker.look()
            self.tokens.observe(state)
            self.report.steps += 1
            self._on_step(self.report)
            on_site = self._scope.contains(page_address(state.url))
            act = choose(state, self._scope, self._options, self._used, draw) if on_site else None


def choose(
    state: PageState, scope: Scope, options: WalkOptions, used: Counter[str], draw: Draw
) -> Act | None:
    """Return the next action in a state, None without a usable control.

    Args:
        scope: links that are followed.
        used: how often controls were used, by kind and by `Control.same`; counted up.
    """
    usable = [each for each in state.controls if _is_usable(each, scope, options)]
    if not usable:
        return None
    weights = [1 / ((1 + used[each.kind]) * (1 + used[each.same])) for each in usable]
    control: Control = draw(usable, weights)
    used.update({control.kind, control.same})
    kind = control.field.type if control.field else ""
    if control.tag == "select" and control.options:
        return Act("select", control.key, _any(draw, control.options))
    if control.role in _TEXT and kind not in _NO_TEXT:
        text = _text_for(control, state, options.values, draw)
        if control.field and control.field.form and draw((True, False), (_ENTER, 1 - _ENTER)):
            return Act("submit", fields=((control.key, text),))
        return Act("fill", control.key, text)
    return Act("click", control.key)


def _is_usable(control: Control, scope: Scope, options: WalkOptions) -> bool:
    if control.disabled or options.avoid.hits(control):
        return False
    if control.url.lower().startswith(("http://", "https://")) and not scope.contains(
        page_address(control.url)
    ):
        return False
    sends = control.field.method.upper() if control.field else ""
    form = control.field.form.method.upper() if control.field and control.field.form else ""
    return options.mutations or not ({sends, form} & MUTATIONS)


def _text_for(control: Control, state: PageState, values: Values, draw: Draw) -> str:
    """Return a given value, a typical one if the field takes no free text, or a word of the page."""
    kind = control.field.type if control.field else ""
    if values.by_name or kind not in ("", "text", "search", "textarea"):
        return _any(draw, values.for_field(control))
    words = sorted({word for each in state.controls for word in _WORD.findall(each.name)})
    return _any(draw, words) if words else "test"


def _any(draw: Draw, items: Sequence[str]) -> str:
    return str(draw(items, [1.0] * len(items)))
