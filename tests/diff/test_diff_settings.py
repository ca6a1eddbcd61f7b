"""`diff.yaml`: its permitted content; a mistake is reported with its position."""

from __future__ import annotations

import pytest

from stillweb.diff.compare.settings import DEFAULT_GATES, read_settings
from stillweb.errors import CollectionError


def test_without_a_file_the_usual_gates_hold(tmp_path):
    assert read_settings(tmp_path).gates == DEFAULT_GATES


def test_gates_masks_and_what_is_ignored(tmp_path):
    (tmp_path / "diff.yaml").write_text(
        """
version: 1
gates: {screenshot: 0.95, ssim: none}
masks:
  - {url: "https://shop.test/*", selectors: [".clock"], boxes: [[0, 0, 200, 40]], why: time}
  - {boxes: [[5, 5, 6, 6]]}
ignore: {requests: ["https://counter.test/*"], console: ["^console: ResizeObserver"]}
"""
    )
    settings = read_settings(tmp_path)
    assert settings.gates == {n: v for n, v in DEFAULT_GATES.items() if n != "ssim"} | {"screenshot": 0.95}
    assert settings.boxes("https://shop.test/cart") == ((0, 0, 200, 40), (5, 5, 6, 6))
    assert settings.selectors("https://shop.test/cart") == [".clock"]
    assert settings.boxes("https://other.test/") == ((5, 5, 6, 6),)
    assert settings.ignores("https://counter.test/hit?n=1")
    assert not settings.counts("console: ResizeObserver loop (https://a/:1)")
    assert settings.counts("uncaught: boom")


def test_a_pattern_of_an_archive_takes_linear_time(tmp_path):
    (tmp_path / "diff.yaml").write_text("version: 1\nignore: {console: ['(a+)+$']}\n")
    assert read_settings(tmp_path).counts("a" * 5000 + "!")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2", "version is 2, this program reads 1"),
        ("[1]", "the file is not a mapping"),
        ("version: 1\ngates: {txt: 1}", "gates has the unknown key 'txt'; known: axtree"),
        ("version: 1\ngates: {text: high}", "gates.text is 'high'; expected a number or none"),
        ("version: 1\nmasks: [{url: x}]", r"masks\[0\] has neither boxes nor selectors"),
        ("version: 1\nmasks: [{boxes: [[1, 2, 1, 4]]}]", r"masks\[0\].boxes is not a list of \[left"),
        ("version: 1\nignore: {requests: x}", "ignore.requests is not a list of strings"),
        ("version: 1\nignore: {console: ['(']}", "missing \\)"),
        ("version: 1\nignore: {console: ['(?=a)']}", "no look-around"),
        ("version: [", "not valid YAML"),
        ("version: 1\nmasks: " + "[" * 3000 + "]" * 3000, "not valid YAML"),
        ("version: 1\n#" + "a" * 70_000, "70012 characters, 65536 at most"),
    ],
)
def test_a_mistake_is_reported(tmp_path, text, message):
    (tmp_path / "diff.yaml").write_text(text)
    with pytest.raises(CollectionError, match=message) as caught:
        read_settings(tmp_path)
    assert "diff.yaml" in str(caught.value)
