"""Write docs/reference/api.md from the `__all__` of every public package; --check compares instead.

A package is public if its `__init__.pyi` or `__init__.py` has a literal `__all__`. The page lists the names
with the module that defines them and the first line of their docstrings.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
TARGET = SOURCE.parent / "docs" / "reference" / "api.md"
HEAD = """# Python API

Written by `make docs` from the `__all__` of the packages; do not edit. Names that are not listed here may
change without notice.
"""

_KINDS = {ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "coroutine function"}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def public_packages() -> dict[str, list[str]]:
    """Return the exported names of each public package."""
    found = {}
    for folder in sorted(path.parent for path in (SOURCE / "stillweb").rglob("__init__.py")):
        names = [name for path in _interfaces(folder) for name in _exported(path)]
        if names:
            found[".".join(folder.relative_to(SOURCE).parts)] = sorted(set(names) - {"__version__"})
    return {package: names for package, names in found.items() if names}


def _interfaces(folder: Path) -> list[Path]:
    return [path for path in (folder / "__init__.pyi", folder / "__init__.py") if path.exists()]


def _exported(path: Path) -> list[str]:
    for node in _parsed(path).body:
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.List | ast.Tuple) and ast.unparse(node).startswith("__all__ ="):
            return list(map(str, ast.literal_eval(value)))
    return []


def definition(module: str, name: str) -> tuple[str, ast.AST, str]:
    """Return (module, node, docstring) of the definition of a name that a module defines or imports.

    Raises:
        LookupError: if the module has no such name.
    """
    folder = SOURCE.joinpath(*module.split("."))
    paths = _interfaces(folder) if folder.is_dir() else [folder.with_suffix(".py")]
    for path in paths:
        body = _parsed(path).body
        for index, node in enumerate(body):
            if isinstance(node, tuple(_KINDS)) and node.name == name:  # type: ignore[attr-defined]
                return module, node, ast.get_docstring(node) or ""  # type: ignore[arg-type]
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return module, node, _following(body, index)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        parent = module if folder.is_dir() else module.rpartition(".")[0]
                        base = ".".join(parent.split(".")[: len(parent.split(".")) - node.level + 1])
                        source = ".".join(filter(None, [base, node.module])) if node.level else node.module
                        return definition(str(source), alias.name)
    raise LookupError(f"{module} has no {name}")


def _following(body: list[ast.stmt], index: int) -> str:
    after = body[index + 1] if index + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return str(after.value.value)
    return ""


def page() -> str:
    """Return the text of docs/reference/api.md."""
    lines = [HEAD]
    for package, names in public_packages().items():
        lines.append(f"## {package}\n\n| name | kind | description |\n|---|---|---|")
        for name in names:
            module, node, docstring = definition(package, name)
            first = " ".join(docstring.strip().partition("\n\n")[0].split()).replace("|", "\\|")
            lines.append(f"| [`{name}`](../../src/{_path(module)}) | {_kind(node)} | {first} |")
        lines.append("")
    return "\n".join(lines)


def _kind(node: ast.AST) -> str:
    decorators = {ast.unparse(each) for each in getattr(node, "decorator_list", [])}
    if decorators & {"contextmanager", "asynccontextmanager"}:
        return "async context manager" if "asynccontextmanager" in decorators else "context manager"
    return _KINDS.get(type(node), "value")


def _path(module: str) -> str:
    folder = SOURCE.joinpath(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return path.relative_to(SOURCE).as_posix()


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text("utf-8") != text:
            sys.stderr.write("docs/reference/api.md is stale; run: make docs\n")
            return 1
        return 0
    TARGET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
