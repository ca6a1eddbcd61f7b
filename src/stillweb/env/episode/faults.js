(faults) => {
  if (!/^https?:$/.test(location.protocol)) return;
  const key = "faulted";
  const read = () => { try { return JSON.parse(sessionStorage.getItem(key)) || {}; } catch { return {}; } };
  const times = (name) => {
    const state = read();
    state[name] = (state[name] || 0) + 1;
    try { sessionStorage.setItem(key, JSON.stringify(state)); } catch { }
    return state[name];
  };
  const chance = (value) => {
    let found = 2166136261 ^ faults.seed;
    for (let i = 0; i < value.length; i++) found = Math.imul(found ^ value.charCodeAt(i), 16777619);
    found = Math.imul(found ^ (found >>> 15), 2246822507);
    found = Math.imul(found ^ (found >>> 13), 3266489909);
    return ((found ^ (found >>> 16)) >>> 0) / 4294967296;
  };
  // A fault holds for the first request of a URL only, so that a second try succeeds.
  const drawn = (kinds, name) => {
    if (times(name) > 1 || chance(name) >= faults.share) return "";
    return kinds[Math.floor(chance(name + " kind") * kinds.length)];
  };
  const delay = (name) => Math.round(faults.delay * (0.25 + 0.75 * chance(name + " delay")));
  const messages = {
    500: ["500 Internal Server Error", "The server could not complete your request. Reload the page to try again."],
    429: ["429 Too Many Requests", "You have sent too many requests. Wait a moment and reload the page."],
    failed: ["This page could not be loaded", "The connection was reset. Reload the page to try again."],
    timeout: ["504 Gateway Time-out", "The server did not answer in time. Reload the page to try again."],
    offline: ["You are offline", "Check the connection and reload the page."],
  };
  const later = setTimeout.bind(window);

  if (window === window.top) {
    const kind = drawn(["slow", "half", ...Object.keys(messages)], "document " + location.href.split("#")[0]);
    if (kind) document.addEventListener("DOMContentLoaded", () => {
      const body = document.body;
      if (!body) return;
      if (kind === "slow") {
        body.style.setProperty("display", "none", "important");
        later(() => body.style.removeProperty("display"), delay(location.href));
      } else if (kind === "half") {
        const all = [...body.querySelectorAll("*")];
        for (const element of all.slice(Math.floor(all.length / 2))) element.remove();
      } else {
        const [head, text] = messages[kind].map((line, i) => {
          const element = document.createElement(i ? "p" : "h1");
          element.textContent = line;
          return element;
        });
        body.replaceChildren(head, text);
        document.title = head.textContent;
      }
    }, { once: true });
  }

  const isOffline = () => performance.now() >= faults.offline[0] && performance.now() < faults.offline[1];
  if (faults.offline[1]) {
    Object.defineProperty(Navigator.prototype, "onLine", { get: () => !isOffline(), configurable: true });
    for (const [name, at] of [["offline", faults.offline[0]], ["online", faults.offline[1]]])
      later(() => window.dispatchEvent(new Event(name)), at);
  }

  const after = (ms) => new Promise((resolve) => later(resolve, ms));
  const kinds = ["slow", "failed", "500", "429", "timeout", "half"];
  const real = window.fetch;
  window.fetch = async function fetch(input, init) {
    const name = "data " + (input instanceof Request ? input.url : new URL(input, location.href).href);
    const kind = isOffline() ? "failed" : drawn(kinds, name);
    if (kind === "slow") await after(delay(name));
    if (kind === "timeout") await after(faults.delay);
    if (kind === "failed" || kind === "timeout") throw new TypeError("Failed to fetch");
    if (kind === "500" || kind === "429") return new Response("", { status: Number(kind), statusText: messages[kind][0].slice(4) });
    const response = await real.call(this, input, init);
    if (kind !== "half") return response;
    const body = await response.text();
    return new Response(body.slice(0, body.length >> 1), { status: response.status, headers: response.headers });
  };
  const send = XMLHttpRequest.prototype.send;
  const open = XMLHttpRequest.prototype.open;
  const urls = new WeakMap();
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    urls.set(this, { name: "data " + new URL(url, location.href).href, async: rest[0] !== false });
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    const { name, async } = urls.get(this) ?? {};
    const kind = !(name && async) ? "" : isOffline() ? "failed" : drawn(["slow", "failed"], name);
    if (kind === "slow") later(() => send.call(this, body), delay(name));
    else if (kind === "failed") later(() => { this.abort(); this.dispatchEvent(new ProgressEvent("error")); }, 0);
    else send.call(this, body);
  };
}
