"""Serve sealed collections as a proxy that replays real URLs.

`serve` starts the native back-end; `ReplayClient` talks to it and to the pywb back-end. Names are imported on
first use: the client does not load the server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
