"""Hooks of the documentation site (mkdocs.yml): pages made from the code, and links that leave `docs/`.

- a page for each public package, from its docstrings (mkdocstrings reads the sources without importing them)
- a page for each file of `examples/` that a document links to
- links to other files of the repository become their names: the site does not contain them
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import api

REPO = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+(?:src|examples|bench|tests|tools|[A-Z]+\.md)[^)\s]*)\)")
_FOLDERS = {"How-to guides": "how-to"}
_LEXERS = {".py": "python", ".yaml": "yaml"}


def on_config(config: Any) -> Any:
    """Complete the navigation: the packages below "Python API", and new pages at the end of their kind."""
    listed = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    for section in config.nav:
        for index, entry in enumerate(section.get("Reference") or []):
            if isinstance(entry, dict) and entry.get("Python API") == "reference/api.md":
                pages = [{package: _api_page(package)} for package in api.public_packages()]
                section["Reference"][index] = {"Python API": [{"All names": "reference/api.md"}, *pages]}
        for kind, entries in section.items():
            if isinstance(entries, list):
                entries += [uri for uri in pages_of_kind(kind) if uri not in listed]
    return config


def pages_of_kind(section: str) -> list[str]:
    """Return the pages of the folder that a section of the navigation shows."""
    folder = REPO / "docs" / _FOLDERS.get(section, section.lower())
    return [f"{folder.name}/{path.name}" for path in sorted(folder.glob("*.md"))]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for package, names in api.public_packages().items():
        files.append(_page(config, _api_page(package), _package(package, names)))
    for path in sorted((REPO / "examples").rglob("*")):
        if path.suffix in _LEXERS and path.is_file():
            files.append(_page(config, _example_page(path), _example(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave `docs/` to the generated pages, or keep their text alone."""
    at = PurePosixPath(page.file.src_uri)
    package = ""

    def replaced(found: re.Match[str]) -> str:
        text, link = found[1], found[2]
        target = (REPO / "docs" / at.parent / link).resolve()
        if at.name == "api.md" and package:
            return f"[{text}]({_up(at)}{_api_page(package)}#{_identifier(package, text.strip('`'))})"
        if target.is_relative_to(REPO / "examples") and target.is_file():
            return f"[{text}]({_up(at)}{_example_page(target)})"
        return text

    lines = []
    for line in markdown.split("\n"):
        if line.startswith("## stillweb"):
            package = line.removeprefix("## ")
        lines.append(_LINK.sub(replaced, line))
    return "\n".join(lines)


def _page(config: Any, uri: str, content: str) -> File:
    return File.generated(config, uri, content=content)


def _up(at: PurePosixPath) -> str:
    return "../" * (len(at.parts) - 1)


def _api_page(package: str) -> str:
    return f"reference/api/{package}.md"


def _identifier(package: str, name: str) -> str:
    return f"{api.definition(package, name)[0]}.{name}"


def _package(package: str, names: list[str]) -> str:
    parts = [f"# {package}\n"]
    for name in names:
        module, node, docstring = api.definition(package, name)
        if type(node).__name__ in ("ClassDef", "FunctionDef", "AsyncFunctionDef"):
            parts.append(f"::: {module}.{name}\n")
        else:
            parts.append(f"## `{name}` {{#{module}.{name}}}\n\n{docstring}\n")
    return "\n".join(parts)


def _example_page(path: Path) -> str:
    name = path.relative_to(REPO / "examples").as_posix().replace("/", "-").replace(".", "-")
    return f"examples/{name}.md"


def _example(path: Path) -> str:
    name = path.relative_to(REPO).as_posix()
    return f"# {name}\n\n```{_LEXERS[path.suffix]}\n{path.read_text('utf-8').rstrip()}\n```\n"
