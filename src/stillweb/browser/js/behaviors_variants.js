// Resources that a page would load on another screen, on hover, or in another state: every candidate of srcset and
// picture, every image, font and imported sheet of its style sheets, and the icons that only a browser with a window
// requests. Found through the document's object model and
// loaded by the page's own loader in the page's way (images as images, fonts as fonts), so that cookies, CORS, Referer
// and content security policy are the page's.
(() => {
  "use strict";
  if (globalThis.variants) return;
  const { walk, within, rulesOf } = globalThis.behaviors;
  const LOAD_MS = 10000;
  const AT_ONCE = 6;

  // HTML §4.8.4.3.10, as far as it finds URLs: descriptors contain white space only in brackets.
  const srcset = (text) => {
    const found = [];
    for (let rest = text; (rest = rest.replace(/^[\s,]+/, "")); ) {
      const url = /^\S+/.exec(rest)[0];
      rest = rest.slice(url.length);
      found.push(url.replace(/,+$/, ""));
      if (!url.endsWith(",")) rest = rest.replace(/^(?:[^,(]|\([^)]*\))*/, "");
    }
    return found;
  };
  const inText = (value) => {
    const found = [...value.matchAll(/url\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^)"'\s]*))\s*\)/g)];
    const urls = found.map(([, a, b, c]) => (a ?? b ?? c).replace(/\\(.)/g, "$1"));
    if (value.includes("image-set(")) { // its candidates may be bare strings
      const bare = value.replace(/url\([^)]*\)|type\([^)]*\)/g, "");
      for (const [, a] of bare.matchAll(/"((?:[^"\\]|\\.)*)"/g)) urls.push(a);
    }
    return urls;
  };

  const find = () => {
    const found = new Map();
    const unread = new Set();
    const add = (kind, href, base, cors = "", policy = "") => {
      let url;
      try {
        url = new URL(href, base);
      } catch {
        return;
      }
      url.hash = "";
      if (/^https?:$/.test(url.protocol) && !found.has(url.href)) found.set(url.href, { kind, url: url.href, cors, policy });
    };
    const ofRules = (rules, base) => {
      for (const rule of rules) {
        if (rule instanceof CSSImportRule) {
          add("style", rule.href, base);
          if (rule.styleSheet) ofSheet(rule.styleSheet);
        } else if (rule instanceof CSSFontFaceRule) {
          for (const href of inText(rule.style.getPropertyValue("src"))) add("font", href, base);
        } else if (rule.style) {
          for (const name of rule.style) {
            const value = rule.style.getPropertyValue(name);
            if (!value.includes("url(") && !value.includes("image-set(")) continue;
            const cors = /mask|shape-outside|clip-path|filter/.test(name) ? "anonymous" : "";
            for (const href of inText(value)) if (!href.startsWith("#")) add("image", href, base, cors);
          }
        }
        if (rule.cssRules?.length) ofRules(rule.cssRules, base);
      }
    };
    const ofSheet = (sheet) => {
      try {
        void sheet.cssRules;
      } catch {
        if (sheet.href) unread.add(sheet.href);
        return;
      }
      ofRules(rulesOf(sheet), sheet.href ?? document.baseURI);
    };
    const sheetsOf = (root) => {
      for (const sheet of [...root.styleSheets, ...(root.adoptedStyleSheets ?? [])]) ofSheet(sheet);
    };
    for (const element of walk(document)) {
      if (element.shadowRoot) sheetsOf(element.shadowRoot);
      if (element.matches("img, picture > source, input[type=image], video[poster]")) {
        const image = element.localName === "source" ? element.parentElement.querySelector("img") ?? element : element;
        const how = [document.baseURI, image.crossOrigin ?? "", image.referrerPolicy ?? ""];
        for (const href of srcset(element.getAttribute("srcset") ?? "")) add("image", href, ...how);
        const src = element.getAttribute(element.localName === "video" ? "poster" : "src");
        if (src) add("image", src, ...how);
      } else if (element.matches("link[rel~=icon i], link[rel~=apple-touch-icon i]")) {
        add("image", element.getAttribute("href") ?? "", document.baseURI);
      } else if (element.matches("link[rel~=manifest i]")) {
        add("manifest", element.getAttribute("href") ?? "", document.baseURI, element.crossOrigin ?? "");
      } else if (element.matches("link[imagesrcset]")) {
        for (const href of srcset(element.getAttribute("imagesrcset"))) add("image", href, document.baseURI);
      }
      const style = element.getAttribute("style");
      if (style?.includes("url(")) for (const href of inText(style)) if (!href.startsWith("#")) add("image", href, document.baseURI);
    }
    sheetsOf(document);
    for (const [text, base] of loadedSheets) {
      const sheet = new CSSStyleSheet({ baseURL: base });
      sheet.replaceSync(text);
      ofRules(sheet.cssRules, base);
    }
    return { found: [...found.values()], unread: [...unread].filter((href) => !loadedSheets.some(([, base]) => base === href)) };
  };
  // The text of sheets that the page may not read, fetched by the driver.
  const loadedSheets = [];
  const addSheet = (text, base) => { loadedSheets.push([text, base]); };

  const load = {
    image: ({ url, cors, policy }) => new Promise((resolve, reject) => {
      const image = new Image();
      image.onload = () => resolve(true);
      image.onerror = reject;
      if (cors) image.crossOrigin = cors;
      if (policy) image.referrerPolicy = policy;
      image.src = url;
    }),
    font: ({ url }) => new FontFace("variant", `url(${JSON.stringify(url)})`).load().then(() => true),
    manifest: async ({ url, cors }) => {
      const response = await fetch(url, { credentials: cors === "use-credentials" ? "include" : "same-origin" });
      const { icons } = await response.json();
      const urls = (Array.isArray(icons) ? icons : []).map((icon) => new URL(icon.src, response.url).href);
      await Promise.all(urls.map((each) => load.image({ url: each }).catch(() => false)));
      return true;
    },
    style: async ({ url }) => {
      const own = new URL(url).origin === location.origin;
      const response = await fetch(url, { mode: own ? "cors" : "no-cors", credentials: "include" });
      if (own) await response.text();
      return true;
    },
  };
  // The URLs that arrived, of those begun before the time was up.
  const fetchAll = async (wanted, ms) => {
    const end = performance.now() + ms;
    const queue = [...wanted];
    const came = [];
    const one = async () => {
      while (queue.length && performance.now() < end) {
        const each = queue.shift();
        if (await within(load[each.kind](each).catch(() => false), Math.min(LOAD_MS, ms))) came.push(each.url);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
    return { came, left: queue.length };
  };
  globalThis.variants = { srcset, inText, find, addSheet, fetchAll };
})();
