"""Redaction of exchanges before they are written (docs/decisions/0019-redaction.md).

A learned secret is replaced by its placeholder wherever it occurs from then on: URLs, fields, bodies, frames,
and other texts of the recording. A value that looks like ordinary text (the password `demo`) is replaced only
in the request field that holds it. A secret first seen in a request may occur in earlier responses. Such
*late* secrets are removed from the written files by `stillweb.record.redaction.sweep`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stillweb.collections.redactions import Redaction, append_redactions
from stillweb.collections.warc.frames import (
    FRAMES_TYPE,
    TEXT,
    Chunk,
    Chunks,
    RecordFrames,
    read_chunks,
    read_frames,
    write_chunks,
    write_frames,
)
from stillweb.errors import LimitExceeded
from stillweb.http import codec
from stillweb.http.codec import encode
from stillweb.http.messages import request_block, response_block
from stillweb.matching.parts import Where
from stillweb.matching.placeholders import (
    Placeholders,
    escaped_spellings,
    key_file,
    may_be_escaped,
    spellings,
)
from stillweb.matching.protobuf import method_of
from stillweb.matching.redaction import replace_fields, replace_in_json
from stillweb.model import Exchange, Headers, Request, Response, header
from stillweb.record.redaction import find
from stillweb.record.redaction.find import JWT, SecretNames, strong, strong_password
from stillweb.text import checksum, codec_of
from stillweb.urls import host_of

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection
    from stillweb.collections.warc.writer import CollectionWriter
    from stillweb.record.options import SecretsOptions


_RECENT_LIMIT = 64  # spellings that are searched one by one
_GROWTH = 3  # an automaton of at most this many times as many spellings is merged into the next one
_MIN_SUBSTRING = 16  # characters; a shorter secret counts only as a whole word
_WORD = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True)
class SecretHit:
    """Offset and length of a placeholder in bytes, and the secret's number in the order of `add`."""

    at: int
    length: int
    secret: int


_Spelling = tuple[bytes, bytes, int]  # of a secret and of its placeholder, and the secret's number


class _Automata:
    """Texts to search for, in automata whose sizes grow geometrically (Bentley and Saxe 1980).

    A recording learns a new secret with nearly each page, and neither a search nor an addition may take time
    for all earlier ones.
    """

    def __init__(self) -> None:
        self._built: list[tuple[Any, list[_Spelling]]] = []  # the largest first
        self._recent: list[_Spelling] = []

    def add(self, forms: Mapping[bytes, bytes], number: int) -> None:
        self._recent += [(form, placeholder_form, number) for form, placeholder_form in forms.items()]

    def _merge(self) -> None:
        from ahocorasick_rs import BytesAhoCorasick, MatchKind

        merged, self._recent = self._recent, []
        while self._built and len(self._built[-1][1]) <= _GROWTH * len(merged):
            merged = self._built.pop()[1] + merged
        forms = [form for form, _, _ in merged]
        self._built.append((BytesAhoCorasick(forms, MatchKind.LeftmostLongest), merged))

    def find(self, text: bytes) -> Iterator[tuple[int, _Spelling]]:
        """Yield the places of all texts as whole words; they may overlap."""
        if len(self._recent) > _RECENT_LIMIT:
            self._merge()
        for automaton, indexed in self._built:
            for pattern, start, _ in automaton.find_matches_as_indexes(text):
                if _is_whole_word(text, start, indexed[pattern][0]):
                    yield start, indexed[pattern]
        for each in self._recent:
            start = text.find(each[0])
            while start >= 0:
                if _is_whole_word(text, start, each[0]):
                    yield start, each
                start = text.find(each[0], start + len(each[0]))


class SecretSearch:
    """The secrets to search for, in all spellings."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._usual, self._escaped = _Automata(), _Automata()
        self._unescaped: list[tuple[str, str, int]] = []  # secrets that are not in `_escaped` yet

    def __contains__(self, secret: str) -> bool:
        return secret in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, secret: str, placeholder: str) -> int:
        """Add a secret; return its number, also if it is known."""
        if (number := self._numbers.get(secret)) is not None:
            return number
        number = self._numbers[secret] = len(self._numbers)
        self._usual.add(spellings(secret, placeholder), number)
        self._unescaped.append((secret, placeholder, number))
        return number

    def sub(self, text: bytes) -> tuple[bytes, list[SecretHit]]:
        """Return a text with placeholders for secrets, and their positions in the result."""
        found = sorted(self._found(text), key=lambda each: (each[0], -len(each[1][0])))
        if not found:
            return text, []
        pieces: list[bytes] = []
        hits: list[SecretHit] = []
        done = size = 0
        for at, (form, placeholder_form, number) in found:
            if at < done:
                continue  # inside an earlier hit
            pieces += (text[done:at], placeholder_form)
            size += at - done
            hits.append(SecretHit(size, len(placeholder_form), number))
            size += len(placeholder_form)
            done = at + len(form)
        pieces.append(text[done:])
        return b"".join(pieces), hits

    def _found(self, text: bytes) -> Iterator[tuple[int, _Spelling]]:
        yield from self._usual.find(text)
        if self._numbers and may_be_escaped(text):
            for secret, placeholder, number in self._unescaped:
                self._escaped.add(escaped_spellings(secret, placeholder), number)
            self._unescaped = []
            yield from self._escaped.find(text)


def _is_whole_word(text: bytes, start: int, form: bytes) -> bool:
    if len(form) >= _MIN_SUBSTRING:
        return True
    end = start + len(form)
    return not (text[start - 1 : start] and text[start - 1] in _WORD and form[0] in _WORD) and not (
        text[end : end + 1] and text[end] in _WORD and form[-1] in _WORD
    )


logger = logging.getLogger(__name__)


def decode(raw: bytes, coding: str) -> bytes | None:
    """Return a body without its content codings, as far as it can be decoded; None if it cannot."""
    try:
        return codec.decode(raw, coding, min_partial=0)
    except LimitExceeded as error:
        logger.warning("a body is not searched for secrets: %s", error)
        return None


def with_length(headers: Headers, length: int) -> Headers:
    """Return header fields with a new Content-Length, if they have one."""
    return tuple((k, str(length)) if k.lower() == "content-length" else (k, v) for k, v in headers)


def without_coding(headers: Headers) -> Headers:
    return tuple((k, v) for k, v in headers if k.lower() != "content-encoding")


def unpacked_chunks(raw: bytes, coding: str, chunks: Chunks) -> Chunks:
    """Return the chunks of an event stream with their decoded sizes."""
    unpack = codec.incremental(coding)
    made, at = [], 0
    for chunk in chunks.chunks:
        made.append(Chunk(chunk.ms, len(unpack(raw[at : at + chunk.size]))))
        at += chunk.size
    return replace(chunks, chunks=tuple(made))


_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_DIGEST = re.compile(rb'(?<="body": ")[0-9a-f]{64}(?=")')
_CODE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1\b", re.IGNORECASE | re.DOTALL)
_CHECKSUM = re.compile(rb"(?<=\t#code )\d+ [0-9a-f]+$", re.MULTILINE)
_DECLARED = 1024  # bytes of a document that must contain its charset declaration


class Digests:
    """Digests of bodies before and after redaction, including repeated redaction for late secrets."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}

    def note(self, response: Response, before: bytes, after: bytes) -> None:
        """Note the digests of a decoded body before and after redaction."""
        for charset in ("", *_charsets(response, before)):
            with suppress(LookupError):  # unknown charset
                was, made = _digest(before, charset), _digest(after, charset)
                if was != made:
                    self._after[was] = made
                if charset and "html" in response.mime:
                    self._after.update(_checksums(_text(before, charset), _text(after, charset)))

    def of(self, digest: str) -> str:
        """Return the digest of the written form of a body."""
        known = set()
        while digest in self._after and digest not in known:
            known.add(digest)
            digest = self._after[digest]
        return digest

    def exchange(self, resources: bytes) -> bytes:
        """Return a baseline's request list with the digests of the written bodies."""
        return _DIGEST.sub(self._replaced, resources)

    def exchange_code(self, outline: bytes) -> bytes:
        """Return a baseline's element tree with the checksums of the written scripts and styles."""
        return _CHECKSUM.sub(self._replaced, outline)

    def _replaced(self, found: re.Match[bytes]) -> bytes:
        return self.of(found[0].decode()).encode()


def _charsets(response: Response, body: bytes) -> tuple[str, ...]:
    """Return the charsets by which a browser may have decoded a body: declared or guessed."""
    places = (header(response.headers, "content-type"), body[:_DECLARED].decode("latin-1"))
    declared = [found[1] for place in places if (found := _CHARSET.search(place))]
    return (*declared, "utf-8-sig", "windows-1252")


def _digest(body: bytes, charset: str) -> str:
    """Return the digest of a body, or of its text in UTF-8, which is what browsers return for text."""
    if charset:
        body = _text(body, charset).encode("utf-8", "replace")
    return hashlib.sha256(body).hexdigest()


def _text(body: bytes, charset: str) -> str:
    return body.decode(codec_of(charset), "replace").removeprefix("\ufeff")


def _checksums(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield both checksums of each changed script and style; redaction does not change tags."""
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


def write_redacted(
    writer: CollectionWriter, secrets: Secrets | None, exchange: Exchange, beside: RecordFrames | None = None
) -> Exchange:
    """Write an exchange without secrets, or as it is if secrets are kept; return what was written."""
    redactions: tuple[Redaction, ...] = ()
    if secrets is not None:
        exchange, beside, redactions = secrets.redact(exchange, beside)
    writer.write(exchange, beside, redactions)
    return exchange


def secrets_of(collection: Collection, options: SecretsOptions) -> Secrets | None:
    """Return the redactor of a recording; None if secrets are kept.

    Raises:
        CollectionError: if the placeholder key cannot be read.
    """
    if options.keep:
        entry = Redaction("", "kept", "", "--keep-secrets", "")
        append_redactions(collection.redactions_file, [entry.line("")])
        return None
    names = SecretNames(
        frozenset(name.lower() for name in options.redact), frozenset(name.lower() for name in options.exempt)
    )
    made = Secrets(Placeholders.open(key_file(collection.root, collection.name)), names)
    made.learn_given(options.given)
    return made


class Secrets:
    """The known secrets of one recording, and their replacement.

    Attributes:
        late: secrets that may occur in what was written before they were learned.
        digests: digests of changed bodies.
    """

    def __init__(self, placeholders: Placeholders, names: SecretNames) -> None:
        self._placeholders = placeholders
        self._names = names
        self._search = SecretSearch()
        self._sources: list[_SecretSource] = []
        self._late_sources: list[_SecretSource] = []
        self._password_fields: set[tuple[str, str]] = set()
        self.late = SecretSearch()
        self.digests = Digests()

    def learn(self, found: find.FoundSecret, host: str, *, late: bool = False) -> None:
        """Search for a secret from now on."""
        secret = found.value
        if secret in self._search or self._placeholders.drew(secret) or secret.lower() == host:
            return
        placeholder = self._placeholders.of(secret)
        self._search.add(secret, placeholder)
        self._sources.append(_SecretSource(found.kind, found.where, found.name, host))
        if late:
            self.late.add(secret, placeholder)
            self._late_sources.append(self._sources[-1])

    def hand_on(self, placeholders: Mapping[str, str]) -> None:
        """Let secrets have the placeholders of those that they have replaced."""
        for secret, placeholder in placeholders.items():
            self._placeholders.hand_on(placeholder, secret)

    def learn_given(self, values: Iterable[str]) -> None:
        """Search for values that the user or a login gave."""
        for value in values:
            if strong(value) or strong_password(value):  # other values are secret in their fields only
                self.learn(find.FoundSecret("given", "given", "", value), "")

    def text(self, text: str) -> str:
        """Return a text with placeholders for secrets."""
        content, hits = self._search.sub(text.encode("utf-8", "surrogatepass"))
        return content.decode("utf-8", "surrogatepass") if hits else text

    def content(self, content: bytes) -> bytes:
        """Return bytes with placeholders for secrets."""
        return self._search.sub(content)[0]

    def count(self, content: bytes) -> int:
        """Return the number of secrets in a content."""
        return len(self._search.sub(content)[1])

    def redact(
        self, exchange: Exchange, beside: RecordFrames | None = None
    ) -> tuple[Exchange, RecordFrames | None, tuple[Redaction, ...]]:
        """Return an exchange and its accompanying record without secrets, and the redactions."""
        host = host_of(exchange.request.url)
        redactions_made: list[Redaction] = []
        request = self._fields(exchange.request, host, redactions_made)
        for found in find.in_request_fields(request, self._names):
            self.learn(found, host, late=True)
        plain = self._learn_response(exchange.response, host, redactions_made)
        if beside is not None and beside.content_type == FRAMES_TYPE:
            beside = self._frames(beside, host, redactions_made)
        request = self._request(request, redactions_made)
        response, beside = self._response(exchange.response, plain, beside, redactions_made)
        if beside is not None:
            beside = self._beside(beside, redactions_made)
        return replace(exchange, request=request, response=response), beside, tuple(redactions_made)

    def _fields(self, request: Request, host: str, redactions_made: list[Redaction]) -> Request:
        """Replace secret request fields, and learn the other secrets of the request."""

        def exchange(where: Where, name: str, value: str) -> str:
            return self._field(where, name, value, host, redactions_made)

        coding = header(request.headers, "content-encoding")
        body = decode(request.raw_body, coding) if request.raw_body else b""
        if body is None:
            redactions_made.append(Redaction("request body", "unread", "coding", coding, host))
            made = replace_fields(replace(request, raw_body=b""), exchange)
            return replace(made, raw_body=request.raw_body)
        for found in find.in_body(request, body, self._names):
            self.learn(found, host, late=True)
        made = replace_fields(replace(request, raw_body=body), exchange)
        if made.raw_body == body:
            return replace(made, raw_body=request.raw_body)
        return _with_body(made, encode(made.raw_body, coding))

    def _field(self, where: Where, name: str, value: str, host: str, redactions_made: list[Redaction]) -> str:
        if self._placeholders.drew(value) or name.lower() in self._names.exempt:
            return value
        kind = self._names.kind(name)
        if where is Where.HEADER:
            return self._credential(name, value, host, redactions_made)
        if kind == "password" or (where in _IN_FORMS and (host, name) in self._password_fields):
            if strong_password(value):
                self.learn(find.FoundSecret("password", where.value, name, value), host, late=True)
            part = "request head" if where is Where.QUERY else "request body"
            return self._replaced(
                Redaction(part, "password", where.value, name, host), value, redactions_made
            )
        method = method_of(name)
        if method is not None and (value in self._search or find.in_login_message(method, value)):
            return self._replaced(
                Redaction("request body", "password", where.value, name, host), value, redactions_made
            )
        if kind == "token" and strong(value):
            jwt = JWT.fullmatch(value)
            found = find.FoundSecret("jwt" if jwt else "token", where.value, name, jwt[1] if jwt else value)
            self.learn(found, host, late=True)
        return value

    def _credential(self, name: str, value: str, host: str, redactions_made: list[Redaction]) -> str:
        if jwt := JWT.fullmatch(value):
            self.learn(find.FoundSecret("jwt", "header", name, jwt[1]), host, late=True)
            return value
        if strong(value) or strong_password(value):
            self.learn(find.FoundSecret("authorization", "header", name, value), host, late=True)
        return self._replaced(
            Redaction("request head", "authorization", "header", name, host), value, redactions_made
        )

    def _replaced(self, redaction: Redaction, value: str, redactions_made: list[Redaction]) -> str:
        placeholder = self._placeholders.of(value)
        redactions_made.append(replace(redaction, placeholder=placeholder))
        return placeholder

    def _learn_response(
        self, response: Response, host: str, redactions_made: list[Redaction]
    ) -> bytes | None:
        """Learn the secrets of a response; return its decoded body, None if it cannot be decoded."""
        coding = header(response.headers, "content-encoding")
        plain = decode(response.raw_body, coding) if response.raw_body else b""
        if plain is None:
            redactions_made.append(Redaction("response body", "unread", "coding", coding, host))
        text = (plain or b"").decode("utf-8", "replace") if find.is_read(response) else ""
        for found in find.in_answer(response, text, self._names):
            self.learn(found, host)
        if "html" in response.mime:
            self._password_fields.update((host, name) for name in find.password_fields(text))
        return plain

    def _frames(self, beside: RecordFrames, host: str, redactions_made: list[Redaction]) -> RecordFrames:
        def exchange(where: Where, name: str, value: str) -> str:
            put = self._field(where, name, value, host, redactions_made)
            if put != value:
                redactions_made[-1] = replace(redactions_made[-1], part="beside")
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
                payload = self.content(payload)  # text frames are replaced in the block, with their spans
            made.append(replace(frame, payload=payload))
        return replace(beside, block=write_frames(replace(frames, frames=tuple(made))))

    def _request(self, request: Request, redactions_made: list[Redaction]) -> Request:
        made = request
        coding = header(request.headers, "content-encoding")
        plain = decode(request.raw_body, coding) if request.raw_body else None
        body, found = self._search.sub(plain or b"")
        if found:
            made = _with_body(made, encode(body, coding))
        redactions_made += self.redactions("request body", found)
        url, hits = self._search.sub(request.url.encode("utf-8", "surrogatepass"))
        made = replace(made, url=url.decode("utf-8", "surrogatepass"))
        line = request_block(replace(made, headers=(), raw_body=b""))
        in_url = len(made.method) + 1 - url.find(line.split(b" ")[1], url.find(b"://") + 3)
        headers, more = self._headers(made.headers, len(line) - 2)
        redactions_made += self.redactions("request head", [*(_moved(hit, in_url) for hit in hits), *more])
        return replace(made, headers=headers)

    def _response(
        self,
        response: Response,
        plain: bytes | None,
        beside: RecordFrames | None,
        redactions_made: list[Redaction],
    ) -> tuple[Response, RecordFrames | None]:
        made = response
        body, found = self._search.sub(plain or b"")
        if found:
            self.digests.note(response, plain or b"", body)
            coding = header(response.headers, "content-encoding")
            timed = read_chunks(beside.block) if beside is not None and beside.type == "metadata" else None
            if beside is not None and timed is not None:
                timed = _fit_to_size(unpacked_chunks(response.raw_body, coding, timed), len(body))
                beside = replace(beside, block=write_chunks(timed))
                made, coding = replace(made, headers=without_coding(made.headers)), ""
            raw = encode(body, coding)
            made = replace(made, headers=with_length(made.headers, len(raw)), raw_body=raw)
        redactions_made += self.redactions("response body", found)
        line = response_block(replace(made, headers=(), raw_body=b""))
        headers, hits = self._headers(made.headers, len(line) - 2)
        redactions_made += self.redactions("response head", hits)
        return replace(made, headers=headers), beside

    def _beside(self, beside: RecordFrames, redactions_made: list[Redaction]) -> RecordFrames:
        block, hits = self._search.sub(beside.block)
        redactions_made += self.redactions("beside", hits)
        return replace(beside, uri=self.text(beside.uri), block=block)

    def _headers(self, headers: Headers, at: int) -> tuple[Headers, list[SecretHit]]:
        """Return header fields without secrets; `at` is their offset in the head."""
        if not self._search.sub("\n".join(value for _, value in headers).encode("latin-1", "replace"))[1]:
            return headers, []  # one search for most heads, which hold no secret
        made, hits = [], []
        for name, value in headers:
            content, found = self._search.sub(value.encode("latin-1", "replace"))
            made.append((name, content.decode("latin-1") if found else value))
            hits += [_moved(hit, at + len(name) + 2) for hit in found]
            if name.lower() != "transfer-encoding":  # it is not written
                at += len(name) + len(content) + 4
        return tuple(made), hits

    def redactions(self, part: str, hits: Iterable[SecretHit], *, late: bool = False) -> list[Redaction]:
        """Return the redactions for hits in one part of an exchange; `late` for hits of `self.late`."""
        sources = self._late_sources if late else self._sources
        spans: dict[_SecretSource, list[tuple[int, int]]] = {}
        for hit in hits:
            spans.setdefault(sources[hit.secret], []).append((hit.at, hit.length))
        return [
            Redaction(part, source.kind, source.where, source.name, source.host, tuple(found))
            for source, found in spans.items()
        ]


def _moved(hit: SecretHit, by: int) -> SecretHit:
    return replace(hit, at=hit.at + by)


def _with_body(request: Request, raw: bytes) -> Request:
    return replace(request, headers=with_length(request.headers, len(raw)), raw_body=raw)


def _fit_to_size(chunks: Chunks, size: int) -> Chunks:
    """Return pieces that add up to a body's size: a changed length is applied to the last piece."""
    over = size - sum(chunk.size for chunk in chunks.chunks)
    if not over or not chunks.chunks:
        return chunks
    *others, last = chunks.chunks
    return replace(chunks, chunks=(*others, replace(last, size=max(0, last.size + over))))
