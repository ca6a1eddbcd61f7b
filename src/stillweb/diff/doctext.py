"""Every text of a document, shown or not: what crawlers keep of a page, and their baselines are held against.

A browser shows less: menus of a narrower screen, folded parts. So the visible text (`page_text`) of a replay
cannot be compared with such a baseline.
"""

from __future__ import annotations

from playwright.async_api import Page as BrowserPage

from stillweb.browser.probe import Probe
from stillweb.text import well_formed

_TEXTS = """(() => {
  const lines = [];
  const silent = new Set(["script", "style", "noscript", "template", "title"]);
  const walk = (node) => {
    if (node.nodeType === 3) {
      const text = node.data.trim();
      if (text) lines.push(text);
      return;
    }
    if (node.nodeType === 1 && silent.has(node.localName)) return;
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  if (document.documentElement) walk(document.documentElement);
  return lines.join("\\n");
})()"""


async def document_text(page: BrowserPage) -> str:
    """Return every text of a page, a line each, its frames' behind its own.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await Probe.of(page)
    told = await probe.evaluate_all(_TEXTS, await probe.frames())
    return well_formed("\n".join(text for text in told if text))
