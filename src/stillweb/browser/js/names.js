// Roles and names of elements by HTML-AAM and accname, as far as agents need them, with values and states. Runs in the
// isolated world, after eye.js and before survey.js.
(() => {
  "use strict";
  if (globalThis.names) return;
  const { bare } = eye;
  const WIDGETS = new Set(["button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem",
    "menuitemcheckbox", "menuitemradio", "option", "radio", "scrollbar", "searchbox", "slider", "spinbutton",
    "switch", "tab", "textbox", "treeitem"]);
  const BY_CONTENT = new Set(["button", "cell", "checkbox", "columnheader", "gridcell", "heading", "link",
    "menuitem", "menuitemcheckbox", "menuitemradio", "option", "radio", "row", "rowheader", "switch", "tab",
    "tooltip", "treeitem", "DisclosureTriangle"]);
  const TAGS = { article: "article", aside: "complementary", blockquote: "blockquote", button: "button",
    caption: "caption", code: "code", dd: "definition", details: "group", dialog: "dialog", dl: "DescriptionList",
    dt: "term", em: "emphasis", fieldset: "group", figcaption: "Figcaption", figure: "figure", hr: "separator",
    iframe: "Iframe", frame: "Iframe", img: "image", label: "LabelText", legend: "Legend", li: "listitem",
    main: "main", menu: "list", meter: "meter", nav: "navigation", ol: "list", optgroup: "group",
    option: "option", output: "status", p: "paragraph", pre: "Pre", progress: "progressbar", search: "search",
    strong: "strong", summary: "DisclosureTriangle", svg: "image", table: "table", tbody: "rowgroup", td: "cell",
    textarea: "textbox", tfoot: "rowgroup", th: "columnheader", thead: "rowgroup", tr: "row", ul: "list",
    video: "Video", audio: "Audio", canvas: "Canvas", math: "math" };
  const INPUTS = { button: "button", checkbox: "checkbox", color: "ColorWell", date: "Date",
    "datetime-local": "DateTime", file: "button", image: "button", month: "Date", number: "spinbutton",
    radio: "radio", range: "slider", reset: "button", search: "searchbox", submit: "button", time: "InputTime",
    week: "Date" };
  const SKIPPED = new Set(["script", "style", "noscript", "template", "head", "link", "meta", "title", "wbr",
    "datalist", "source", "track", "param", "colgroup", "col"]);

  const flatParent = (each) => {
    const node = bare(each);
    return node.assignedSlot ?? node.parentElement ?? node.getRootNode().host ?? null;
  };
  const flatChildren = (node) => {
    const element = bare(node);
    if (element.shadowRoot) return element.shadowRoot.childNodes;
    if (element.localName === "slot") {
      const assigned = element.assignedNodes();
      if (assigned.length) return assigned;
    }
    return element.childNodes;
  };
  const shown = (element) => bare(element).checkVisibility() || getComputedStyle(element).display === "contents";
  const plain = (text) => text.replace(/\s+/g, " ").trim();

  const roleOf = (node) => {
    const element = bare(node);
    const said = (element.getAttribute("role") || "").trim().split(/\s+/)[0];
    if (said && said !== "none" && said !== "presentation") return said === "img" ? "image" : said;
    const tag = element.localName;
    if (element.isContentEditable && !bare(element.parentElement)?.isContentEditable) return "textbox";
    if (tag === "a" || tag === "area") return element.hasAttribute("href") ? "link" : "generic";
    if (/^h[1-6]$/.test(tag)) return "heading";
    if (tag === "input") return element.list ? "combobox" : INPUTS[element.type] ?? "textbox";
    if (tag === "select") return element.multiple || element.size > 1 ? "listbox" : "combobox";
    if (tag === "header" || tag === "footer") {
      if (element.closest("article, aside, main, nav, section")) return "generic";
      return tag === "header" ? "banner" : "contentinfo";
    }
    if (tag === "section" || tag === "form") {
      const named = element.hasAttribute("aria-label") || element.hasAttribute("aria-labelledby");
      return tag === "form" ? "form" : named ? "region" : "generic";
    }
    return TAGS[tag] ?? "generic";
  };

  // The content as a name: images by their names, without fields and hidden parts.
  const contentOf = (element, limit = 200) => {
    let text = "";
    const visit = (each, visible) => {
      if (text.length > limit) return;
      const node = bare(each);
      const { nodeType, localName } = node;
      if (nodeType === 3 && visible) text += node.data;
      if (nodeType !== 1 || SKIPPED.has(localName) || !shown(each)) return;
      if (node.getAttribute("aria-hidden") === "true" || node.matches("input, select, textarea")) return;
      const image = localName === "img" ? node.alt : localName === "svg" && node.querySelector("title")?.textContent;
      const label = node.getAttribute("aria-label") || image || "";
      const style = getComputedStyle(each);
      const apart = label || localName === "br" || !style.display.startsWith("inline") ? " " : "";
      text += apart;
      if (label) text += label;
      else for (const child of flatChildren(each)) visit(child, style.visibility === "visible");
      text += apart;
    };
    const visible = getComputedStyle(element).visibility === "visible";
    for (const child of flatChildren(element)) visit(child, visible);
    return plain(text).slice(0, limit);
  };

  const nameOf = (node, role) => {
    const element = bare(node);
    const ids = element.getAttribute("aria-labelledby")?.split(/\s+/).filter(Boolean);
    const root = ids?.length && element.getRootNode();
    const referred = root && plain(ids.map((id) => bare(root.getElementById?.(id))?.textContent ?? "").join(" "));
    if (referred) return referred;
    const label = plain(element.getAttribute("aria-label") || "");
    if (label) return label;
    const tag = element.localName;
    if (tag === "input" && ["button", "submit", "reset", "image"].includes(element.type)) {
      const standard = { submit: "Submit", reset: "Reset", image: "Submit" };
      return plain(element.alt || element.value || element.title || standard[element.type] || "");
    }
    const labels = element.labels?.length ? [...element.labels] : [];
    const labelled = plain(labels.map((each) => contentOf(each)).join(" "));
    if (labelled) return labelled;
    if (tag === "img" || tag === "area") return plain(element.alt || element.title || "");
    if (tag === "svg") return plain(element.querySelector("title")?.textContent ?? "");
    const first = { fieldset: "legend", table: "caption", figure: "figcaption" }[tag];
    const heading = first && [...element.children].find((child) => bare(child).localName === first);
    if (heading) return contentOf(heading);
    if (tag === "optgroup") return plain(element.label);
    if (tag === "option") return plain(element.label || element.text);
    if (BY_CONTENT.has(role)) {
      const content = contentOf(node);
      if (content) return content;
    }
    return plain(element.getAttribute("title") || element.getAttribute("placeholder") || "");
  };

  const valueOf = (node) => {
    const element = bare(node);
    const tag = element.localName;
    if (tag === "select") return [...element.selectedOptions].map((option) => plain(option.label)).join(", ");
    if (tag === "textarea" || tag === "progress" || tag === "meter") return String(element.value ?? "");
    if (tag !== "input" || ["button", "checkbox", "image", "radio", "reset", "submit", "hidden"].includes(element.type)) {
      return element.getAttribute("aria-valuetext") || element.getAttribute("aria-valuenow") || "";
    }
    if (element.type === "file") return [...element.files].map((file) => file.name).join(", ");
    return element.type === "password" ? "\u2022".repeat(element.value.length) : element.value;
  };

  const statesOf = (node, role) => {
    const element = bare(node);
    const states = {};
    const hasAria = element.getAttributeNames().some((name) => name.startsWith("aria-"));
    const said = (name) => hasAria ? element.getAttribute(`aria-${name}`) : null;
    if (element.matches(":focus") && node !== document.body) states.focused = true;
    if (element.matches(":disabled") || said("disabled") === "true") states.disabled = true;
    if (element.required || said("required") === "true") states.required = true;
    if (element.readOnly || said("readonly") === "true") states.readonly = true;
    if (element.localName === "input" && ["checkbox", "radio"].includes(element.type)) states.checked = element.checked;
    else if (said("checked")) states.checked = said("checked") === "true";
    if (element.localName === "option") states.selected = element.selected;
    else if (said("selected")) states.selected = said("selected") === "true";
    if (said("pressed")) states.pressed = said("pressed") === "true";
    if (said("expanded")) states.expanded = said("expanded") === "true";
    else if (role === "DisclosureTriangle") states.expanded = Boolean(bare(element.parentElement)?.open);
    if (said("haspopup") && said("haspopup") !== "false") states.haspopup = said("haspopup");
    if (said("current") && said("current") !== "false") states.current = true;
    if (role === "heading") states.level = Number(said("level") || element.localName[1]) || 2;
    return states;
  };

  globalThis.names = { WIDGETS, SKIPPED, flatParent, flatChildren, plain, roleOf, nameOf, valueOf, statesOf };
})()
