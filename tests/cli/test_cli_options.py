"""Options that are generated from dataclasses: spelling, types, defaults, and the dataclass that results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from stillweb.cli.options import option_names, options_from
from stillweb.options import Option, format_counts, parse_counts, parse_duration, parse_size


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    depth: Annotated[int, Option("Depth.", min=1)] = 3
    plain: int = 7


@dataclass(frozen=True, slots=True)
class Sample:
    name: Annotated[str, Option("Name.", "-n --name")]
    colour: Annotated[Colour, Option("Colour.")] = Colour.RED
    mode: Annotated[Literal["a", "b"] | None, Option("Mode.")] = None
    size: Annotated[int, Option("Size.", metavar="KIB", unit=1024)] = 2048
    ratio: Annotated[float, Option("Ratio.", above=0, max=1)] = 0.5
    fast: Annotated[bool, Option("Fast.")] = False
    writes: Annotated[bool, Option("Do not write.", "--read-only")] = True
    both: Annotated[bool, Option("Both.", "--both/--no-both")] = True
    items: Annotated[tuple[str, ...], Option("Item. Repeatable.", "--item")] = ("x",)
    counts: Annotated[
        tuple[int, ...], Option("Counts.", repeat=False, parse=parse_counts, format=format_counts)
    ] = (1, 4)
    pairs: Annotated[
        Mapping[str, str],
        Option("Pair. Repeatable.", "--pair", parse=lambda texts: dict(t.split("=") for t in texts)),
    ] = field(default_factory=dict)
    map: Annotated[str | None, Option("Map.", bare="")] = None
    file: Annotated[Path | None, Option("File.", path="existing file")] = None
    inner: Inner = field(default_factory=lambda: Inner(plain=9))


def built(*arguments: str, source: object = Sample, **how: tuple[str, ...]) -> object:
    seen = []

    @click.command()
    @options_from(source, **how)
    def command(options: object) -> None:
        seen.append(options)

    result = CliRunner().invoke(command, arguments)
    return seen[0] if seen else result.output


def test_without_options_the_dataclass_has_its_own_defaults() -> None:
    assert built("--name", "n") == Sample("n")
    assert built("--name", "n").inner.plain == 9, "a nested dataclass starts from its parent's default"


def test_each_type_is_read() -> None:
    arguments = (
        "-n n --colour blue --mode b --size 3 --ratio 1 --fast --read-only --no-both --item y --item z"
    )
    more = ("--counts", "8,2", "--pair", "a=b", "--pair", "c=d", "--depth", "5", "--map")
    assert built(*arguments.split(), *more) == Sample(
        "n", Colour.BLUE, "b", 3072, 1.0, True, False, False, ("y", "z"), (8, 2), {"a": "b", "c": "d"}, "",
        inner=Inner(5, 9),
    )  # fmt: skip
    assert built("-n", "n", "--map=URL").map == "URL"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((), "Missing option '-n' / '--name'"),
        (("--colour", "RED"), "'RED' is not one of 'red', 'blue'"),
        (("--mode", "c"), "is not one of 'a', 'b'"),
        (("--ratio", "0"), "0.0 is not in the range 0<x<=1"),
        (("--counts", "0"), "numbers from 1 to 256"),
        (("--depth", "0"), "0 is not in the range x>=1"),
        (("--file", "/nowhere/at/all"), "does not exist"),
    ],
)
def test_wrong_values_are_refused(given: tuple[str, ...], complaint: str) -> None:
    name = ("--name", "n") if given else ()
    assert complaint in " ".join(built(*name, *given).split())


def test_an_instance_gives_the_defaults_and_options_may_be_left_out() -> None:
    assert built(source=Sample("given", size=4096)) == Sample("given", size=4096)
    assert "No such option" in built("--fast", source=Sample("n"), without=("fast",))
    assert "No such option" in built("--depth", "2", source=Sample("n"), without=("inner",))
    assert built("--fast", source=Sample("n"), only=("fast",)) == Sample("n", fast=True)


def test_the_help_shows_the_defaults_as_they_are_written() -> None:
    text = " ".join(built("--help").split())
    assert "Size. [default: 2]" in text
    assert "Counts. [default: 1,4]" in text
    assert "--read-only Do not write. --both" in text
    assert "Colour. [default: red]" in text


def test_an_environment_variable_gives_several_values() -> None:
    @dataclass(frozen=True)
    class Hosts:
        hosts: Annotated[tuple[str, ...], Option("Host.", "--host", envvar="HOSTS")] = ()

    seen = []
    command = click.command()(options_from(Hosts())(lambda options: seen.append(options)))
    CliRunner().invoke(command, [], env={"HOSTS": "a.test b.test"}, catch_exceptions=False)
    assert seen == [Hosts(("a.test", "b.test"))]


def test_names_are_those_of_the_options() -> None:
    names = option_names(Sample, without=("inner", "fast"))
    assert names[:4] == ("name", "colour", "mode", "size")
    assert {"read_only", "item", "both"} < set(names)
    assert not {"fast", "depth", "writes"} & set(names)


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "3d"])
def test_what_is_no_duration_or_size(text: str) -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)
