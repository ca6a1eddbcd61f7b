// Functions of `input/elements.py` on an element, evaluated in the isolated world: without the page's patches of the
// DOM API, but with its event listeners. `eye.bare` is needed because a form's fields shadow its members.
({
  connected: (node) => eye.bare(node).isConnected,
  disabled: (node) => eye.bare(node).matches(":disabled") || eye.bare(node).getAttribute("aria-disabled") === "true",
  // An option that is drawn only while its list is open, outside of the page.
  option(node) {
    const list = eye.bare(node).localName === "option" && node.closest("select");
    return Boolean(list) && !list.multiple && list.size <= 1;
  },
  changed: (node) => node.dispatchEvent(new Event("change", { bubbles: true })),
  focus(node) {
    const element = eye.bare(node);
    element.focus();
    return element.matches(":focus-within") || element.getRootNode().activeElement === node;
  },
  // Moves the caret to the end of a field.
  caretToEnd(node) {
    if (node.isContentEditable) {
      const range = document.createRange();
      range.selectNodeContents(node);
      range.collapse(false);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    } else if (node.selectionStart !== null && node.setSelectionRange) { // null: a type without a caret
      node.setSelectionRange(node.value.length, node.value.length);
    }
  },
  centre: (node) => eye.bare(node).scrollIntoView({ block: "center", inline: "center", behavior: "instant" }),
  // The element to click in place of a node that is not drawn or is covered by its substitute: its label, or for a
  // node without a box the first descendant with one.
  standIn(node) {
    for (const label of eye.bare(node).labels ?? []) if (label.getClientRects().length) return label;
    if (getComputedStyle(node).display !== "contents") return null;
    return [...eye.bare(node).querySelectorAll("*")].find((inner) => eye.bare(inner).getClientRects().length) ?? null;
  },
  // The image of an area of an image map, and a point in the area, relative to the image's corner.
  image(node) {
    const map = eye.bare(node).localName === "area" && node.closest("map");
    const used = map && CSS.escape(`#${map.name || map.id}`);
    return map ? node.getRootNode().querySelector(`img[usemap="${used}" i]`) : null;
  },
  spot(node) {
    const [x, y, ...rest] = node.coords.split(/[\s,;]+/).map(Number);
    if (node.shape === "circle") return [x, y];
    if (node.shape === "poly") {
      const all = [x, y, ...rest];
      const path = new Path2D();
      for (let i = 0; i + 1 < all.length; i += 2) path.lineTo(all[i], all[i + 1]);
      const context = document.createElement("canvas").getContext("2d");
      const inside = (px, py) => context.isPointInPath(path, px, py);
      const mean = (from) => {
        const ones = all.filter((_, i) => i % 2 === from);
        return ones.reduce((sum, one) => sum + one, 0) / ones.length;
      };
      if (inside(mean(0), mean(1))) return [mean(0), mean(1)];
      // A hollow shape: the centroid of some three consecutive corners is inside.
      for (let i = 0; i + 5 < all.length; i += 2) {
        const middle = [(all[i] + all[i + 2] + all[i + 4]) / 3, (all[i + 1] + all[i + 3] + all[i + 5]) / 3];
        if (inside(...middle)) return middle;
      }
      return [x, y];
    }
    return node.shape === "default" ? [1, 1] : [(x + rest[0]) / 2, (y + rest[1]) / 2];
  },
  // The file field that a node is or labels.
  fileField(node) {
    const element = eye.bare(eye.bare(node).nodeType === Node.ELEMENT_NODE ? node : node.parentElement);
    const field = element?.closest("label")?.control ?? element;
    return field?.localName === "input" && field.type === "file" ? field : null;
  },
  takesMany: (node) => node.multiple,
  selectable: (node) => Boolean(eye.bare(node).closest?.("select")),
  checked(given) {
    const node = eye.bare(given);
    if (node.localName === "input" && ["checkbox", "radio"].includes(node.type)) return node.checked;
    const state = node.getAttribute("aria-checked") ?? node.getAttribute("aria-pressed");
    return state === null ? null : state === "true";
  },
  // "" if `other` is the node, a descendant or its label; otherwise the tag of `other`.
  obstacle(node, other) {
    const parent = (each) => {
      const n = eye.bare(each);
      return n.assignedSlot ?? n.parentNode ?? n.host ?? null;
    };
    for (let here = other; here; here = parent(here)) if (here === node) return "";
    // A node without a box, or with `pointer-events: none`, is hit at its ancestor.
    for (let here = node; here; here = parent(here)) {
      if (here === other && (eye.bare(node).contains(other) || getComputedStyle(node).display === "contents")) return "";
    }
    const label = eye.bare(other).closest?.("label");
    if (label && label.control === node) return "";
    if (eye.bare(node).localName === "label" && node.control && node.control === other) return "";
    const element = eye.bare(eye.bare(other).nodeType === Node.ELEMENT_NODE ? other : other.parentElement);
    if (!element) return "another element";
    const id = element.id ? ` id="${element.id}"` : "";
    const kind = element.getAttribute("class") ? ` class="${element.getAttribute("class")}"` : "";
    return `<${element.localName}${id}${kind}>`;
  },
  // The same for the middle of the node's box of that index, as the document reports it.
  obstacleAt(node, index) {
    const element = eye.bare(node);
    const box = element.getClientRects()[index];
    const other = box && element.getRootNode().elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return other ? this.obstacle(node, other) : "the edge of the page";
  },
  // Sets fields that take no typing; selects the content of others for the keyboard.
  fill(node, text) {
    const failed = (why, kind = "unsuitable") => ({ failed: why, kind });
    if (eye.bare(node).nodeType !== Node.ELEMENT_NODE) node = node.parentElement ?? document.body;
    const editable = (each) => Boolean(eye.bare(each)?.isContentEditable);
    const label = eye.bare(node).closest("label");
    if (label && label.control && !editable(node) && !("value" in node)) node = label.control;
    while (editable(node) && editable(eye.bare(node).parentElement)) node = eye.bare(node).parentElement;
    const { localName } = eye.bare(node);
    if (localName === "select") return failed("is a list: choose with select");
    const field = localName === "input" || localName === "textarea";
    if (!field && !editable(node)) return failed(`is no field to fill, but <${localName}>`);
    if (field && node.disabled) return failed("is disabled", "disabled");
    if (field && node.readOnly) return failed("is read-only", "disabled");
    if (localName === "input") {
      const type = node.type;
      if (["button", "checkbox", "file", "hidden", "image", "radio", "reset", "submit"].includes(type)) {
        return failed(`is an input of type ${type}, which takes no text`);
      }
      if (["color", "date", "datetime-local", "month", "range", "time", "week"].includes(type)) {
        const value = type === "color" ? text.trim().toLowerCase() : text.trim();
        // A slider accepts any text, and takes its middle value for non-numbers (HTML 4.10.5.1.13).
        if (type === "range" && value && !/^-?(\d+(\.\d+)?|\.\d+)(e[+-]?\d+)?$/i.test(value)) {
          return failed(`does not take ${JSON.stringify(text)} as a number`);
        }
        const before = node.value;
        node.focus();
        const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
        set.call(node, value);
        // The browser clears or clamps invalid values.
        if (node.value !== value && type !== "range" && !(type.startsWith("time") || type.startsWith("datetime"))) {
          set.call(node, before);
          return failed(`does not take ${JSON.stringify(text)} as a value of type ${type}`);
        }
        if (value && !node.value) {
          set.call(node, before);
          return failed(`does not take ${JSON.stringify(text)} as a value of type ${type}`);
        }
        node.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
        node.dispatchEvent(new Event("change", { bubbles: true }));
        return { typed: false };
      }
      if (type === "number" && text.trim() && Number.isNaN(Number(text))) {
        return failed(`does not take ${JSON.stringify(text)} as a number`);
      }
    }
    eye.bare(node).focus();
    if (field) node.select();
    else {
      const range = document.createRange();
      range.selectNodeContents(node);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    return { typed: true, empty: field ? node.value === "" : eye.bare(node).textContent === "" };
  },
  // Selects options of a list; without any, the option that the node is.
  select(node, wanted) {
    const failed = (why, kind = "unsuitable") => ({ failed: why, kind });
    if (eye.bare(node).nodeType !== Node.ELEMENT_NODE) node = node.parentElement ?? document.body;
    const element = eye.bare(node);
    const itself = element.localName === "option" ? node : null;
    node = element.closest("select") ?? element.closest("label")?.control ?? node;
    if (eye.bare(node).localName !== "select") {
      return failed("is no list of the browser's own: click it, and then the option in what opens");
    }
    if (!wanted.length && !itself) return failed("is a list: say which option by value", "value_missing");
    if (node.disabled) return failed("is disabled", "disabled");
    if (wanted.length > 1 && !node.multiple) return failed("takes one option only");
    const label = (option) => (option.label || option.text).replace(/\s+/g, " ").trim();
    const chosen = wanted.length ? [] : [itself];
    for (const one of wanted) {
      const options = [...node.options];
      const option = options.find((o) => o.value === one) ??
        options.find((o) => label(o) === one.replace(/\s+/g, " ").trim());
      if (!option) {
        const some = options.slice(0, 20).map(label).join(", ");
        return failed(`has no option ${JSON.stringify(one)}; it has ${some}${options.length > 20 ? ", ..." : ""}`);
      }
      if (option.disabled) return failed(`has its option ${JSON.stringify(one)} disabled`, "disabled");
      chosen.push(option);
    }
    node.focus();
    for (const option of node.options) option.selected = chosen.includes(option);
    node.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    node.dispatchEvent(new Event("change", { bubbles: true }));
    return {};
  },
})
