"use strict";
const pictures = JSON.parse(document.getElementById("pictures").textContent);
const pages = [...document.querySelectorAll(".page")];
const find = document.getElementById("find");

// Pictures are put in when their page is unfolded: hundreds together would be slow to open.
function show(page) {
  for (const image of page.querySelectorAll("img[data-picture]")) {
    image.src = pictures[image.dataset.picture];
    image.removeAttribute("data-picture");
  }
}
for (const page of pages) {
  page.addEventListener("toggle", () => { if (page.open) show(page); });
  if (page.open) show(page);
}

function filter() {
  const kind = document.querySelector("[name=show]:checked").value, words = find.value.toLowerCase();
  let left = 0;
  for (const page of pages) {
    const state = page.dataset.state;
    const wanted = kind === "all" || (kind === "fail" ? state === "bad" : state === "bad" || state === "near");
    page.hidden = !wanted || !page.querySelector(".name").textContent.toLowerCase().includes(words);
    left += !page.hidden;
  }
  document.getElementById("none-left").hidden = left > 0;
}
if (find) {
  document.querySelectorAll("[name=show]").forEach((input) => input.addEventListener("change", filter));
  find.addEventListener("input", filter);
}

for (const input of document.querySelectorAll(".pictures input")) {
  input.addEventListener("input", () => input.parentElement.style.setProperty("--at", input.value + "%"));
}
// Choosing the slider puts the focus on it, so that the arrow keys move it immediately.
for (const input of document.querySelectorAll(".screens .choice input")) {
  input.addEventListener("click", (event) => {
    if (event.detail && input.value === "slider") input.closest(".screens").querySelector("[type=range]").focus();
  });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
    button.addEventListener("blur", () => { button.textContent = "Copy"; }, { once: true });
  });
}

for (const link of document.querySelectorAll("a[href^='#page-']")) {
  link.addEventListener("click", () => {
    const page = document.getElementById(link.hash.slice(1));
    page.hidden = false;
    page.open = true;
    page.querySelector("summary").focus({ preventScroll: true });
  });
}

// The theme follows the system until a choice is made; a file:// page may have no storage to remember it in.
const themes = document.querySelectorAll("[name=theme]");
function remembered(value) {
  try {
    if (value === undefined) return localStorage.getItem("stillweb-theme") || "auto";
    localStorage.setItem("stillweb-theme", value);
  } catch { /* not remembered */ }
  return value || "auto";
}
function theme(value) {
  if (value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
}
for (const input of themes) {
  input.checked = input.value === remembered();
  input.addEventListener("change", () => theme(remembered(input.value)));
}
theme(remembered());

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !pages.length) return;
  const typing = event.target.matches("input, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    find.focus();
    return;
  }
  const onSummary = event.target.matches(".page > summary");
  const step = { j: 1, k: -1, ...(onSummary ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
  if (!step || typing) return;
  event.preventDefault();
  const seen = pages.filter((page) => !page.hidden), at = seen.indexOf(document.activeElement.closest(".page"));
  const next = seen[Math.max(0, Math.min(seen.length - 1, at + step))];
  if (next) {
    next.querySelector("summary").focus();
    next.scrollIntoView({ block: "nearest" });
  }
});
