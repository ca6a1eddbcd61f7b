(variant) => {
  if (window !== window.top || !/^https?:$/.test(location.protocol)) return;
  const key = "perturbed";
  const read = () => { try { return JSON.parse(sessionStorage.getItem(key)) || { pages: 0, gone: [] }; } catch { return { pages: 0, gone: [] }; } };
  const write = (state) => { try { sessionStorage.setItem(key, JSON.stringify(state)); } catch { } };
  const state = read();
  state.pages += 1;
  write(state);

  const rules = [];
  if (variant.zoom) rules.push(`:root { zoom: ${1 + variant.zoom} !important }`);
  if (variant.font) rules.push(`body, body * { font-family: ${variant.font} !important }`);
  if (rules.length) {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(rules.join("\n"));
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  }

  const show = (one) => {
    const host = document.createElement("div");
    const root = host.attachShadow({ mode: "open" });
    const corner = one.kind === "chat" ? "right: 16px; bottom: 16px; width: 260px" : "left: 0; right: 0; bottom: 0";
    const place = one.modal ? "left: 50%; top: 30%; width: 360px; margin-left: -180px" : corner;
    const style = document.createElement("style");
    style.textContent = `
      .veil { position: fixed; inset: 0; z-index: 2147483646; background: #0008 }
      section { position: fixed; ${place}; z-index: 2147483647; box-sizing: border-box; padding: 16px;
        background: #fff; color: #111; border: 1px solid #888; font: 16px/1.4 sans-serif }
      h2 { margin: 0 0 8px; font-size: 18px } p { margin: 0 0 12px }`;
    const box = document.createElement("section");
    box.setAttribute("role", one.modal ? "dialog" : "region");
    box.setAttribute("aria-label", one.title);
    const title = document.createElement("h2");
    title.textContent = one.title;
    const text = document.createElement("p");
    text.textContent = one.text;
    const button = document.createElement("button");
    button.textContent = one.button;
    button.addEventListener("click", () => {
      host.remove();
      const now = read();
      now.gone.push(one.kind);
      write(now);
    });
    box.append(title, text, button);
    if (one.modal) {
      const veil = document.createElement("div");
      veil.className = "veil";
      root.append(veil);
    }
    root.append(style, box);
    document.documentElement.append(host);
  };
  const due = variant.interruptions.filter((one) => one.page <= state.pages && !state.gone.includes(one.kind));
  if (due.length) document.addEventListener("DOMContentLoaded", () => due.forEach(show), { once: true });
}
