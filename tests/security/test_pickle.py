"""Pickle is used where both ends are one program, and nowhere else (docs/decisions/0024)."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stillweb"
UNSAFE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
ALLOWED = {"replay/workers/worker.py", "trainers/ray/rollouts.py"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").partition(".")[0], *(alias.name for alias in node.names)}
    return names


def test_no_other_module_unpickles() -> None:
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if imports(path) & UNSAFE}
    assert found <= ALLOWED, "docs/decisions/0024-pickle-between-processes.md"


def test_no_yaml_loader_makes_objects() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "yaml.unsafe_load" not in text, path
        assert "yaml.full_load" not in text, path
        assert "yaml.UnsafeLoader" not in text, path
        assert "yaml.FullLoader" not in text, path
