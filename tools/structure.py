"""Check the structure of the package: names, folders, and the graph of imports.

The graph has an edge for every import that runs when a module is imported: imports below `TYPE_CHECKING` and
inside functions are excluded. Five rules hold for `src/stillweb`:

- a class name occurs once in the whole package;
- a folder has at most 20 modules;
- the number of modules with exactly one importer, and the length of the longest chain of imports, are at most
  the numbers in `tools/structure.json`. These numbers may only fall: `--lower` writes the current ones.
  Importers, protocols, observations and task formats are not counted: each is a module that one table names.
  Nor are modules whose names a package offers to callers;
- the same holds for the number of functions with a body of more than 40 lines, and of modules with more than
  600 lines;
- no two modules import each other, directly or through others.

    python tools/structure.py             # check
    python tools/structure.py --show      # what the limits count
    python tools/structure.py --lower
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src"
CEILINGS = REPO / "tools" / "structure.json"
MAX_FILES = 20
MAX_BODY, MAX_MODULE = 40, 600  # lines
# Packages to which contributors add modules (ARCHITECTURE.md, "Where to add things").
EXTENSIBLE = (
    "stillweb.collections.importers",
    "stillweb.server.protocols",
    "stillweb.browser.observe",
    "stillweb.env.tasks.formats",
)


def modules() -> dict[str, Path]:
    """Return the modules of the package by dotted name. Programs of other packages (pywb) are excluded."""
    found = {}
    for path in sorted((SOURCE / "stillweb").rglob("*.py")):
        if "pywb/site" not in path.as_posix():
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return the classes, functions and imports of a module, at any depth."""
    wanted = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom
    return tuple(node for node in _statements(parsed(path).body) if isinstance(node, wanted))


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, ()))


def repeated_classes() -> dict[str, list[str]]:
    """Return the class names that more than one module or scope defines."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{name}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def crowded_folders() -> dict[str, int]:
    """Return the folders with too many modules."""
    counts = Counter(path.parent for path in modules().values() if path.name != "__init__.py")
    return {str(folder.relative_to(SOURCE)): n for folder, n in counts.items() if n > MAX_FILES}


@cache
def imports(*, everywhere: bool = False) -> dict[str, set[str]]:
    """Return the modules that each module imports when it is imported; `everywhere` adds the others."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        nodes = nodes_of(path) if everywhere else _at_import(parsed(path).body)
        targets = {target for node in nodes for target in _targets(node, name, known)}
        graph[name] = targets - {name}
    return graph


def _at_import(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from _at_import(statement.orelse)
            continue
        yield statement
        for part in ("body", "orelse", "finalbody"):
            yield from _at_import(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _at_import(handler.body)


def _targets(node: ast.AST, name: str, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
            parent = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parent, *filter(None, [node.module])])
        for alias in node.names:
            target = f"{base}.{alias.name}"
            yield from (each for each in [target if target in known else base] if each in known)


def cycle() -> list[str]:
    """Return the modules of one import cycle; [] if there is none."""
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def longest_chain() -> list[str]:
    """Return the longest chain of imports, importer first."""
    graph = imports()
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        chains[name] = [name, *max((chains[each] for each in graph[name]), key=len, default=[])]
    return max(chains.values(), key=len)


def single_importers() -> dict[str, str]:
    """Return the modules that exactly one other module imports, with that module; see `EXTENSIBLE`."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, targets in imports(everywhere=True).items():
        for target in targets:
            importers[target].add(name)
    offered = {target for name, path in modules().items() for target in _offered(name, path)}
    return {
        name: next(iter(by))
        for name, by in sorted(importers.items())
        if len(by) == 1 and name not in offered and name.rpartition(".")[0] not in EXTENSIBLE
    }


def _offered(name: str, path: Path) -> set[str]:
    """Return the modules that a package imports when a caller uses a name in its stub (`lazy_loader`)."""
    stub = path.with_suffix(".pyi")
    nodes = nodes_of(stub) if stub.exists() else ()
    return {target for node in nodes for target in _targets(node, name, modules())}


def long_functions() -> dict[str, int]:
    """Return the functions with long bodies, docstrings excluded, with their numbers of lines."""
    found = {}
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > MAX_BODY:
                    found[f"{name}.{node.name}"] = lines
    return found


def long_modules() -> dict[str, int]:
    counts = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    return {name: lines for name, lines in counts.items() if lines > MAX_MODULE}


def measured() -> dict[str, int]:
    return {
        "longest_import_chain": len(longest_chain()),
        "modules_with_one_importer": len(single_importers()),
        "functions_over_40_lines": len(long_functions()),
        "modules_over_600_lines": len(long_modules()),
    }


def ceilings() -> dict[str, int]:
    permitted: dict[str, int] = json.loads(CEILINGS.read_text("utf-8"))
    return permitted


@cache
def problems() -> list[str]:
    """Return a sentence for each broken rule."""
    if members := cycle():
        return [f"modules import each other: {' -> '.join(members)}"]
    found = [
        f"class {name} is defined more than once: {', '.join(at)}" for name, at in repeated_classes().items()
    ]
    found += [
        f"{folder} has {n} modules, at most {MAX_FILES} are permitted"
        for folder, n in crowded_folders().items()
    ]
    permitted = ceilings()
    found += [
        f"{name.replace('_', ' ')}: {value}, permitted {permitted[name]} (python tools/structure.py --show)"
        for name, value in measured().items()
        if value > permitted[name]
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", action="store_true", help="print what the limits count")
    parser.add_argument(
        "--lower", action="store_true", help="lower the permitted numbers to the current ones"
    )
    options = parser.parse_args()
    if options.show:
        print("\n  -> ".join(longest_chain()))
        print("\n".join(f"{name} <- {by}" for name, by in single_importers().items()))
        print(
            "\n".join(f"{name}: {lines} lines" for name, lines in (long_functions() | long_modules()).items())
        )
        return 0
    if options.lower:
        permitted = ceilings() if CEILINGS.exists() else measured()
        lowered = {name: min(value, permitted.get(name, value)) for name, value in measured().items()}
        CEILINGS.write_text(json.dumps(lowered, indent=2) + "\n", "utf-8")
    print("\n".join(problems()), end="\n" if problems() else "")
    return int(bool(problems()))


if __name__ == "__main__":
    sys.exit(main())
