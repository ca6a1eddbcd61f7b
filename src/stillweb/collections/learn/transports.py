"""Rules for live transports whose URLs hold a random session: SockJS and socket.io.

A SockJS client chooses a server number of three digits and a random session for each connection
(`/PREFIX/512/xk3jq0ab/websocket`). A socket.io client adds a random `t` to each poll. No two connections have
equal URLs. Two recordings cannot prove that: three digits may be a page number, and requests of WebSockets
are not compared. The URL itself shows the protocol, by a form that only these libraries use.

The rules hold for WebSockets, event streams and polls of the same path. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.matching.engineio import is_transport
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, RuleOrigin
from stillweb.matching.transports import SOCKJS, has_transport


def transport_rules(urls: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules for the SockJS and socket.io URLs among recorded ones."""
    found: dict[Rule, None] = {}
    for url in urls:
        if "sockjs" not in url and ".io/" not in url and not has_transport(url):
            continue
        parts = urlsplit(url)
        host, path = parts.hostname or "", parts.path
        if match := SOCKJS.fullmatch(path):
            prefix, number = match["prefix"], match["prefix"].count("/") + 1
            glob, evidence = f"{prefix}/*/*/{match['transport']}", "the URL of a SockJS session"
            for name, shape in ((number, "any"), (number + 1, "token")):
                found[_rule(Where.PATH, str(name), shape, host, glob, evidence)] = None
            found[_rule(Where.QUERY, "t", "milliseconds", host, f"{prefix}/info", evidence)] = None
        elif is_transport(url):
            evidence = "the URL of a socket.io poll"
            found[_rule(Where.QUERY, "t", "any", host, path, evidence)] = None
            # The answer to a message is "ok" (engine.io-protocol); polls hold answers of one connection.
            sid = _rule(Where.QUERY, "sid", "any", host, path, evidence)
            found[replace(sid, method="POST")] = None
    return tuple(found)


def _rule(where: Where, name: str, shape: str, host: str, path: str, evidence: str) -> Rule:
    return Rule(where, name, shape, host, path, origin=RuleOrigin.LEARNED, evidence=evidence)


def learn_transports(collection: Collection) -> None:
    """Add the rules for a collection's SockJS and socket.io URLs to its `rules.yaml`."""
    rules = transport_rules(dict.fromkeys(capture.url for capture in collection.captures()))
    if rules:
        before = read_rules(collection)
        after = merge(before, LearnResult(rules=rules))
        if after.dump() != before.dump():
            write_rules(collection, after)
