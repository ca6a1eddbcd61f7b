(change) => {
  if (!/^https?:$/.test(location.protocol)) return;
  const words = new Map();
  for (const [one, other] of change.words)
    for (const form of [(s) => s, (s) => s.toLowerCase(), (s) => s.toUpperCase()]) words.set(form(one), form(other));
  const labels = new Map(change.labels);
  const escaped = [...words.keys()].map((word) => word.replace(/[^\p{L}\p{N}]/gu, "\\$&"));
  const named = escaped.length ? new RegExp(`(?<![\\p{L}\\p{N}_])(${escaped.join("|")})(?![\\p{L}\\p{N}_])`, "gu") : null;
  const price = /([£$€]\s?)(\d[\d,]*)(\.\d\d)?(?![\d,.]*\d)/g;
  const times = (whole, cents) => {
    const digits = cents ? cents.length - 1 : 0;
    const value = String(BigInt(whole.replaceAll(",", "") + (cents || "").slice(1)) * BigInt(change.factor)).padStart(digits + 1, "0");
    const head = value.slice(0, value.length - digits);
    const spelled = whole.includes(",") ? head.replace(/\B(?=(\d{3})+$)/g, ",") : head;
    return spelled + (digits ? "." + value.slice(-digits) : "");
  };
  const text = (value) => {
    if (named) value = value.replace(named, (word) => words.get(word));
    return change.factor === 1 ? value : value.replace(price, (_, sign, whole, cents) => sign + times(whole, cents));
  };
  const whole = (value) => labels.get(value.trim()) ?? null;

  // A replaced text must not be replaced again when the observer reports it.
  const written = new WeakMap();
  const isLabel = (element) => element && element.closest("a, button, label, [role=button], [role=tab]");
  const onText = (node) => {
    const parent = node.parentElement;
    if (!parent || /^(SCRIPT|STYLE|TEXTAREA|NOSCRIPT)$/.test(parent.tagName) || written.get(node) === node.data) return;
    const synonym = isLabel(parent) ? whole(node.data) : null;
    const changed = synonym === null ? text(node.data) : node.data.replace(node.data.trim(), synonym);
    written.set(node, changed);
    if (changed !== node.data) node.data = changed;
  };
  const attributes = ["alt", "title", "aria-label", "placeholder"];
  const onElement = (element) => {
    const names = element.tagName === "INPUT" && /^(submit|button)$/.test(element.type) && !element.name ? [...attributes, "value"] : attributes;
    const done = written.get(element) ?? new Map();
    for (const name of names) {
      const value = element.getAttribute(name);
      if (value === null || done.get(name) === value) continue;
      const changed = whole(value) ?? text(value);
      done.set(name, changed);
      if (changed !== value) element.setAttribute(name, changed);
    }
    written.set(element, done);
  };
  const visit = (root) => {
    if (root.nodeType === Node.TEXT_NODE) return onText(root);
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    onElement(root);
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode())
      node.nodeType === Node.TEXT_NODE ? onText(node) : onElement(node);
  };

  const hash = (value) => {
    let found = 2166136261 ^ change.seed;
    for (let i = 0; i < value.length; i++) found = Math.imul(found ^ value.charCodeAt(i), 16777619);
    return found >>> 0;
  };
  const draws = (seed) => () => {
    seed = (seed + 0x6d2b79f5) >>> 0;
    let t = Math.imul(seed ^ (seed >>> 15), seed | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const numbers = (items) => items.map((item) => parseFloat(item.textContent.trim().replace(/[,£$€]/g, "")));
  const isSorted = (values) => values.every((v) => !isNaN(v)) &&
    (values.every((v, i) => !i || values[i - 1] <= v) || values.every((v, i) => !i || values[i - 1] >= v));
  const hasMeaning = (list, items) => list.closest("nav ol, [class*=breadcrumb], [class*=pag], [role=tablist], [role=menu], [aria-sort]")
    || isSorted(numbers(items));
  const rowsOf = (table) => {
    if (table.querySelector("table, [rowspan], [aria-sort], thead a[href*=sort], th a[href*=sort]")) return null;
    const rows = [...table.rows].filter((row) => row.querySelector("td") && row.parentElement.tagName !== "TFOOT");
    if (new Set(rows.map((row) => row.parentElement)).size !== 1 || new Set(rows.map((row) => row.cells.length)).size !== 1) return null;
    const columns = rows.length ? rows[0].cells.length : 0;
    for (let i = 0; i < columns; i++) if (isSorted(numbers(rows.map((row) => row.cells[i])))) return null;
    return rows;
  };
  const shuffle = (items, key) => {
    const draw = draws(hash(key));
    if (items.length < 3 || draw() >= change.order) return;
    const parent = items[0].parentElement;
    const end = items[items.length - 1].nextSibling;
    const order = [...items];
    for (let i = order.length - 1; i > 0; i--) {
      const j = Math.floor(draw() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    for (const item of order) parent.insertBefore(item, end);
  };
  const reorder = () => {
    for (const list of document.querySelectorAll("ul")) {
      const items = [...list.children];
      if (items.every((item) => item.tagName === "LI") && !hasMeaning(list, items)) shuffle(items, list.textContent);
    }
    for (const table of document.querySelectorAll("table")) {
      const rows = table.rows.length > 3 ? rowsOf(table) : null;
      if (rows) shuffle(rows, table.textContent);
    }
  };

  const title = () => { const changed = text(document.title); if (changed !== document.title) document.title = changed; };
  document.addEventListener("DOMContentLoaded", () => {
    if (change.order) reorder();
    if (!(named || labels.size || change.factor !== 1)) return;
    title();
    visit(document.documentElement);
    new MutationObserver((records) => {
      for (const record of records) {
        if (record.type === "characterData") onText(record.target);
        else if (record.type === "attributes") onElement(record.target);
        else record.addedNodes.forEach(visit);
      }
    }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: attributes });
  }, { once: true });
}
