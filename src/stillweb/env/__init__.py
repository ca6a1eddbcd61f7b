"""Episodes on replayed pages: tasks, actions, observations, evaluators and the environment itself.

Names are imported on first use: adapters that only need action or task types do not load Playwright.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
