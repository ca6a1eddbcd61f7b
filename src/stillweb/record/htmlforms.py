"""HTML forms: their fields, the requests that they send, and the encodings of these. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from stillweb.record.explore.plan import OPTIONS, SENT
from stillweb.record.explore.values import Values

_A_FORM = 60  # maximum number of URLs of one form
_TOGGLED = frozenset(("checkbox", "radio", "select-multiple"))
_TYPED = frozenset(("text", "search", "number", "email", "tel", "url", "date", "textarea"))
_SENDING = frozenset(("submit", "image"))
_NO_VALUES = Values()
_NEVER_SENT = frozenset(("button", "reset", "file"))


@dataclass(frozen=True, slots=True)
class LinkCandidate:
    """A URL that a page leads to, and the description of its control (`Control.description`).

    Attributes:
        choices: number of values of the field that was changed; 0 if the form is as the page has it.
        typed: whether that field takes text.
    """

    url: str
    description: str
    choices: int = field(default=0, compare=False)
    typed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Input:
    """A form field as in the DOM.

    Attributes:
        on: whether it is checked, or for a list of several choices whether one is chosen.
        names: further names by which a values file may address it.
        description: text of a button that sends the form.
        longest: characters that it takes at most, 0 for no limit.
    """

    name: str
    type: str
    value: str = ""
    on: bool = False
    required: bool = False
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    description: str = ""
    longest: int = 0


@dataclass(frozen=True, slots=True)
class HtmlForm:
    """A form as a page has it: target and fields.

    Attributes:
        unaddressed: whether it names no action, as most forms that scripts send.
        multipart: whether it is sent as `multipart/form-data`.
    """

    action: str
    fields: tuple[Input, ...]
    unaddressed: bool = False
    multipart: bool = False


FormData = list[tuple[str, str | None]]
"""Names and values of a form; None for a file that was not chosen."""

# A browser draws the rest at random; request keys leave the boundary out.
_BOUNDARY = "----WebKitFormBoundarystillweb"


def encode_form(pairs: FormData, *, multipart: bool) -> tuple[bytes, str]:
    """Return body and content type of a form (HTML §4.10.21.7, §4.10.21.8)."""
    if not multipart:
        texts = [(name, value or "") for name, value in pairs]
        return urlencode(texts).encode("ascii"), "application/x-www-form-urlencoded"
    parts = []
    for name, value in pairs:
        escaped = name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
        head = f'Content-Disposition: form-data; name="{escaped}"'
        if value is None:
            head += '; filename=""\r\nContent-Type: application/octet-stream'
        parts.append(f"--{_BOUNDARY}\r\n{head}\r\n\r\n{value or ''}\r\n")
    body = "".join((*parts, f"--{_BOUNDARY}--\r\n"))
    return body.encode("utf-8", "surrogatepass"), f"multipart/form-data; boundary={_BOUNDARY}"


def form_requests(form: HtmlForm, values: Values) -> list[LinkCandidate]:
    """Return a form's requests: unchanged, and with one changed field each; for each button that sends it."""
    pressed: list[Input | None] = list(_buttons(form))
    if any(each and each.name for each in pressed):
        pressed.append(None)
    target = form.action.partition("?")[0]
    found = [
        LinkCandidate(
            f"{target}?{_encoded(filling.pairs, button)}",
            _description_of(button),
            filling.choices,
            filling.typed,
        )
        for filling in _fillings(form.fields, values)
        for button in pressed
    ]
    return list(dict.fromkeys(found))[:_A_FORM] if target else []


def typed_requests(form: HtmlForm, at: int, text: str) -> list[LinkCandidate]:
    """Return a form's requests with a text in one field, for each button; Enter presses the first."""
    typed = form.fields[at]
    pairs = [
        pair
        for number, each in enumerate(form.fields)
        for pair in ([(typed.name, text)] if number == at else _as_is(each, _NO_VALUES))
    ]
    target = form.action.partition("?")[0]
    found = [
        LinkCandidate(f"{target}?{_encoded(pairs, each)}", _description_of(each)) for each in _buttons(form)
    ]
    return list(dict.fromkeys(found)) if target else []


def _buttons(form: HtmlForm) -> list[Input] | list[None]:
    """Return the buttons that send a form; without one a script sends it, as when an option is chosen."""
    return [each for each in form.fields if each.type in _SENDING] or [None]


def _description_of(button: Input | None) -> str:
    return f'button "{button.description}"' if button else "button"


@dataclass(frozen=True, slots=True)
class _Submission:
    """The name-value pairs of a submission; for the rest see `LinkCandidate`."""

    pairs: list[tuple[str, str]]
    choices: int = 0
    typed: bool = False


def _fillings(fields: Sequence[Input], values: Values) -> Iterator[_Submission]:
    """Yield the submissions of a form."""
    unchanged = [_as_is(each, values) for each in fields]

    def with_other(at: int, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [pair for number, own in enumerate(unchanged) for pair in (pairs if number == at else own)]

    yield _Submission(with_other(-1, []))
    for at, each in enumerate(fields):
        if not each.name:
            continue
        if each.options:
            for option in each.options[:OPTIONS]:
                yield _Submission(with_other(at, [(each.name, option)]), len(each.options))
        elif each.type == "checkbox":
            yield _Submission(with_other(at, [] if each.on else [(each.name, each.value)]), 1)
        elif each.type == "radio" and not each.on:
            pairs = [
                pair for number, own in enumerate(unchanged) for pair in _chosen(fields, number, at, own)
            ]
            yield _Submission(pairs, 1)
        elif each.type in _TYPED:
            texts = values.named((each.name, *each.names), each.type)[:SENT]
            for text in texts:
                yield _Submission(with_other(at, [(each.name, text)]), len(texts), typed=True)


def _chosen(
    fields: Sequence[Input], number: int, at: int, own: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return what a field sends when another radio button of its group, or the field itself, is chosen."""
    each, chosen = fields[number], fields[at]
    if each.type != "radio" or each.name != chosen.name:
        return own
    return [(each.name, each.value)] if number == at else []


def _as_is(each: Input, values: Values) -> list[tuple[str, str]]:
    if not each.name or each.type in _NEVER_SENT or each.type in _SENDING:
        return []
    if each.required and not each.value and (choice := next(filter(None, each.options), "")):
        return [(each.name, choice)]
    if each.type in _TOGGLED and not each.on and not (each.required and each.type == "checkbox"):
        return []
    if each.required and not each.value and each.type in _TYPED:
        return [(each.name, values.named((each.name, *each.names), each.type)[0])]
    return [(each.name, each.value)]


def _encoded(pairs: list[tuple[str, str]], button: Input | None) -> str:
    """Return pairs encoded as browsers do (URL Standard §5.2)."""
    sent = [*pairs, *([(button.name, button.value)] if button and button.name else [])]
    return "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in sent)


def _escaped(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")
