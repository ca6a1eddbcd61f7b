"""WARC and ARC records: one parser each over bytes in memory, and the serialiser.

ISO 28500:2017 §4 (WARC), and the ARC 1 and 2 formats of 1996 (iipc/warc-specifications). A parser always
returns a value: the record and its end, or the damage. It reads at a position and never scans; `reader`
decides where to continue after a damage.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stillweb.collections.defects import Severity
from stillweb.http.messages import is_response, is_whole, payload_start
from stillweb.model import Headers, header
from stillweb.urls import from_timestamp, to_timestamp

# WARC 1.1 §5.4: W3C date-time, to nanoseconds. Archives also have offsets (+0100), and ClueWeb09 has
# 2008-10-294T..., with the day of the year.
_DATE = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d{2,3}))?(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?)?\s*(Z|[+-]\d\d:?\d\d)?"
)


def timestamp_of(date: str) -> str:
    """Return the 14-digit UTC timestamp of a WARC-Date, or of 14 digits; "" for an invalid date."""
    date = date.strip()
    if date.isdigit():
        return _digits(date)
    match = _DATE.fullmatch(date)
    if not match:
        return ""
    year, month, day, hour, minute, second, zone = match.groups()
    try:
        if day and len(day) == 3:
            when = datetime(int(year), 1, 1) + timedelta(days=int(day) - 1)
        else:
            when = datetime(int(year), int(month), int(day or 1))
        when = when.replace(hour=int(hour or 0), minute=int(minute or 0), second=min(int(second or 0), 59))
        return to_timestamp((when - _offset(zone)).replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return ""


def _digits(date: str) -> str:
    try:
        return to_timestamp(from_timestamp(date[:14]))
    except ValueError:
        return ""


def _offset(zone: str | None) -> timedelta:
    if not zone or zone == "Z":
        return timedelta()
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timedelta(minutes=minutes if zone[0] == "+" else -minutes)


def iso_date(timestamp: str) -> str:
    """Return the WARC-Date of a 14-digit timestamp; other text is returned unchanged."""
    digits = _digits(timestamp)
    return from_timestamp(digits).strftime("%Y-%m-%dT%H:%M:%SZ") if digits else timestamp


Buffer = bytes | mmap.mmap
MAX_HEAD = 1 << 20
_LENGTH = re.compile(r"\d{1,15}")
_STRAY = re.compile("[\ud800-\udfff]")
_BYTES = range(0x80, 0x100)  # surrogateescape moves them to U+DC80 and up (PEP 383)


@dataclass(frozen=True, slots=True)
class WarcRecord:
    """A WARC record and its stored position.

    Attributes:
        headers: WARC header fields in order; text is UTF-8, other bytes are kept as surrogates.
        block: the bytes after the header, Content-Length of them.
        version: "WARC/1.1" or as read.
        offset, length: of the record in its file as stored; of the gzip member if it has one.
    """

    headers: Headers
    block: bytes
    version: str = "WARC/1.1"
    offset: int = -1
    length: int = 0

    def get(self, name: str) -> str:
        """Return the value of a header field, "" if it is missing."""
        return header(self.headers, name)

    @property
    def type(self) -> str:
        """`response`, `request`, `revisit`, `resource`, `warcinfo`, ..."""
        return self.get("WARC-Type").lower()

    @property
    def id(self) -> str:
        return self.get("WARC-Record-ID").strip("<>")

    @property
    def target_uri(self) -> str:
        """The target URI, without wget's angle brackets and with spaces escaped (invalid, but common)."""
        return clean_uri(self.get("WARC-Target-URI"))

    @property
    def concurrent_to(self) -> tuple[str, ...]:
        return tuple(v.strip("<>") for k, v in self.headers if k.lower() == "warc-concurrent-to")

    @property
    def timestamp(self) -> str:
        """WARC-Date as 14 digits UTC; "" if it is invalid."""
        return timestamp_of(self.get("WARC-Date"))

    @property
    def payload(self) -> bytes:
        """The stored payload; that of a message may have a transfer coding."""
        return self.block if self.type == "resource" else self.block[payload_start(self.block) :]

    def payload_digest(self) -> str:
        """Return the stated digest of the payload; SHA-256 of the stored payload if none is stated."""
        stated = self.get("WARC-Payload-Digest")
        if self.type == "resource":
            stated = stated or self.get("WARC-Block-Digest")
        if stated:
            return stated
        return f"sha256:{hashlib.sha256(self.payload).hexdigest()}"


def clean_uri(uri: str) -> str:
    """Return a stored URI without angle brackets, with spaces and stray bytes escaped."""
    uri = uri.strip("<>").replace(" ", "%20")
    if uri.isascii():
        return uri
    return _STRAY.sub(_escaped, uri)


def _escaped(found: re.Match[str]) -> str:
    # Browsers send U+FFFD for a surrogate that is not a byte (WHATWG URL, UTF-8 encode); JSON can spell one.
    byte = ord(found[0]) - 0xDC00
    return f"%{byte:02X}" if byte in _BYTES else "%EF%BF%BD"


@dataclass(frozen=True, slots=True)
class Damage:
    """Reason why no complete record could be read; `at_end` if the text ended too early."""

    code: str
    what: str
    severity: Severity = Severity.ERROR
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """A complete record, and the position after its block; `flaw` if its length had to be corrected."""

    record: WarcRecord
    end: int
    flaw: Damage | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """Start pattern and parser of a record format."""

    name: str
    start: re.Pattern[bytes]
    parse: Callable[[Buffer, int], Parsed | Damage]


def serialise(record: WarcRecord) -> bytes:
    """Serialise a record as WARC bytes; Content-Length is set from its block, in place."""
    lines, seen = [record.version], False
    for name, value in record.headers:
        if name.lower() == "content-length":
            seen, value = True, str(len(record.block))
        lines.append(f"{name}: {value}")
    if not seen:
        lines.append(f"Content-Length: {len(record.block)}")
    head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
    return b"".join((head, b"\r\n\r\n", record.block, b"\r\n\r\n"))


def parse_record(text: Buffer, at: int) -> Parsed | Damage:
    """Parse the WARC record that starts at a position."""
    lines: list[bytes] = []
    position = at
    while True:
        end = text.find(b"\n", position, at + MAX_HEAD)
        if end < 0:
            whole = len(text) - at > MAX_HEAD
            return Damage(
                "bad-record" if whole else "truncated", "breaks off in the record's header", at_end=not whole
            )
        line = text[position:end].rstrip(b"\r")
        position = end + 1
        if not line:
            break
        if not lines and line[:5].upper() != b"WARC/":
            return Damage("bad-record", f"no record starts here but {line[:40]!r}")
        lines.append(line)
    if not lines:
        return Damage("bad-record", "no record starts here but an empty line")
    version, headers = _parse_head(lines)
    length = header(headers, "Content-Length")
    if not _LENGTH.fullmatch(length):
        return Damage("bad-record", f"Content-Length is {length!r}")
    stop = position + int(length)
    if stop > len(text):
        got = len(text) - position
        return Damage("truncated", f"breaks off after {got} of the block's {length} bytes", at_end=True)
    return Parsed(WarcRecord(headers, text[position:stop], version), stop)


def _parse_head(lines: list[bytes]) -> tuple[str, Headers]:
    texts = [line.decode("utf-8", "surrogateescape") for line in lines]
    headers: list[tuple[str, list[str]]] = []
    for line in texts[1:]:
        if line[0] in " \t" and headers:  # a folded line (WARC 1.1 §4, obsolete in HTTP)
            headers[-1][1].append(line.strip())
            continue
        name, _, value = line.partition(":")
        headers.append((name.strip(), [value.strip(" \t")]))
    return texts[0].strip().upper(), tuple((name, " ".join(values).strip(" ")) for name, values in headers)


def parse_arc(text: Buffer, at: int) -> Parsed | Damage:
    """Parse the ARC record that starts at a position, and return it as a WARC record."""
    end = text.find(b"\n", at, at + MAX_HEAD)
    if end < 0:
        return Damage("truncated", "breaks off in an ARC record's header", at_end=True)
    line = text[at:end].rstrip(b"\r").decode("utf-8", "surrogateescape")
    # ARC 1: URL IP date mime length. ARC 2 has result code, checksum, location, offset and file name before
    # the length. Some URLs contain spaces, so fields are counted from the right.
    second = _ARC2.fullmatch(line)
    match = second or _ARC1.fullmatch(line)
    if not match or not _LENGTH.fullmatch(match["length"]):
        return Damage("bad-record", f"not an ARC 1 or 2 record header with a length: {line[:80]!r}")
    stop = end + 1 + int(match["length"])
    if stop > len(text):
        return _short_arc(match, text[end + 1 :], len(text))
    if line.startswith("filedesc://") and (after := _ARC_START.search(text, end + 1, stop + MAX_HEAD)):
        stop = min(stop, after.start())  # the length of the format's own example is one byte too large
    return Parsed(_from_arc(match, text[end + 1 : stop]), stop)


def _short_arc(match: re.Match[str], block: bytes, stop: int) -> Parsed | Damage:
    """Judge a short last ARC record: complete if its HTTP message is (line ends were converted)."""
    got, wanted = len(block), match["length"]
    if is_whole(block):
        what = f"the record's length says {wanted}, but its HTTP message is complete with {got} bytes"
        flaw = Damage("bad-length", what, Severity.WARNING)
        return Parsed(_from_arc(match, block), stop, flaw)
    what = f"breaks off after {got} of the block's {wanted} bytes"
    return Damage("truncated", what, at_end=True)


_ARC1 = re.compile(r"(?P<url>\S.*) (?P<ip>\S+) (?P<date>\d+) (?P<mime>\S*) (?P<length>\S+)")
_ARC2 = re.compile(
    r"(?P<url>\S.*) (?P<ip>[\d.:a-fA-F]+) (?P<date>\d{8,}) (?P<mime>\S+)"
    r" (?:\d{1,3}|-) \S+ \S+ \d+ \S+ (?P<length>\d+)"
)


def _from_arc(match: re.Match[str], block: bytes) -> WarcRecord:
    url = match["url"]
    digest = hashlib.sha256(repr(match[0]).encode("utf-8", "surrogateescape") + b"\0" + block).hexdigest()
    headers = [("WARC-Record-ID", f"<urn:uuid:{_uuid8(digest)}>"), ("WARC-Date", iso_date(match["date"]))]
    if url.startswith("filedesc://"):
        fields = [("WARC-Type", "warcinfo"), ("WARC-Filename", url[11:]), ("Content-Type", "text/plain")]
        return WarcRecord((*fields, *headers), block)
    fields = [("WARC-Type", "resource"), ("Content-Type", match["mime"])]
    if is_response(block) or url.startswith(("http://", "https://")):
        fields = [("WARC-Type", "response"), ("Content-Type", "application/http; msgtype=response")]
    fields.append(("WARC-Target-URI", url.replace(" ", "%20")))
    if match["ip"] != "0.0.0.0":  # ARC's spelling of "unknown"
        headers.append(("WARC-IP-Address", match["ip"]))
    return WarcRecord((*fields, *headers), block)


def _uuid8(digest: str) -> str:
    """Return a UUID of version 8 (RFC 9562 §5.8) made of a digest: equal records have equal ids."""
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"


WARC = Grammar("WARC", re.compile(rb"WARC/(?:1\.[01]|0\.1[78])[ \t]*\r*\n", re.IGNORECASE), parse_record)
# Possessive tokens and the start of a line: on a text of a hostile file the search stays linear.
_ARC_START = re.compile(
    rb"^(?:[a-z][a-z0-9+.-]{1,15}://|dns:)\S[^\n]* \d{12,18} \S*+(?: \S++){1,6}(?<=\d)\r?\n", re.MULTILINE
)
ARC = Grammar("ARC", _ARC_START, parse_arc)
