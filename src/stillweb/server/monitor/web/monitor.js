// The page of `stillweb serve`: the events of v1/stream, drawn. What comes from elsewhere (names of tasks, URLs, errors)
// is only ever set as text.
"use strict";

const HISTORY = 120; // events in the lines of the figures
const MANY = 256; // cells; beyond that they are a letter each
const FETCHES = 4; // pictures fetched at once
const AGAIN = 1000; // milliseconds until it connects again

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
let only = ""; // kind of session that is shown
let last = null; // the last status
const cells = [];
const history = { steps: [], resets: [] };

const KINDS = { play: "playing", wait: "beginning", over: "over", fail: "failed", none: "free" };
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

// --- the stream: fetch and not EventSource, which can send no key ------------------------------------------------

class Refused extends Error {}

async function ask(path) {
  const answer = await fetch(path, { headers: key ? { "x-api-key": key } : {} });
  if (answer.status === 401 || answer.status === 403) throw new Refused();
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

async function listen() {
  const answer = await ask("v1/stream");
  $("key").hidden = true;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
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
      const told = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (told.length) newest = told.join("\n");
    }
    if (newest !== null) show(JSON.parse(newest)); // of several that came together the newest says it all
  }
}

async function stay() {
  for (;;) {
    try {
      await listen();
    } catch (error) {
      if (error instanceof Refused) {
        $("server").textContent = "locked";
        await unlocked();
        continue;
      }
      if (!(error instanceof TypeError) && !String(error.message).startsWith("v1/")) throw error;
    }
    $("server").className = "state lost";
    $("server").textContent = "not reached; trying again";
    await new Promise((resume) => setTimeout(resume, AGAIN));
  }
}

function unlocked() {
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
  for (const name of ["steps", "resets"]) {
    history[name].push(rates[name]);
    if (history[name].length > HISTORY) history[name].shift();
  }
  const leased = sessions.filter((each) => each.letter !== "N").length;
  const failed = Object.values(failures).reduce((sum, count) => sum + count, 0);
  const ended = Object.values(status.episodes).reduce((sum, count) => sum + count, 0);
  figure("steps a second", rates.steps.toFixed(1), { line: history.steps });
  figure("resets a second", rates.resets.toFixed(2), { line: history.resets });
  figure("sessions leased", `${leased} / ${sessions.length}`);
  figure("steps, resets", `${status.steps}, ${status.resets}`);
  figure("episodes ended", ended);
  figure("hits", traffic.hits ?? 0);
  figure("misses", traffic.misses ?? 0, { bad: traffic.misses > 0 });
  figure("noise", traffic.noise ?? 0);
  figure("failures", failed, { bad: failures.infra_error > 0 });
}

const figures = new Map();
function figure(name, value, { line, bad } = {}) {
  let box = figures.get(name);
  if (!box) {
    box = made("div", "figure");
    box.append(made("b"), made("span", "", name));
    if (line) {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 20`);
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
      box.append(svg);
    }
    figures.set(name, box);
    $("figures").append(box);
  }
  box.classList.toggle("bad", Boolean(bad));
  set(box.firstChild, String(value));
  if (line) {
    const top = Math.max(...line, 0.001);
    const from = HISTORY - line.length;
    const points = line.map((each, i) => `${from + i},${(19 - 18 * (each / top)).toFixed(1)}`);
    box.querySelector("polyline").setAttribute("points", points.join(" "));
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
    button.append(made("canvas"), made("span", "letter"), made("span", "age"), made("span", "task"));
    button.setAttribute("role", "option");
    button.tabIndex = at ? -1 : 0;
    button.onclick = () => choose(at);
    $("grid").append(button);
    const [canvas, letter, age, task] = button.children;
    cells.push({ button, canvas, letter, age, task, picture: "", near: false });
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
    const told = `session ${index}: ${KINDS[kind]}${each.doing ? `, ${each.doing}` : ""}, step ${each.step}`;
    if (cell.button.title !== told) cell.button.title = told;
    const picture = kind === "none" ? "" : each.picture;
    if (picture !== cell.wanted) {
      cell.wanted = picture;
      draw(cell);
    }
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
  const body = rows("queues", queues.map(([name, q]) => [name, `${q.under_way} / ${q.limit}`, q.waiting, q.begun]));
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
    "last heard": `${span(each.silent)} ago`,
    "hits, misses, noise": `${each.hits}, ${each.misses}, ${each.noise}`,
    reward: each.reward === null ? "none" : each.reward,
    browser: each.browser < 0 ? "none" : each.browser,
    error: each.error,
  };
  const told = Object.entries(facts).filter(([, value]) => value !== "");
  while (list.children.length > 2 * told.length) list.lastChild.remove();
  told.forEach(([name, value], i) => {
    if (list.children.length <= 2 * i) list.append(made("dt"), made("dd"));
    set(list.children[2 * i], name);
    set(list.children[2 * i + 1], String(value));
  });
  picture.hidden = !each.picture;
  if (each.picture !== detailPicture) {
    detailPicture = each.picture;
    picture.alt = `what session ${each.index} shows`;
    if (each.picture) whole(each.picture, picture);
  }
}

async function whole(sha256, image) {
  const blob = await pictureOf(sha256);
  if (!blob || sha256 !== detailPicture) return;
  const url = URL.createObjectURL(blob);
  image.onload = () => URL.revokeObjectURL(url);
  image.src = url;
}

// --- pictures: a few at a time, the newest of each cell that is on the screen ------------------------------------------

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const cell = cells.find((each) => each.button === entry.target);
    cell.near = entry.isIntersecting;
    if (cell.near) draw(cell);
  }
});
const waiting = new Set();
let fetching = 0;

async function pictureOf(sha256) {
  try {
    return await (await ask(`v1/pictures/${sha256}`)).blob();
  } catch {
    return null; // gone from the server's memory by now, or the server is
  }
}

function draw(cell) {
  if (!cell.wanted) {
    cell.picture = "";
    cell.canvas.width = cell.canvas.width; // clears it
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
  const blob = await pictureOf(sha256);
  if (blob) {
    const width = Math.min(320, Math.max(64, Math.round(cell.canvas.clientWidth * devicePixelRatio)));
    const bitmap = await createImageBitmap(blob, { resizeWidth: width, resizeQuality: "medium" });
    cell.canvas.width = width;
    cell.canvas.height = Math.round((width * 9) / 16);
    cell.canvas.getContext("2d").drawImage(bitmap, 0, 0); // from the top, where pages begin
    bitmap.close();
    cell.picture = sha256;
  }
  fetching -= 1;
  next();
}

// --- by hand --------------------------------------------------------------------------------------------------------

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

stay();
