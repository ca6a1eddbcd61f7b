"""Take secrets out of exchanges before they are written (docs/decisions/0019-redaction.md).

A secret that was learned once is exchanged for its placeholder wherever it occurs from then on: URLs, fields,
bodies, frames, and the texts that a recording writes besides. What looks too little like a secret to be
looked for (the password `demo`) is exchanged where it stands, in the fields of requests, and
nowhere else. A secret that is first seen in a request may stand in answers that came before: these are
*late*, and `secretssweep` goes over what was written already.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from stillweb.browser.observe.snapshot import checksum
from stillweb.collections.layout import Collection
from stillweb.collections.redactions import Redaction, append_redactions
from stillweb.collections.warc.frames import (
    FRAMES_TYPE,
    TEXT,
    Chunks,
    RecordFrames,
    read_chunks,
    read_frames,
    write_chunks,
    write_frames,
)
from stillweb.http.codec import encode
from stillweb.http.messages import request_block, response_block
from stillweb.matching.parts import Where
from stillweb.matching.redaction import Placeholders, key_file, replace_fields, replace_in_json
from stillweb.model import Exchange, Headers, Request, Response, header
from stillweb.record.options import SecretsOptions
from stillweb.record.redaction import find
from stillweb.record.redaction.bodies import decode, unpacked_chunks, with_length, without_coding
from stillweb.record.redaction.find import JWT, Names, strong, strong_password
from stillweb.record.redaction.search import Hit, Search
from stillweb.urls import host_of

__all__ = ["Digests", "Secrets", "secrets_of"]

_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_DIGEST = re.compile(rb'(?<="body": ")[0-9a-f]{64}(?=")')
_CODE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1\b", re.IGNORECASE | re.DOTALL)
_CHECKSUM = re.compile(rb"(?<=\t#code )\d+ [0-9a-f]+$", re.MULTILINE)
_DECLARED = 1024  # bytes of a document in which its charset must be named


class Digests:
    """What became of the digests of bodies that were changed: once, and again when secrets came late."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}

    def note(self, response: Response, before: bytes, after: bytes) -> None:
        """Note what a body without its content coding was, and what is written."""
        for charset in ("", *_charsets(response, before)):
            with suppress(LookupError):  # no charset that is known
                was, made = _digest(before, charset), _digest(after, charset)
                if was != made:
                    self._after[was] = made
                if charset and "html" in response.mime:
                    self._after.update(_checksums(_text(before, charset), _text(after, charset)))

    def of(self, digest: str) -> str:
        """Return the digest of what is written of a body."""
        known = set()
        while digest in self._after and digest not in known:
            known.add(digest)
            digest = self._after[digest]
        return digest

    def exchange(self, resources: bytes) -> bytes:
        """Return a baseline's list of requests with the digests of what is written."""
        return _DIGEST.sub(self._exchanged, resources)

    def exchange_code(self, outline: bytes) -> bytes:
        """Return a baseline's tree of elements with the checksums of what is written."""
        return _CHECKSUM.sub(self._exchanged, outline)

    def _exchanged(self, found: re.Match[bytes]) -> bytes:
        return self.of(found[0].decode()).encode()


def _charsets(response: Response, body: bytes) -> tuple[str, ...]:
    """Return by which charsets a browser may have read a body: as it is told, or by itself."""
    places = (header(response.headers, "content-type"), body[:_DECLARED].decode("latin-1"))
    told = [found[1] for place in places if (found := _CHARSET.search(place))]
    return (*told, "utf-8-sig", "windows-1252")


def _digest(body: bytes, charset: str) -> str:
    """Return the digest of a body, or of its text in UTF-8, as browsers hand texts out."""
    if charset:
        body = _text(body, charset).encode("utf-8", "replace")
    return hashlib.sha256(body).hexdigest()


def _text(body: bytes, charset: str) -> str:
    return codecs.decode(body, charset, "replace").removeprefix("\ufeff")


def _checksums(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield both checksums of each script and style that was changed; secrets change no tags."""
    for was, made in zip(_CODE.findall(before), _CODE.findall(after), strict=False):
        if was != made:
            yield checksum(was[1]), checksum(made[1])


_IN_FORMS = frozenset({Where.FORM, Where.MULTIPART})


@dataclass(frozen=True, slots=True)
class _SecretSource:
    """Where a secret was learned."""

    kind: str
    where: str
    name: str
    host: str


def secrets_of(collection: Collection, options: SecretsOptions) -> Secrets | None:
    """Return what takes the secrets out of a recording; None if they are to be kept.

    Raises:
        CollectionError: if the key of the placeholders cannot be read.
    """
    if options.keep:
        kept = Redaction("", "kept", "", "--keep-secrets", "")
        append_redactions(collection.redactions_file, [kept.line("")])
        return None
    names = Names(
        frozenset(name.lower() for name in options.redact), frozenset(name.lower() for name in options.spare)
    )
    made = Secrets(Placeholders.open(key_file(collection.root, collection.name)), names)
    for value in options.given:
        if strong(value) or strong_password(value):  # others are secret in their fields alone
            made.learn(find.Found("given", "given", "", value), "")
    return made


class Secrets:
    """What is secret in one recording, as far as it is known.

    Attributes:
        late: secrets that may stand in what was written before they were known, to look for.
        digests: of the bodies that were changed.
    """

    def __init__(self, placeholders: Placeholders, names: Names) -> None:
        self._placeholders = placeholders
        self._names = names
        self._search = Search()
        self._origins: list[_SecretSource] = []
        self._late_origins: list[_SecretSource] = []
        self._password_fields: set[tuple[str, str]] = set()
        self.late = Search()
        self.digests = Digests()

    def learn(self, found: find.Found, host: str, *, late: bool = False) -> None:
        """Look for a secret from now on."""
        secret = found.value
        if secret in self._search or self._placeholders.drew(secret) or secret.lower() == host:
            return
        placeholder = self._placeholders.of(secret)
        self._search.add(secret, placeholder)
        self._origins.append(_SecretSource(found.kind, found.where, found.name, host))
        if late:
            self.late.add(secret, placeholder)
            self._late_origins.append(self._origins[-1])

    def text(self, text: str) -> str:
        """Return a text with placeholders where secrets stood."""
        content, hits = self._search.sub(text.encode("utf-8", "surrogatepass"))
        return content.decode("utf-8", "surrogatepass") if hits else text

    def content(self, content: bytes) -> bytes:
        """Return bytes with placeholders where secrets stood."""
        return self._search.sub(content)[0]

    def redact(
        self, exchange: Exchange, beside: RecordFrames | None = None
    ) -> tuple[Exchange, RecordFrames | None, tuple[Redaction, ...]]:
        """Return an exchange and what stands beside it without secrets, and what was taken out."""
        host = host_of(exchange.request.url)
        taken: list[Redaction] = []
        request = self._fields(exchange.request, host, taken)
        for found in find.in_request_fields(request, self._names):
            self.learn(found, host, late=True)
        plain = self._read(exchange.response, host, taken)
        if beside is not None and beside.content_type == FRAMES_TYPE:
            beside = self._frames(beside, host, taken)
        request = self._request(request, taken)
        response, beside = self._response(exchange.response, plain, beside, taken)
        if beside is not None:
            beside = self._beside(beside, taken)
        return replace(exchange, request=request, response=response), beside, tuple(taken)

    def _fields(self, request: Request, host: str, taken: list[Redaction]) -> Request:
        """Exchange what is secret by its place in a request, and learn what else is told there."""

        def exchange(where: Where, name: str, value: str) -> str:
            return self._field(where, name, value, host, taken)

        coding = header(request.headers, "content-encoding")
        body = decode(request.raw_body, coding) if request.raw_body else b""
        if body is None:
            taken.append(Redaction("request body", "unread", "coding", coding, host))
            made = replace_fields(replace(request, raw_body=b""), exchange)
            return replace(made, raw_body=request.raw_body)
        made = replace_fields(replace(request, raw_body=body), exchange)
        if made.raw_body == body:
            return replace(made, raw_body=request.raw_body)
        return _with_body(made, encode(made.raw_body, coding))

    def _field(self, where: Where, name: str, value: str, host: str, taken: list[Redaction]) -> str:
        if self._placeholders.drew(value) or name.lower() in self._names.spare:
            return value
        kind = self._names.kind(name)
        if where is Where.HEADER:
            return self._credential(name, value, host, taken)
        if kind == "password" or (where in _IN_FORMS and (host, name) in self._password_fields):
            if strong_password(value):
                self.learn(find.Found("password", where.value, name, value), host, late=True)
            part = "request head" if where is Where.QUERY else "request body"
            return self._exchanged(Redaction(part, "password", where.value, name, host), value, taken)
        if kind == "token" and strong(value):
            jwt = JWT.fullmatch(value)
            found = find.Found("jwt" if jwt else "token", where.value, name, jwt[1] if jwt else value)
            self.learn(found, host, late=True)
        return value

    def _credential(self, name: str, value: str, host: str, taken: list[Redaction]) -> str:
        if jwt := JWT.fullmatch(value):
            self.learn(find.Found("jwt", "header", name, jwt[1]), host, late=True)
            return value
        if strong(value) or strong_password(value):
            self.learn(find.Found("authorization", "header", name, value), host, late=True)
        return self._exchanged(Redaction("request head", "authorization", "header", name, host), value, taken)

    def _exchanged(self, redaction: Redaction, value: str, taken: list[Redaction]) -> str:
        placeholder = self._placeholders.of(value)
        taken.append(replace(redaction, placeholder=placeholder))
        return placeholder

    def _read(self, response: Response, host: str, taken: list[Redaction]) -> bytes | None:
        """Learn the secrets of an answer; return its body without its coding, None if that cannot be had."""
        coding = header(response.headers, "content-encoding")
        plain = decode(response.raw_body, coding) if response.raw_body else b""
        if plain is None:
            taken.append(Redaction("response body", "unread", "coding", coding, host))
        text = (plain or b"").decode("utf-8", "replace") if find.is_read(response) else ""
        for found in find.in_answer(response, text, self._names):
            self.learn(found, host)
        if "html" in response.mime:
            self._password_fields.update((host, name) for name in find.password_fields(text))
        return plain

    def _frames(self, beside: RecordFrames, host: str, taken: list[Redaction]) -> RecordFrames:
        def exchange(where: Where, name: str, value: str) -> str:
            put = self._field(where, name, value, host, taken)
            if put != value:
                taken[-1] = replace(taken[-1], part="beside")
            return put

        frames = read_frames(beside.block)
        made = []
        for frame in frames.frames:
            payload = frame.payload
            if frame.opcode == TEXT:
                for found in find.in_text(payload.decode("utf-8"), self._names):
                    self.learn(found, host, late=frame.sent)
                payload = replace_in_json(payload, exchange) if frame.sent else payload
            else:
                payload = self.content(payload)  # text frames are exchanged in the block, with their spans
            made.append(replace(frame, payload=payload))
        return replace(beside, block=write_frames(replace(frames, frames=tuple(made))))

    def _request(self, request: Request, taken: list[Redaction]) -> Request:
        made = request
        coding = header(request.headers, "content-encoding")
        plain = decode(request.raw_body, coding) if request.raw_body else None
        body, found = self._search.sub(plain or b"")
        if found:
            made = _with_body(made, encode(body, coding))
        taken += self.redactions("request body", found)
        url, hits = self._search.sub(request.url.encode("utf-8", "surrogatepass"))
        made = replace(made, url=url.decode("utf-8", "surrogatepass"))
        line = request_block(replace(made, headers=(), raw_body=b""))
        in_url = len(made.method) + 1 - url.find(line.split(b" ")[1], url.find(b"://") + 3)
        headers, more = self._headers(made.headers, len(line) - 2)
        taken += self.redactions("request head", [*(_moved(hit, in_url) for hit in hits), *more])
        return replace(made, headers=headers)

    def _response(
        self, response: Response, plain: bytes | None, beside: RecordFrames | None, taken: list[Redaction]
    ) -> tuple[Response, RecordFrames | None]:
        made = response
        body, found = self._search.sub(plain or b"")
        if found:
            self.digests.note(response, plain or b"", body)
            coding = header(response.headers, "content-encoding")
            timed = read_chunks(beside.block) if beside is not None and beside.type == "metadata" else None
            if beside is not None and timed is not None:
                timed = _fitting(unpacked_chunks(response.raw_body, coding, timed), len(body))
                beside = replace(beside, block=write_chunks(timed))
                made, coding = replace(made, headers=without_coding(made.headers)), ""
            raw = encode(body, coding)
            made = replace(made, headers=with_length(made.headers, len(raw)), raw_body=raw)
        taken += self.redactions("response body", found)
        line = response_block(replace(made, headers=(), raw_body=b""))
        headers, hits = self._headers(made.headers, len(line) - 2)
        taken += self.redactions("response head", hits)
        return replace(made, headers=headers), beside

    def _beside(self, beside: RecordFrames, taken: list[Redaction]) -> RecordFrames:
        block, hits = self._search.sub(beside.block)
        taken += self.redactions("beside", hits)
        return replace(beside, uri=self.text(beside.uri), block=block)

    def _headers(self, headers: Headers, at: int) -> tuple[Headers, list[Hit]]:
        """Return header fields without secrets; `at` is where they start in the head."""
        made, hits = [], []
        for name, value in headers:
            content, found = self._search.sub(value.encode("latin-1", "replace"))
            made.append((name, content.decode("latin-1") if found else value))
            hits += [_moved(hit, at + len(name) + 2) for hit in found]
            if name.lower() != "transfer-encoding":  # which is not written
                at += len(name) + len(content) + 4
        return tuple(made), hits

    def redactions(self, part: str, hits: Iterable[Hit], *, late: bool = False) -> list[Redaction]:
        """Return hits in one part of an exchange as they are listed; `late` if they are of `self.late`."""
        origins = self._late_origins if late else self._origins
        spans: dict[_SecretSource, list[tuple[int, int]]] = {}
        for hit in hits:
            spans.setdefault(origins[hit.secret], []).append((hit.at, hit.length))
        return [
            Redaction(part, origin.kind, origin.where, origin.name, origin.host, tuple(found))
            for origin, found in spans.items()
        ]


def _moved(hit: Hit, by: int) -> Hit:
    return replace(hit, at=hit.at + by)


def _with_body(request: Request, raw: bytes) -> Request:
    return replace(request, headers=with_length(request.headers, len(raw)), raw_body=raw)


def _fitting(chunks: Chunks, size: int) -> Chunks:
    """Return pieces that add up to a body's size: a secret that changed its length moves the last one."""
    over = size - sum(chunk.size for chunk in chunks.chunks)
    if not over or not chunks.chunks:
        return chunks
    *others, last = chunks.chunks
    return replace(chunks, chunks=(*others, replace(last, size=max(0, last.size + over))))
