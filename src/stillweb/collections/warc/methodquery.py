"""Requests other than GET as index keys: the query that pywb and similar tools append to the URL.

Webrecorder's request-body canonicalisation appends `__wb_method=POST`, and the names and values of the body,
to the URL's query; the urlkey is made of the result. It is lossy (JSON by leaf names, 4096 characters), so
matching never uses it: it is written for pywb, and parsed where a recorder without request records left it in
a target URI (archiveweb.page).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode

from stillweb.model import Request, header

MAX_QUERY = 4096
_APPENDED = re.compile(r"[?&]__wb_method=([A-Za-z]+)(?:&(.*))?$", re.DOTALL)
_BOUNDARY = re.compile(r"boundary=\"?([^\";]+)", re.IGNORECASE)
_NAME = re.compile(rb"[;\s]name=\"?([^\";\r\n]*)\"?", re.IGNORECASE)


def appended(request: Request) -> tuple[str, str]:
    """Return the URL with method and body appended, and the body's part; for GET its URL and ""."""
    if request.method == "GET":
        return request.url, ""
    query = ""
    if request.method in ("POST", "PUT"):
        query = body_query(header(request.headers, "content-type"), request.raw_body)
    mark = "&" if "?" in request.url else "?"
    return f"{request.url}{mark}__wb_method={request.method}{'&' + query if query else ''}", query


def body_query(content_type: str, body: bytes) -> str:
    """Return a request body as a query string, of at most 4096 characters."""
    mime = content_type.partition(";")[0].strip().lower()
    if not body:
        return ""
    query: str | None
    if mime == "application/x-www-form-urlencoded":
        query = _form(body)
    elif mime.startswith("multipart/"):
        query = _multipart(content_type, body)
    elif mime == "application/json":
        query = _json(body) or ""
    elif mime == "text/plain":
        query = _json(body)
    else:
        query = None
    if query is None:
        query = "__wb_post_data=" + base64.b64encode(body).decode("ascii")
    return query[:MAX_QUERY]


def _form(body: bytes) -> str | None:
    try:
        return unquote_plus(body.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _multipart(content_type: str, body: bytes) -> str | None:
    boundary = _BOUNDARY.search(content_type)
    if not boundary:
        return None
    fields: list[tuple[bytes, bytes]] = []
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode("latin-1", "replace"))[1:]:
        head, found, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if found and name:
            fields.append((name[1], value))
    return urlencode(fields)


def _json(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    values: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name, value in _leaves(document, ""):
        unique = name
        if name in values:
            counts[name] = counts.get(name, 1) + 1
            unique = f"{name}.{counts[name]}_"
        values[unique] = _spell(value)
    return urlencode(values, errors="replace")  # JSON may escape lone surrogates, which UTF-8 cannot encode


def _spell(value: Any) -> str:
    """Return a JSON scalar in the spelling that pywb 2.10 looks for (cdxj-indexer: None, True, 1.0)."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _leaves(member, key)
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member, name)
    elif name:
        yield name, value


def completed(request: Request, uri: str) -> Request:
    """Return a stored request with the method and body that its target URI holds.

    archiveweb.page writes request records without their body, some of them as GET. A multipart body is built
    from its names and values. The body of JSON is lost: its leaf names do not determine it.
    """
    held = undo(uri)
    if held is None:
        return request
    method = held.method if request.method == "GET" else request.method
    body = request.raw_body or held.raw_body
    boundary = _BOUNDARY.search(header(request.headers, "content-type"))
    if boundary and not request.raw_body and "__wb_post_data=" not in uri:
        body = _as_multipart(boundary[1], body)
    return replace(request, method=method, raw_body=body)


def _as_multipart(boundary: str, query: bytes) -> bytes:
    fields = parse_qsl(query.decode("utf-8"), keep_blank_values=True)
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    )
    return f"{''.join(parts)}--{boundary}--\r\n".encode("utf-8", "replace")


def undo(uri: str) -> Request | None:
    """Return the request of a target URI with `__wb_method`; None for any other URI.

    The body is exact if it was stored as `__wb_post_data`; otherwise it is a form of its names and values.
    """
    match = _APPENDED.search(uri)
    if not match:
        return None
    url, method, query = uri[: match.start()], match[1].upper(), match[2] or ""
    if query.startswith("__wb_post_data="):
        text = unquote(query.partition("=")[2])
        try:
            body = base64.b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            body = text.encode("utf-8")
        return Request(method, url, (), body)
    if not query:
        return Request(method, url)
    form = (("Content-Type", "application/x-www-form-urlencoded"),)
    return Request(method, url, form, query.encode("utf-8"))
