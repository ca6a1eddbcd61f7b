"""Send the POST forms of fetched pages, each from a visit of its own, and record what they lead to.

A visit fetches the page anew, for its cookies and CSRF token, sends one form as the page has it, and
follows the redirects. Its exchanges are written together: replay shows a session that sent the form what
was recorded next (docs/explanation/matching.md). Forms that need text of the user, and forms that log out,
delete or order, are not sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stillweb.collections.misses import Missed
from stillweb.http.codec import decoded_body
from stillweb.matching.values import fits
from stillweb.model import Exchange, Headers, header
from stillweb.record.crawl.scope import location_of
from stillweb.record.harvest.misses import TOKEN, meaning_of
from stillweb.record.harvest.page import HtmlPage, parse_page
from stillweb.record.htmlforms import FormData, HtmlForm, Input, encode_form
from stillweb.record.tokens import CsrfTokens

if TYPE_CHECKING:
    from stillweb.record.harvest.fetch import PageFetcher

_REDIRECTS = 5
_TOGGLED = frozenset(("checkbox", "radio", "select-multiple"))
_UNSENT = frozenset(("submit", "image", "button", "reset"))
_TYPED = frozenset(("text", "search", "number", "email", "tel", "url", "password", "textarea", "file"))
_CHOSEN = _TYPED | {"checkbox", "select-one", "select-multiple"}
_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
_OF_REQUEST = frozenset(("content-type", "origin"))
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class PostForm:
    """A form to send: the page it is on, its form data, and the button that sends it.

    Attributes:
        fields: request fields with which a script loads the page and sends the form; () if the browser does.
    """

    page: str
    form: HtmlForm
    button: Input | None
    fields: Headers = ()

    @property
    def label(self) -> str:
        """The control's role and name, as rules of destructive controls take it."""
        return f'button "{self.button.description}"' if self.button else "button"

    def fresh_pairs(self, form: HtmlForm) -> FormData:
        """Return the form data with the tokens of another load of the page.

        Other hidden fields that differ (a time, a counter) stay as recorded: replay shows the recorded page.
        """
        recorded = self.pairs(self.form)
        counts = Counter(name for name, _ in recorded)
        own = {name: value for name, value in recorded if counts[name] == 1}
        return [
            (name, value if value is None or _is_token(name, value) else own.get(name, value))
            for name, value in self.pairs(form)
        ]

    def pairs(self, form: HtmlForm) -> FormData:
        """Return the form data set of this form as another load of the page has it (HTML §4.10.21.4)."""
        sent: FormData = []
        for each in form.fields:
            if self.button and (each.name, each.type, each.description) == (
                self.button.name,
                self.button.type,
                self.button.description,
            ):
                sent += [(each.name, each.value)] if each.name else []
            elif each.name and each.type == "file":
                sent.append((each.name, None))
            elif each.name and each.type not in _UNSENT and (each.type not in _TOGGLED or each.on):
                sent.append((each.name, _NEWLINE.sub("\r\n", each.value)))  # HTML §4.10.21.4, step 5
        return sent

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for forms that send the same, apart from tokens."""
        pairs = [(name, value) for name, value in self.pairs(self.form) if not TOKEN.search(name)]
        return (f"{self.form.action} {meaning_of(self.fields)}".rstrip(), *pairs)


@dataclass(slots=True)
class PostForms:
    """The POST forms seen so far.

    Attributes:
        sent: keys of all of them.
        waiting: those that were not sent yet.
        scripts: by meaning, the request fields of a script that sends forms, and whether as
            `multipart/form-data`.
    """

    sent: set[tuple[object, ...]] = field(default_factory=set)
    waiting: list[PostForm] = field(default_factory=list)
    scripts: dict[str, tuple[Headers, bool]] = field(default_factory=dict)

    def learn(self, misses: Iterable[Missed]) -> None:
        """Take how scripts send the forms of what they have loaded into a page, from requests of theirs."""
        for miss in misses:
            kind = header(miss.fields, "content-type")
            if miss.method == "POST" and miss.resource == "empty" and kind.startswith(_FORM_TYPES):
                fields = tuple(each for each in miss.fields if each[0] not in _OF_REQUEST)
                self.scripts.setdefault(meaning_of(fields), (fields, kind.startswith("multipart")))

    def of(self, url: str, page: HtmlPage, meaning: str = "") -> Iterator[PostForm]:
        """Yield the forms of a page that were not sent yet and that need no text or choice of the user.

        Args:
            meaning: that of the script's request for the page, see `misses.meaning_of`.
        """
        fields, multipart = self.scripts.get(meaning, ((), False)) if meaning else ((), False)
        for form in page.posts:
            if any(map(_needs_visitor, form.fields)):
                continue  # a browser does not send it either
            buttons: list[Input | None] = [each for each in form.fields if each.type in ("submit", "image")]
            if fields:  # scripts send no button
                form, buttons = replace(form, multipart=multipart), []
            for button in buttons or [None]:
                post = PostForm(url, form, button, fields)
                if post.key not in self.sent:
                    self.sent.add(post.key)
                    yield post


async def send_form(visit: PageFetcher, post: PostForm, tokens: CsrfTokens) -> list[Exchange]:
    """Send a form; return the exchanges of the POST and of the redirects behind it.

    Args:
        visit: a fresh visit, which keeps the cookies.
        tokens: takes the values of hidden fields.

    Returns:
        An empty list if the page no longer has the form.

    Raises:
        UpstreamUnreachable: if the site does not answer.
        TooLarge: if a body is longer than the limit.
    """
    kind_of_request = "empty" if post.fields else "document"
    opened = await visit.fetch(post.page, kind_of_request, fields=post.fields)
    visit.keep_cookies(opened)
    page = parse_page(post.page, decoded_body(opened.response) or b"")
    form = next((each for each in page.posts if _is_same(each, post.form)), None)
    if form is None:
        return []
    for seen in (post.form, form):
        for each in seen.fields:
            if each.type == "hidden":
                tokens.add(post.page, seen.action, each.name, each.value)
    body, kind = encode_form(post.fresh_pairs(form), multipart=post.form.multipart)
    fields = (*post.fields, ("Content-Type", kind))
    exchanges = [await visit.fetch(form.action, kind_of_request, referer=post.page, body=body, fields=fields)]
    for _ in range(_REDIRECTS):
        visit.keep_cookies(exchanges[-1])
        location = location_of(exchanges[-1])
        if not location:
            break
        exchanges.append(await visit.fetch(location, kind_of_request, referer=post.page, fields=post.fields))
    return exchanges


def _needs_visitor(each: Input) -> bool:
    is_empty = not (each.on if each.type == "checkbox" else each.value)
    return each.required and is_empty and each.type in _CHOSEN


def _is_token(name: str, value: str) -> bool:
    return bool(TOKEN.search(name)) or (fits("token", value) and not value.isdigit())


def _is_same(one: HtmlForm, other: HtmlForm) -> bool:
    names = [each.name for each in one.fields]
    return one.action == other.action and names == [each.name for each in other.fields]
