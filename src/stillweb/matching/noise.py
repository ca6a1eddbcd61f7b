"""Browser noise: requests of the browser itself and of analytics, for which no page waits.

The table is data (`noise.yaml`), reviewed line by line. It applies only after the pack: a recorded request is
never noise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from stillweb.urls import wire_url


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """Globs of host and path, and why such requests are noise."""

    host: re.Pattern[str]
    path: re.Pattern[str]
    why: str


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """An ordered list of rules; the first that matches counts."""

    rules: tuple[NoiseRule, ...] = ()

    @classmethod
    def parse(cls, text: str) -> NoiseTable:
        """Parse a table from YAML: groups of rules under a reason.

        Raises:
            ValueError: if the text is not such a table.
        """
        loaded: Any = yaml.safe_load(text)
        if not isinstance(loaded, dict) or loaded.get("version") != 1:
            raise ValueError("not a table of noise, version 1")
        return cls(
            tuple(
                NoiseRule(_glob(rule["host"]), _glob(rule.get("path", "*")), group["why"])
                for group in loaded["noise"]
                for rule in group["rules"]
            )
        )

    def why(self, url: str) -> str:
        """Return why a request to a URL is noise; "" if it is not."""
        authority, _, path = wire_url(url).partition("://")[2].partition("/")
        host = re.sub(r":\d+$", "", authority)
        path = "/" + path.partition("?")[0]
        for rule in self.rules:
            if rule.host.fullmatch(host) and rule.path.fullmatch(path):
                return rule.why
        return ""


def _glob(pattern: str) -> re.Pattern[str]:
    # `*.example.com` also covers example.com, as in cookie domains.
    if pattern.startswith("*."):
        return re.compile(f"(?:.*\\.)?{re.escape(pattern[2:])}")
    return re.compile(translate(pattern))


@lru_cache(maxsize=1)
def default_noise() -> NoiseTable:
    """Return the table that comes with stillweb."""
    return NoiseTable.parse(files("stillweb.matching").joinpath("noise.yaml").read_text("utf-8"))
