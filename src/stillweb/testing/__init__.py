"""A pytest plugin: a team's own tests on the frozen web.

    @pytest.mark.stillweb(collection="shop")
    def test_basket(stillweb_page):
        stillweb_page.goto("https://shop.example/")

pytest finds it by its entry point and loads `plugin`, which does nothing until a test asks for one of its
fixtures: a replayed collection, a page in its proxy, an environment. See docs/testing.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
