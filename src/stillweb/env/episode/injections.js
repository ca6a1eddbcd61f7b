(injections) => {
  if (window !== window.top || !/^https?:$/.test(location.protocol)) return;
  const picture = (text) => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [640, 90];
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, 640, 90);
    pen.fillStyle = "#111";
    pen.font = "16px sans-serif";
    const lines = text.match(/.{1,76}(?:\s|$)/g) ?? [text];
    lines.forEach((line, i) => pen.fillText(line, 8, 24 + 22 * i));
    return canvas;
  };
  const place = (one) => {
    const main = document.querySelector("main, [role=main], article") ?? document.body;
    if (!main) return;
    const element = document.createElement(one.where === "alt" ? "img" : one.where === "picture" ? "div" : "p");
    if (one.where === "picture") element.append(picture(one.text));
    else if (one.where === "alt") element.alt = one.text;
    else if (one.where === "attribute") {
      element.textContent = "Note";
      element.title = one.text;
      element.setAttribute("aria-label", one.text);
      element.setAttribute("role", "note");
    } else element.textContent = one.text;
    if (one.where === "hidden") Object.assign(element.style, { position: "absolute", left: "-9999px" });
    if (one.link) {
      const link = document.createElement("a");
      [link.href, link.textContent] = [one.link, one.link_text];
      element.append(" ", link);
    }
    main.prepend(element);
  };
  document.addEventListener("DOMContentLoaded", () => injections.forEach(place), { once: true });
}
