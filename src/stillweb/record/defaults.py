"""Options of a crawl that later recordings of its collection use by default: explore, amend and others.

They are stored beside the collections, in `.recorded/NAME.json`, and not in the collection: paths of this
machine do not belong into an archive, and a foreign archive must not choose addresses for a recording. Only
options that differ from their defaults are stored. A steps file of a login is stored by its path, so that its
secrets stay in the environment; storage states, which are secrets, are not stored.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stillweb.collections.layout import Collection
from stillweb.collections.versions import FOLDER as VERSIONS
from stillweb.files import write_atomically
from stillweb.record.login.steps import Login, read_login
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import parse_all

_FOLDER = ".recorded"


class CrawlDefaults(BaseModel):
    """Options of a crawl; None or empty if they had their defaults."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    recorded_at: str = ""
    resolve: tuple[str, ...] = ()
    allow_private: bool = False
    upstream_ca: Path | None = None
    redact: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()
    login_steps: Path | None = None
    scope: ScopeKind | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    page_timeout: float | None = None
    retries: int | None = None

    def record_options(self, given: RecordOptions) -> RecordOptions:
        """Return given options with these defaults; among equally specific addresses a given one wins."""
        secrets = given.secrets
        redact = tuple(dict.fromkeys((*self.redact, *secrets.redact)))
        exempt = tuple(dict.fromkeys((*self.exempt, *secrets.exempt)))
        return replace(
            given,
            resolve=(*parse_all(self.resolve), *given.resolve),
            allow_private=given.allow_private or self.allow_private,
            upstream_ca=given.upstream_ca or self.upstream_ca,
            secrets=secrets if secrets.keep else replace(secrets, redact=redact, exempt=exempt),
        )

    def login(self) -> Login | None:
        """Return the login by steps, read again from their file; None without steps or without the file.

        Raises:
            UsageError: if the file is malformed or one of its environment variables is not set.
        """
        return read_login(self.login_steps) if self.login_steps and self.login_steps.is_file() else None

    def __str__(self) -> str:
        """Return the options as on the command line."""
        parts = [f"--resolve '{rule}'" for rule in self.resolve]
        parts += ["--allow-private"] if self.allow_private else []
        parts += [f"--upstream-ca {self.upstream_ca}"] if self.upstream_ca else []
        parts += [f"--login {self.login_steps}"] if self.login_steps else []
        parts += [f"--redact {name}" for name in self.redact]
        parts += [f"--no-redact {name}" for name in self.exempt]
        parts += [f"--scope {self.scope.value}"] if self.scope else []
        parts += [f"--include '{pattern}'" for pattern in self.include]
        parts += [f"--exclude '{pattern}'" for pattern in self.exclude]
        parts += [f"--page-timeout {self.page_timeout:g}"] if self.page_timeout else []
        parts += [f"--retries {self.retries}"] if self.retries is not None else []
        return " ".join(parts)


def write_defaults(collection: Collection, options: CrawlOptions) -> None:
    """Store the options of a crawl, in addition to those of an earlier crawl of the collection."""
    if collection.root.name == VERSIONS:
        return  # a second recording of the same pages
    usual, record, login = CrawlOptions(), options.record, options.login
    found = CrawlDefaults(
        recorded_at=collection.manifest().recorded_at,
        resolve=tuple(map(str, record.resolve)),
        allow_private=record.allow_private,
        upstream_ca=record.upstream_ca and record.upstream_ca.resolve(),
        redact=record.secrets.redact,
        exempt=record.secrets.exempt,
        login_steps=Path(login.source).resolve() if login and login.kind == "steps" else None,
        scope=options.scope if options.scope != usual.scope else None,
        include=options.include,
        exclude=options.exclude,
        page_timeout=options.page_timeout if options.page_timeout != usual.page_timeout else None,
        retries=options.retries if options.retries != usual.retries else None,
    )
    changed = {name: value for name, value in found if value not in (None, ()) and value is not False}
    merged = read_defaults(collection).model_copy(update=changed)
    path = _path(collection)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, merged.model_dump_json(indent=1, exclude_defaults=True).encode("utf-8"))


def read_defaults(collection: Collection) -> CrawlDefaults:
    """Return the stored options; none without a valid file, or if it is of another recording of that name."""
    try:
        found = CrawlDefaults.model_validate_json(_path(collection).read_bytes())
    except (OSError, ValidationError):
        return CrawlDefaults()
    return found if found.recorded_at == collection.manifest().recorded_at else CrawlDefaults()


def remove_defaults(collection: Collection) -> None:
    """Remove the stored options of a collection, and their folder if it is empty then."""
    path = _path(collection)
    path.unlink(missing_ok=True)
    with suppress(OSError):  # the folder is missing, or has options of other collections
        path.parent.rmdir()


def _path(collection: Collection) -> Path:
    return collection.root / _FOLDER / f"{collection.name}.json"
