// A recording's interactions with a page: scrolling, opening controls, playing media. Runs in the isolated world of
// every frame; clicks and moves come as trusted input. Form submissions meanwhile are stopped here.
(() => {
  "use strict";
  if (globalThis.behaviors) return;
  const MOST_SCROLLERS = 8;
  const MOST_OF_A_PART = 20; // screens: the rest of the budget is for the page
  const FRAME_MS = 1000; // for a frame that does not come: a frame outside of the viewport draws none
  const PLAY_MS = 2000; // until something has begun to play

  const walk = function* (root) {
    for (const element of root.querySelectorAll("*")) {
      yield element;
      if (element.shadowRoot) yield* walk(element.shadowRoot);
    }
  };
  const within = (promise, ms) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, ms))]);
  const shown = (element) =>
    element.getClientRects().length > 0 && element.checkVisibility({ visibilityProperty: true });

  let submits = 0;
  addEventListener("submit", (event) => {
    event.preventDefault();
    event.stopImmediatePropagation();
    submits += 1;
  }, true);

  // --- scrolling -----------------------------------------------------------------------------------

  const scrollers = () => {
    const root = document.scrollingElement || document.documentElement;
    const found = root ? [root] : [];
    for (const element of walk(document)) {
      if (found.length >= MOST_SCROLLERS) break;
      if (element === root || element.clientHeight < 100) continue;
      if (element.scrollHeight <= element.clientHeight + 20) continue;
      if (/auto|scroll|overlay/.test(getComputedStyle(element).overflowY)) found.push(element);
    }
    return found;
  };
  // An intersection observer reports the next frame even while the page's clock is stopped.
  const frameDrawn = (root) => within(new Promise((resolve) => {
    const observer = new IntersectionObserver(() => { observer.disconnect(); resolve(); });
    observer.observe(root);
  }), FRAME_MS);
  // Scrolls one screen: first visible parts that scroll separately, since they leave the viewport afterwards, then the
  // page. Returns the number that moved.
  const scrolled = new WeakMap();
  const scrollOn = async () => {
    const [root, ...parts] = scrollers();
    if (!root) return 0;
    const on = (each, screen) => {
      const before = each.scrollTop;
      each.scrollTo({ top: before + screen, behavior: "instant" });
      return each.scrollTop > before;
    };
    let moved = 0;
    for (const part of parts) {
      const { top, bottom } = part.getBoundingClientRect();
      const steps = scrolled.get(part) ?? 0;
      if (bottom < 0 || top > innerHeight || steps >= MOST_OF_A_PART || !on(part, part.clientHeight)) continue;
      scrolled.set(part, steps + 1);
      moved += 1;
    }
    if (!moved && on(root, innerHeight)) moved = 1;
    if (moved) await frameDrawn(root);
    return moved;
  };
  const scrollBack = () => {
    for (const each of scrollers()) each.scrollTo({ top: 0, behavior: "instant" });
  };

  // --- controls ------------------------------------------------------------------------------------

  const MENU = "[aria-haspopup]:not([aria-haspopup=false]), [data-toggle=dropdown], [data-bs-toggle=dropdown], "
    + ".dropdown-toggle, :is(nav, [role=navigation], [role=menubar], [role=menu]) [aria-expanded=false]";
  const DISCLOSURE = "summary, [aria-expanded=false], [data-toggle=collapse], [data-bs-toggle=collapse], "
    + "[role=treeitem][aria-expanded=false]";
  const TAB = "[role=tab], [data-toggle=tab], [data-toggle=pill], [data-bs-toggle=tab], [data-bs-toggle=pill]";
  const isTyped = (element) => element.matches("input, textarea, select, [contenteditable], [role=combobox]");
  const KINDS = {
    details: (element) => element.matches(DISCLOSURE) && !element.matches(MENU) && !element.matches(TAB)
      && !(element.localName === "summary" && element.parentElement?.open)
      && element.getAttribute("aria-expanded") !== "true",
    menus: (element) => element.matches(MENU) && !element.matches(TAB) && !isTyped(element)
      && element.getAttribute("aria-expanded") !== "true",
    tabs: (element) => element.matches(TAB) && element.getAttribute("aria-selected") !== "true"
      && !element.classList.contains("active"),
    hover: (element) => hovered().has(element) || element.matches(MENU)
      || (element.localName === "li" && [...element.children].some((child) => child.matches("ul, ol, [role=menu]") && !shown(child))),
  };

  // Elements that a style sheet shows while the pointer is over another: `.menu li:hover > ul {display: block}`.
  const SHOWS = ["display", "visibility", "opacity", "height", "max-height", "transform", "left", "top", "clip", "clip-path"];
  let sheets = -1;
  let targets = new Set();
  const hovered = () => {
    if (sheets === document.styleSheets.length) return targets;
    sheets = document.styleSheets.length;
    targets = new Set();
    for (const sheet of document.styleSheets) collect(rulesOf(sheet));
    return targets;
  };
  const rulesOf = (sheet) => {
    try {
      return sheet?.cssRules ?? [];
    } catch {
      return []; // of another origin
    }
  };
  const collect = (rules) => {
    for (const rule of rules) {
      if (rule.selectorText?.includes(":hover") && SHOWS.some((name) => rule.style.getPropertyValue(name))) {
        for (const selector of rule.selectorText.split(",")) {
          const [before, after = ""] = [selector.split(":hover")[0], selector.slice(selector.indexOf(":hover") + 6)];
          if (!before.trim() || !/[\s>+~]\s*\S/.test(after)) continue;
          try {
            for (const element of document.querySelectorAll(before)) targets.add(element);
          } catch {
            // part of a selector with commas in brackets
          }
        }
      }
      collect(rule.cssRules ?? rulesOf(rule.styleSheet));
    }
  };

  const leaves = (element) => {
    const link = element.closest("a[href], area[href]");
    if (!link || /^\s*(#|javascript:)/i.test(link.getAttribute("href"))) return false;
    return String(link.href).split("#")[0] !== location.href.split("#")[0] || !link.hash;
  };
  const labelOf = (element) =>
    (element.getAttribute("aria-label") || element.textContent || element.localName).trim().slice(0, 40);

  const tried = { details: new WeakSet(), menus: new WeakSet(), tabs: new WeakSet(), hover: new WeakSet() };
  // The next visible, untried control of a kind: its label, and the element.
  const next = (kind) => {
    for (const element of walk(document)) {
      if (tried[kind].has(element) || !KINDS[kind](element) || !shown(element)) continue;
      tried[kind].add(element);
      if (element.matches(":disabled") || element.getAttribute("aria-disabled") === "true") continue;
      if (kind !== "hover" && leaves(element)) continue;
      return [labelOf(element), element];
    }
    return [""];
  };
  const isOpen = (element) => element.getAttribute("aria-expanded") === "true";

  // --- media ---------------------------------------------------------------------------------------

  const media = () => {
    const found = [];
    for (const element of walk(document)) {
      if (!element.matches("video, audio")) continue;
      const cors = element.crossOrigin ?? "";
      const sources = [element.getAttribute("src"), ...[...element.querySelectorAll("source")].map((s) => s.getAttribute("src"))];
      for (const track of element.querySelectorAll("track[src]")) sources.push(track.getAttribute("src"));
      for (const source of sources) if (source) found.push({ url: new URL(source, document.baseURI).href, cors });
    }
    return found.filter(({ url }) => /^https?:/.test(url));
  };
  // Muted, until it has begun: the requests of the page's own player are what is needed.
  const play = async () => {
    const all = [...walk(document)].filter((element) => element.matches("video, audio") && element.paused);
    const begun = await Promise.all(all.map(async (element) => {
      element.muted = true;
      const playing = new Promise((resolve) => {
        element.addEventListener("playing", () => resolve(true), { once: true });
        element.addEventListener("error", () => resolve(false), { once: true });
      });
      element.play().catch(() => {});
      const came = await within(playing, PLAY_MS);
      element.pause();
      return came === true;
    }));
    return begun.filter(Boolean).length;
  };
  // Fetches a body to its end, as the page could; returns whether it arrived. `reload`: the browser's cache would
  // request only the missing part of a partial entry. Cache storage reads what a page may play but not read.
  const drain = async (url, cors) => {
    const own = new URL(url).origin === location.origin;
    try {
      if (own || cors) {
        const credentials = own || cors === "use-credentials" ? "include" : "omit";
        const response = await fetch(url, { credentials, cache: "reload" });
        await response.body?.pipeTo(new WritableStream());
        return response.ok;
      }
      const name = `drain ${url}`;
      const storage = await caches.open(name);
      try {
        await storage.put(url, await fetch(url, { mode: "no-cors", credentials: "include", cache: "reload" }));
      } finally {
        await caches.delete(name);
      }
      return true;
    } catch {
      return false; // forbidden by the site or the page's content security policy, or too large to store
    }
  };

  const take = () => { // submits stopped since the last call
    const count = submits;
    submits = 0;
    return count;
  };
  const place = () => [location.href, navigation.currentEntry?.index ?? 0];
  globalThis.behaviors = { walk, within, rulesOf, scrollOn, scrollBack, next, isOpen, media, play, drain, take, place };
})();
