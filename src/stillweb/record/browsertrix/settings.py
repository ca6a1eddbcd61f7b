"""Our options as browsertrix-crawler's YAML and as the arguments of `docker run`; pure.

What it cannot be told is a note for the user, or an error where the recording would be another one than was
asked for. Its browser finds hosts by `--host-resolver-rules`; its own fetches (sitemaps, robots.txt, files
that are no pages) only by names in the container, so that a rule with a port or `*` does not reach these.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from stillweb.errors import UsageError
from stillweb.options import Option
from stillweb.record.behaviors.behaviors import ALL, Behavior
from stillweb.record.crawl.scope import Scope
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.proxy.resolve import ResolveRule
from stillweb.urls import host_of, origin_of

__all__ = ["CONFIG", "IMAGE", "Container", "CrawlerSettings", "dump", "run_arguments", "settings_of"]

IMAGE = "webrecorder/browsertrix-crawler:1.14.1"
CONFIG = "config.yaml"
VOLUME, _FILES = "/crawls", "/stillweb"
_CA, _PROFILE = "upstream-ca.pem", "profile.tar.gz"
_SHM = "1g"  # Docker's own 64 MB is too little for a browser

_BEHAVIOURS = {
    Behavior.SCROLL: "autoscroll",
    Behavior.MEDIA: "autoplay",
    Behavior.VARIANTS: "autofetch",
}
# Python's regular expressions that JavaScript does not know, or knows as something else.
_PYTHON_ONLY = re.compile(r"\(\?P|\(\?[aiLmsux]|\(\?>|\\[AZ]|\(\?\(|[*+?}]\+")


def _parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{text!r} is not NAME=VALUE, such as blockAds=true")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"the value in {text!r} is not YAML") from None
    return found


@dataclass(frozen=True, slots=True)
class Container:
    """How the container runs.

    Attributes:
        settings: precede ours in the YAML.
    """

    image: Annotated[str, Option("[browsertrix] Image of the container, with its version.")] = IMAGE
    program: Annotated[
        str, Option("[browsertrix] Program that runs containers, compatible with docker.", "--docker")
    ] = "docker"
    arguments: Annotated[
        tuple[str, ...],
        Option(
            "[browsertrix] Additional argument of `docker run`: --docker-arg=--memory=4g. Repeatable.",
            "--docker-arg",
            "ARG",
        ),
    ] = ()
    settings: Annotated[
        Mapping[str, Any],
        Option(
            "[browsertrix] One of its own settings, the value in YAML: --set blockAds=true. Repeatable.",
            "--set",
            "NAME=VALUE",
            parse=_parse_settings,
        ),
    ] = field(default_factory=dict)
    profile: Annotated[
        Path | None,
        Option(
            "[browsertrix] Browser profile from its create-login-profile, to record as logged in.",
            "--browser-profile",
            path="existing file",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CrawlerSettings:
    """What is told to the crawler, and what could not be.

    Attributes:
        settings: its YAML.
        notes: a clause each, for the user.
    """

    settings: dict[str, Any]
    notes: tuple[str, ...]


def settings_of(
    name: str,
    seeds: Sequence[str],
    options: CrawlOptions,
    container: Container,
    state: Mapping[str, Any] | None = None,
) -> CrawlerSettings:
    """Return the YAML for a crawl.

    Args:
        name: of the collection.
        seeds: as given.
        options: of `record crawl`.
        container: what the user adds.
        state: that an interrupted crawl of the same options left.

    Raises:
        UsageError: if a seed is no URL, or a pattern is none or not one of JavaScript.
    """
    scope = Scope.of(options.scope, seeds, options.include, options.exclude)
    notes: list[str] = []
    told: dict[str, Any] = {
        "collection": name,
        "crawlId": name,
        "generateWACZ": True,
        "text": ["to-warc"],
        "screenshot": ["view"],
        "saveState": "always",  # so that a crawl whose container was killed goes on, too
        "saveStateInterval": 60,
        "workers": options.jobs,
        "pageLoadTimeout": round(options.page_timeout),
        "maxPageRetries": options.retries,
        "lang": options.profile.locale,
    }
    told |= _reach(scope, options) | _limits(options)
    told |= _behaviours(options.behaviours, notes)
    if options.record.resolve:
        told["extraChromeArgs"] = [f"--host-resolver-rules={resolver_rules(options.record.resolve)}"]
        if any(not _by_name(rule) for rule in options.record.resolve):
            notes.append("--resolve with a port or * reaches pages, but not its sitemaps and plain downloads")
    if options.record.upstream_ca:
        notes.append("its browser takes any certificate; --upstream-ca counts for its plain downloads alone")
    if container.profile:
        told["profile"] = f"{_FILES}/{_PROFILE}"
    told["seeds"] = [{"url": url} for url in scope.seeds]
    told |= dict(container.settings)
    if state:
        told["state"] = dict(state)
    return CrawlerSettings(told, tuple(notes))


def _reach(scope: Scope, options: CrawlOptions) -> dict[str, Any]:
    told: dict[str, Any] = {"scopeType": scope.kind.value}
    patterns = [*(pattern.pattern for pattern in (*scope.include, *scope.exclude))]
    for pattern in patterns:
        if _PYTHON_ONLY.search(pattern):
            hint = "write it without (?P<...>), (?i), \\A and the like"
            raise UsageError(f"{pattern!r} is no regular expression of JavaScript's", hint=hint)
    if scope.include:
        # Its `include` takes the place of the scope; ours must hold besides it.
        asked = "|".join(f"(?:{pattern.pattern})" for pattern in scope.include)
        told["scopeType"] = "custom"
        told["include"] = [f"^(?=.*(?:{asked})){_near(scope.kind, seed)}" for seed in scope.seeds]
    if scope.exclude:
        told["exclude"] = [pattern.pattern for pattern in scope.exclude]
    if options.depth is not None:
        told["depth"] = options.depth
    if options.sitemap is not None:
        told["sitemap"] = options.sitemap or True
    if options.robots:
        told["useRobots"] = True
    return told


def _near(kind: ScopeKind, seed: str) -> str:
    """Return the JavaScript pattern of a scope, as our `Scope` understands it."""
    if kind is ScopeKind.PAGE:
        return f"{_escaped(seed)}$"
    if kind is ScopeKind.PREFIX:
        folder = seed.partition("?")[0].rpartition("/")[0] + "/"
        return _escaped(folder if folder.startswith(origin_of(seed)) else origin_of(seed) + "/")
    host = host_of(seed)
    if kind is ScopeKind.DOMAIN:
        return rf"https?:\/\/(?:[^/?#]*\.)?{_escaped(host.removeprefix('www.'))}(?::\d+)?(?:[/?#]|$)"
    return rf"https?:\/\/{_escaped(host)}(?::\d+)?(?:[/?#]|$)"


def _escaped(text: str) -> str:
    return re.sub(r"[.*+?^${}()|\[\]\\/]", r"\\\g<0>", text)


def _limits(options: CrawlOptions) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if options.limit is not None:
        told["pageLimit"] = options.limit
    if options.time_limit is not None:
        told["timeLimit"] = round(options.time_limit)
    if options.size_limit is not None:
        told["sizeLimit"] = options.size_limit
    if options.record.warc_size is not None:
        told["rolloverSize"] = options.record.warc_size
    # Each worker waits by itself, after each page.
    wait = max(options.delay, 60 / options.rate if options.rate else 0.0) * options.jobs
    if wait:
        told["pageExtraDelay"] = round(wait, 3)
    return told


def _behaviours(wanted: frozenset[Behavior], notes: list[str]) -> dict[str, Any]:
    if wanted == ALL:
        return {}  # its own, with those that it knows for certain sites
    if lost := sorted(wanted - set(_BEHAVIOURS)):
        notes.append(f"it has no behaviour like ours for {', '.join(lost)}")
    named = [name for ours, name in _BEHAVIOURS.items() if ours in wanted]
    return {"behaviors": named or ""}


def resolver_rules(rules: Iterable[ResolveRule]) -> str:
    """Return rules in Chromium's form, of which the first that fits counts, not the most specific."""
    ordered = sorted(reversed(list(rules)), key=lambda rule: rule.weight, reverse=True)
    return ", ".join(f"MAP {_asked(rule)} {_found(rule)}" for rule in ordered)


def _asked(rule: ResolveRule) -> str:
    return rule.pattern if rule.port is None else f"{_literal(rule.pattern)}:{rule.port}"


def _found(rule: ResolveRule) -> str:
    address = _literal(rule.address)
    return address if rule.to_port is None else f"{address}:{rule.to_port}"


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _by_name(rule: ResolveRule) -> bool:
    """Whether `--add-host` can say a rule: one name, any port, and an address."""
    return (
        not rule.pattern.startswith("*") and rule.port is rule.to_port is None and _address(rule) is not None
    )


def _address(rule: ResolveRule) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(rule.address)
    except ValueError:
        return None


def run_arguments(
    label: str, work: Path, options: CrawlOptions, container: Container, files: Mapping[str, Path]
) -> list[str]:
    """Return the call of Docker.

    Args:
        label: of the container.
        work: folder that becomes its volume; the image works as the user who owns it.
        options: of `record crawl`.
        container: what the user adds.
        files: of `mounted_files`.
    """
    call = [container.program, "run", "--rm", "--name", label, "--shm-size", _SHM]
    call += ["-v", f"{work.resolve()}:{VOLUME}"]
    for name, path in files.items():
        call += ["-v", f"{path.resolve()}:{_FILES}/{name}:ro"]
    if options.record.upstream_ca:
        call += ["-e", f"NODE_EXTRA_CA_CERTS={_FILES}/{_CA}"]
    call += ["-e", f"TZ={options.profile.timezone}"]
    for rule in filter(_by_name, options.record.resolve):
        call += ["--add-host", f"{rule.pattern}:{rule.address}"]
    if any(_is_here(rule) for rule in options.record.resolve) and not _has_network(container.arguments):
        call += ["--network", "host"]  # a container's own loopback leads nowhere
    return [*call, *container.arguments, container.image, "crawl", "--config", f"{VOLUME}/{CONFIG}"]


def mounted_files(options: CrawlOptions, container: Container) -> dict[str, Path]:
    """Return the files that the container needs besides its volume, by their names in it."""
    files = {_CA: options.record.upstream_ca, _PROFILE: container.profile}
    return {name: path for name, path in files.items() if path}


def _is_here(rule: ResolveRule) -> bool:
    address = _address(rule)
    return rule.address == "localhost" if address is None else address.is_loopback


def _has_network(arguments: Iterable[str]) -> bool:
    return any(argument.partition("=")[0] in ("--network", "--net") for argument in arguments)


def dump(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, in their order."""
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=1000)
