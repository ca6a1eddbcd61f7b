"""A pytest plugin for tests on replayed collections.

    @pytest.mark.stillweb(collection="shop")
    def test_basket(stillweb_page):
        stillweb_page.goto("https://shop.example/")

pytest loads `plugin` through its entry point. The plugin does nothing until a test requests one of its
fixtures: a replayed collection, a page in its proxy, an environment. See docs/how-to/pytest.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
