// The driver's access to a document: observation, and control of a pinned clock. Runs in an isolated world of every
// frame: it shares only the DOM with the page, so real timers are available here.
(() => {
  "use strict";
  if (globalThis.eye) return;

  // A form's fields shadow its members of the same name, including inherited ones. Members of an element that may be a
  // form are read through this: from the prototype for a form, from the element otherwise.
  const forms = new WeakMap();
  const bare = (node) => {
    if (!(node instanceof HTMLFormElement)) return node;
    let form = forms.get(node);
    if (!form) {
      const get = (_, name) => {
        const found = Reflect.get(HTMLFormElement.prototype, name, node);
        return typeof found === "function" ? found.bind(node) : found;
      };
      forms.set(node, form = new Proxy({}, { get }));
    }
    return form;
  };

  let changes = 0;
  const wanted = { subtree: true, childList: true, attributes: true, characterData: true };
  const seen = new WeakSet();
  // `document.open()` removes the listeners of all worlds, also those that wait for a reply of the page's clock. This is
  // called before that reply.
  const awaited = new Set(); // calls that add such a listener again
  const observer = new MutationObserver((records) => {
    changes += records.length;
    for (const add of awaited) add();
  });
  const watch = (root) => {
    if (!seen.has(root)) {
      seen.add(root);
      observer.observe(root, wanted);
      changes += 1;
    }
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const { shadowRoot } = bare(node);
      if (shadowRoot) watch(shadowRoot);
    }
  };
  // A frame's first, empty document may pass its window, and this world, to the next one of the same origin:
  // `document` may change.
  seen.add(document);
  observer.observe(document, wanted);

  const look = () => {
    if (!seen.has(document)) watch(document);
    changes += observer.takeRecords().length;
    return { changes, scrolls, loading: document.readyState === "loading" };
  };
  const replyOf = ({ detail }) => { // the reply of clock.js
    const { flags, ...reply } = JSON.parse(detail);
    return { ...reply, flags: flags ? flags.split("\n") : [] };
  };
  const within = (promise, ms) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, ms))]);
  // One frame drawn, with its resize and intersection observers, and the tasks after it. A transition that begins in
  // it ends in the next (`clock.js`), and may cause another one.
  let turned = 0;
  const turn = () => { turned += 1; };
  let scrolls = 0; // events
  const scrolled = () => { scrolls += 1; };
  // The browser reports an invalid field in a bubble that fades in, and out after 5 s, by the real clock.
  const refused = new Map(); // field -> its `invalid` event; all invalid fields of a form get one, and one of them has the focus then
  const refuse = (event) => { if (event.isTrusted) refused.set(event.composedPath()[0], event); };
  const refusedField = () => {
    for (const [field, { defaultPrevented: handledByPage }] of refused) {
      if (!handledByPage && field.isConnected && field === field.getRootNode().activeElement && field.validationMessage && field.setCustomValidity) return field;
    }
    return null;
  };
  const BUBBLE = 250; // real ms; longer than the fade-out (Blink's ValidationMessageClientImpl: 133 ms)
  const REQUESTLESS = "[srcdoc], [src^='blob:'], [src^='javascript:' i]";
  // The browser keeps this list; a selector for all of it would visit each element before each response.
  const requestlessFrames = () => [...document.getElementsByTagNameNS("*", "iframe")].filter((frame) => frame.matches(REQUESTLESS));
  const parsed = new WeakSet(); // documents that were parsed at a rest
  const early = new WeakSet(); // frames of the parser and its scripts
  const noteFrames = () => { for (const frame of requestlessFrames()) early.add(frame); };
  // Copies of the page: `window` hears them last, so that the page's own listeners have set or refused it.
  let copied = null;
  const focusedElement = () => { // through open shadow roots
    let { activeElement: focused } = document;
    for (let root; (root = bare(focused)?.shadowRoot)?.activeElement; ) focused = root.activeElement;
    return focused;
  };
  const selected = () => {
    const { value, selectionStart: from, selectionEnd: to } = focusedElement() ?? {};
    return typeof value === "string" && from !== to ? value.slice(from, to) : String(document.getSelection());
  };
  const copy = (event) => {
    if (!event.isTrusted) return;
    const text = event.defaultPrevented ? event.clipboardData.getData("text/plain") : selected();
    if (text) copied = [performance.timeOrigin + performance.now(), text];
  };
  const countTurns = () => { // at each barrier, since `document.open()` removes the listeners of all worlds
    for (const type of ["transitionrun", "transitionend"]) addEventListener(type, turn, true);
    addEventListener("invalid", refuse, true);
    for (const type of ["copy", "cut"]) addEventListener(type, copy);
    addEventListener("scroll", scrolled, true);
    addEventListener("DOMContentLoaded", noteFrames, true);
  };
  countTurns();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const framesUntilStill = async () => {
    await frame();
    for (let before, more = 20; before !== turned && more; more--) {
      before = turned;
      await frame();
    }
  };
  const drawn = () => within(framesUntilStill(), 1000).then(() => new Promise((resolve) => setTimeout(resolve)));

  // Level EXACT: animations are stepped like the clock: paused when first seen, and set to the clock's time. The
  // browser would take their times from its own clock, in steps of 0.1 ms with jitter (TimeClamper), and its
  // compositor from another one. Returns the time until the next one ends, null if none does; the number of animations
  // set; what runs on the real clock; and whether a list or picker is open.
  const OPEN = CSS.supports("selector(:open)") ? "select:open, input:open" : ":not(*)"; // the browser's own lists and pickers
  const opened = () => Boolean(bare(focusedElement())?.matches(OPEN) || document.querySelector(OPEN));
  const stepped = new WeakMap(); // animation -> {at, since}: its own time when it last ran, and the clock's time then
  const INTERESTED = ["[interestfor]:hover", "[interestfor]:focus", ":interest-source"].filter((each) => CSS.supports(`selector(${each})`)).join();
  const snap = (now) => {
    watch(document);
    let ends = null;
    let set = 0;
    for (const animation of document.getAnimations()) {
      if (animation.timeline !== document.timeline || !animation.playbackRate) continue;
      if (animation.playState === "running") {
        stepped.set(animation, { at: Math.round(animation.currentTime ?? 0), since: now });
        animation.pause();
      } else if (animation.playState !== "paused" || !stepped.has(animation)) continue;
      const { at, since } = stepped.get(animation);
      const own = at + (now - since) * animation.playbackRate;
      const end = animation.effect?.getComputedTiming().endTime ?? 0;
      set += 1;
      if (animation.playbackRate > 0 && end !== Infinity && own >= end) {
        stepped.delete(animation);
        animation.finish();
        ends = 1; // for the effects of its end
        continue;
      }
      animation.currentTime = own;
      if (end === Infinity || animation.playbackRate < 0) continue;
      const left = Math.max(1, Math.ceil((end - own) / animation.playbackRate));
      if (ends === null || left < ends) ends = left;
    }
    const media = [...document.querySelectorAll("video, audio")];
    const flags = [];
    for (const each of media) {
      const name = each.currentSrc || each.localName;
      if (!each.paused && !each.ended) flags.push(`${name} plays on the real clock`);
      else if (each.readyState || each.networkState === each.NETWORK_LOADING) flags.push(`${name} was loaded on other threads`);
    }
    for (const { localName } of document.querySelectorAll("marquee, progress:indeterminate")) {
      flags.push(`<${localName}> is drawn by the real clock`);
    }
    if (document.querySelector(INTERESTED)) flags.push("interestfor shows its target by the real clock");
    for (const { content } of document.querySelectorAll("meta[http-equiv=refresh i]")) {
      if (parseFloat(content) > 0) flags.push(`${location.href} is refreshed by the real clock`);
    }
    return { ends, set, flags, opened: opened(), refused: refusedField() !== null };
  };

  // The browser gives up a font of these kinds by the real clock, unless it may replace the font that it shows meanwhile.
  const awaitFonts = () => {
    if (document.fonts.status !== "loading") return;
    for (const face of document.fonts) {
      if (face.status === "loading" && ["optional", "fallback"].includes(face.display)) face.display = "swap";
    }
  };

  // For a screenshot: no caret, finite animations at their end, endless ones at their beginning. A sheet belongs to
  // the document that made it.
  let sheet, styled;
  let held = [];
  // A caret needs focus; a sheet without need would make the browser compute all styles anew, and again after its
  // removal.
  const hasFocus = () => document.designMode === "on" || document.body?.isContentEditable
    || (document.activeElement ?? document.body) !== document.body;
  const hold = (on) => {
    if (styled !== document) {
      styled = document;
      sheet = new CSSStyleSheet();
      sheet.replaceSync("* { caret-color: transparent !important; }");
    }
    const roots = [document];
    for (const element of document.querySelectorAll("*")) {
      const { shadowRoot } = bare(element);
      if (shadowRoot) roots.push(shadowRoot);
    }
    for (const root of roots) {
      const others = root.adoptedStyleSheets.filter((other) => other !== sheet);
      if (on && hasFocus()) root.adoptedStyleSheets = [...others, sheet];
      else if (others.length < root.adoptedStyleSheets.length) root.adoptedStyleSheets = others;
    }
    for (const svg of document.querySelectorAll("svg")) {
      if (on) { svg.pauseAnimations(); svg.setCurrentTime(0); } else svg.unpauseAnimations();
    }
    if (!on) {
      for (const animation of held) animation.play();
      held = [];
      return;
    }
    for (const animation of document.getAnimations()) {
      const timing = animation.effect && animation.effect.getComputedTiming();
      if (!timing || animation.playState !== "running" || animation.timeline !== document.timeline) continue;
      if (timing.endTime !== Infinity && animation.playbackRate) animation.finish();
      else {
        animation.pause();
        animation.currentTime = 0;
        held.push(animation);
      }
    }
  };

  // The uppermost element at a point of a document, through open shadow roots.
  const uppermost = (root, x, y) => {
    let found = root.elementFromPoint(x, y);
    for (let inner; (inner = bare(found)?.shadowRoot);) {
      const deeper = inner.elementFromPoint(x, y);
      if (!deeper || deeper === found) break;
      found = deeper;
    }
    return found;
  };

  // Whether an element's children are several of one kind, in a column.
  const isList = (element) => {
    const items = bare(element).children;
    if (items.length < 2) return false;
    const { localName, classList } = bare(items[0]);
    return [...items].every((each) => {
      const item = bare(each);
      return item.localName === localName && item.classList[0] === classList[0] && item.textContent.trim()
        && getComputedStyle(each).display !== "inline";
    });
  };

  // Whether a frame has a new document that no request shows; the browser process commits it at any time. If the parser
  // ran meanwhile, what the frame's scripts do to other documents comes before or after the next part of the page.
  const requestless = new WeakMap(); // frame -> its last such document
  const OUTSIDE = /\b(parent|top|frameElement|postMessage|localStorage|sessionStorage|cookie|indexedDB|BroadcastChannel)\b/;
  const reachesOut = (frame, source) => {
    if (frame.hasAttribute("sandbox") && !frame.sandbox.contains("allow-scripts")) return false;
    if (frame.hasAttribute("srcdoc")) return /<script|\son\w+\s*=/i.test(source) && OUTSIDE.test(source);
    return source.startsWith("blob:") || OUTSIDE.test(source);
  };
  const hasNewFrame = (flags) => {
    let found = false;
    for (const frame of requestlessFrames()) {
      const source = frame.getAttribute("srcdoc") ?? frame.getAttribute("src");
      if (requestless.get(frame) === source) continue;
      requestless.set(frame, source);
      found ||= !/^javascript:/i.test(source);
      const isBeside = !parsed.has(document) && (document.readyState === "loading" || early.has(frame));
      if (isBeside && reachesOut(frame, source)) flags.push("a frame without a request ran scripts beside the parser of its page");
    }
    if (!found && document.readyState !== "loading") parsed.add(document);
    return found;
  };

  globalThis.eye = {
    bare,
    isList,
    uppermost,
    look,
    hold,
    // `innerText` leaves shadow trees out: their text follows, in tree order.
    text() {
      if (!innerWidth || !innerHeight || !document.body || !document.body.checkVisibility()) return "";
      const texts = [document.body.innerText];
      const visit = (root) => {
        for (const each of root.querySelectorAll("*")) {
          const element = bare(each);
          if (!element.shadowRoot || !element.checkVisibility()) continue;
          for (const node of element.shadowRoot.childNodes) {
            const child = bare(node);
            const style = child.localName === "style" || child.localName === "script";
            if (!style) texts.push(child.innerText ?? child.textContent);
          }
          visit(element.shadowRoot);
        }
      };
      visit(document.body);
      return texts.join("\n");
    },
    html() {
      const type = document.doctype ? `<!DOCTYPE ${document.doctype.name}>` : "";
      return type + (document.documentElement ? document.documentElement.outerHTML : "");
    },
    // Moves the page's clock; null if the page has none.
    clock(control, command, time) {
      return new Promise((resolve) => {
        const hear = (event) => {
          event.stopImmediatePropagation();
          awaited.delete(add);
          resolve({ ...replyOf(event), ...look() });
        };
        const add = () => addEventListener(control + "!", hear, { once: true, capture: true });
        awaited.add(add);
        add();
        const detail = JSON.stringify({ command, time });
        const heard = !dispatchEvent(new CustomEvent(control, { detail, cancelable: true }));
        if (heard) return;
        awaited.delete(add);
        resolve(null);
      });
    },
    // Number of pending deliveries to this frame; synchronous, since a promise of a document that is being replaced
    // never ends.
    waiting(control) {
      awaitFonts();
      let reply = null;
      const hear = (event) => { reply = replyOf(event); };
      addEventListener(control + "!", hear, true);
      dispatchEvent(new CustomEvent(control, { detail: JSON.stringify({ command: "peek", time: 0 }), cancelable: true }));
      removeEventListener(control + "!", hear, true);
      return reply;
    },
    // Resolves once a worker that this frame has created has begun, or has received a message.
    started(control) {
      return new Promise((resolve) => {
        addEventListener(control + "*", () => resolve(), { once: true, capture: true });
        const { starting, unread } = this.waiting(control) ?? {};
        if (!starting && !unread) resolve();
      });
    },
    // Passes a value on once this thread has run the tasks that wait.
    async afterTasks(value) {
      await scheduler.postTask(() => {}, { priority: "background" });
      return value;
    },
    // At level EXACT, where frames are drawn on demand: waits until this thread has nothing to do. Completed work of
    // other threads is delivered to the page, one piece at a time (hold.js), unless a frame `began` a document. A search
    // for new shadow trees visits all elements; before each response it would cost more than the rest, so `snap` has it.
    async idle(control, searches = false) {
      countTurns();
      awaitFonts();
      if (searches) watch(document);
      const flags = [];
      let workers = {};
      let gave = false;
      let steps = 0;
      for (let given = 1, rounds = 2000; given && rounds; rounds--) {
        for (let i = 0; i < 2; i++) await scheduler.postTask(() => {}, { priority: "background" });
        if (hasNewFrame(flags)) return { ...look(), turned, flags, workers, gave, steps, began: true };
        const reply = await this.clock(control, "give", 0);
        given = reply?.given ?? 0;
        gave ||= given > 0;
        steps = reply?.steps ?? 0;
        workers = reply && { starting: reply.starting, unread: reply.unread, deaf: reply.deaf };
        flags.push(...(reply?.flags ?? []));
      }
      return { ...look(), turned, flags, workers, gave, steps, began: false };
    },
    snap,
    // The last text that this document copied, with the time, once; null if there is none.
    copied() {
      const text = copied;
      copied = null;
      return text;
    },
    // Waits until view transitions have captured what the last frame showed; returns whether there were any.
    async captured(control) {
      if (!this.waiting(control)?.captures) return false;
      await this.clock(control, "capture", 0);
      return true;
    },
    // Removes the bubble at an invalid field, and returns its text; "" without one. A message of blanks hides it.
    async accept() {
      const field = refusedField();
      refused.clear();
      if (!field) return "";
      const { validationMessage: message, validity: { customError } } = field;
      field.setCustomValidity(" ");
      await new Promise((resolve) => setTimeout(resolve)); // the browser checks it in a task of its own
      await new Promise((resolve) => setTimeout(resolve, BUBBLE)); // the bubble's timer was set earlier, and is due earlier
      field.setCustomValidity(customError ? message : "");
      return message;
    },
    // Both, for a page with one frame; `look` is null if something was set, which must be drawn first.
    async snapAndIdle(control, now) {
      if (await this.captured(control)) return null;
      const reply = snap(now);
      return { ...reply, look: reply.set || reply.opened || reply.refused ? null : await this.idle(control) };
    },
    async barrier(ms) {
      countTurns();
      watch(document);
      if (document.readyState === "loading") {
        await within(new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve)), ms);
      }
      await drawn();
      const images = [...document.images].filter((image) => image.complete && image.naturalWidth);
      await within(Promise.all(images.map((image) => image.decode().catch(() => null))), ms);
      if (document.fonts.status === "loading") await within(document.fonts.ready, ms);
      return look();
    },
    // Elements that look clickable and are not controls: a hand cursor, and no ancestor with one except a list, whose
    // items have it.
    clickable(limit) {
      const found = [];
      const controls = "a[href], button, input, select, textarea, summary, option, label, [role], [tabindex], [contenteditable]";
      const visit = (root, inherited) => {
        for (const each of root.children) {
          if (found.length >= limit) return;
          const node = bare(each);
          const hand = getComputedStyle(each).cursor === "pointer";
          const own = hand && !inherited && !node.matches(controls);
          const list = own && isList(each);
          if (own && !list) found.push(each);
          if (node.shadowRoot) visit(node.shadowRoot, hand);
          visit(node, hand && !list);
        }
      };
      if (document.body) visit(document.body, false);
      return found;
    },
    // Whether a wheel event at a point would scroll an element that the page requests a layer for.
    ownLayer(x, y) {
      let node = uppermost(document, x, y);
      while (bare(node)?.contentDocument) {
        const box = node.getBoundingClientRect();
        x -= box.left + node.clientLeft;
        y -= box.top + node.clientTop;
        const within = uppermost(node.contentDocument, x, y);
        if (!within) break;
        node = within;
      }
      const above = (each) => each.assignedSlot ?? each.parentElement ?? each.getRootNode().host
        ?? each.ownerDocument.defaultView?.frameElement;
      for (let here = node; here; here = above(node)) {
        const style = getComputedStyle(here);
        node = bare(here);
        if (style.willChange === "auto" || !(node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth)) continue;
        if (node.matches("html, body") || /auto|scroll/.test(style.overflow)) return true; // those two scroll the page
      }
      return false;
    },
    // Resolves when nothing has changed for `span` ms, or at the limit.
    quiet(span, limit) {
      return new Promise((resolve) => {
        let timer = 0;
        const restart = () => { clearTimeout(timer); timer = setTimeout(finish, span); };
        const local = new MutationObserver(restart);
        const end = setTimeout(() => finish(), limit);
        const finish = () => {
          local.disconnect();
          clearTimeout(end);
          clearTimeout(timer);
          resolve(look());
        };
        local.observe(document, wanted);
        restart();
      });
    },
  };
})()
