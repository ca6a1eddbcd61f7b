"""Our options as browsertrix-crawler's YAML and as arguments of `docker run`; pure.

An option that it does not support gives a note for the user, or an error if the recording would differ from
the requested one. `--resolve` works by a proxy, see `forwarder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from stillweb.errors import UsageError
from stillweb.options import Option
from stillweb.record.behaviors.options import ALL, Behavior
from stillweb.record.crawl.scope import Scope
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.urls import host_of, origin_of

IMAGE = "webrecorder/browsertrix-crawler:1.14.1"
CONFIG = "config.yaml"
VOLUME, _FILES = "/crawls", "/stillweb"
_CA, _PROFILE = "upstream-ca.pem", "profile.tar.gz"
# Without this, Chromium connects to loopback addresses beside the proxy.
_THROUGH_PROXY = "--proxy-bypass-list=<-loopback>"
_SHM = "1g"  # Docker's default of 64 MB is too small for a browser

_BEHAVIORS = {
    Behavior.SCROLL: "autoscroll",
    Behavior.MEDIA: "autoplay",
    Behavior.VARIANTS: "autofetch",
}
# Python regular expression syntax that JavaScript lacks or interprets differently.
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
        settings: replace ours in the YAML.
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
    """Settings for the crawler, and what it does not support.

    Attributes:
        notes: one clause each, for the user.
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
    """Return the settings for a crawl.

    Args:
        seeds: seeds as given.
        container: the user's additions.
        state: state of an interrupted crawl with the same options.

    Raises:
        UsageError: if a seed is not a URL, or a pattern is not a JavaScript regular expression.
    """
    scope = Scope.of(options.scope, seeds, options.include, options.exclude)
    notes: list[str] = []
    values: dict[str, Any] = {
        "collection": name,
        "crawlId": name,
        "generateWACZ": True,
        "text": ["to-warc"],
        "screenshot": ["view"],
        "saveState": "always",  # so that a crawl continues after its container was killed
        "saveStateInterval": 60,
        "workers": options.jobs,
        "pageLoadTimeout": round(options.page_timeout),
        "maxPageRetries": options.retries,
    }
    values |= _reach(scope, options) | _limits(options)
    values |= _behavior_settings(options.behaviors, notes)
    # Its setting `lang` accepts no country. It gives the language to its browser by this switch.
    values["extraChromeArgs"] = [f"--accept-lang={options.profile.locale}"]
    if options.record.resolve:
        values["extraChromeArgs"].append(_THROUGH_PROXY)
    if options.record.upstream_ca:
        notes.append("its browser accepts any certificate; --upstream-ca applies to its plain downloads only")
    if container.profile:
        values["profile"] = f"{_FILES}/{_PROFILE}"
    values["seeds"] = seed_settings(scope.seeds)
    values |= dict(container.settings)
    if state:
        values["state"] = dict(state)
    return CrawlerSettings(values, tuple(notes))


def uses_forwarder(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings of an earlier crawl need the forwarder."""
    return _THROUGH_PROXY in (settings.get("extraChromeArgs") or ())


def seed_settings(seeds: Iterable[str]) -> list[dict[str, Any]]:
    """Return the crawler's `seeds`; without `allowHash` it drops hash routes."""
    return [{"url": url} | ({"allowHash": True} if "#" in url else {}) for url in seeds]


def _reach(scope: Scope, options: CrawlOptions) -> dict[str, Any]:
    values: dict[str, Any] = {"scopeType": scope.kind.value}
    patterns = [*(pattern.pattern for pattern in (*scope.include, *scope.exclude))]
    for pattern in patterns:
        if _PYTHON_ONLY.search(pattern):
            hint = "write it without (?P<...>), (?i), \\A and the like"
            raise UsageError(f"{pattern!r} is not a JavaScript regular expression", hint=hint)
    if scope.include:
        # Its `include` replaces the scope; ours restricts it.
        included = "|".join(f"(?:{pattern.pattern})" for pattern in scope.include)
        values["scopeType"] = "custom"
        values["include"] = [f"^(?=.*(?:{included})){_near(scope.kind, seed)}" for seed in scope.seeds]
    if scope.exclude:
        values["exclude"] = [pattern.pattern for pattern in scope.exclude]
    if options.depth is not None:
        values["depth"] = options.depth
    if options.sitemap is not None:
        values["sitemap"] = options.sitemap or True
    if options.robots:
        values["useRobots"] = True
    return values


def _near(kind: ScopeKind, seed: str) -> str:
    """Return the JavaScript pattern of a scope, equivalent to our `Scope`."""
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
    values: dict[str, Any] = {}
    if options.limit is not None:
        values["pageLimit"] = options.limit
    if options.time_limit is not None:
        values["timeLimit"] = round(options.time_limit)
    if options.size_limit is not None:
        values["sizeLimit"] = options.size_limit
    if options.record.warc_size is not None:
        values["rolloverSize"] = options.record.warc_size
    # Each worker waits separately, after each page.
    wait = max(options.delay, 60 / options.rate if options.rate else 0.0) * options.jobs
    if wait:
        values["pageExtraDelay"] = round(wait, 3)
    return values


def _behavior_settings(wanted: frozenset[Behavior], notes: list[str]) -> dict[str, Any]:
    if wanted == ALL:
        return {}  # its own defaults, with site-specific behaviors
    if missing := sorted(wanted - set(_BEHAVIORS)):
        notes.append(f"it has no behavior like ours for {', '.join(missing)}")
    named = [name for ours, name in _BEHAVIORS.items() if ours in wanted]
    return {"behaviors": named or ""}


def run_arguments(
    label: str,
    work: Path,
    options: CrawlOptions,
    container: Container,
    files: Mapping[str, Path],
    proxy: str,
) -> list[str]:
    """Return the Docker command.

    Args:
        label: name of the container.
        work: folder mounted as its volume; the image works as the folder's owner.
        container: the user's additions.
        files: result of `mounted_files`.
        proxy: URL of the forwarder, on loopback; "" without one.

    Raises:
        UsageError: if the container cannot reach the proxy in the network that the user chose.
    """
    call = [container.program, "run", "--rm", "--name", label, "--shm-size", _SHM]
    call += ["-v", f"{work.resolve()}:{VOLUME}"]
    for name, path in files.items():
        call += ["-v", f"{path.resolve()}:{_FILES}/{name}:ro"]
    if options.record.upstream_ca:
        call += ["-e", f"NODE_EXTRA_CA_CERTS={_FILES}/{_CA}"]
    call += ["-e", f"TZ={options.profile.timezone}"]
    if proxy:
        if _has_network(container.arguments):
            hint = "leave out --docker-arg=--network, or --resolve"
            raise UsageError("--resolve needs the host's network for the container", hint=hint)
        # A container's own loopback does not reach the host.
        call += ["--network", "host", "-e", f"PROXY_SERVER={proxy}"]
    return [*call, *container.arguments, container.image, "crawl", "--config", f"{VOLUME}/{CONFIG}"]


def mounted_files(options: CrawlOptions, container: Container) -> dict[str, Path]:
    """Return the files that the container needs besides its volume, by their names in it."""
    files = {_CA: options.record.upstream_ca, _PROFILE: container.profile}
    return {name: path for name, path in files.items() if path}


def _has_network(arguments: Iterable[str]) -> bool:
    return any(argument.partition("=")[0] in ("--network", "--net") for argument in arguments)


def dump(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML in their order."""
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=1000)
