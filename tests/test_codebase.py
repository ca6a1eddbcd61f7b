"""Rules of the whole code base: structure, prose and documented API. `make check` runs the same scripts."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import api
import prose
import pytest
import structure


def test_modules_folders_and_class_names_keep_the_rules():
    assert structure.problems() == []


def test_prose_has_no_more_faults_than_permitted():
    assert prose.problems() == []


@pytest.mark.parametrize("package", api.public_packages())
def test_a_package_exports_what_it_documents(package):
    names = api.public_packages()[package]
    module = import_module(package)
    assert sorted(set(module.__all__) - {"__version__"}) == names
    for name in names:
        assert getattr(module, name) is not None
        assert api.definition(package, name)
    assert f"## {package}\n" in api.TARGET.read_text("utf-8")


def test_the_documented_api_is_current():
    assert api.TARGET.read_text("utf-8") == api.page(), "run: make docs"


def test_benchmarks_import_what_exists():
    files = sorted((Path(__file__).parents[1] / "bench").glob("*.py"))
    nodes = [(file.name, node) for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    ours = [(file, node) for file, node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    for file, node in ours:
        if node.module.partition(".")[0] == "stillweb":
            module = import_module(node.module)
            missing = [each.name for each in node.names if not hasattr(module, each.name)]
            assert not missing, f"{file}: {node.module} has no {missing}"
