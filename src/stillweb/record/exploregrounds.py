"""Where an exploration goes, and how: the browser, the recording proxy, and the contexts between them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from playwright.async_api import Browser

from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.walk import Walker, walking
from stillweb.record.exploreoptions import ExploreOptions
from stillweb.record.proxy import RecordingProxy
from stillweb.record.scope import Scope

__all__ = ["Grounds"]


@dataclass(frozen=True, slots=True)
class Grounds:
    """Where an exploration goes, and how."""

    browser: Browser
    recording: RecordingProxy
    profile: Profile
    pinning: Pinning
    scope: Scope
    options: ExploreOptions

    def walking(self) -> AbstractAsyncContextManager[Walker]:
        """Return a fresh context to walk in."""
        return walking(
            self.browser,
            proxy=self.recording.url,
            profile=self.profile,
            pinning=self.pinning,
            accept=self.options.accept,
            storage_state=self.options.storage_state,
        )
