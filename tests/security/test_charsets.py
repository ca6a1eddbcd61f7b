"""A document names its charset; Python has codecs under such names that are slow, unpack, or fail."""

from __future__ import annotations

import json

import pytest
from hostile_archives import entry, imported, pair, warc
from isolated import attack

from stillweb.certs import CertAuthority
from stillweb.text import codec_of

SLOW = "".join(chr(0x4E00 + number) for number in range(15_000)) * 4
"""Encoded as punycode, it takes minutes."""


@pytest.mark.parametrize(
    "charset",
    [
        "punycode",
        "idna",
        "zlib",
        "bz2",
        "hex",
        "base64",
        "rot13",
        "unicode_escape",
        "undefined",
        "utf-7",
        "x",
    ],
)
def test_a_codec_that_is_no_charset_is_refused(charset: str) -> None:
    with pytest.raises(LookupError):
        codec_of(charset)


@pytest.mark.parametrize(
    "charset",
    [
        *("utf-8", "UTF8", "utf-16le", "iso-8859-1", "latin1", "iso-8859-15", "windows-1252", "windows-1251"),
        *("koi8-r", "koi8-u", "macintosh", "ibm866", "tis-620", "gbk", "gb2312", "gb18030"),
        *("big5", "big5-hkscs", "euc-jp", "iso-2022-jp", "shift_jis", "euc-kr", "us-ascii"),
    ],
)
def test_the_charsets_of_browsers_are_known(charset: str) -> None:
    assert "aä".encode(codec_of(charset), "ignore").decode(codec_of(charset)).startswith("a")


def test_a_har_in_punycode_is_imported(ca: CertAuthority) -> None:
    content = {"size": len(SLOW.encode()), "text": SLOW, "mimeType": "text/html; charset=punycode"}
    log = {"version": "1.2", "entries": [entry(content=content)]}
    archive = imported("punycode", "a.har", json.dumps({"log": log}).encode())
    assert attack(archive, ca, seconds=10).wrong == []


@pytest.mark.parametrize("charset", ["punycode", "undefined", "idna"])
def test_the_text_of_a_page_in_no_charset_is_read(ca: CertAuthority, charset: str) -> None:
    page = b"<title>A</title><p>" + b"a" * 200_000 + b"-" + b"z9" * 200_000
    kind = f"Content-Type: text/html; charset={charset}"
    archive = imported(charset, "a.warc.gz", warc(pair("/", page, kind)))
    assert attack(archive, ca, seconds=10).wrong == []
