"""HTTP messages in WARC blocks, to and from `Request` and `Response`.

Many archived messages never were on a wire: recorders in browsers keep `Transfer-Encoding: chunked` and
`Content-Encoding: gzip` with a body that is neither, reason phrases are missing, lines end in LF or CR CR LF.
The body therefore decides. A body without chunks is not dechunked. A Content-Encoding that the body does not
have is dropped from the headers, because a browser would reject the response.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stillweb.http.codec import has_encoding
from stillweb.model import Headers, Request, Response, header

# Users of warcio pass a whole first line beside its protocol: "HTTP/1.1 HTTP/1.1 200 OK".
_STATUS_LINE = re.compile(rb"(?:(?:HTTP/[\d.]+|ICY)[ \t]+){1,2}(\d{3})(?:[ \t]+([^\r\n]*))?\r*\n?")
_REQUEST_LINE = re.compile(rb"(?:HTTP/[\d.]+ )?([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S.*?)(?: HTTP/[\d.]+)?\r*\n")
_LENGTH = re.compile(r"[0-9]{1,15}")
_STRAY_ENDS = (b"\r\n", b"\n", b"\r\n\r\n", b"\n\n")
# Trailers and an empty line (RFC 9112 §7.1.2), or their beginning if the body is truncated.
_ENDS = re.compile(rb"(?:[^\r\n:]+:[^\r\n]*\r?\n)*(?:\r?\n)*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


def is_response(block: bytes) -> bool:
    return _STATUS_LINE.match(block) is not None


def is_whole(block: bytes) -> bool:
    """Return True if a block is a response with at least as many body bytes as its Content-Length states."""
    match = _STATUS_LINE.match(block)
    headers, body = _split(block, match.end()) if match else ((), b"")
    length = header(headers, "content-length")
    return _LENGTH.fullmatch(length) is not None and len(body) >= int(length)


def parse_response(block: bytes) -> Response | None:
    """Parse a response; None without a status line.

    The transfer encoding of the body is removed, the content encoding kept.
    """
    match = _STATUS_LINE.match(block)
    if not match:
        return None
    headers, body = _split(block, match.end())
    coding = header(headers, "transfer-encoding")
    if "chunked" in coding.lower():
        body = dechunk(body)
        headers = tuple((k, v) for k, v in headers if k.lower() != "transfer-encoding")
    elif not coding:
        body = _without_stray_end(headers, body)
    if body and not has_encoding(body, header(headers, "content-encoding")):
        headers = tuple((k, v) for k, v in headers if k.lower() != "content-encoding")
    reason = (match[2] or b"").decode("latin-1").strip()
    return Response(int(match[1]), reason, headers, body)


def parse_request(block: bytes, url: str) -> Request | None:
    """Parse a request for an absolute URL; None without a request line."""
    match = _REQUEST_LINE.match(block)
    if not match:
        return None
    headers, body = _split(block, match.end())
    method = match[1].decode("ascii").upper()
    if "chunked" in header(headers, "transfer-encoding").lower():
        body = dechunk(body)
    elif method in ("GET", "HEAD") and not header(headers, "content-length") and not body.strip(b"\r\n"):
        body = b""  # node-warc counts the end of the WARC record as part of the block
    return Request(method, url, headers, body)


def payload_start(block: bytes) -> int:
    """Return the offset of the body in a message block; the block's length if it has none."""
    return _head_end(block, block.find(b"\n") + 1)[1]


def response_block(response: Response) -> bytes:
    """Serialise a response. Its body has no transfer encoding, so the headers have none either."""
    reason = f" {response.reason}" if response.reason else " "
    line = f"HTTP/1.1 {response.status}{reason}"
    return _block(line, response.headers, response.raw_body)


def request_block(request: Request) -> bytes:
    """Serialise a request, with its target in origin form (RFC 9112 §3.2.1)."""
    rest = request.url.partition("#")[0].partition("://")[2]
    cut = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
    target = rest[cut:] if rest[cut:].startswith("/") else "/" + rest[cut:]
    return _block(f"{request.method} {target} HTTP/1.1", request.headers, request.raw_body)


def _block(line: str, headers: Headers, body: bytes) -> bytes:
    fields = (f"{name}: {value}\r\n" for name, value in headers if name.lower() != "transfer-encoding")
    head = f"{line}\r\n{''.join(fields)}\r\n"
    return b"".join((head.encode("latin-1", "replace"), body))


def _split(block: bytes, at: int) -> tuple[Headers, bytes]:
    lines, start = _head_end(block, at)
    return tuple(_fields(lines)), block[start:]


def _head_end(block: bytes, at: int) -> tuple[list[bytes], int]:
    lines: list[bytes] = []
    while at < len(block):
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        line = block[at:end].rstrip(b"\r")
        at = min(end + 1, len(block))
        if not line:
            break
        lines.append(line)
    return lines, at


def _fields(lines: Iterable[bytes]) -> list[tuple[str, str]]:
    fields: list[tuple[str, list[str]]] = []
    for line in lines:
        text = line.decode("latin-1")
        if text[0] in " \t" and fields:  # RFC 9112 §5.2
            fields[-1][1].append(text.strip())
            continue
        name, colon, value = text.partition(":")
        if colon and name.strip():
            fields.append((name.strip(), [value.strip(" \t")]))
    return [(name, " ".join(values)) for name, values in fields]


def _without_stray_end(headers: Headers, body: bytes) -> bytes:
    """Return a body without line ends after its Content-Length.

    Some writers count the end of the WARC record as part of its block. A browser ignores bytes after
    Content-Length (RFC 9112 §6.3). Any other difference is a stale length of a decoded body.
    """
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    if len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) and body[int(lengths[0]) :] in _STRAY_ENDS:
        return body[: int(lengths[0])]
    return body


def dechunk(body: bytes) -> bytes:
    """Return a chunked body without its framing (RFC 9112 §7.1), and any other body unchanged.

    A body that breaks off within a chunk yields the bytes up to there.
    """
    parts: list[bytes] = []
    at = 0
    while match := _CHUNK.match(body, at):
        size = int(match[1], 16)
        if not size:
            return b"".join(parts) if parts or _ENDS.fullmatch(body, match.end()) else body
        parts.append(body[match.end() : match.end() + size])
        at = match.end() + size
        if at >= len(body):
            return b"".join(parts) if len(parts) > 1 or at == len(body) else body
        if body[at : at + 2] == b"\r\n":
            at += 2
        elif body[at : at + 1] == b"\n":
            at += 1
        else:
            return body
    return b"".join(parts) if parts and not body[at:].strip() else body
