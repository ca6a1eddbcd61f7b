"""Strings of Protocol Buffers messages without their schema, and in-place replacement of them.

The wire format (protobuf.dev/programming-guides/encoding) has numbers instead of names. A length-delimited
field is a string, a message or bytes, which the format does not distinguish: text without control characters
is read as a string, other content as a message where it is one. Messages come bare, in the frames of gRPC-Web
and Connect (one byte of flags, four of length), or in these frames in Base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

_BARE = frozenset(
    ("application/protobuf", "application/x-protobuf", "application/proto", "application/vnd.google.protobuf")
)
_FRAMED = frozenset(
    (
        *("application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpc-web+proto"),
        "application/connect+proto",
    )
)
_TEXT = frozenset(("application/grpc-web-text", "application/grpc-web-text+proto"))
PROTOBUF = _BARE | _FRAMED | _TEXT
"""Media types of messages."""

_LARGEST = 1 << 20  # bytes; as for other bodies that are parsed by structure
_DEEPEST = 32
_FRAME_HEAD = 5
_COMPRESSED_OR_TRAILERS = 0x81
_LONGEST_VARINT = 10
_FIXED = {1: 8, 5: 4}  # bytes of a wire type

_Leaf = tuple[int, int, str]  # start, end, field numbers


_FIELD_NAME = re.compile(r"([\w.]{0,128})#\d+(?:\.\d+)*")


def field_name(url: str, numbers: str) -> str:
    """Return the name by which a string of a message is listed: `Login#1.2`."""
    return f"{urlsplit(url).path.rpartition('/')[2]}#{numbers}"


def method_of(name: str) -> str | None:
    """Return the method in a name of `field_name`; None for any other name."""
    found = _FIELD_NAME.fullmatch(name)
    return found[1] if found else None


def replace_strings(mime: str, raw: bytes, replace_value: Callable[[str, str], str]) -> bytes:
    """Return a body with the strings that `replace_value` returns for field numbers (`1.2`) and a string.

    Only replacements of the same number of bytes are made, so that all lengths stay true.
    """
    if mime not in PROTOBUF or not 0 < len(raw) <= _LARGEST:
        return raw
    if mime in _TEXT:
        try:
            plain = base64.b64decode(raw, validate=True)
        except binascii.Error:
            return raw
        return base64.b64encode(_replaced(plain, _frames(plain), replace_value))
    spans = _frames(raw) if mime in _FRAMED else [(0, len(raw))]
    return _replaced(raw, spans, replace_value)


def _replaced(raw: bytes, spans: list[tuple[int, int]], replace_value: Callable[[str, str], str]) -> bytes:
    made = bytearray(raw)
    for first, last in spans:
        for start, end, path in _leaves(raw, first, last, "", 0) or ():
            value = raw[start:end].decode()
            wanted = replace_value(path, value).encode("utf-8", "surrogatepass")
            if len(wanted) == end - start:
                made[start:end] = wanted
    return bytes(made)


def _frames(raw: bytes) -> list[tuple[int, int]]:
    """Return the spans of the uncompressed messages."""
    spans, at = [], 0
    while at + _FRAME_HEAD <= len(raw):
        end = at + _FRAME_HEAD + int.from_bytes(raw[at + 1 : at + _FRAME_HEAD])
        if end > len(raw):
            break
        if not raw[at] & _COMPRESSED_OR_TRAILERS:
            spans.append((at + _FRAME_HEAD, end))
        at = end
    return spans


def _leaves(raw: bytes, at: int, end: int, path: str, depth: int) -> list[_Leaf] | None:
    """Return the strings of a message; None if the bytes are none."""
    if depth > _DEEPEST:
        return None
    leaves: list[_Leaf] = []
    try:
        for number, start, last in _fields(raw, at, end):
            if last > end or not number:
                return None
            if start < last:
                leaves += _delimited(raw, start, last, f"{path}{number}", depth)
    except IndexError:
        return None
    return leaves


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field; start is end for those that hold no text."""
    while at < end:
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(raw, at)
            yield tag >> 3, at, at + size
            at += size
            continue
        at = _varint(raw, at)[1] if kind == 0 else at + _FIXED.get(kind, end)
        yield tag >> 3, at, at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_LONGEST_VARINT):
        byte = raw[at + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at + number + 1
    raise IndexError(at)


def _delimited(raw: bytes, start: int, end: int, path: str, depth: int) -> list[_Leaf]:
    try:
        text = raw[start:end].decode()
    except UnicodeDecodeError:
        return _leaves(raw, start, end, f"{path}.", depth + 1) or []
    if text.isprintable():
        return [(start, end, path)]
    within = _leaves(raw, start, end, f"{path}.", depth + 1)
    return [(start, end, path)] if within is None else within
