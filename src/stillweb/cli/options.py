"""Command-line options: generated from options dataclasses, and those that several commands share.

`options_from` adds one click option for each field that has a `stillweb.options.Option`, also in nested
dataclasses. It passes the resulting dataclass to the command. Types map to click's: see `Option`.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.errors import UsageError
from stillweb.options import Option

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING = click.Path(path_type=Path, exists=True)
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

_PATHS: Mapping[str | None, dict[str, bool]] = {
    "file": {"dir_okay": False},
    "folder": {"file_okay": False},
    "existing file": {"exists": True, "dir_okay": False},
    None: {},
}


def options_from(
    source: Any, name: str = "options", *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[F], F]:
    """Return a decorator that adds the options of a dataclass and passes the dataclass as `name`.

    Args:
        source: the dataclass, or an instance of it whose values are the defaults.
        name: parameter of the command that receives the dataclass.
        only: names of the options to add (`time_limit` for `--time-limit`); all if empty.
        without: names of options, or fields that are nested dataclasses, to leave out.
    """
    chosen = {f.param: f for f in _leaves(source, without) if not only or f.param in only}

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_options(*args: Any, **given: Any) -> Any:
            values = {each: field.value(given.pop(each)) for each, field in chosen.items()}
            return command(*args, **{name: _build(source, values)}, **given)

        wrapped: Any = with_options
        for field in reversed(chosen.values()):
            wrapped = field.click_option()(wrapped)
        return typing.cast(F, wrapped)

    return decorate


def option_names(source: Any, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the options that `options_from` adds, as click's parameters."""
    return tuple(field.param for field in _leaves(source, without))


def option_for(name: str, hint: Any, default: Any, option: Option) -> Callable[[F], F]:
    """Return a decorator that adds one option, for a parameter that is in no dataclass."""
    return _OptionField(name, hint, default, option).click_option()


@dataclass(frozen=True, slots=True)
class _OptionField:
    """A dataclass field: one with an `Option`, or a nested dataclass (`option` is None)."""

    name: str
    hint: Any
    default: Any
    option: Option | None

    @property
    def flag(self) -> str:
        assert self.option is not None
        return self.option.flag or "--" + self.name.replace("_", "-")

    @property
    def param(self) -> str:
        """The name of the click parameter, which follows the spelling of the option."""
        return self.flag.split("/")[0].split()[-1].removeprefix("--").replace("-", "_")

    @property
    def kind(self) -> Any:
        """The type of one value: without None, and that of a container's items."""
        hint = self.hint
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
        return typing.get_args(hint)[0] if typing.get_origin(hint) in (tuple, Mapping) else hint

    def value(self, given: Any) -> Any:
        assert self.option is not None
        if given is None or self.option.parse:
            return given
        if isinstance(self.kind, type) and issubclass(self.kind, StrEnum):
            return self.kind(given)
        return given * self.option.unit if self.option.unit != 1 else given

    def click_option(self) -> Callable[[F], F]:
        option, default, flag = self.option, self.default, self.flag
        assert option is not None
        if self.kind is bool:
            how: dict[str, Any] = {"default": default, "show_default": "/" in flag}
            how |= {} if "/" in flag else {"is_flag": True, "flag_value": not default}
            return click.option(flag, help=option.help, **how)
        if default is not None and option.unit != 1:
            default //= option.unit
        if option.format:
            default = option.format(default)
        elif isinstance(default, StrEnum):
            default = default.value
        container = typing.get_origin(self.hint) in (tuple, Mapping)
        repeated = container if option.repeat is None else option.repeat
        if repeated:
            default = [] if option.parse else list(default)
        more: dict[str, Any] = {} if option.bare is None else {"is_flag": False, "flag_value": option.bare}
        more |= {} if default in (None, MISSING) else {"default": default}
        return click.option(
            *flag.split(),
            type=self._click_type(),
            **more,
            multiple=repeated,
            required=default is MISSING,
            show_default=option.default or default not in ("", None, MISSING),
            envvar=option.envvar,
            metavar=option.metavar or ("N" if self.kind is int and option.parse is None else None),
            callback=None if option.parse is None else functools.partial(_parsed, parse=option.parse),
            help=option.help,
        )

    def _click_type(self) -> Any:
        option, kind = self.option, self.kind
        assert option is not None
        if choices := option.choices or _choices(kind):
            return click.Choice(choices)
        if kind is int and (option.min, option.max) != (None, None):
            return click.IntRange(option.min, option.max)
        if kind is float and (option.min, option.max, option.above) != (None, None, None):
            lowest = option.min if option.above is None else option.above
            return click.FloatRange(lowest, option.max, min_open=option.above is not None)
        if kind is Path or option.path:
            return click.Path(path_type=Path, **_PATHS[option.path])
        return kind if kind in (int, float) and not option.parse else str


def _choices(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(each.value for each in kind)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _parsed(ctx: click.Context, param: click.Parameter, given: Any, *, parse: Callable[[Any], Any]) -> Any:
    try:
        return None if given is None else parse(given)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _fields(source: Any) -> Iterator[_OptionField]:
    cls = source if isinstance(source, type) else type(source)
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        hint = hints[field.name]
        option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
        if source is not cls:
            default = getattr(source, field.name)
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
        if option or is_dataclass(default):
            yield _OptionField(field.name, typing.get_args(hint)[0] if option else hint, default, option)


def _leaves(source: Any, without: Collection[str]) -> Iterator[_OptionField]:
    for field in _fields(source):
        if field.option and field.param not in without:
            yield field
        elif field.option is None and field.name not in without:
            yield from _leaves(field.default, without)


def _build(source: Any, values: Mapping[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for field in _fields(source):
        if field.option is None:
            found[field.name] = _build(field.default, values)
        elif field.param in values:
            found[field.name] = values[field.param]
    return source(**found) if isinstance(source, type) else replace(source, **found)


def _folder_option(name: str, param: str, help_: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        param,
        type=FOLDER,
        envvar=f"STILLWEB_{name.upper()}",
        default=Path(name),
        show_default=True,
        help=help_,
    )


def collections_option(command: F) -> F:
    """Add `--collections DIR`, passed on as `root`."""
    return _folder_option("collections", "root", "Folder of the collections.")(command)


def certs_option(command: F) -> F:
    """Add `--certs DIR`, passed on as `certs_dir`."""
    return _folder_option("certs", "certs_dir", "Folder of the certificate authority.")(command)


def optional_proxy_option(command: F) -> F:
    """Add `--proxy URL`, without which the command starts a replay server."""
    what = "Control URL of a running replay server.  [default: start one]"
    return click.option("--proxy", default="", metavar="URL", help=what)(command)


def backend_options(command: F) -> F:
    """Add `--backend` and `--proxy`: the replay server to start, or a running one."""
    proxy = click.option("--proxy", default="", metavar="URL", help="Control URL of a running replay server.")
    backend = click.option(
        "--backend",
        type=click.Choice(["native", "pywb"]),
        default="native",
        show_default=True,
        help="Replay server to start, unless --proxy names a running one.",
    )
    return backend(proxy(command))


def json_option(command: F) -> F:
    """Add `--json`, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")(command)


def key_options(role: str, who: str) -> Callable[[F], F]:
    """Return a decorator that adds `--ROLE-key-file` and `--ROLE-key`, passed on as the keys by name.

    The key itself must come from the environment: other users of the machine see command lines.

    Args:
        role: "api" or "node".
        who: who sends the key, for the help texts.
    """
    variable = f"STILLWEB_{role.upper()}_KEY"

    def refuse(ctx: click.Context, param: click.Parameter, value: str) -> str:
        if value and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{role}-key on the command line is visible to all users of this machine",
                hint=f"use --{role}-key-file FILE, or {variable} in the environment",
            )
        return value

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_keys(*args: Any, **given: Any) -> Any:
            file, key = given.pop(f"{role}_key_file"), given.pop(f"{role}_key")
            keys = _read_keys(file) if file else {"": key} if key else {}
            return command(*args, **given, **{f"{role}_keys": keys})

        with_keys = click.option(
            f"--{role}-key",
            envvar=variable,
            default="",
            callback=refuse,
            help=f"Key that {who}; only from {variable}.",
        )(with_keys)
        decorated = click.option(
            f"--{role}-key-file",
            type=EXISTING_FILE,
            help=f"File with the keys that {who}: KEY or NAME KEY on each line.",
        )(with_keys)
        return typing.cast(F, decorated)

    return decorate


def _read_keys(path: Path) -> dict[str, str]:
    from stillweb.server.keys import read_keys  # needs the extra `serve`

    return read_keys(path)


def proxy_option(command: F) -> F:
    return click.option(
        "--proxy",
        required=True,
        metavar="URL",
        help="Control URL of a running replay server, as `stillweb replay` prints it.",
    )(command)


def sites_option(command: F) -> F:
    """Add `--site NAME=URL`, passed on as `sites`."""
    return click.option(
        "--site",
        "sites",
        multiple=True,
        metavar="NAME=URL",
        callback=_sites,
        help="URL of a site in a WebArena task file, such as SHOPPING=https://shop.example. Repeatable.",
    )(command)


def _sites(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    sites = dict(each.partition("=")[::2] for each in given)
    if not all(sites.values()):
        raise click.BadParameter("expected NAME=URL, such as SHOPPING=https://shop.example")
    return sites
