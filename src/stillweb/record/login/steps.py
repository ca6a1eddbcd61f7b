"""Login files: a Playwright storage state, or a list of steps, and the indicator of a valid login.

A storage state (`context.storage_state`) holds cookies and local storage. A steps file is YAML:

    logged_in: {text: Log Out}
    steps:
      - goto: https://site.example/login
      - fill: {selector: "#user", value: "${SITE_USER}"}
      - fill: {selector: "#password", value: "${SITE_PASSWORD}"}
      - click: button[type=submit]
      - wait_for: {text: Log Out}

`check` ticks a box. `press` presses a key in the focused or the selected element. `${NAME}` reads an
environment variable, so that the file need not contain a password. `stillweb.record.login.run` runs the steps
in a browser.
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
from stillweb.record.redaction.find import (
    JWT,
    SecretNames,
    cookie_texts,
    entry_texts,
    strong,
    strong_password,
)

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_SECRET = re.compile(r"pass|pwd|secret|token|otp|pin|key", re.IGNORECASE)
_INDICATORS = ("selector", "text", "url")


class _LoginModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoginIndicator(_LoginModel):
    """Sign of a valid login on a page: a visible element, a text, or a part of the URL.

    Attributes:
        at: page that shows it; by default the last page of the login, or the crawl's first page.
    """

    selector: str = ""
    text: str = ""
    url: str = ""
    at: str = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> LoginIndicator:
        if sum(bool(getattr(self, name)) for name in _INDICATORS) != 1:
            raise ValueError("one of selector, text and url is needed")
        return self

    def __str__(self) -> str:
        return next(f"{name} {value!r}" for name in _INDICATORS if (value := getattr(self, name)))


class _Fill(_LoginModel):
    selector: str
    value: str


class _Press(_LoginModel):
    key: str
    selector: str = ""


class LoginStep(_LoginModel):
    """One step; exactly one field is set."""

    goto: str = ""
    fill: _Fill | None = None
    click: str = ""
    press: _Press | None = None
    check: str = ""
    wait_for: LoginIndicator | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand_press(cls, step: Any) -> Any:
        if isinstance(step, Mapping) and isinstance(step.get("press"), str):
            return {**step, "press": {"key": step["press"]}}
        return step

    @model_validator(mode="after")
    def _exactly_one(self) -> LoginStep:
        if len([name for name in type(self).model_fields if getattr(self, name)]) != 1:
            raise ValueError("a step is one of " + ", ".join(type(self).model_fields))
        return self

    def __str__(self) -> str:
        """Return the step without the value that it fills in."""
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
    def _has_scope(self) -> _Cookie:
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
    """How to log in.

    Attributes:
        kind: `storage-state` or `steps`.
        source: path of the file, for messages.
        state: storage state; {} for steps.
        indicator: sign of a valid login; None if unknown.
        secrets: values of the state and the environment that must not be written.
        retries: further attempts at the steps where the site does not respond.
    """

    kind: Literal["storage-state", "steps"]
    source: str
    state: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[LoginStep, ...] = ()
    indicator: LoginIndicator | None = None
    secrets: tuple[str, ...] = ()
    retries: int = 1

    @property
    def inputs(self) -> str:
        """The steps with all their inputs, which name the user: a secret."""
        return json.dumps([each.model_dump(exclude_defaults=True) for each in self.steps], sort_keys=True)


def read_storage_state(path: Path, indicator: LoginIndicator | None = None) -> Login:
    """Read a storage state as Playwright writes it.

    Raises:
        UsageError: if the file is not a storage state.
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
            f"{path}: not a storage state: {_first_error(error)}",
            hint="write it with Playwright's context.storage_state(), which gives cookies and origins",
        ) from None
    return Login("storage-state", str(path), state, indicator=indicator, secrets=secrets_in_state(state))


def secrets_in_state(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values that look random; other secrets are recognised by their field names when sent.

    A JWT counts by its signature, since pages read its claims.
    """
    values = [text for cookie in state["cookies"] for text in cookie_texts(cookie["value"])]
    for origin in state.get("origins", ()):
        for entry in origin.get("localStorage", ()):
            texts = entry_texts(entry["value"])
            values += [text for path, text in texts if not path or SecretNames().kind(path[-1])]
    return tuple(dict.fromkeys(secret_part(value) for value in values if strong(value)))


def secret_part(value: str) -> str:
    """Return the signature of a JWT, any other value as it is."""
    found = JWT.fullmatch(value)
    return found[1] if found else value


def read_login(path: Path, environment: Mapping[str, str] | None = None) -> Login:
    """Read a steps file; `${NAME}` reads an environment variable.

    Raises:
        UsageError: if the file is malformed or a variable is not set.
    """
    environment = os.environ if environment is None else environment
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="docs/how-to/login.md shows one") from error
    if not isinstance(content, dict) or not isinstance(content.get("steps"), list) or not content["steps"]:
        raise UsageError(f"{path}: no list of steps", hint="docs/how-to/login.md shows one")
    if unknown := sorted(map(str, content.keys() - {"steps", "logged_in"})):
        raise UsageError(f"{path}: unknown key {unknown[0]!r}", hint="use steps and logged_in")
    used: list[str] = []
    steps = tuple(
        _read(LoginStep, raw, f"{path}: step {number}", environment, used)
        for number, raw in enumerate(content["steps"], 1)
    )
    indicator = None
    if "logged_in" in content:
        indicator = _read(LoginIndicator, content["logged_in"], f"{path}: logged_in", environment, [])
    return Login("steps", str(path), steps=steps, indicator=indicator, secrets=tuple(dict.fromkeys(used)))


def parse_indicator(text: str) -> LoginIndicator:
    """Parse `selector:CSS`, `text:TEXT` or `url:PART`.

    Raises:
        UsageError: for any other form.
    """
    name, colon, value = text.partition(":")
    if name not in _INDICATORS or not colon or not value.strip():
        raise UsageError(
            f"{text!r} is not a login indicator",
            hint="write 'text:Log out', 'selector:#logout' or 'url:/account'",
        )
    return LoginIndicator.model_validate({name: value.strip()})


def _read(model: type[Any], raw: Any, location: str, environment: Mapping[str, str], used: list[str]) -> Any:
    """Return a validated part of the file; add the secret variables that it uses to `used`."""
    try:
        return model.model_validate(_filled(raw, location, environment, used))
    except ValidationError as error:
        raise UsageError(
            f"{location}: {_first_error(error)}", hint="docs/how-to/login.md lists the steps"
        ) from None


def _filled(raw: Any, location: str, environment: Mapping[str, str], used: list[str]) -> Any:
    if isinstance(raw, dict):
        return {name: _filled(value, location, environment, used) for name, value in raw.items()}
    if not isinstance(raw, str):
        return raw

    def value_of(match: re.Match[str]) -> str:
        name = match[1].strip()
        value = environment.get(name, "")
        if not value:
            raise UsageError(
                f"{location}: the environment variable {name!r} is not set", hint=f"export {name}=..."
            )
        if _SECRET.search(name) and strong_password(value):
            used.append(value)  # a user name is not secret, and may occur in every page
        return value

    return _VARIABLE.sub(value_of, raw)


def _first_error(error: ValidationError) -> str:
    """Return the first validation error without the values, which may be secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    location = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ")
    return f"{location}: {what}" if location else what
