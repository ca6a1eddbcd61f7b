"""Episodes for adapters: where they run, their results, and what a trainer does with failed ones.

Names are imported on first use: adapters of a remote server need neither Playwright nor pydantic.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
