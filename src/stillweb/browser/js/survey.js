// One pass over a document: elements and texts in tree order, through open shadow roots and slots, with boxes, roles,
// names and states. Runs in the isolated world, after eye.js, names.js and pointed.js, and changes nothing. The
// accessibility tree (`axtree.py`) is the browser's own and costs more.
(() => {
  "use strict";
  if (globalThis.survey) return;
  const { bare } = eye;
  const { SKIPPED, flatParent, flatChildren, plain, roleOf, nameOf, valueOf, statesOf } = names;
  const LISTED = new Map(["id", "name", "type", "href", "alt", "title", "placeholder", "role", "aria-label", "aria-current",
    "aria-expanded", "aria-checked", "aria-selected", "aria-pressed", "aria-disabled", "aria-haspopup", "for",
    "colspan", "rowspan", "contenteditable", "data-testid"].map((name, i) => [name, i])); // name -> its place
  const WHOLE = new Set(["svg", "textarea", "option", "canvas", "video", "audio", "object"]); // measured from outside

  // The accessibility tree leaves these out unless they have further attributes.
  const PLAIN = new Set(["html", "body", "div", "span", "p", "b", "i", "u", "s", "em", "strong", "small", "big",
    "code", "kbd", "samp", "tt", "pre", "sub", "sup", "font", "center", "tbody", "thead", "tfoot", "picture", "slot",
    "mark", "ins", "del", "cite", "var", "label"]);
  const SILENT = /^(class|id|style|dir|lang|for|align|valign|width|height|data-.*)$/;
  const isSilent = (element) => [...element.attributes].every(({ name }) => SILENT.test(name));
  const isPlain = (element, tag, style) => PLAIN.has(tag) && !element.isContentEditable // a form is never plain
    && (style.overflow === "visible" || element === document.body || element === document.documentElement)
    && isSilent(element);
  // Name of a clickable image without one: its file name. The same rule as `bids.file_names`.
  const fileOf = (element) =>
    /^(?!data:|blob:)(?:[^?#]*\/)?([^/?#]*?)(?:\.\w+)?(?:[?#]|$)/.exec(element.getAttribute("src") ?? "")?.[1] ?? "";
  const FRAMES = new Set(["iframe", "frame"]);
  // In these the tree may differ from the page's content.
  const CLOSED = "[aria-hidden], [inert], [aria-modal], [role]:not([role=main], [role=navigation], [role=search], [role=banner], "
    + "[role=contentinfo], [role=region], [role=article], [role=list], [role=listitem], [role=note], [role=form]), "
    + "button, label, select, option, summary, fieldset, figure, dialog, map, ruby, math, object, [contenteditable], "
    + "iframe, meter, progress, slot";
  // Named by their content, so that the texts inside add nothing.
  const NAMED = "a[href], button, h1, h2, h3, h4, h5, h6, summary";

  const crop = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const area = (box) => Math.max(0, box[2] - box[0]) * Math.max(0, box[3] - box[1]);
  const edges = (rect) => [rect.left, rect.top, rect.right, rect.bottom];
  const unite = (box, rect) => {
    if (!rect.width || !rect.height) return;
    box[0] = Math.min(box[0], rect.left);
    box[1] = Math.min(box[1], rect.top);
    box[2] = Math.max(box[2], rect.right);
    box[3] = Math.max(box[3], rect.bottom);
  };
  const sized = ([left, top, right, bottom]) => [left, top, right - left, bottom - top].map(round);
  const round = (number) => Math.round(number * 100) / 100 || 0;

  // JSON in valid UTF-8. Checking each value would cost more than serialisation; lone surrogates are escaped, so that
  // they can be detected.
  const written = (value) => {
    const text = JSON.stringify(value);
    const whole = (_, each) => typeof each === "string" ? each.toWellFormed() : each;
    return /\\ud[89a-f]/.test(text) ? JSON.stringify(value, whole) : text;
  };

  // --- what can be seen and clicked ----------------------------------------------------------------

  // The visible part of an element's own box: clipped by every enclosing element that scrolls or hides (CSS 2.1
  // §11.1.1), for boxes in flow, positioned and fixed.
  const clipper = (view, styleOf) => {
    const inner = new Map();
    const inside = (element) => {
      let clip = inner.get(element);
      if (!clip) {
        clip = around(element);
        const root = element === document.documentElement || element === document.body;
        const style = styleOf(element);
        if (!root && style.overflow !== "visible" && style.display !== "contents") {
          clip = crop(clip, edges(bare(element).getBoundingClientRect()));
        }
        inner.set(element, clip);
      }
      return clip;
    };
    const around = (element) => {
      const position = styleOf(element).position;
      if (position === "fixed") return view;
      let parent = flatParent(element);
      if (position === "absolute") {
        while (parent) {
          const { position: above, transform } = styleOf(parent);
          if (above !== "static" || transform !== "none") break;
          parent = flatParent(parent);
        }
      }
      return parent ? inside(parent) : view;
    };
    return { around, inside };
  };

  // Whether a click at its middle, or near a corner, hits the element or a descendant.
  const reachable = (element, box) => {
    const within = (other) => {
      for (let here = other; here; here = flatParent(here)) if (here === element) return true;
      return Boolean(bare(other).closest?.("label")?.control === element);
    };
    const at = (x, y) => {
      const found = eye.uppermost(document, x, y);
      return found && within(found);
    };
    const [left, top, right, bottom] = box;
    const dx = (right - left) / 8, dy = (bottom - top) / 8;
    return at((left + right) / 2, (top + bottom) / 2) || at(left + dx, top + dy) || at(right - dx, top + dy)
      || at(left + dx, bottom - dy) || at(right - dx, bottom - dy);
  };

  // --- the walk ------------------------------------------------------------------------------------

  class Walk {
    constructor({ viewport, clip, all, rough, acting, listening }) {
      this.viewport = viewport; // leave out what is not visible now
      this.acting = acting; // only interactive elements, and their ancestors without data
      this.all = all; // identify all nodes that the accessibility tree may describe, not only interactive ones
      this.rough = rough; // without roles and names: the caller has them from the tree
      this.view = crop(clip ?? [0, 0, innerWidth, innerHeight], [0, 0, innerWidth, innerHeight]);
      const styles = new Map(); // each style object is new, and costs as much as a query
      this.styleOf = (element) => {
        let style = styles.get(element);
        if (!style) styles.set(element, style = getComputedStyle(element));
        return style;
      };
      this.clip = clipper(this.view, this.styleOf);
      this.acts = pointed.finder(listening);
      this.list = [];
      this.range = document.createRange();
    }

    // Ancestors are written with their first written descendant: `place.index` is -1 until then.
    write(place) {
      if (place.index >= 0) return place.index;
      const parent = place.above ? this.write(place.above) : -1;
      place.index = this.list.length;
      this.list.push(null);
      this.list[place.index] = this.record(place, parent);
      return place.index;
    }

    give(node, record) {
      record.n = pointed.numberOf(node);
      return record;
    }

    record(place, parent) {
      const { element } = place;
      const style = this.styleOf(element);
      const node = bare(element);
      const tag = node.localName;
      const role = this.rough ? "" : roleOf(element);
      const frame = FRAMES.has(tag);
      const acts = this.acts(element, style);
      if (this.acting && !acts && !frame) return { p: parent, tag };
      const own = tag === "option" ? element.closest("select") ?? element : element;
      const rect = (own === element ? node : own).getBoundingClientRect();
      const box = edges(rect);
      // An inline element has the box of its line; the target of a link is the image inside.
      if (acts && style.display === "inline") for (const child of node.children) unite(box, bare(child).getBoundingClientRect());
      const seen = crop(box, this.clip.around(own));
      const drawn = (own === element ? node : own).checkVisibility({ visibilityProperty: true, opacityProperty: true });
      const ratio = drawn && area(box) ? area(seen) / area(box) : 0;
      const record = { p: parent, tag, box: sized(box), ratio: round(ratio), drawn };
      if (ratio > 0 && ratio < 1) record.part = sized(seen);
      if (acts) record.acts = true;
      if (acts === "hand") record.hand = true;
      if (acts && node.matches(":disabled, [aria-disabled=true]")) record.states = { disabled: true };
      if (acts && ratio > 0 && tag !== "option" && !reachable(element, seen)) record.covered = true;
      if (frame) {
        const left = rect.x + element.clientLeft, top = rect.y + element.clientTop;
        record.origin = [round(left), round(top)];
        const content = [left, top, left + element.clientWidth, top + element.clientHeight];
        record.within = crop(content, this.clip.around(element)).map(round);
      }
      if (!this.rough) this.describe(element, record, role, style);
      else if (!acts && this.isList(place, style)) record.role = tag === "li" ? "listitem" : "list";
      const known = acts || frame || (this.all && !isPlain(element, tag, style));
      return known ? this.give(element, record) : record;
    }

    describe(node, record, role, style) {
      const element = bare(node);
      record.role = role;
      if (record.acts || role !== "generic") {
        const name = nameOf(node, role) || (record.acts && element.localName === "img" ? fileOf(element) : "");
        if (name) record.name = name;
        const value = valueOf(node);
        if (value) record.value = value;
        const states = statesOf(node, role);
        if (Object.keys(states).length) record.states = states;
      }
      if (element.hasAttributes()) {
        const names = element.getAttributeNames().filter((name) => LISTED.has(name));
        if (names.length > 1) names.sort((a, b) => LISTED.get(a) - LISTED.get(b));
        if (names.length) record.attrs = Object.fromEntries(names.map((name) => [name, element.getAttribute(name)]));
      }
      if (element.localName === "a" && element.href) record.url = String(element.href?.baseVal ?? element.href);
      if (element.localName === "img" && element.currentSrc) record.url = element.currentSrc;
      const display = style.display;
      if (display.startsWith("inline") || display === "contents") record.inline = true;
    }

    text(node, place) {
      if (!node.data || (!node.data.trim() && !this.list.length)) return;
      const by = (this.rough || this.viewport) && bare(node.parentElement)?.closest(NAMED);
      const named = by && !by.hasAttribute("aria-label") && !by.hasAttribute("aria-labelledby");
      if (this.rough && (named || !this.viewport)) return;
      const blank = !node.data.trim();
      if (blank && (this.rough || place.index < 0)) return; // between blocks: not drawn
      const label = named && !blank && place.index >= 0; // complete if the element that it names is visible
      if ((this.viewport && !label) || blank) {
        this.range.selectNodeContents(node);
        const box = edges(this.range.getBoundingClientRect());
        if (blank && !area(box)) return;
        if (this.viewport && area(crop(box, this.clip.inside(place.element))) <= 0) return;
      }
      const style = this.styleOf(place.element);
      if (style.visibility !== "visible") return;
      if (this.acting) {
        this.write(place);
        return;
      }
      const preserved = style.whiteSpaceCollapse !== "collapse";
      const record = { p: this.write(place), t: preserved ? node.data : node.data.replace(/[\t\n\f\r ]+/g, " ") };
      if (this.all && style.textTransform === "none" && this.isOpen(place)) record.role = "StaticText";
      this.list.push(this.all ? this.give(node, record) : record);
    }

    // Whether the accessibility tree agrees with the page about texts in an element, and about list items: no ancestor
    // hides or replaces them.
    isOpen(place) {
      if (place.open === undefined) {
        const { element } = place;
        const above = place.above ? this.isOpen(place.above) : !document.querySelector(":modal");
        place.open = above && !bare(element).matches(CLOSED);
      }
      return place.open;
    }

    isList(place, style) {
      const lists = { ul: true, ol: true, li: false };
      const isList = lists[bare(place.element).localName];
      if (isList === undefined || style.overflow !== "visible" || !this.isOpen(place)) return false;
      if (!isSilent(bare(place.element))) return false;
      return isList || Boolean(place.above && lists[bare(place.above.element).localName]);
    }

    // Whether an element is written for its own sake, not only for its content.
    wanted(element, place) {
      const { localName } = bare(element);
      const option = localName === "option" || localName === "optgroup";
      if (option) return place.above.index >= 0;
      const style = this.styleOf(element);
      if (style.visibility !== "visible") {
        if (this.acting && this.acts(element, style)) place.owes = true;
        return false;
      }
      if (!this.viewport) return !this.acting || this.owed(element, place, style);
      const box = edges(bare(element).getBoundingClientRect());
      return area(crop(box, this.view)) > 0 && area(crop(box, this.clip.around(element))) > 0;
    }

    // For interactive elements of the whole page: whether an element or one of its hidden ancestors is interactive.
    owed(element, place, style) {
      for (let above = place.above; above?.owes; above = above.above) if (above.index < 0) return true;
      return FRAMES.has(bare(element).localName) || Boolean(this.acts(element, style));
    }

    // Whether an element's box meets the viewport; `null` without a box.
    near(element) {
      const rect = bare(element).getBoundingClientRect();
      if (!rect.width && !rect.height) return null;
      const [left, top, right, bottom] = this.view;
      return rect.bottom > top && rect.top < bottom && rect.right > left && rect.left < right;
    }

    enter(element, above) {
      const node = bare(element);
      const { localName } = node;
      if (SKIPPED.has(localName)) return null;
      if (localName === "br") {
        if (above.index >= 0 && above.near && !this.acting) this.list.push({ p: above.index, t: "\n" });
        return null;
      }
      const place = { element, above, index: -1, near: true, owes: Boolean(above?.owes), open: undefined };
      if (localName === "option" || localName === "optgroup") {
        if (this.wanted(element, place)) this.write(place);
        return place;
      }
      // Boxes first, styles only near the viewport: most of a long page is far.
      const near = this.viewport ? this.near(element) : null;
      if (near === null) {
        if (!node.checkVisibility()) {
          if (this.styleOf(element).display !== "contents") return null;
        } else if (this.viewport) place.near = false;
      } else place.near = near;
      if (place.near && this.wanted(element, place)) this.write(place);
      return place;
    }

    // Texts far from the viewport are skipped; a closed <details> shows its summary only. Last child first.
    *inside(element, place) {
      const closed = bare(element).localName === "details" && !element.open;
      const children = flatChildren(element);
      for (let i = children.length - 1; i >= 0; i--) {
        const node = children[i];
        const { nodeType: type, localName } = bare(node);
        if (type === Node.ELEMENT_NODE ? !closed || localName === "summary"
          : type === Node.TEXT_NODE && place.near && !closed) yield node;
      }
    }

    run() {
      // Lists, not recursion: scripts can nest deeper than the stack.
      const todo = document.documentElement ? [document.documentElement] : [];
      const places = [null];
      while (todo.length) {
        const given = todo.pop(), above = places.pop();
        const node = bare(given);
        if (node.nodeType === Node.TEXT_NODE) {
          this.text(given, above);
          continue;
        }
        const place = this.enter(given, above);
        const { localName } = node;
        if (!place || WHOLE.has(localName)) continue;
        if (localName === "select" && place.index < 0) continue;
        const special = node.shadowRoot || localName === "slot" || localName === "details";
        if (special) {
          for (const child of this.inside(given, place)) todo.push(child), places.push(place);
        } else if (!place.near || (this.acting && !this.viewport)) {
          for (let c = node.lastElementChild; c; c = bare(c).previousElementSibling) todo.push(c), places.push(place);
        } else {
          for (let c = node.lastChild, each; c; c = each.previousSibling) {
            each = bare(c);
            const type = each.nodeType;
            if (type === 1 || type === 3) todo.push(c), places.push(place);
          }
        }
      }
      return pointed.withFresh(written({ list: this.list }));
    }
  }

  globalThis.survey = (options) => {
    pointed.begin(options.known); // nodes by number
    return new Walk(options).run();
  };
})()
