"""Forms whose page's script sends them (fetch, XMLHttpRequest): which they are, and how to fill them.

A script form has no HTTP target of its own, so that the page is driven in a browser: `ScriptForm.steps` fill
fields and press the button. A file describes forms that need several steps:

    - name: add a comment
      page: https://flows.example/
      fields: {name: text}
      steps:
        - drag: {source: "#palette .comment", target: "#canvas", at: [200, 100], to: [700, 500]}
        - fill: {selector: "#node-name", value: "{name}"}
        - click: "#deploy"

`fields` names the free fields, each with its kind (text, number, date, email) and its longest value, as
`{kind: text, longest: 40}`. `{name}` in a step is the value of that field. The other steps are those of a
login file (docs/how-to/login.md). `CANDIDATES` finds the forms that need no file: fields and a button that no
HTML form sends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from playwright.async_api import Page, Position
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stillweb import clock
from stillweb.browser.activity import Activity
from stillweb.browser.settle import settle
from stillweb.errors import UsageError
from stillweb.matching.derived.domain import FieldKind, Kind
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.login.run import run_step
from stillweb.record.login.steps import LoginStep

_STEP_SECONDS = 60.0
_SLOT = re.compile(r"\{(\w+)\}")
_MAIL = re.compile(r"e-?mail", re.IGNORECASE)
_KINDS: dict[str, Kind] = {"email": "email", "number": "number", "date": "date"}

# Runs in an isolated world. A form with a POST target is sent as its HTML says; the others are the script's.
CANDIDATES = """(() => {
  const usable = (e) => e.getClientRects().length && !e.disabled && !e.readOnly;
  const path = (e) => {
    const id = e.id && "#" + CSS.escape(e.id);
    if (id && document.querySelectorAll(id).length === 1) return id;
    if (!e.parentElement) return e.localName;
    const twins = [...e.parentElement.children].filter((other) => other.localName === e.localName);
    const nth = twins.length > 1 ? `:nth-of-type(${twins.indexOf(e) + 1})` : "";
    return `${path(e.parentElement)} > ${e.localName}${nth}`;
  };
  const typed = 'textarea, input:not([type]), input[type=text], input[type=email], input[type=number],' +
    'input[type=date], input[type=search]';
  const pressed = 'button, input[type=submit], input[type=button], [role=button]';
  const groups = new Map();
  for (const field of document.querySelectorAll(typed)) {
    if (!usable(field)) continue;
    const form = field.closest("form");
    if (form && (form.method === "post" || form.getAttribute("action"))) continue;
    let box = form || field.parentElement;
    while (!form && box && ![...box.querySelectorAll(pressed)].some(usable)) box = box.parentElement;
    if (!box) continue;
    // Name and address may be in a box of their own, with the button that sends the text above it.
    const buttons = [...box.querySelectorAll(pressed)].filter(usable);
    const button = buttons.find((b) => b.type === "submit") || buttons[0];
    const group = groups.get(button || box) || {button, password: false, fields: []};
    group.password ||= !!box.querySelector("input[type=password]");
    group.fields.push(field);
    groups.set(button || box, group);
  }
  return [...groups.values()].map(({button, password, fields}) => ({
    button: button ? path(button) : "",
    label: button ? (button.innerText || button.value || button.getAttribute("aria-label") || "") : "",
    password,
    fields: fields.map((f) => ({
      selector: path(f), name: f.name || f.id || f.getAttribute("aria-label") || f.placeholder || "",
      type: f.type, longest: f.maxLength > 0 ? f.maxLength : 0, required: f.required,
    })),
  }));
})()"""


class _ScriptModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Drag(_ScriptModel):
    """A drag of one element onto another, to a point of it in CSS pixels.

    With `to`, the point is anywhere between `at` and `to`: another one for other values of the form.
    """

    source: str
    target: str
    at: tuple[int, int] = (0, 0)
    to: tuple[int, int] | None = None

    def point(self, values: Sequence[str]) -> Position | None:
        """Return the point for some values, None for the middle of the target."""
        rng = clock.seeded("drag", *values)
        x, y = (rng.randint(*sorted(pair)) for pair in zip(self.at, self.to or self.at, strict=True))
        return {"x": x, "y": y} if x or y else None


class ScriptStep(LoginStep):
    """One step: those of a login, or `drag`; exactly one field is set."""

    drag: Drag | None = None


class ScriptField(_ScriptModel):
    """Kind of a free field, and its longest value in characters; 0 for no limit."""

    kind: str = "text"
    longest: int = 0

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _known(self) -> ScriptField:
        if self.kind not in FieldKind:
            raise ValueError(f"kind {self.kind!r}: use one of {', '.join(FieldKind)}")
        return self


class ScriptForm(_ScriptModel):
    """A form that is sent by driving its page.

    Attributes:
        name: identifies it in a collection.
        refused: why it is not sent, "" if it is.
    """

    name: str
    page: str
    fields: Mapping[str, ScriptField]
    steps: tuple[ScriptStep, ...] = Field(min_length=1)
    refused: str = ""

    @model_validator(mode="after")
    def _uses_fields(self) -> ScriptForm:
        used = set(_SLOT.findall(" ".join(step.fill.value for step in self.steps if step.fill)))
        if used != set(self.fields):
            raise ValueError(f"fields are {sorted(self.fields)}, its fill steps use {sorted(used)}")
        return self

    @property
    def limits(self) -> tuple[tuple[Kind, int], ...]:
        """Kind and longest value of each free field."""
        return tuple((each.kind, each.longest) for each in self.fields.values())


def read_scripts(path: Path) -> tuple[ScriptForm, ...]:
    """Read a file of script forms.

    Raises:
        UsageError: if the file is malformed.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        if not isinstance(content, list) or not content:
            raise ValueError("no list of forms")
        return tuple(ScriptForm.model_validate(each) for each in content)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UsageError(f"{path}: {what}", hint="docs/how-to/forms.md shows one") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="docs/how-to/forms.md shows one") from error


def read_all_scripts(paths: Iterable[Path]) -> tuple[ScriptForm, ...]:
    """Read files of script forms.

    Raises:
        UsageError: if a file is malformed.
    """
    return tuple(form for path in paths for form in read_scripts(path))


def candidates(page: str, found: Sequence[Mapping[str, Any]], avoid: AvoidRules) -> list[ScriptForm]:
    """Return the script forms of a page, from the result of `CANDIDATES` there.

    A form with optional fields is also one of its main fields alone.
    """
    forms = []
    for group in (each for whole in found for each in _variants(whole)):
        fields = {f"field{number}": each for number, each in enumerate(group["fields"], start=1)}
        steps: list[dict[str, Any]] = [
            {"fill": {"selector": each["selector"], "value": f"{{{slot}}}"}} for slot, each in fields.items()
        ]
        label = " ".join(group["label"].split())
        steps.append({"click": group["button"]} if group["button"] else {"press": "Enter"})
        refused = ""
        if avoid.forbids(f'button "{label}"'):
            refused = "destructive, as its name says"
        elif group["password"]:
            refused = "has a password, whose answer depends on who the user is"
        names = "+".join(each["name"] or each["selector"] for each in group["fields"])
        forms.append(
            ScriptForm.model_validate(
                {
                    "name": f"script {page} [{label}] {names}",
                    "page": page,
                    "fields": {
                        slot: {"kind": _kind(each), "longest": each["longest"]}
                        for slot, each in fields.items()
                    },
                    "steps": steps,
                    "refused": refused,
                }
            )
        )
    return forms


def _variants(group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a form with all fields, and with those that most people fill: required ones, else text areas."""
    fields = group["fields"]
    main = [each for each in fields if each["required"]] or [e for e in fields if e["type"] == "textarea"]
    return [group, {**group, "fields": main}] if main and main != fields else [group]


def _kind(field: Mapping[str, Any]) -> Kind:
    kind = _KINDS.get(field["type"], "text")
    return "email" if kind == "text" and _MAIL.search(field["name"]) else kind


async def perform(page: Page, activity: Activity, form: ScriptForm, values: Sequence[str]) -> None:
    """Fill and send a form on its open page.

    Raises:
        PlaywrightError: if a step fails.
        TimeoutError: if a page does not show what a step waits for.
    """
    typed = dict(zip(form.fields, values, strict=True))
    for step in form.steps:
        if step.drag:
            await page.drag_and_drop(
                step.drag.source,
                step.drag.target,
                target_position=step.drag.point(values),
                timeout=1000 * _STEP_SECONDS,
            )
            await settle(page, activity, cap=_STEP_SECONDS)
            continue
        if step.fill:
            text = _SLOT.sub(lambda found: typed[found[1]], step.fill.value)
            step = step.model_copy(update={"fill": step.fill.model_copy(update={"value": text})})
        await run_step(page, activity, step)
