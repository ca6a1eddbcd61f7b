"""All compared forms of a page, taken in one order, at its recording and at its replay."""

from __future__ import annotations

import json
from dataclasses import dataclass

from playwright.async_api import Page

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.observe.axtree import axtree
from stillweb.browser.observe.bids import Bids
from stillweb.browser.observe.page import page_text, screenshot
from stillweb.text import well_formed

_OUTLINE = """(() => {
  const lines = [];
  const cut = (text, most) => text.length > most ? `${text.slice(0, most)}~${text.length}` : text;
  const sum = (text) => {
    let hash = 0x811c9dc5; // FNV-1a
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
    return `${text.length} ${hash.toString(16)}`;
  };
  const walk = (node, depth) => {
    if (node.nodeType === 3) {
      const text = node.data.replace(/\\s+/g, " ").trim();
      if (text) lines.push(`${depth}\\t\\t#text ${cut(text, 160)}`);
      return;
    }
    if (node.nodeType !== 1) return;
    const { left, top, width, height } = node.getBoundingClientRect();
    const box = width && height ? [left + scrollX, top + scrollY, width, height].map(Math.round) : "";
    const names = node.getAttributeNames().sort();
    const attributes = names.map((name) => ` ${name}=${JSON.stringify(cut(node.getAttribute(name), 200))}`);
    lines.push(`${depth}\\t${box}\\t${node.localName}${attributes.join("")}`);
    if (node.localName === "script" || node.localName === "style") {
      if (node.textContent) lines.push(`${depth + 1}\\t\\t#code ${sum(node.textContent)}`);
      return;
    }
    if (node.shadowRoot) {
      lines.push(`${depth + 1}\\t\\t#shadow`);
      for (const child of node.shadowRoot.childNodes) walk(child, depth + 2);
    }
    for (const child of node.childNodes) walk(child, depth + 1);
  };
  if (document.documentElement) walk(document.documentElement, 0);
  return lines.join("\\n");
})()"""

_BOXES = """((selectors) => selectors.flatMap((selector) => {
  try {
    return [...document.querySelectorAll(selector)].map((element) => element.getBoundingClientRect())
      .filter(({ width, height }) => width && height)
      .map(({ left, top, right, bottom }) =>
        [Math.floor(left), Math.floor(top), Math.ceil(right), Math.ceil(bottom)]);
  } catch (error) { return []; }
}))(%s)"""


async def outline(page: Page) -> str:
    """Return the element tree of a page; each frame's tree follows after a line `#frame URL`.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    frames = await probe.frames()
    results = await probe.evaluate_all(_OUTLINE, frames)
    parts = []
    for number, (frame, lines) in enumerate(zip(frames, results, strict=True)):
        if lines:
            parts.append(f"0\t\t#frame {frame.url}\n{lines}" if number else lines)
    return well_formed("\n".join(parts))


async def boxes_of(page: Page, selectors: list[str]) -> list[tuple[int, int, int, int]]:
    """Return the boxes of elements by CSS selectors: left, top, right, bottom in the viewport.

    A selector that the browser rejects has none.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    results = await probe.evaluate_all(_BOXES % json.dumps(selectors), (await probe.frames())[:1])
    return [(box[0], box[1], box[2], box[3]) for box in results[0] or ()]


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """Compared forms of a page.

    Attributes:
        url: final URL.
        picture: PNG of the viewport.
        text: `page_text`.
        axtree: flattened accessibility tree.
        dom: elements with their boxes (`outline`).
    """

    url: str = ""
    picture: bytes = b""
    text: str = ""
    axtree: str = ""
    dom: str = ""


async def take_snapshot(page: Page) -> PageSnapshot:
    """Take a snapshot of a settled page.

    Raises:
        InfraError: if the page is closed, has crashed or keeps navigating.
    """
    tree = await axtree(page, Bids())
    text = await page_text(page)
    dom = await outline(page)
    return PageSnapshot(page.url, await screenshot(page), text, tree.text, dom)
