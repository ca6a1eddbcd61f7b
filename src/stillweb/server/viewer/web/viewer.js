// The viewer of trajectories: a list of episodes, an episode as a film, and two episodes side by side. All strings come
// from replayed pages or from agents: they are only set as text, and no URL of an episode becomes a link.
"use strict";

const PAGE = 100; // episodes of one page of the list
const CACHED = 60; // pictures and texts in memory
const PLAY_INTERVAL = 900; // milliseconds
const SCAN_INTERVAL = 700; // milliseconds between two looks at a list that is still being read
const LIVE_INTERVAL = 5000; // milliseconds between two looks at a complete list
const PICTURES = ["screenshot", "som"];
const TEXTS = ["axtree", "compact", "markdown", "text", "dom", "html", "elements", "coords"];
const GUESSES = ["guess", "fuzzy", "pywb"];

const $ = (id) => document.getElementById(id);

function made(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const pretty = (value) => JSON.stringify(value, null, 2);
const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// --- data: from the server, or from this file if it is an export ---------------------------------------------

const embedded = $("embedded") ? JSON.parse($("embedded").textContent) : null;
let key = sessionStorageKey();
const cache = new Map();

function sessionStorageKey() {
  try {
    return sessionStorage.getItem("stillweb-key") || "";
  } catch {
    return ""; // a file has no storage
  }
}

class Refused extends Error {}

async function request(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined));
  const response = await fetch(`${path}?${query}`, { headers: key ? { "x-api-key": key } : {} });
  if (response.status === 401 || response.status === 403) throw new Refused("the server requires its API key");
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message || `${path}: status ${response.status}`);
  }
  return response;
}

function remembered(name, load) {
  if (cache.has(name)) {
    const value = cache.get(name);
    cache.delete(name);
    cache.set(name, value);
    return value;
  }
  const value = load().catch((error) => {
    cache.delete(name);
    throw error;
  });
  cache.set(name, value);
  if (cache.size > CACHED) {
    const [oldest, gone] = cache.entries().next().value;
    cache.delete(oldest);
    gone.then((each) => each.url?.startsWith("blob:") && URL.revokeObjectURL(each.url), () => {});
  }
  return value;
}

const filmOf = async (id) =>
  embedded ? embedded.films[id] : remembered(`film ${id}`, async () => (await request("api/film", { episode: id })).json());

async function pictureOf(id, digest) {
  if (embedded) return { url: embedded.files[digest] };
  return remembered(`png ${digest}`, async () => {
    const response = await request("api/file", { episode: id, digest, kind: "png" });
    return { url: URL.createObjectURL(await response.blob()) };
  });
}

async function textOf(id, digest) {
  if (embedded) return embedded.files[digest] ?? "";
  const response = remembered(`txt ${digest}`, async () => {
    return { text: await (await request("api/file", { episode: id, digest, kind: "txt" })).text() };
  });
  return (await response).text;
}

// --- routes -------------------------------------------------------------------------------------------------

let view = { keys: {}, leave: () => {} };
let drawing = 0;

function route() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", query: new URLSearchParams(query || "") };
}

const link = (path, parameters) => `#${path}?${new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== "" && v !== undefined))}`;

function home() {
  const ids = embedded ? Object.keys(embedded.films) : [];
  if (ids.length === 1) return link("/episode", { id: ids[0] });
  if (ids.length === 2) return link("/compare", { a: ids[0], b: ids[1] });
  return "#/";
}

const only = (number) => (embedded && Object.keys(embedded.films)[number]) || ""; // a link in an export may leave the id out

async function draw() {
  const mine = ++drawing;
  view.leave();
  view = { keys: {}, leave: () => {} };
  const { path, query } = route();
  const main = $("main");
  $("tools").replaceChildren();
  try {
    const draws = { "/episode": drawEpisode, "/compare": drawPair, ...(embedded ? {} : { "/tree": drawTree }) }[path];
    if (embedded && !draws) {
      location.replace(home());
      return;
    }
    await (draws || drawList)(main, query, () => mine === drawing);
  } catch (error) {
    if (mine !== drawing) return;
    const hint = error instanceof Refused ? "Open the monitor at / and enter the key there." : "";
    main.replaceChildren(made("p", { class: "tag bad", text: "failed" }), made("p", { text: `${error.message} ${hint}` }));
  }
}

const replaceRoute = (path, parameters) => history.replaceState(null, "", link(path, parameters));

// --- the list -----------------------------------------------------------------------------------------------

const COLUMNS = [
  ["task", "task", ""], ["goal", "goal", "goal"], ["reward", "reward", "number"], ["end", "end", ""],
  ["steps", "steps", "number"], ["misses", "misses", "number"], ["id", "episode", ""],
];
const FILTERS = ["task", "family", "collection", "end"];

async function drawList(main, query, current) {
  const chosen = Object.fromEntries(query);
  const marked = new Set((chosen.marked || "").split("|").filter(Boolean));
  let rows = [], total = 0, at = -1, timer = 0, newest = "", shown = "";
  const offset = () => Number(chosen.offset || 0);
  const body = made("tbody");
  const summary = made("p", { class: "summary", "aria-live": "polite" });
  const pager = made("div", { class: "pager" });
  const search = made("input", {
    type: "search", placeholder: "search task, goal, episode, error", "aria-label": "Search", value: chosen.text,
    on: { input: () => choose({ text: search.value }) },
  });
  const selects = Object.fromEntries(FILTERS.map((name) => [name, select(name, chosen[name], (value) => choose({ [name]: value }))]));
  const reward = select("reward", chosen.reward, (value) => choose({ reward: value }), [
    ["1", "reward 1"], ["between", "between 0 and 1"], ["0", "reward 0"], ["none", "no reward"],
  ]);
  const misses = select("misses", chosen.misses, (value) => choose({ misses: value }), [["yes", "with misses"], ["no", "without misses"]]);
  const tree = made("button", { text: "tree (t)", disabled: true, title: "Where the episodes of one task part", on: { click: () => openTree() } });
  const compare = made("button", { text: "compare (c)", disabled: true, on: { click: () => openPair() } });

  function choose(change) {
    Object.assign(chosen, { offset: "" }, change);
    at = -1;
    save();
    load();
  }
  function save() {
    replaceRoute("/", { ...chosen, marked: [...marked].join("|") });
  }
  function order(column) {
    choose({ order: chosen.order === column ? `-${column}` : column });
  }
  async function load() {
    clearTimeout(timer);
    const requested = pretty(chosen);
    newest = requested;
    const { marked: _marked, ...parameters } = chosen;
    const found = await (await request("api/episodes", { ...parameters, limit: PAGE, refresh: 1 })).json();
    if (!current() || newest !== requested) return;
    const { seconds: _seconds, ...content } = found;
    if (shown !== pretty(content)) {
      shown = pretty(content);
      rows = found.rows;
      total = found.total;
      at = Math.min(at, rows.length - 1);
      show(found);
    }
    timer = setTimeout(() => load().catch(() => {}), found.scanning ? SCAN_INTERVAL : Math.max(LIVE_INTERVAL, found.seconds * 20000));
  }
  function show(found) {
    $("where").textContent = found.root;
    $("state").textContent = found.scanning ? "reading ..." : "";
    for (const name of FILTERS) fill(selects[name], name, found.choices[name], chosen[name]);
    summary.replaceChildren(...figures(found.summary).map((text) => made("span", { text })));
    body.replaceChildren(...rows.map(rowOf));
    pager.replaceChildren(
      made("button", { text: "previous (p)", disabled: offset() === 0, on: { click: () => turn(-1) } }),
      made("span", { text: total ? `${offset() + 1} to ${offset() + rows.length} of ${total}` : found.scanning ? "" : "no episode" }),
      made("button", { text: "next (n)", disabled: offset() + rows.length >= total, on: { click: () => turn(1) } }),
      compare, tree,
    );
    update();
  }
  function rowOf(row, number) {
    const check = made("input", { type: "checkbox", "aria-label": `Mark ${row.id}`, on: { change: () => mark(number) } });
    check.checked = marked.has(row.id);
    return made("tr", { "aria-selected": number === at },
      made("td", {}, made("a", { href: link("/episode", { id: row.id }), text: row.task || "(no task)" })),
      made("td", { class: "goal dim", text: row.goal }),
      made("td", { class: "number" }, rewardTag(row.reward)),
      made("td", {}, made("span", { class: kindOf(row.end) === "bad" ? "tag bad" : "dim", text: row.end, title: row.error })),
      made("td", { class: "number", "data-label": "steps", text: row.steps }),
      made("td", { class: "number", "data-label": "misses", text: row.misses }),
      made("td", { class: "mono dim", text: row.id }),
      made("td", { class: "check" }, check));
  }
  function turn(by) {
    const to = offset() + by * PAGE;
    if (to < 0 || to >= total) return;
    chosen.offset = String(to);
    at = 0;
    save();
    load();
  }
  function update() {
    [...body.rows].forEach((row, number) => row.setAttribute("aria-selected", number === at));
    body.rows[at]?.scrollIntoView({ block: "nearest" });
    compare.disabled = marked.size !== 2;
    tree.disabled = !treeTask();
  }
  function move(by) {
    at = Math.max(0, Math.min(rows.length - 1, at + by));
    update();
  }
  function mark(number) {
    const id = rows[number]?.id;
    if (id === undefined) return;
    if (!marked.delete(id)) marked.add(id);
    body.rows[number].querySelector("input").checked = marked.has(id);
    save();
    update();
  }
  const treeTask = () => chosen.task || rows[at]?.task || "";
  function openTree() {
    const { marked: _marked, offset: _offset, order: _order, ...filter } = chosen;
    if (treeTask()) location.hash = link("/tree", { ...filter, task: treeTask() });
  }
  function openPair() {
    if (marked.size === 2) location.hash = link("/compare", { a: [...marked][0], b: [...marked][1] });
  }

  const head = made("tr", {}, ...COLUMNS.map(([column, text, kind]) =>
    made("th", { class: kind === "number" ? kind : null }, made("button", { text, title: `Sort by ${text}`, on: { click: () => order(column) } }))),
    made("th", { text: "mark" }));
  main.replaceChildren(
    made("div", { class: "filters", role: "search" }, search, ...Object.values(selects), reward, misses),
    summary, made("table", { class: "list" }, made("thead", {}, head), body), pager);
  document.title = "stillweb view";
  tools();
  view = {
    keys: {
      j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
      Enter: () => rows[at] && (location.hash = link("/episode", { id: rows[at].id })),
      x: () => mark(at), c: openPair, t: openTree, n: () => turn(1), p: () => turn(-1), r: () => load(), "/": () => search.focus(),
    },
    leave: () => clearTimeout(timer),
  };
  await load();
}

function select(name, value, act, options = []) {
  const element = made("select", { "aria-label": name, on: { change: () => act(element.value) } });
  element.append(made("option", { value: "", text: `any ${name}` }), ...options.map(([each, text]) => made("option", { value: each, text })));
  element.value = value || "";
  return element;
}

function fill(element, name, choices, value) {
  const wanted = pretty(choices);
  if (element.dataset.choices === wanted || document.activeElement === element) return;
  element.dataset.choices = wanted;
  element.replaceChildren(made("option", { value: "", text: `any ${name}` }),
    ...choices.map(([each, count]) => made("option", { value: each, text: `${short(each || "(none)", 60)} (${count})` })));
  element.value = value || "";
  element.hidden = choices.length < 2 && !value;
}

function figures(found) {
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const texts = [`${found.episodes} episodes`];
  if (found.scored) {
    texts.push(`${found.successes} of ${found.scored} succeeded: ${percent(found.successes / found.scored)} (95 %: ${percent(found.low)} to ${percent(found.high)})`);
    texts.push(`mean reward ${found.mean.toFixed(3)}`);
  }
  if (found.episodes > found.scored) texts.push(`${found.episodes - found.scored} without a reward`);
  texts.push(`${found.with_misses} with misses`);
  if (found.with_guesses) texts.push(`${found.with_guesses} with guesses`);
  if (found.with_derived) texts.push(`${found.with_derived} with derived answers`);
  return texts;
}

const kindOf = (end) => (["terminated", "truncated", "left", "cut short"].includes(end) ? "plain" : "bad");

function rewardTag(reward) {
  if (reward === null || reward === undefined) return made("span", { class: "tag plain", text: "none" });
  const kind = reward >= 1 ? "good" : reward <= 0 ? "bad" : "warn";
  return made("span", { class: `tag ${kind}`, text: Number(reward.toFixed(4)) });
}

// --- the tree of the episodes of one task --------------------------------------------------------------------

const OPEN_DEPTH = 6; // levels of branches that are open at first

async function drawTree(main, query, current) {
  const filter = Object.fromEntries(query);
  const found = await (await request("api/tree", filter)).json();
  if (!current()) return;
  document.title = `${filter.task} · stillweb view`;
  tools();
  const texts = [`${found.episodes} episodes`];
  if (found.left_out) texts.push(`${found.left_out} not shown`);
  if (found.trees.length > 1) texts.push(`${found.trees.length} different starts: pack, level, seed or perturbation`);
  main.replaceChildren(
    made("p", { class: "facts" }, made("a", { href: link("/", filter), text: "episodes" }), made("h2", { text: filter.task })),
    made("p", { class: "summary" }, ...texts.map((text) => made("span", { text }))),
    ...found.trees.map((tree) => made("ul", { class: "branches" }, branch(tree, found.episodes, 0))));
  view = { keys: { Escape: () => (location.hash = link("/", filter)) }, leave: () => {} };
}

function branch(node, total, depth) {
  const scored = node.rewards.filter((each) => each !== null);
  const good = scored.filter((each) => each >= 1).length;
  const bar = made("span", { class: "share", title: `${good} of ${scored.length} succeeded` });
  bar.append(...[["good", good], ["bad", scored.length - good]].map(([kind, count]) => {
    const part = made("i", { class: kind });
    part.style.width = `${(100 * count) / total}%`;
    return part;
  }));
  const first = node.step || 1; // step 0 is the start and has no action
  const step = first + node.actions.length - 1;
  const acts = node.actions.map((raw, number) => `${first + number}. ${actionText({ raw, parsed: typeof raw === "string" ? null : raw })}`);
  const line = made("span", { class: "branch" }, bar,
    made("a", { href: link("/episode", { id: node.episodes[0], step }), text: node.episodes.length === 1 ? "1 episode" : `${node.episodes.length} episodes` }),
    made("span", { class: "mono", text: node.actions.length ? acts.join("   ") : "start" }),
    node.children.length && node.ended.length ? made("span", { class: "dim", text: `${node.ended.length} end here` }) : null,
    node.differ === null ? null : made("span", { class: "tag bad", text: `equal actions saw different pages at step ${node.differ}` }));
  if (!node.children.length) return made("li", {}, line);
  const inner = made("ul", { class: "branches" }, ...node.children.map((child) => branch(child, total, depth + 1)));
  return made("li", {}, made("details", { open: depth < OPEN_DEPTH }, made("summary", {}, line), inner));
}

// --- a frame: the observation after a step, and the action that follows -----------------------------------------

function actionText(step) {
  if (!step || step.raw === undefined) return "";
  const parsed = step.parsed;
  if (!parsed) return typeof step.raw === "string" ? step.raw : JSON.stringify(step.raw);
  const { action, bid, ...rest } = parsed;
  const values = Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return [action, bid ? `[${bid}]` : "", ...values].filter(Boolean).join(" ");
}

const bidOf = (step) => step?.parsed?.bid || "";

function nameIn(tree, bid) {
  const line = bid && tree.split("\n").find((each) => each.includes(`[${bid}]`));
  return line ? short(line.slice(line.indexOf(`[${bid}]`) + bid.length + 2).trim(), 90) : "";
}

class Frame {
  constructor(id, film) {
    this.id = id;
    this.film = film;
    this.acts = made("dl", { class: "acts" });
    this.figure = made("figure", { class: "picture" });
    this.address = made("p", { class: "address mono dim" });
    this.shown = 0;
  }

  get steps() {
    return this.film.steps;
  }

  picture(step) {
    const form = PICTURES.find((each) => step?.digests?.[each]);
    return form && step.digests[form];
  }

  async show(number) {
    const step = this.steps[number], next = this.steps[number + 1];
    const mine = ++this.shown;
    this.address.textContent = step ? `${step.url} ${step.title ? `· ${step.title}` : ""}` : "";
    const tree = await this.text(number, TEXTS.find((each) => step?.digests?.[each]));
    if (mine !== this.shown) return;
    this.drawActs(number, step, next, tree);
    await this.drawPicture(step, next, mine);
    const later = this.picture(this.steps[number + 1]);
    if (later) pictureOf(this.id, later).catch(() => {});
  }

  async text(number, form) {
    const digest = this.steps[number]?.digests?.[form];
    if (!digest) return "";
    return textOf(this.id, digest).catch((error) => error.message);
  }

  drawActs(number, step, next, tree) {
    const rows = [];
    const row = (name, text, kind) => rows.push(made("dt", { text: name }), made("dd", { class: kind, text }));
    if (!step) row("step", "this episode has no such step");
    else if (number > 0) row("after", `${actionText(step)} → ${step.status}`, step.error ? "error" : null);
    if (step?.error) row("", step.error, "error");
    if (next) row("next", [actionText(next), nameIn(tree, bidOf(next))].filter(Boolean).join(" · "));
    else if (step) {
      const end = this.film.end;
      row("end", end ? `${end.end}${end.error ? `: ${end.error}` : ""}` : "cut short");
    }
    this.acts.replaceChildren(...rows);
  }

  async drawPicture(step, next, mine) {
    const digest = this.picture(step);
    if (!digest) {
      const why = step ? "No picture was observed. Play with --observe screenshot to have one." : "";
      return this.figure.replaceChildren(made("p", { class: "none", text: why }));
    }
    const image = made("img", { alt: `Screenshot of ${step.title || step.url}` });
    image.src = (await pictureOf(this.id, digest)).url;
    await image.decode().catch(() => {});
    if (mine !== this.shown) return;
    this.figure.replaceChildren(image);
    const box = next?.events?.target;
    const [width, height] = this.film.viewport || [image.naturalWidth, image.naturalHeight];
    if (box && width && height) {
      const outline = made("div", { class: "outline" });
      const [x, y, w, h] = box.map(Number);
      Object.assign(outline.style, {
        left: `${(100 * x) / width}%`, top: `${(100 * y) / height}%`,
        width: `${(100 * w) / width}%`, height: `${(100 * h) / height}%`,
      });
      this.figure.append(outline);
    }
  }
}

function timeline(length, kinds, go) {
  const list = made("ol", { class: "timeline", "aria-label": "Steps" });
  for (let number = 0; number < length; number++) {
    const button = made("button", { class: kinds(number), text: number, "aria-label": `Step ${number}`, on: { click: () => go(number) } });
    list.append(made("li", {}, button));
  }
  return {
    element: list,
    mark: (at) => list.querySelectorAll("button").forEach((each, number) => (number === at ? each.setAttribute("aria-current", "step") : each.removeAttribute("aria-current"))),
  };
}

function stepKind(film, number) {
  const step = film.steps[number];
  if (!step) return "";
  if (step.status && step.status !== "ok") return "failed";
  if (step.traffic?.misses) return "missed";
  return number === film.steps.length - 1 && film.end?.reward >= 1 ? "ended" : "";
}

function player(length, go, at) {
  let timer = 0;
  const button = made("button", { text: "▶ play", on: { click: () => toggle() } });
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    button.textContent = "▶ play";
  };
  function toggle() {
    if (timer) return stop();
    button.textContent = "⏸ pause";
    timer = setInterval(() => (at() + 1 < length ? go(at() + 1) : stop()), PLAY_INTERVAL);
  }
  return { button, toggle, stop };
}

const stepKeys = (go, at, length, play) => ({
  ArrowRight: () => go(at() + 1), l: () => go(at() + 1), ArrowLeft: () => go(at() - 1), h: () => go(at() - 1),
  Home: () => go(0), End: () => go(length - 1), " ": () => play.toggle(), Escape: () => !embedded && (location.hash = "#/"),
});

const clamp = (number, length) => Math.max(0, Math.min(length - 1, number));

// --- an episode -----------------------------------------------------------------------------------------------

async function drawEpisode(main, query, current) {
  const id = query.get("id") || only(0);
  const film = await filmOf(id);
  if (!current()) return;
  const frame = new Frame(id, film), length = film.steps.length;
  let at = clamp(Number(query.get("step") || 0), length), tab = query.get("tab") || "tree", form = query.get("form") || "";
  const body = made("div", { class: "body", role: "tabpanel", tabindex: "0" });
  const counter = made("span", { class: "dim" });
  const line = timeline(length, (number) => stepKind(film, number), (number) => go(number));
  const tabs = made("div", { class: "tabs", role: "tablist" });
  const play = player(length, (number) => go(number), () => at);
  const PANELS = { tree: treePanel, requests: requestsPanel, console: consolePanel, reward: rewardPanel, details: detailsPanel };

  function go(number) {
    at = clamp(number, length);
    replaceRoute("/episode", { id, step: at, tab, form });
    return show();
  }
  function open(name) {
    tab = name;
    return go(at);
  }
  async function show() {
    line.mark(at);
    counter.textContent = `step ${at} of ${length - 1}${film.steps[at]?.at ? ` · ${film.steps[at].at.toFixed(1)} s` : ""}`;
    drawTabs();
    const context = { frame, film, at, form, choose: (name) => ((form = name), go(at)) };
    const shown = at;
    const panel = await PANELS[tab in PANELS ? tab : "tree"](context);
    if (shown === at && current()) {
      body.replaceChildren(...panel);
      body.querySelector(".target")?.scrollIntoView({ block: "nearest" });
    }
    await frame.show(at);
  }
  function drawTabs() {
    const events = film.steps[at]?.events;
    const counts = { requests: events ? events.requests.length : film.steps[at]?.traffic?.requests, console: events?.console.length };
    tabs.replaceChildren(...Object.keys(PANELS).map((name, number) =>
      made("button", { role: "tab", "aria-selected": name === tab, title: `Key ${number + 1}`, text: counts[name] ? `${name} ${counts[name]}` : name, on: { click: () => open(name) } })));
  }

  const header = film.header, end = film.end;
  main.replaceChildren(
    made("div", { class: "facts" }, made("h2", { text: header.name || id }), rewardTag(end?.reward),
      made("span", { class: `tag ${kindOf(end?.end || "cut short")}`, text: end?.end || "cut short" }),
      made("span", { class: "dim", text: `${header.collection || ""} · level ${header.level || "?"} · seed ${header.seed ?? "?"}` })),
    made("p", { class: "goal-text", text: header.goal || "" }),
    line.element,
    made("div", { class: "controls" },
      made("button", { text: "◀ previous", on: { click: () => go(at - 1) } }), made("button", { text: "next ▶", on: { click: () => go(at + 1) } }), play.button, counter),
    made("div", { class: "film" },
      made("section", { "aria-label": "Page" }, frame.acts, frame.figure, frame.address),
      made("section", { class: "panel", "aria-label": "Step" }, tabs, body)));
  $("where").textContent = id;
  document.title = `${header.name || id} · stillweb view`;
  tools(embedded ? null : { episode: id });
  const numbers = Object.fromEntries(Object.keys(PANELS).map((name, number) => [String(number + 1), () => open(name)]));
  view = { keys: { ...stepKeys(go, () => at, length, play), ...numbers }, leave: play.stop };
  await show();
}

async function treePanel({ frame, film, at, form, choose }) {
  const step = film.steps[at], forms = TEXTS.filter((each) => step.digests?.[each]);
  if (!forms.length) return [made("p", { class: "dim", text: "No text was observed." })];
  const shown = forms.includes(form) ? form : forms[0];
  const chooser = made("select", { "aria-label": "Form of observation", on: { change: () => choose(chooser.value) } },
    ...forms.map((each) => made("option", { value: each, text: each })));
  chooser.value = shown;
  const text = await frame.text(at, shown), bid = bidOf(film.steps[at + 1]);
  return [forms.length > 1 ? chooser : null, treeOf(text, (line) => bid && line.includes(`[${bid}]`) && "target")].filter(Boolean);
}

function treeOf(text, kind) {
  return made("pre", { class: "tree" }, ...text.split("\n").map((line) => made("span", { class: kind(line) || null, text: line })));
}

function tierTag(tier) {
  const kind = tier === "miss" ? "bad" : GUESSES.includes(tier) || tier === "fault" ? "warn" : tier === "noise" || tier === "synthetic" ? "plain" : "good";
  return made("span", { class: `tag ${kind}`, text: tier || "?" });
}

async function requestsPanel({ film, at }) {
  const step = film.steps[at], events = step.events;
  if (!events) {
    const missed = step.traffic?.missed || [];
    return [made("p", { class: "dim", text: `${step.traffic?.requests ?? 0} requests, ${step.traffic?.misses ?? 0} misses. This trajectory has no events.jsonl.` }),
      made("ul", {}, ...missed.map((text) => made("li", { text })))];
  }
  const rows = events.requests.map((each) => made("tr", {},
    made("td", {}, tierTag(each.tier)), made("td", { text: each.status || "" }), made("td", { text: each.method }),
    made("td", { class: "mono" }, made("span", { text: each.url }), each.reason ? made("div", { class: "reason", text: each.reason }) : null)));
  const head = made("tr", {}, ...["tier", "status", "method", "URL and reason"].map((text) => made("th", { text })));
  const more = events.more_requests ? [made("p", { class: "dim", text: `and ${events.more_requests} more` })] : [];
  return rows.length ? [made("table", { class: "requests" }, made("thead", {}, head), made("tbody", {}, ...rows)), ...more]
    : [made("p", { class: "dim", text: "This step sent no request." })];
}

async function consolePanel({ film, at }) {
  const messages = film.steps[at].events?.console || [];
  if (!messages.length) return [made("p", { class: "dim", text: "The page wrote nothing to its console." })];
  return messages.map((each) => made("div", { class: `message ${["error", "exception", "warning"].includes(each.type) ? each.type : ""}` },
    made("span", { class: "dim", text: `${each.type} ` }), made("span", { class: "mono", text: each.text }),
    each.where ? made("div", { class: "dim mono", text: each.where }) : null));
}

async function rewardPanel({ film }) {
  const end = film.end;
  if (!end) return [made("p", { text: "The episode was cut short: it has no end and no reward." })];
  const parts = [made("p", {}, rewardTag(end.reward), ` ${end.end}`)];
  if (end.error) parts.push(made("p", { class: "note", text: end.error }));
  if (end.reasons?.length) parts.push(made("h3", { text: "Reasons" }), made("ul", {}, ...end.reasons.map((text) => made("li", { text }))));
  const evaluation = film.header.task?.evaluation;
  if (evaluation) parts.push(made("h3", { text: "Evaluator" }), made("pre", { text: pretty(evaluation) }));
  for (const [name, value] of Object.entries(end.evidence || {})) {
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) continue;
    parts.push(made("h3", { text: `Evidence: ${name}` }), made("pre", { text: typeof value === "string" ? value : pretty(value) }));
  }
  return parts;
}

async function detailsPanel({ film, at }) {
  const { events: _, ...step } = film.steps[at];
  return [made("h3", { text: "Step" }), made("pre", { text: pretty(step) }), made("h3", { text: "Episode" }), made("pre", { text: pretty(film.header) })];
}

// --- two episodes ---------------------------------------------------------------------------------------------

async function drawPair(main, query, current) {
  const ids = [query.get("a") || only(0), query.get("b") || only(1)];
  const films = await Promise.all(ids.map(filmOf));
  const difference = embedded ? embedded.difference : (await (await request("api/compare", { a: ids[0], b: ids[1] })).json()).difference;
  if (!current()) return;
  const frames = films.map((film, side) => new Frame(ids[side], film));
  const length = Math.max(...films.map((film) => film.steps.length));
  const trees = [made("div", { class: "body panel" }), made("div", { class: "body panel" })];
  const counter = made("span", { class: "dim" });
  const first = difference ? difference.step : 0;
  let at = clamp(Number(query.get("step") ?? first), length);
  const line = timeline(length, (number) => [films.map((film) => stepKind(film, number)).find(Boolean), difference && number >= first ? "different" : ""].filter(Boolean).join(" "), (number) => go(number));
  const play = player(length, (number) => go(number), () => at);

  function go(number) {
    at = clamp(number, length);
    replaceRoute("/compare", { a: ids[0], b: ids[1], step: at });
    return show();
  }
  async function show() {
    line.mark(at);
    counter.textContent = `step ${at} of ${length - 1}`;
    const shown = at;
    const texts = await Promise.all(frames.map((frame) => frame.text(shown, TEXTS.find((each) => films[0].steps[shown]?.digests?.[each]))));
    if (shown !== at || !current()) return;
    const lines = texts.map((text) => new Set(text.split("\n").map(plain)));
    texts.forEach((text, side) => trees[side].replaceChildren(treeOf(text, (each) => !lines[1 - side].has(plain(each)) && "changed")));
    trees.forEach((tree) => tree.querySelector(".changed")?.scrollIntoView({ block: "nearest" }));
    await Promise.all(frames.map((frame) => frame.show(shown)));
  }
  const note = difference ? `First difference: step ${difference.step} (${difference.fields.map((field) => FIELDS[field] || field).join(", ")}).` : "The episodes are equal in every step.";
  main.replaceChildren(
    made("p", { class: "note", text: note }), line.element,
    made("div", { class: "controls" },
      made("button", { text: "◀ previous", on: { click: () => go(at - 1) } }), made("button", { text: "next ▶", on: { click: () => go(at + 1) } }),
      made("button", { text: "first difference (d)", disabled: !difference, on: { click: () => go(first) } }), play.button, counter),
    made("div", { class: "pair" }, ...frames.map((frame, side) => made("section", { "aria-label": ids[side] },
      made("div", { class: "facts" }, made("h2", {}, embedded ? ids[side] : made("a", { href: link("/episode", { id: ids[side] }), text: ids[side] })), rewardTag(films[side].end?.reward)),
      frame.acts, frame.figure, frame.address, trees[side]))));
  $("where").textContent = "";
  document.title = "two episodes · stillweb view";
  tools(embedded ? null : { a: ids[0], b: ids[1] });
  view = { keys: { ...stepKeys(go, () => at, length, play), d: () => go(first) }, leave: play.stop };
  await show();
}

const plain = (line) => line.trim();
const FIELDS = { raw: "action", digests: "observation", length: "number of steps" };

// --- tools and keys ---------------------------------------------------------------------------------------------

const KEYS = {
  "j k": "next and previous episode", Enter: "open the episode", x: "mark the episode", c: "compare the two marked episodes",
  t: "where the episodes of the chosen task part", "/": "search", "n p": "next and previous page", r: "read the folder again", "← →": "previous and next step",
  "Home End": "first and last step", space: "play and pause", "1 to 5": "tree, requests, console, reward, details",
  d: "first difference of two episodes", Escape: "back to the list", "?": "this help",
};

function tools(exported) {
  const buttons = [made("button", { text: "keys (?)", on: { click: () => $("help").showModal() } })];
  if (exported) buttons.unshift(made("button", { text: "export", on: { click: () => download(exported) } }));
  $("tools").replaceChildren(...buttons);
}

async function download(parameters) {
  const response = await request("api/export", parameters);
  const url = URL.createObjectURL(await response.blob());
  made("a", { href: url, download: "episode.html" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

$("help").append(made("h2", { text: "Keys" }),
  made("dl", {}, ...Object.entries(KEYS).flatMap(([name, text]) => [made("dt", {}, made("kbd", { text: name })), made("dd", { text })])),
  made("form", { method: "dialog" }, made("button", { text: "close" })));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const typing = event.target.matches("input[type=search], select");
  if (typing) return event.key === "Escape" && event.target.blur();
  if (event.key === " " && event.target.matches("button, a, input")) return undefined;
  if (event.key === "Enter" && event.target.matches("button, a, input")) return undefined;
  if (event.key === "?") return $("help").showModal();
  const act = view.keys[event.key];
  if (!act) return undefined;
  event.preventDefault();
  return act();
});

addEventListener("hashchange", draw);
draw();
