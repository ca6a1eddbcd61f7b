// The monitor page of `stillweb serve`: draws the events of v1/stream and the time series of v1/history. Strings from
// other sources (task names, URLs, errors) are only set as text.
"use strict";

const MANY = 256; // more sessions are shown as letters
const FETCHES = 4; // simultaneous requests for pictures
const RECONNECT = 1000; // milliseconds
const HISTORY_INTERVAL = 5000; // milliseconds between two requests for the history
const THUMBNAIL_INTERVAL = 1000; // milliseconds between two thumbnails, which cost the server a screenshot
const THUMBNAIL_AGE = 5000; // milliseconds after which a thumbnail is taken again

const $ = (id) => document.getElementById(id);
const made = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const set = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

let key = sessionStorage.getItem("stillweb-key") || "";
let chosen = -1; // index of the session in the detail
let only = ""; // the only kind of session that is shown
let last = null; // the last status
const cells = [];

const KINDS = { play: "playing", wait: "starting", over: "over", fail: "failed", none: "free" };
const kindOf = (letter) =>
  ({ N: "none", W: "wait", F: "over", X: "fail" })[letter] || "play";

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  return `${Math.floor(seconds / 3600)}h${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")}`;
}

function pageOf(url) {
  const { pathname, search, hostname } = URL.canParse(url) ? new URL(url) : { pathname: url, search: "", hostname: "" };
  return pathname + search === "/" ? hostname : pathname + search;
}

// --- the stream: by fetch, since EventSource cannot send a key ------------------------------------------------

class Refused extends Error {}

async function request(path) {
  const response = await fetch(path, { headers: key ? { "x-api-key": key } : {} });
  if (response.status === 401 || response.status === 403) throw new Refused();
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

async function listen() {
  const response = await request("v1/stream");
  $("key").hidden = true;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r\n", "\n");
    let end;
    let newest = null;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) newest = data.join("\n");
    }
    if (newest !== null) show(JSON.parse(newest)); // each event holds the whole status
  }
}

async function connect() {
  for (;;) {
    try {
      await listen();
    } catch (error) {
      if (error instanceof Refused) {
        $("server").textContent = "locked";
        await keyEntered();
        continue;
      }
      if (!(error instanceof TypeError) && !String(error.message).startsWith("v1/")) throw error;
    }
    $("server").className = "state lost";
    $("server").textContent = "unreachable; trying again";
    await new Promise((resume) => setTimeout(resume, RECONNECT));
  }
}

function keyEntered() {
  const form = $("key");
  form.querySelector("[role=alert]").textContent = key ? "The server has another key." : "";
  form.hidden = false;
  form.key.focus();
  return new Promise((resume) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      key = form.key.value;
      sessionStorage.setItem("stillweb-key", key);
      resume();
    };
  });
}

// --- drawing --------------------------------------------------------------------------------------------------------

function show(status) {
  last = status;
  $("server").className = `state ${status.state}`;
  set($("server"), status.state);
  set($("where"), `level ${status.level}, observing ${status.observe.join(", ")}, for ${span(status.uptime)}, replay ${status.replay}`);
  showFigures(status);
  showStates(status.sessions);
  showSessions(status.sessions);
  showTables(status);
  showDetail();
}

function showFigures(status) {
  const { rates, traffic, sessions, failures } = status;
  const leased = sessions.filter((each) => each.letter !== "N").length;
  const failed = Object.values(failures).reduce((sum, count) => sum + count, 0);
  const ended = Object.values(status.episodes).reduce((sum, count) => sum + count, 0);
  figure("steps per second", rates.steps.toFixed(1));
  figure("resets per second", rates.resets.toFixed(2));
  figure("sessions leased", `${leased} / ${sessions.length}`);
  figure("steps", status.steps);
  figure("resets", status.resets);
  figure("episodes ended", ended);
  figure("hits", traffic.hits ?? 0);
  figure("misses", traffic.misses ?? 0, traffic.misses > 0);
  figure("noise", traffic.noise ?? 0);
  figure("failures", failed, failures.infra_error > 0);
}

const figures = new Map();
function figure(name, value, bad) {
  let box = figures.get(name);
  if (!box) {
    box = made("div", "figure");
    box.append(made("b"), made("span", "", name));
    figures.set(name, box);
    $("figures").append(box);
  }
  box.classList.toggle("bad", Boolean(bad));
  set(box.firstChild, String(value));
}

// --- time series ----------------------------------------------------------------------------------------------------

const perSecond = (value) => (value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : 2));
const seconds = (value) => (value >= 1 ? `${value.toFixed(1)} s` : `${(value * 1000).toFixed(0)} ms`);
const bytes = (value) => (value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(2)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`);

// Title, format of the values, least maximum of the axis, and label and name of one or two series.
const CHARTS = [
  ["Rates", perSecond, 1, [["steps/s", "steps"], ["resets/s", "resets"]]],
  ["Step latency", seconds, 0.1, [["median", "latency.execute.p50"], ["95 %", "latency.execute.p95"]]],
  ["Reset latency", seconds, 0.1, [["median", "latency.reset.p50"], ["95 %", "latency.reset.p95"]]],
  ["Failures and misses", perSecond, 1, [["failures/s", "failures"], ["misses/s", "misses"]]],
  ["Memory", bytes, 2 ** 20, [["browsers", "memory.browsers"], ["server", "memory.server"]]],
  ["Sessions", (value) => value.toFixed(0), 1, [["leased", "leased"]]],
];
const SVG = "http://www.w3.org/2000/svg";
const drawn = (tag, className) => {
  const element = document.createElementNS(SVG, tag);
  if (className) element.setAttribute("class", className);
  return element;
};
let series = { ages: [], series: {} };
let pointed = -1; // sample under the pointer

const charts = CHARTS.map(([title, format, least, lines]) => {
  const figure = made("figure", "chart");
  const caption = made("figcaption");
  caption.append(made("b", "", title), ...lines.map((_, i) => made("span", i ? "second" : "")));
  const plot = made("div", "plot");
  const svg = drawn("svg");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const top = drawn("line", "top");
  const mark = drawn("line");
  const paths = lines.map((_, i) => drawn("path", i ? "second" : ""));
  svg.append(top, ...paths, mark);
  const max = made("span", "max");
  plot.append(svg, max);
  const axis = made("div", "axis");
  axis.append(made("span"), made("span", "", "now"));
  figure.append(caption, plot, axis);
  $("charts").append(figure);
  svg.addEventListener("pointermove", (event) => {
    const { left, width } = svg.getBoundingClientRect();
    pointed = Math.round(((event.clientX - left) / width) * (series.ages.length - 1));
    showCharts();
  });
  svg.addEventListener("pointerleave", () => {
    pointed = -1;
    showCharts();
  });
  return { format, least, lines, title, caption, svg, top, mark, paths, max, axis };
});

const HEIGHT = 100;
function showCharts() {
  const count = series.ages.length;
  $("charts").hidden = count < 2;
  if (count < 2) return;
  const at = pointed >= 0 && pointed < count ? pointed : count - 1;
  const age = (i) => (series.ages[i] < 3 ? "now" : `${span(series.ages[i])} ago`);
  for (const chart of charts) {
    const values = chart.lines.map(([, name]) => series.series[name] || []);
    const known = values.flat().filter((value) => value !== null && value !== undefined);
    const most = Math.max(chart.least, ...known) * 1.05;
    const y = (value) => (HEIGHT - (HEIGHT - 4) * (value / most)).toFixed(2);
    chart.svg.setAttribute("viewBox", `0 0 ${count - 1} ${HEIGHT}`);
    chart.paths.forEach((path, i) => path.setAttribute("d", pathOf(values[i], y)));
    place(chart.top, 0, count - 1, y(most / 1.05), y(most / 1.05));
    place(chart.mark, at, at, 0, HEIGHT);
    chart.mark.style.display = pointed < 0 ? "none" : "";
    set(chart.max, chart.format(most / 1.05));
    const texts = chart.lines.map(([label], i) => {
      const value = pointed < 0 ? newest(values[i]) : values[i][at];
      return `${label} ${value === null || value === undefined ? "–" : chart.format(value)}`;
    });
    texts.forEach((text, i) => set(chart.caption.children[i + 1], text));
    chart.svg.setAttribute("aria-label", `${chart.title}: ${texts.join(", ")}`);
    set(chart.axis.firstChild, age(0));
    set(chart.axis.lastChild, pointed < 0 ? "now" : age(at));
  }
}

function newest(values) {
  return values.findLast((value) => value !== null && value !== undefined);
}

function place(line, x1, x2, y1, y2) {
  for (const [name, value] of Object.entries({ x1, x2, y1, y2 })) line.setAttribute(name, value);
}

function pathOf(values, y) {
  let path = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null || value === undefined) return; // without operations the line continues to the next value
    path += `${pen}${i} ${y(value)}${pen === "M" ? "h0" : ""}`; // one value alone is a dot
    pen = "L";
  });
  return path;
}

async function followHistory() {
  for (;;) {
    if (last && !document.hidden) {
      try {
        series = await (await request("v1/history")).json();
        showCharts();
        if (last) showTables(last);
      } catch {
        // the stream reports that the server is unreachable
      }
    }
    await new Promise((resume) => setTimeout(resume, last ? HISTORY_INTERVAL : 200));
  }
}

function showStates(sessions) {
  const counts = {};
  for (const each of sessions) counts[kindOf(each.letter)] = (counts[kindOf(each.letter)] || 0) + 1;
  const box = $("states");
  if (!box.children.length) {
    for (const kind of ["", ...Object.keys(KINDS)]) {
      const button = made("button");
      button.dataset.kind = kind;
      button.onclick = () => {
        only = only === kind ? "" : kind;
        show(last);
      };
      box.append(button, " ");
    }
  }
  for (const button of box.querySelectorAll("button")) {
    const { kind } = button.dataset;
    set(button, kind ? `${KINDS[kind]} ${counts[kind] || 0}` : `all ${sessions.length}`);
    button.setAttribute("aria-pressed", String(only === kind));
  }
}

function cellAt(index) {
  while (cells.length <= index) {
    const button = made("button", "cell");
    const at = cells.length;
    const view = made("div", "view", "");
    view.append(made("span"), made("canvas"));
    button.append(view, made("span", "letter"), made("span", "age"), made("span", "task"));
    button.setAttribute("role", "option");
    button.tabIndex = at ? -1 : 0;
    button.onclick = () => choose(at);
    $("grid").append(button);
    const [, letter, age, task] = button.children;
    const [note, canvas] = view.children;
    cells.push({ button, canvas, note, letter, age, task, picture: "", lease: "", near: false, taken: 0, step: -1 });
    seen.observe(button);
  }
  return cells[index];
}

function showSessions(sessions) {
  $("grid").classList.toggle("many", sessions.length > MANY);
  sessions.forEach((each, index) => {
    const cell = cellAt(index);
    const kind = kindOf(each.letter);
    const className = `cell ${kind}`;
    if (cell.button.className !== className) cell.button.className = className;
    cell.button.hidden = Boolean(only) && only !== kind;
    cell.button.setAttribute("aria-selected", String(index === chosen));
    set(cell.letter, each.letter);
    set(cell.age, kind === "none" ? "" : span(each.age));
    set(cell.task, kind === "none" ? "" : each.error || each.task || pageOf(each.url));
    const title = `session ${index}: ${KINDS[kind]}${each.doing ? `, ${each.doing}` : ""}, step ${each.step}`;
    if (cell.button.title !== title) cell.button.title = title;
    const picture = kind === "none" ? "" : each.picture;
    if (picture !== cell.wanted || each.lease !== cell.lease) {
      if (each.lease !== cell.lease) clear(cell);
      cell.wanted = picture;
      cell.lease = each.lease;
      draw(cell);
    }
    const hidden = kind !== "none" && !each.lease;
    set(cell.note, kind === "none" ? "free" : hidden ? "another API key" : cell.picture ? "" : "no picture yet");
  });
}

function rows(id, wanted) {
  const body = document.querySelector(`#${id} tbody`);
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((texts, at) => {
    const row = body.rows[at] || body.insertRow();
    texts.forEach((text, i) => {
      const td = row.cells[i] || row.insertCell();
      if (i === 0) td.className = "name";
      set(td, String(text));
    });
  });
  return body;
}

function showTables(status) {
  const queues = Object.entries(status.queues);
  const latency = (name, share) => {
    const value = newest(series.series[`latency.${name}.${share}`] || []);
    return value === undefined ? "" : seconds(value);
  };
  const body = rows(
    "queues",
    queues.map(([name, q]) => [
      name,
      `${q.under_way} / ${q.limit}`,
      q.waiting,
      q.begun,
      latency(name, "p50"),
      latency(name, "p95"),
    ]),
  );
  queues.forEach(([, queue], at) => body.rows[at].cells[2].classList.toggle("full", queue.waiting > 0));
  const failures = Object.entries(status.failures).sort((one, other) => other[1] - one[1]);
  rows("failures", failures.length ? failures : [["none", ""]]);
  rows("browsers", status.browsers.map((b) => [b.number, b.state, b.leases, b.episodes, b.pid]));
  rows(
    "misses",
    status.misses.length
      ? status.misses.slice(0, 12).map((miss) => [`${span(miss.age)} ago`, miss.request, miss.task])
      : [["none", "", ""]],
  );
}

// --- the detail of one session ---------------------------------------------------------------------------------------

function choose(index) {
  chosen = chosen === index ? -1 : index;
  if (last) show(last);
}

let detailPicture = "";
function showDetail() {
  const each = chosen >= 0 && last ? last.sessions[chosen] : null;
  $("detail").hidden = !each;
  document.querySelector("main").classList.toggle("chosen", Boolean(each));
  if (!each) {
    detailPicture = "";
    return;
  }
  const box = $("detail");
  if (!box.children.length) box.append(made("h2"), made("img"), made("dl"));
  const [title, picture, list] = box.children;
  set(title, `Session ${each.index}: ${KINDS[kindOf(each.letter)]}`);
  const facts = {
    doing: each.doing || "nothing",
    step: each.step,
    task: each.task,
    page: each.url,
    owner: each.owner,
    lease: each.lease,
    age: span(each.age),
    "last request": `${span(each.silent)} ago`,
    "hits, misses, noise": `${each.hits}, ${each.misses}, ${each.noise}`,
    reward: each.reward === null ? "none" : each.reward,
    browser: each.browser < 0 ? "none" : each.browser,
    error: each.error,
  };
  const shown = Object.entries(facts).filter(([, value]) => value !== "");
  while (list.children.length > 2 * shown.length) list.lastChild.remove();
  shown.forEach(([name, value], i) => {
    if (list.children.length <= 2 * i) list.append(made("dt"), made("dd"));
    set(list.children[2 * i], name);
    set(list.children[2 * i + 1], String(value));
  });
  const path = pathOfPicture(each);
  picture.hidden = !path;
  if (path !== detailPicture) {
    detailPicture = path;
    picture.alt = `page of session ${each.index}`;
    picture.removeAttribute("src");
    if (path) whole(path, picture);
  }
}

function pathOfPicture(each) {
  if (each.picture) return `v1/pictures/${each.picture}${each.node ? `?node=${each.node}` : ""}`;
  const open = each.lease && ["play", "over"].includes(kindOf(each.letter));
  return open ? `v1/leases/${each.lease}/thumbnail?step=${each.step}` : "";
}

async function whole(path, image) {
  const blob = await blobOf(path);
  if (!blob || path !== detailPicture) {
    if (path === detailPicture) detailPicture = ""; // the session was busy: the next status tries again
    return;
  }
  const url = URL.createObjectURL(blob);
  image.onload = () => URL.revokeObjectURL(url);
  image.src = url;
}

// --- pictures: those that clients observed, and thumbnails of the other sessions; only of visible cells ------------------------------------------

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const cell = cells.find((each) => each.button === entry.target);
    cell.near = entry.isIntersecting;
    if (cell.near) draw(cell);
  }
});
const waiting = new Set();
let fetching = 0;

async function blobOf(path) {
  try {
    const response = await request(path);
    return response.status === 204 ? null : await response.blob(); // 204: the session is busy
  } catch {
    return null; // dropped from the server's memory, or the server is unreachable
  }
}

function clear(cell) {
  cell.picture = "";
  cell.step = -1;
  cell.taken = 0;
  cell.canvas.width = cell.canvas.width; // clears it
}

async function drawBlob(cell, blob, name) {
  const width = Math.min(480, Math.max(64, Math.round(cell.canvas.clientWidth * devicePixelRatio)));
  const bitmap = await createImageBitmap(blob, { resizeWidth: width, resizeQuality: "medium" });
  cell.canvas.width = width;
  cell.canvas.height = Math.round((width * 9) / 16);
  cell.canvas.getContext("2d").drawImage(bitmap, 0, 0); // from the top of the page
  bitmap.close();
  cell.picture = name;
  set(cell.note, "");
}

async function takeThumbnails() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, THUMBNAIL_INTERVAL));
    if (!last || document.hidden || !$("pictures").checked || cells.length > MANY) continue;
    const now = performance.now();
    const due = cells.filter((cell, i) => {
      const each = last.sessions[i];
      const path = each && !each.picture && pathOfPicture(each);
      return path && cell.near && !each.doing && (cell.step !== each.step || now - cell.taken > 4 * THUMBNAIL_AGE)
        && now - cell.taken > THUMBNAIL_AGE;
    });
    due.sort((one, other) => one.taken - other.taken);
    if (!due.length) continue;
    const [cell] = due;
    const each = last.sessions[cells.indexOf(cell)];
    const { lease, step } = each;
    cell.taken = now;
    const blob = await blobOf(pathOfPicture(each));
    if (!blob || cell.lease !== lease) continue;
    await drawBlob(cell, blob, lease);
    cell.step = step;
  }
}

function draw(cell) {
  if (!cell.wanted) {
    if (!cell.lease) clear(cell);
    return;
  }
  if (!cell.near || !$("pictures").checked || cell.wanted === cell.picture) return;
  waiting.add(cell);
  next();
}

async function next() {
  if (fetching >= FETCHES || !waiting.size) return;
  const [cell] = waiting;
  waiting.delete(cell);
  const sha256 = cell.wanted;
  if (!sha256) return;
  fetching += 1;
  const blob = await blobOf(`v1/pictures/${sha256}`);
  if (blob) await drawBlob(cell, blob, sha256);
  fetching -= 1;
  next();
}

// --- controls --------------------------------------------------------------------------------------------------------

$("pictures").onchange = () => {
  $("grid").classList.toggle("nopictures", !$("pictures").checked);
  cells.forEach(draw);
};

$("grid").addEventListener("keydown", (event) => {
  const shown = cells.filter((cell) => !cell.button.hidden);
  const at = shown.findIndex((cell) => cell.button === document.activeElement);
  if (at < 0) return;
  const top = shown[0].button.offsetTop;
  const wide = shown.findIndex((cell) => cell.button.offsetTop > top);
  const row = wide < 0 ? shown.length : wide;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[event.key];
  const to = by && shown[at + by];
  if (to) {
    event.preventDefault();
    shown[at].button.tabIndex = -1;
    to.button.tabIndex = 0;
    to.button.focus();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen >= 0) choose(chosen);
});

connect();
followHistory();
takeThumbnails();
