"""Which request fields say what a request means, whether or not an answer's `Vary` names them.

A pack keeps digests of fields that a recorded request had (docs/decisions/0017-vary-and-authorization.md):

- of those that always bear meaning (`MEANT`): replay refuses a capture when one of them is another, absent
  on one side or the other;
- of any other that a page must have set itself, since nobody else is known to: among several captures replay
  prefers the one that agrees in them. They are noted under names that begin with `PREFERRED`.

What browsers, proxies and crawlers set by themselves is neither: profiles differ in that.
"""

from __future__ import annotations

__all__ = ["MEANT", "PREFERRED", "browsers_own", "page_set"]

MEANT = frozenset(
    (
        # Who asks. Cookies say so too, but each browser has its own, and answers that set them are replayed.
        *("authorization", "x-api-key", "x-auth-token", "x-access-token"),
        # What is to be called, or which method is meant, where the URL does not say.
        *("soapaction", "x-amz-target", "next-action"),
        *("x-http-method-override", "x-http-method", "x-method-override"),
        # By these, frameworks ask for a part of a page under the page's own URL; servers forget to say so.
        *("x-requested-with", "hx-request", "x-inertia", "rsc", "turbo-frame", "x-pjax"),
    )
)  # fmt: skip
"""Names in lower case."""

PREFERRED = "?"
"""Before the name of a field that is only preferred; no field name has it (RFC 9110 §5.6.2)."""

# What browsers send by themselves, and ranges and conditions, which are looked at elsewhere.
_BROWSERS_OWN = frozenset(
    (
        *("accept", "accept-charset", "accept-encoding", "accept-language", "cookie", "dnt", "origin"),
        *("referer", "save-data", "upgrade-insecure-requests", "user-agent"),
        *("device-memory", "downlink", "dpr", "ect", "rtt", "viewport-width", "width"),  # client hints of old
        *("if-modified-since", "if-none-match", "if-range", "range"),
    )
)  # fmt: skip
_BROWSERS_PREFIX = "sec-"  # no script can set these (Fetch §2.2.2)

# What says nothing of what is asked for, though it may stand in a recorded request.
_NOT_THE_PAGES = frozenset(
    (
        # Of the connection and the message; a body's type and coding are looked at with the body.
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host"),
        *("http2-settings", "keep-alive", "max-forwards", "te", "trailer", "transfer-encoding", "upgrade"),
        # Of browsers, for caches and for themselves.
        *("alt-used", "cache-control", "if-match", "if-unmodified-since", "last-event-id"),
        *("ping-from", "ping-to", "pragma", "priority", "purpose", "service-worker"),
        *("service-worker-navigation-preload", "x-client-data"),
        *("x-devtools-emulate-network-conditions-client-id", "x-moz", "x-purpose"),
        # Of proxies and crawlers.
        *("cdn-loop", "client-ip", "forwarded", "from", "true-client-ip", "via", "x-real-ip"),
        # Ids of traces.
        *("b3", "baggage", "correlation-id", "elastic-apm-traceparent", "newrelic", "request-context"),
        *("request-id", "sentry-trace", "traceparent", "tracestate", "uber-trace-id", "x-amzn-trace-id"),
        *("x-cloud-trace-context", "x-correlation-id", "x-request-id", "x-trace-id"),
        # Proof that a page was loaded before: a second order from the same page is still the second one.
        *("csrf-token", "idempotency-key", "x-csrf-token", "x-csrftoken", "x-xsrf-token"),
    )
)  # fmt: skip
_NOT_THE_PAGES_PREFIXES = ("cf-", "proxy-", "x-b3-", "x-datadog-", "x-forwarded-", "x-newrelic-")


def browsers_own(name: str) -> bool:
    """Return whether browsers set a field, by its lower-case name, by themselves."""
    return name in _BROWSERS_OWN or name.startswith(_BROWSERS_PREFIX)


def page_set(name: str) -> bool:
    """Return whether only a page can have set a field, by its lower-case name, as far as is known."""
    return not (browsers_own(name) or name in _NOT_THE_PAGES or name.startswith(_NOT_THE_PAGES_PREFIXES))
