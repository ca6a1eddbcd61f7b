"""`stillweb collections`: import, list, show, check, learn, seal, push, pull, export, keep and rm."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click

from stillweb.cli import CommandGroup
from stillweb.cli.collections.redactions import print_redactions
from stillweb.cli.collections.rules import print_volatile
from stillweb.cli.console import echo, echo_first, print_json, print_table
from stillweb.cli.options import FILE, collections_option, json_option
from stillweb.cli.progress import file_bar
from stillweb.collections.amends import read_amends
from stillweb.collections.check import check as check_collection
from stillweb.collections.check import repair as repair_collection
from stillweb.collections.defects import Defect, Severity
from stillweb.collections.export import export as export_collection
from stillweb.collections.importers.importer import FileReport, import_files
from stillweb.collections.layout import Collection, list_collections, locked
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal as seal_collection
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.versions import keep_version, versions
from stillweb.errors import CollectionError, UsageError
from stillweb.http.codec import decode
from stillweb.model import Capture, header
from stillweb.text import printable
from stillweb.urls import wire_url

_SHOWN = 20
_FILES_SHOWN = 200


@click.group(
    cls=CommandGroup,
    lazy={
        "learn": "stillweb.cli.collections.learn",
        "pull": "stillweb.cli.collections.push",
        "push": "stillweb.cli.collections.push",
        "graph": "stillweb.cli.collections.graph",
        "reachability": "stillweb.cli.collections.reachability",
    },
)
def collections() -> None:
    """Import, check, learn, seal, share and export collections.

    \b
    Example:
      stillweb collections import site.wacz -c site
      stillweb collections check site
    """


@collections.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-c", "--collection", "name", required=True, help="Name of the collection.")
@click.option("--append", is_flag=True, help="Add to an existing collection.")
@json_option
@collections_option
def import_(files: tuple[Path, ...], name: str, append: bool, as_json: bool, root: Path) -> None:
    """Import WARC, ARC, WACZ and HAR files, or folders of them, into a collection.

    \b
    Example:
      stillweb collections import crawl.wacz extra.warc.gz -c site
    """
    with file_bar() as advance:
        report = import_files(files, root, name, append=append, on_progress=advance)
    if as_json:
        print_json(asdict(report))
        return
    imported = [file for file in report.files if file.kind != "skipped"]
    print_table(
        ["file", "kind", "#captures", "#records", "defects"],
        [_file_row(file) for file in imported[:_FILES_SHOWN]],
        title=f"{name}: {report.captures} captures, {report.pages} pages",
    )
    if len(imported) > _FILES_SHOWN:
        left = len(imported) - _FILES_SHOWN
        echo(f"and {left} more files: --json lists all of them", err=True)
    if skipped := len(report.files) - len(imported):
        echo(f"{skipped} files of other kinds skipped", err=True)
    _print_defects(list(report.defects))


def _file_row(file: FileReport) -> list[object]:
    kind = f"{file.kind}, rewritten" if file.rewritten else file.kind
    return [Path(file.path).name, kind, file.captures, file.records, _summary(file.defects)]


def _summary(defects: tuple[Defect, ...] | list[Defect]) -> str:
    return ", ".join(f"{count} {code}" for code, count in Counter(each.code for each in defects).items())


def _print_defects(defects: list[Defect]) -> None:
    order = list(Severity)
    worst_first = sorted(defects, key=lambda each: order.index(each.severity))
    echo_first(worst_first, _SHOWN)


@collections.command("list")
@click.option("--urls", is_flag=True, help="List the recorded URLs of all collections instead.")
@click.option(
    "--match", default="", metavar="PATTERN", help="With --urls, only URLs like this: * and ? match any text."
)
@json_option
@collections_option
def list_(urls: bool, match: str, as_json: bool, root: Path) -> None:
    """List the collections, or the URLs that they hold.

    \b
    Example:
      stillweb collections list --json
      stillweb collections list --urls --match 'https://shop.example/*'
    """
    if match and not urls:
        raise UsageError("--match requires --urls", hint="add --urls")
    if urls:
        _print_urls(list_collections(root), match, as_json=as_json)
        return
    rows = [_overview(collection) for collection in list_collections(root)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        echo(
            f"the folder {root} holds no collection; next: stillweb collections import FILE... -c NAME",
            err=True,
        )
        return
    columns = ["name", "#captures", "#pages", "#bytes", "recorded_at", "state", "sealed"]
    print_table(columns, [[row[column.lstrip("#")] for column in columns] for row in rows])


def _overview(collection: Collection) -> dict[str, Any]:
    manifest = collection.manifest()
    files = collection.warc_files()
    captures = sum(1 for _ in collection.captures())
    if collection.is_only_pack:
        files = list(collection.pack.iterdir())
        with Pack.open(collection.pack) as pack:
            captures = len(pack)
    return {
        "name": collection.name,
        "captures": captures,
        "pages": len(collection.page_list()),
        "bytes": sum(path.stat().st_size for path in files),
        "recorded_at": manifest.recorded_at,
        "state": manifest.state,
        "sealed": collection.pack.is_dir(),
    }


@collections.command("show")
@click.argument("name")
@click.argument("url", required=False)
@click.option("--body", is_flag=True, help="Write the decoded body of the last capture of URL to stdout.")
@click.option("--captures", "show_captures", is_flag=True, help="List every capture.")
@click.option("--volatile", is_flag=True, help="List the rules for volatile parts of its requests.")
@json_option
@collections_option
def show(name: str, url: str | None, as_json: bool, root: Path, *, body: bool, **listed: bool) -> None:
    """Show the contents of a collection, or the captures of a URL with their header fields.

    \b
    Example:
      stillweb collections show site https://site.example/
      stillweb collections show site https://site.example/app.js --body
      stillweb collections show site --captures --json
      stillweb collections show site --volatile
    """
    collection = Collection.open(root, name)
    if body and not url:
        raise UsageError("--body requires a URL", hint=f"stillweb collections show {name} URL --body")
    if url:
        _print_url(collection, url, body=body, as_json=as_json)
        return
    if listed["volatile"]:
        print_volatile(collection, as_json=as_json)
        return
    if listed["show_captures"]:
        _show_captures(collection, as_json)
        return
    shown = _contents(collection)
    if as_json:
        print_json(shown)
    else:
        _print_contents(collection, shown)


def _contents(collection: Collection) -> dict[str, Any]:
    amends, absent = read_amends(collection.path)
    statuses = Counter(str(each.status or "-") for each in collection.captures())
    methods = Counter(each.method for each in collection.captures())
    return {
        **_overview(collection),
        "methods": dict(sorted(methods.items())),
        "statuses": dict(sorted(statuses.items())),
        "files": [path.name for path in collection.warc_files()],
        "versions": [*versions(collection), *([amends[-1].version] if amends else [])],
        "amends": [asdict(each) for each in amends],
        "absent": [asdict(each) for each in absent],
        "page_list": [{"url": page.url, "title": page.title} for page in collection.page_list()],
        "manifest": collection.manifest().to_dict(),
    }


def _print_contents(collection: Collection, shown: dict[str, Any]) -> None:
    manifest = shown.pop("manifest")
    pages, added, absent = (shown.pop(name) for name in ("page_list", "amends", "absent"))
    rows = [*shown.items(), *((f"profile.{key}", value) for key, value in manifest["profile"].items())]
    print_table(["fact", "value"], rows, title=str(collection.path))
    print_table(["page", "title"], [[page["url"], page["title"]] for page in pages])
    print_redactions(manifest["redactions"])
    if added:
        columns = ["version", "kept", "at", "#recorded", "#absent", "#captures", "pages"]
        amended = [[each[column.lstrip("#")] for column in columns] for each in added]
        print_table(columns, amended, title="added by record amend")
    if absent:
        absences = [[each["method"], each["url"], each["reason"]] for each in absent]
        print_table(["method", "url", "reason"], absences, title="requested without success")


def _show_captures(collection: Collection, as_json: bool) -> None:
    captures = list(collection.captures())
    if as_json:
        print_json([asdict(each) for each in captures])
        return
    rows = ([each.timestamp, each.method, each.status or "-", each.mime, each.url] for each in captures)
    print_table(["timestamp", "method", "#status", "mime", "url"], rows)


def _print_urls(collections: Iterable[Collection], pattern: str, *, as_json: bool) -> None:
    """Print each recorded URL once for each collection and method, with its number of captures."""
    rows = []
    for collection in collections:
        found: dict[tuple[str, str], list[Capture]] = {}
        for capture in collection.captures():
            if not pattern or fnmatchcase(capture.url, pattern):
                found.setdefault((capture.url, capture.method), []).append(capture)
        rows += [_url_row(collection.name, captures) for captures in found.values()]
    if as_json:
        print_json(rows)
    else:
        columns = ["collection", "method", "#status", "mime", "#captures", "url"]
        print_table(columns, [[row[column.lstrip("#")] for column in columns] for row in rows])


def _url_row(collection: str, captures: list[Capture]) -> dict[str, Any]:
    last = max(captures, key=lambda each: each.timestamp)
    facts = {"method": last.method, "status": last.status, "mime": last.mime, "last": last.timestamp}
    return {"collection": collection, **facts, "captures": len(captures), "url": last.url}


def _print_url(collection: Collection, url: str, *, body: bool, as_json: bool) -> None:
    """Print the captures of a URL, or the body of the last one.

    Raises:
        UsageError: if the URL was not recorded.
    """
    wanted = wire_url(url)
    captures = sorted(
        (each for each in collection.captures() if wire_url(each.url) == wanted),
        key=Capture.in_time,
    )
    if not captures:
        pattern = f"{url.partition('?')[0]}*"
        hint = f"stillweb collections list --urls --match '{pattern}'"
        raise UsageError(f"{collection.name} does not hold {url}", hint=hint)
    if body:
        response = collection.read_capture(captures[-1]).response
        coding = header(response.headers, "content-encoding")
        decoded = decode(response.raw_body, coding) if coding else response.raw_body
        content = response.raw_body if decoded is None else decoded
        if sys.stdout.isatty():  # the page of an archive does not control the terminal
            content = printable(content.decode("utf-8", "replace")).encode()
        sys.stdout.buffer.write(content)
        return
    shown = [_described(collection, each) for each in captures]
    if as_json:
        print_json(shown)
        return
    for each in shown:
        _print_capture(each)


def _described(collection: Collection, capture: Capture) -> dict[str, Any]:
    exchange = collection.read_capture(capture)
    request, response = exchange.request, exchange.response
    return {
        **asdict(capture),
        "request": {"headers": [list(each) for each in request.headers], "body": len(request.raw_body)},
        "response": {
            "status": response.status,
            "reason": response.reason,
            "headers": [list(each) for each in response.headers],
            "body": len(response.raw_body),
        },
    }


def _print_capture(shown: dict[str, Any]) -> None:
    place = f"{shown['source']}:{shown['offset']}"
    echo(f"{shown['timestamp']}  {shown['method']} {shown['url']}  ({place})")
    for name, value in shown["request"]["headers"]:
        echo(f"  > {name}: {value}")
    response = shown["response"]
    echo(f"  < {response['status']} {response['reason']}, {response['body']} bytes")
    for name, value in response["headers"]:
        echo(f"  < {name}: {value}")


@collections.command("check")
@click.argument("name")
@click.option(
    "--repair", "do_repair", is_flag=True, help="Repair what is possible; damaged files move to damaged/."
)
@json_option
@collections_option
def check(name: str, do_repair: bool, as_json: bool, root: Path) -> None:
    """Report every defect of a collection by file and offset; exit status 1 if one is an error.

    \b
    Example:
      stillweb collections check site --repair
    """
    collection = Collection.open(root, name)
    repaired = []
    if do_repair:
        with locked(collection):  # a file that is being written looks truncated
            repaired = repair_collection(collection)
    for line in repaired:
        echo(f"repaired {line}", err=True)
    with file_bar() as advance:
        defects = check_collection(collection, advance)
    if as_json:
        print_json([asdict(defect) for defect in defects])
    else:
        for defect in defects:
            echo(f"{defect}{f'  [{defect.repair}]' if defect.repair else ''}")
        if not defects:
            echo(f"{name}: no defects", err=True)
    errors = [each for each in defects if each.severity is Severity.ERROR]
    if errors:
        raise CollectionError(
            f"{name}: {_summary(errors)}", hint=next((each.repair for each in errors if each.repair), "")
        )


@collections.command("seal")
@click.argument("names", nargs=-1, required=True)
@json_option
@collections_option
def seal(names: tuple[str, ...], as_json: bool, root: Path) -> None:
    """Compile collections into the packs that replay serves, from all records of their archives.

    \b
    Example:
      stillweb collections seal site
    """
    rows = []
    for name in names:
        collection = Collection.open(root, name)
        total = collection.count_lines()
        with file_bar() as advance:
            counted = partial(_sealed, advance, name, total)
            info = seal_collection(collection, on_progress=counted, reuse=False)
        rows.append({"name": name, **asdict(info)})
        for warning in info.warnings[:_SHOWN]:
            echo(warning, err=True)
    if as_json:
        print_json(rows)
        return
    columns = ["name", "#entries", "#bodies", "#bytes", "environment_id"]
    print_table(columns, [[row[column.lstrip("#")] for column in columns] for row in rows])


def _sealed(advance: Callable[[str, int, int], None], name: str, total: int, count: int) -> None:
    advance(name, count, total)


@collections.command("export")
@click.argument("name")
@click.option("-o", "--output", type=FILE, help="File to write.  [default: NAME.wacz in the working folder]")
@collections_option
def export(name: str, output: Path | None, root: Path) -> None:
    """Write a collection as WACZ 1.1.1, or as HAR 1.2 (FILE.har); equal collections give equal bytes.

    \b
    Example:
      stillweb collections export site -o site.wacz
      stillweb collections export site -o site.har
    """
    echo(export_collection(Collection.open(root, name), output or Path(f"{name}.wacz")))


@collections.command("keep")
@click.argument("name")
@click.argument("version", required=False, default="")
@collections_option
def keep(name: str, version: str, root: Path) -> None:
    """Keep the current state of a collection as a version, to compare the next crawl with.

    VERSION defaults to the time of the recording. WARC files are linked, not copied.

    \b
    Example:
      stillweb collections keep shop before-launch
      stillweb diff shop@before-launch shop
    """
    stored = keep_version(Collection.open(root, name), version)
    echo(f"{name}@{stored.name}")


@collections.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--yes", is_flag=True, help="Remove the collections. Without this option the command only lists them."
)
@collections_option
def rm(names: tuple[str, ...], yes: bool, root: Path) -> None:
    """Delete collections with all their files.

    \b
    Example:
      stillweb collections rm old-site --yes
    """
    found = [Collection.open(root, name) for name in names]
    if not yes:
        paths = ", ".join(str(each.path) for each in found)
        raise UsageError(
            f"--yes is missing: this would delete {paths}",
            hint=f"stillweb collections rm {' '.join(names)} --yes",
        )
    for collection in found:
        with locked(collection):
            remove_collection(collection.path)
        echo(collection.path)
