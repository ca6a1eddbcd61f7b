"""Who a crawl is logged in as: a storage state, or the steps that lead to one, and how to see that it holds.

A storage state is Playwright's (`context.storage_state`): cookies and what sites keep in local storage. A
steps file is YAML:

    logged_in: {text: Log Out}
    steps:
      - goto: https://site.example/login
      - fill: {selector: "#user", value: "${SITE_USER}"}
      - fill: {selector: "#password", value: "${SITE_PASSWORD}"}
      - click: button[type=submit]
      - wait_for: {text: Log Out}

`check` ticks a box, `press` presses a key, in the element that has the focus or in one that is named.
Values of `${NAME}` are of the environment, so that no password need stand in the file. Nothing here
opens a browser (`loginrun` does).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stillweb.errors import UsageError
from stillweb.matching.redaction import canonical
from stillweb.record.redaction.find import strong, strong_password

__all__ = ["Login", "LoginStep", "Sign", "parse_sign", "read_login", "read_storage_state", "secrets_in_state"]

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_SECRET = re.compile(r"pass|pwd|secret|token|otp|pin|key", re.IGNORECASE)
_SIGNS = ("selector", "text", "url")


class _LoginModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sign(_LoginModel):
    """What a page shows only to who is logged in: an element that is visible, a text, or a part of its URL.

    Attributes:
        at: a page that shows it; the one where the login ended, or the crawl's first, if none is named.
    """

    selector: str = ""
    text: str = ""
    url: str = ""
    at: str = ""

    @model_validator(mode="after")
    def _one(self) -> Sign:
        if sum(bool(getattr(self, name)) for name in _SIGNS) != 1:
            raise ValueError("one of selector, text and url is needed")
        return self

    def __str__(self) -> str:
        """Return it in words."""
        return next(f"{name} {value!r}" for name in _SIGNS if (value := getattr(self, name)))


class _Fill(_LoginModel):
    selector: str
    value: str


class _Press(_LoginModel):
    key: str
    selector: str = ""


class LoginStep(_LoginModel):
    """One step; exactly one of these is set."""

    goto: str = ""
    fill: _Fill | None = None
    click: str = ""
    press: _Press | None = None
    check: str = ""
    wait_for: Sign | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, step: Any) -> Any:
        if isinstance(step, Mapping) and isinstance(step.get("press"), str):
            return {**step, "press": {"key": step["press"]}}
        return step

    @model_validator(mode="after")
    def _one(self) -> LoginStep:
        if len([name for name in type(self).model_fields if getattr(self, name)]) != 1:
            raise ValueError("a step is one of " + ", ".join(type(self).model_fields))
        return self

    def __str__(self) -> str:
        """Return it in words, without what is filled in."""
        name = next(name for name in type(self).model_fields if getattr(self, name))
        value = getattr(self, name)
        return f"{name} {value.selector if isinstance(value, _Fill) else value}"


class _Cookie(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    value: str
    domain: str = ""
    url: str = ""
    path: str = "/"
    expires: float = -1
    httpOnly: bool = False
    secure: bool = False
    sameSite: Literal["Strict", "Lax", "None"] = "Lax"

    @model_validator(mode="after")
    def _somewhere(self) -> _Cookie:
        if not self.domain and not self.url:
            raise ValueError("a cookie needs a domain or a url")
        return self


class _Pair(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    value: str


class _StateOrigin(BaseModel):
    model_config = ConfigDict(extra="allow")
    origin: str = Field(pattern=r"^https?://[^/]+$")
    localStorage: list[_Pair] = []


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cookies: list[_Cookie]
    origins: list[_StateOrigin] = []


@dataclass(frozen=True, slots=True)
class Login:
    """How a crawl is logged in.

    Attributes:
        kind: `storage-state` or `steps`.
        source: the file, for messages.
        state: of the file; {} where the steps bring it.
        steps: what to do.
        sign: by what to see that it holds; None if nobody says.
        secrets: values of the state and of the environment, which are not to be written anywhere.
    """

    kind: Literal["storage-state", "steps"]
    source: str
    state: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[LoginStep, ...] = ()
    sign: Sign | None = None
    secrets: tuple[str, ...] = ()


def read_storage_state(path: Path, sign: Sign | None = None) -> Login:
    """Read a storage state as Playwright writes it.

    Raises:
        UsageError: if it is none; says what is wrong and where.
    """
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: not a storage state: {error}", hint="stillweb record login URL --save state.json"
        ) from error
    try:
        _State.model_validate(state)
    except ValidationError as error:
        raise UsageError(
            f"{path}: not a storage state: {_complaint(error)}",
            hint="it is what Playwright's context.storage_state() gives: cookies and origins",
        ) from None
    return Login("storage-state", str(path), state, sign=sign, secrets=secrets_in_state(state))


def secrets_in_state(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values that look like secrets; by their names others are known when they are sent."""
    values = [canonical(cookie["value"]) for cookie in state["cookies"]]
    for origin in state.get("origins", ()):
        values += [entry["value"] for entry in origin.get("localStorage", ())]
    return tuple(dict.fromkeys(value for value in values if strong(value)))


def read_login(path: Path, environment: Mapping[str, str] | None = None) -> Login:
    """Read a steps file; `${NAME}` is of the environment.

    Raises:
        UsageError: if it is none, or a variable is not set; says in which step.
    """
    environment = os.environ if environment is None else environment
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="docs/login.md shows one") from error
    if not isinstance(content, dict) or not isinstance(content.get("steps"), list) or not content["steps"]:
        raise UsageError(f"{path}: there is no list of steps", hint="docs/login.md shows one")
    if unknown := sorted(map(str, content.keys() - {"steps", "logged_in"})):
        raise UsageError(f"{path}: {unknown[0]!r} means nothing here", hint="it has steps and logged_in")
    used: list[str] = []
    steps = tuple(
        _read(LoginStep, raw, f"{path}: step {number}", environment, used)
        for number, raw in enumerate(content["steps"], 1)
    )
    sign = None
    if "logged_in" in content:
        sign = _read(Sign, content["logged_in"], f"{path}: logged_in", environment, [])
    return Login("steps", str(path), steps=steps, sign=sign, secrets=tuple(dict.fromkeys(used)))


def parse_sign(text: str) -> Sign:
    """Return what `selector:CSS`, `text:TEXT` or `url:PART` says.

    Raises:
        UsageError: if it is none of these.
    """
    name, colon, value = text.partition(":")
    if name not in _SIGNS or not colon or not value.strip():
        raise UsageError(
            f"{text!r} does not say how to see a login",
            hint="write 'text:Log out', 'selector:#logout' or 'url:/account'",
        )
    return Sign.model_validate({name: value.strip()})


def _read(model: type[Any], raw: Any, place: str, environment: Mapping[str, str], used: list[str]) -> Any:
    """Return a part of the file, checked; remember the values of the environment that it uses."""
    try:
        return model.model_validate(_filled(raw, place, environment, used))
    except ValidationError as error:
        raise UsageError(f"{place}: {_complaint(error)}", hint="docs/login.md lists the steps") from None


def _filled(raw: Any, place: str, environment: Mapping[str, str], used: list[str]) -> Any:
    if isinstance(raw, dict):
        return {name: _filled(value, place, environment, used) for name, value in raw.items()}
    if not isinstance(raw, str):
        return raw

    def value_of(match: re.Match[str]) -> str:
        name = match[1].strip()
        value = environment.get(name, "")
        if not value:
            raise UsageError(
                f"{place}: the environment variable {name!r} is not set", hint=f"export {name}=..."
            )
        if _SECRET.search(name) and strong_password(value):
            used.append(value)  # a user's name is none, and may stand in every page
        return value

    return _VARIABLE.sub(value_of, raw)


def _complaint(error: ValidationError) -> str:
    """Return the first thing that is wrong, without the values: they may be secrets."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ")
    return f"{place}: {what}" if place else what
