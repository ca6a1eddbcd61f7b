from __future__ import annotations

import pytest

from stillweb.errors import UsageError
from stillweb.record.proxy.resolve import parse_all, parse_resolve, resolve


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("docs.test", 443, ("127.0.0.1", 8443)),
        ("DOCS.TEST", 443, ("127.0.0.1", 8443)),
        ("docs.test.", 443, ("127.0.0.1", 8443)),
        ("docs.test", 80, ("127.0.0.1", 8480)),
        ("a.b.test", 443, ("127.0.0.1", 8443)),
        ("test", 443, ("test", 443)),
        ("nottest", 443, ("nottest", 443)),
        ("shop.test", 443, ("10.0.0.5", 443)),
        ("shop.test", 80, ("10.0.0.5", 80)),
        ("elsewhere.example", 443, ("elsewhere.example", 443)),
    ],
)
def test_the_most_specific_rule_wins(host: str, port: int, expected: tuple[str, int]) -> None:
    texts = ["*.test=127.0.0.1:8443", "*.test:80=127.0.0.1:8480", "shop.test=10.0.0.5"]

    assert resolve(parse_all(texts), host, port) == expected
    assert resolve(parse_all(reversed(texts)), host, port) == expected


def test_a_star_matches_everything_and_loses_to_all_else() -> None:
    rules = parse_all(["one.example=10.0.0.1", "*=[::1]:9000"])

    assert resolve(rules, "any.example", 443) == ("::1", 9000)
    assert resolve(rules, "one.example", 443) == ("10.0.0.1", 443)


def test_longer_wildcards_win_and_of_equals_the_last() -> None:
    rules = parse_all(["*.a.test=10.0.0.1", "*.test=10.0.0.2", "*.test=10.0.0.3"])

    assert resolve(rules, "x.a.test", 1)[0] == "10.0.0.1"
    assert resolve(rules, "x.test", 1)[0] == "10.0.0.3"


def test_an_ip_address_can_be_a_pattern() -> None:
    rules = parse_all(["[2001:db8::1]:443=localhost:8443"])

    assert resolve(rules, "2001:db8::1", 443) == ("localhost", 8443)


@pytest.mark.parametrize(
    "text",
    ["", "a.test", "=b", "a=", "a:b=c", "a:0=c", "a:99999=c", "a*b=c", "*.=c", "a b=c", "a=b:c", "a=*.test"],
)
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_resolve(text)
    assert "for example" in caught.value.hint
