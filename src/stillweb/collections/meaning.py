"""Request fields that change what a request means, whether or not an answer's `Vary` names them.

A pack keeps a digest of each that a recorded request had, and replay refuses a capture when one of them
is another, absent on one side or the other (docs/decisions/0017-vary-and-authorization.md). Not in this list
is what browsers set by themselves: profiles and crawlers differ in that.
"""

from __future__ import annotations

__all__ = ["MEANT"]

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
