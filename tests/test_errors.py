"""The tree of errors: drawn in the docstring, divided by fault, each with its exit status."""

from __future__ import annotations

import inspect
import re

import pytest

from stillweb import errors
from stillweb.errors import CollectionError, StillwebError, UsageError, first_error


def _classes() -> list[type[StillwebError]]:
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, StillwebError)]


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = re.findall(
        r"^\s*[│├└─\s]*([A-Z]\w+)", (errors.__doc__ or "").partition("An action that")[0], re.M
    )
    assert set(drawn) - {"Every"} == {c.__name__ for c in _classes()}


def test_the_tree_is_drawn_at_the_right_depth() -> None:
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^ {4}([│ ]*)(?:├──|└──) (\w+)", line):
            depth = len(found[1]) // 4 + 1
            assert len(getattr(errors, found[2]).__mro__) - len(StillwebError.__mro__) == depth, line


def test_place_and_hint() -> None:
    error = CollectionError("breaks off", path="a/b.warc.gz", offset=17, hint="stillweb collections check x")
    assert str(error) == "a/b.warc.gz:17: breaks off"
    assert error.hint == "stillweb collections check x"


@pytest.mark.parametrize("kind", _classes())
def test_exit_codes(kind: type[StillwebError]) -> None:
    assert kind("x").exit_code == (2 if issubclass(kind, UsageError) else 1)


def test_of_a_failed_group_the_first_error_of_ours_is_raised() -> None:
    ours = UsageError("x")
    assert first_error(ExceptionGroup("", [OSError(), ExceptionGroup("", [ValueError(), ours])])) is ours
    other = OSError()
    assert first_error(ExceptionGroup("", [ExceptionGroup("", [other]), ValueError()])) is other
