"""Conversions of text from models and pages: printable, decodable, well-formed, shortened. Pure."""

from __future__ import annotations

import codecs
import re

# C0, DEL and C1 (ECMA-48), which terminals obey, and lone surrogates, which no stream can encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return text with escapes such as `\\x1b` for all control characters but tabs and line ends."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


# Character encodings of browsers (WHATWG Encoding §4) and UTF-32, by the names of Python's codecs.
_CHARSETS = re.compile(
    "ascii|utf-(8|16|32)(-sig|-le|-be)?|iso8859-[0-9]+|cp[0-9]+|koi8-[rtu]|mac-[a-z]+|tis-620|ptcp154|gb.*|hz|big5.*"
    "|(euc|iso2022)_.*|shift_jis.*|johab"
)


def codec_of(charset: str) -> str:
    """Return the name of Python's codec for the charset of a document.

    Raises:
        LookupError: if it is unknown, or no character encoding. Python has others under such names, and pages
            choose the name: "punycode" takes quadratic time, "zlib" unpacks.
    """
    name = codecs.lookup(charset).name
    if not _CHARSETS.fullmatch(name):
        raise LookupError(f"{charset} is not a character encoding")
    return name


def well_formed(text: str) -> str:
    """Return text with U+FFFD for lone surrogates, which JavaScript strings may hold and UTF-8 cannot."""
    if text.isascii():  # fast path: called for each name of an accessibility tree, nearly all ASCII
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def first_line(error: object) -> str:
    """Return the first line of an error's message, without the log that Playwright appends."""
    return str(error).partition("\n")[0]


def shortened(value: object, most: int = 200) -> str:
    """Return the `repr` of a value in at most `most` characters."""
    shown = repr(value)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def checksum(code: str) -> str:
    """Return the summary of a script or style in a `#code` line of the outline."""
    units = code.replace("\r\n", "\n").replace("\r", "\n").encode("utf-16-le", "surrogatepass")
    value = 0x811C9DC5  # as `sum` in the script of stillweb.browser.observe.snapshot
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = ((value ^ (low | high << 8)) * 0x01000193) & 0xFFFFFFFF
    return f"{len(units) // 2} {value:x}"
