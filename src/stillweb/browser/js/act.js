// What `input.py` asks of an element, evaluated in the isolated world: the page's patches of the DOM
// API are not in the way here, and its event listeners hear all the same.
({
  connected: (node) => node.isConnected,
  disabled: (node) => node.matches(":disabled") || node.getAttribute("aria-disabled") === "true",
  option: (node) => node.localName === "option",
  changed: (node) => node.dispatchEvent(new Event("change", { bubbles: true })),
  focus(node) {
    node.focus();
    return node.matches(":focus-within") || node.getRootNode().activeElement === node;
  },
  checked(node) {
    if (node.localName === "input" && ["checkbox", "radio"].includes(node.type)) return node.checked;
    const state = node.getAttribute("aria-checked") ?? node.getAttribute("aria-pressed");
    return state === null ? null : state === "true";
  },
  // "" if `other` is the node, within it, or a label of it; what it is otherwise.
  obstacle(node, other) {
    const parent = (n) => n.assignedSlot ?? n.parentNode ?? n.host ?? null;
    for (let here = other; here; here = parent(here)) if (here === node) return "";
    // A node without a box of its own, or one that lets clicks through, is hit at what is around it.
    for (let here = node; here; here = parent(here)) {
      if (here === other && (node.contains(other) || getComputedStyle(node).display === "contents")) return "";
    }
    const label = other.closest?.("label");
    if (label && label.control === node) return "";
    if (node.localName === "label" && node.control && node.control === other) return "";
    const element = other.nodeType === Node.ELEMENT_NODE ? other : other.parentElement;
    if (!element) return "another element";
    const id = element.id ? ` id="${element.id}"` : "";
    const kind = element.getAttribute("class") ? ` class="${element.getAttribute("class")}"` : "";
    return `<${element.localName}${id}${kind}>`;
  },
  // The same for the middle of the node's box of that index, as the document itself sees it.
  obstacleAt(node, index) {
    const box = node.getClientRects()[index];
    const other = box && node.getRootNode().elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return other ? this.obstacle(node, other) : "the edge of the page";
  },
  // Sets what cannot be typed; for what can, focuses and selects it and leaves the typing to the keyboard.
  fill(node, text) {
    const failed = (why, kind = "unsuitable") => ({ failed: why, kind });
    const label = node.closest("label");
    if (label && label.control && !node.isContentEditable && !("value" in node)) node = label.control;
    const field = node.localName === "input" || node.localName === "textarea";
    if (!field && !node.isContentEditable) return failed("is no field to fill");
    if (field && node.disabled) return failed("is disabled", "disabled");
    if (field && node.readOnly) return failed("is read-only", "disabled");
    if (node.localName === "input") {
      const type = node.type;
      if (["button", "checkbox", "file", "hidden", "image", "radio", "reset", "submit"].includes(type)) {
        return failed(`is an input of type ${type}, which takes no text`);
      }
      if (["color", "date", "datetime-local", "month", "range", "time", "week"].includes(type)) {
        const value = type === "color" ? text.trim().toLowerCase() : text.trim();
        const before = node.value;
        node.focus();
        const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
        set.call(node, value);
        // The browser empties, or clamps, what it does not take.
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
    node.focus();
    if (field) node.select();
    else {
      const range = document.createRange();
      range.selectNodeContents(node);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    return { typed: true };
  },
  select(node, wanted) {
    const failed = (why, kind = "unsuitable") => ({ failed: why, kind });
    if (node.localName === "option") node = node.closest("select");
    if (!node || node.localName !== "select") return failed("is no list to select from");
    if (node.disabled) return failed("is disabled", "disabled");
    if (wanted.length > 1 && !node.multiple) return failed("takes one option only");
    const label = (option) => (option.label || option.text).replace(/\s+/g, " ").trim();
    const chosen = [];
    for (const one of wanted) {
      const options = [...node.options];
      const option = options.find((o) => o.value === one) ??
        options.find((o) => label(o) === one.replace(/\s+/g, " ").trim());
      if (!option) return failed(`has no option ${JSON.stringify(one)}`);
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
