"""Coverage: how often agents leave a recording, why, and what closes the gaps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
