// Level CLOCK: a clock that moves only when it is told to. Runs in the page's own world after pin.js.
// Called with `pin` = {seed, door, start}. `pin.door` names the event by which the driver, from its
// isolated world, tells the clock to move; `pin.start` is the time of this document's first instant.
// Why not Playwright's clock: docs/decisions/0008-clock-level.md.
(pin) => {
  "use strict";
  const FRAME = 16; // ms between animation frames
  const NESTED = 4; // HTML §8.6: timers nested deeper than five wait at least this long
  const TURNS = 32; // microtask turns between two callbacks, in place of a full checkpoint
  const FREE_READS = 1000; // readings at one instant after which the clock creeps, so that busy loops end
  const READS_PER_MS = 10;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const NativeDate = Date;
  const NativeEvent = CustomEvent;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const report = window.reportError.bind(window);
  const listen = EventTarget.prototype.addEventListener;
  const { finish } = Animation.prototype;
  const Transition = CSSTransition;
  const { getAnimations: inDocument } = Document.prototype;
  const { getAnimations: inShadow } = ShadowRoot.prototype;
  const { get: frameTime } = getOwnPropertyDescriptor(AnimationTimeline.prototype, "currentTime");

  // ---- time -----------------------------------------------------------------------------------
  let now = pin.start;
  let origin = pin.start; // performance.timeOrigin
  let reads = 0;
  const read = () => {
    if (++reads > FREE_READS && (reads - FREE_READS) % READS_PER_MS === 0) now += 1;
    return now;
  };

  // ---- what is due ----------------------------------------------------------------------------
  const due = new Map(); // id -> {id, at, order, call, every, depth}
  let ids = 0;
  let order = 0;
  let depth = 0; // nesting of the callback that runs now
  let ran = 0;
  const add = (call, wait, every = null) => {
    style();
    let delay = Math.max(0, Math.trunc(Number(wait)) || 0);
    if (depth >= 5 || every !== null) delay = Math.max(delay, depth >= 5 ? NESTED : 1);
    const id = ++ids;
    due.set(id, { id, at: now + delay, order: ++order, call, every: every === null ? null : delay, depth: depth + 1 });
    return id;
  };
  const first = (until) => {
    let found = null;
    for (const timer of due.values()) {
      if (timer.at > until) continue;
      if (!found || timer.at < found.at || (timer.at === found.at && timer.order < found.order)) found = timer;
    }
    return found;
  };
  const fire = (timer) => {
    now = Math.max(now, timer.at);
    reads = 0;
    ran += 1;
    depth = timer.depth;
    if (timer.every === null) due.delete(timer.id);
    else Object.assign(timer, { at: now + timer.every, order: ++order });
    try {
      timer.call();
    } catch (error) {
      report(error);
    }
    depth = 0;
  };
  // All in one task: nothing from outside (an answer, a frame) can come between two callbacks.
  const advance = async (to) => {
    for (let timer; (timer = first(to)); ) {
      fire(timer);
      for (let turn = 0; turn < TURNS; turn++) await undefined;
    }
    now = Math.max(now, to);
    reads = 0;
  };
  const next = () => {
    let at = null;
    for (const timer of due.values()) if (at === null || timer.at < at) at = timer.at;
    return at;
  };
  // A document that is younger than the driver's clock moves to it with all that it waits for.
  const adopt = (time) => {
    const shift = time - now;
    if (shift <= 0) return;
    now += shift;
    origin += shift;
    for (const timer of due.values()) timer.at += shift;
  };

  // ---- the door -------------------------------------------------------------------------------
  // `document.open()` removes all listeners of the window (HTML §8.4.1), ours among them: they are held and put back.
  const held = [];
  const hold = (type, listener, capture = false) => {
    held.push([type, listener, capture]);
    listen.call(window, type, listener, capture);
  };
  const commands = { advance, adopt, peek() {} };
  hold(pin.door, async (event) => {
    event.stopImmediatePropagation();
    event.preventDefault(); // tells that somebody heard
    const { command, time } = JSON.parse(event.detail);
    style();
    await commands[command](time);
    const detail = JSON.stringify({ now, next: next(), ran });
    ran = 0;
    dispatch.call(window, new NativeEvent(pin.door + "!", { detail }));
  });
  // Frames of the same origin, and popups, begin at the time of who made them. Asked by a plain call: while
  // `open()` is under way, the opener's listeners hear no events.
  for (const maker of [parent, opener]) {
    try {
      if (maker && maker !== window) {
        now = origin = Math.max(now, maker.Date.now());
        break;
      }
    } catch {
      continue; // of another origin: the driver will tell
    }
  }
  // The driver's newer script tells where the clock is when this document begins.
  hold(pin.door + "@", (event) => {
    now = origin = Math.max(now, event.detail);
    pin.start = now;
  });
  for (const name of ["open", "write", "writeln"]) { // the latter two open a document that was closed
    const native = Document.prototype[name];
    Document.prototype[name] = { [name](...args) {
      const result = native.apply(this, args);
      for (const listener of held) listen.apply(window, listener); // twice is once (DOM §2.7)
      return result;
    } }[name];
  }
  pin.start = now;

  // ---- replacing ------------------------------------------------------------------------------
  // Bound functions print as `[native code]`, as pages that look for it expect.
  const replace = (owner, name, make) => {
    const old = getOwnPropertyDescriptor(owner, name);
    if (!old) return;
    const value = make(old.value).bind(owner);
    defineProperty(value, "name", { value: name });
    defineProperty(value, "length", { value: old.value.length });
    defineProperty(owner, name, { ...old, value });
  };
  const getter = (owner, name, make) => {
    const old = owner && getOwnPropertyDescriptor(owner, name);
    if (old && old.get) defineProperty(owner, name, { ...old, get: make(old.get) });
  };

  // ---- Date, Intl, Temporal -------------------------------------------------------------------
  const PinnedDate = new Proxy(NativeDate, {
    construct: (target, args, newTarget) =>
      Reflect.construct(target, args.length ? args : [read()], newTarget === PinnedDate ? target : newTarget),
    apply: (target) => new target(read()).toString(),
  });
  replace(NativeDate, "now", () => () => read());
  NativeDate.prototype.constructor = PinnedDate;
  defineProperty(window, "Date", { value: PinnedDate, writable: true, configurable: true, enumerable: false });

  const format = Intl.DateTimeFormat.prototype;
  getter(format, "format", (old) => function () {
    const native = old.call(this);
    return (date) => native(date === undefined ? read() : date);
  });
  const { formatToParts } = format;
  format.formatToParts = { formatToParts(date) { return formatToParts.call(this, date === undefined ? read() : date); } }.formatToParts;

  if (window.Temporal) {
    const { Now, Instant } = Temporal;
    const zoned = (zone) => Instant.fromEpochMilliseconds(read()).toZonedDateTimeISO(zone ?? Now.timeZoneId());
    replace(Now, "instant", () => () => Instant.fromEpochMilliseconds(read()));
    replace(Now, "zonedDateTimeISO", () => zoned);
    replace(Now, "plainDateTimeISO", () => (zone) => zoned(zone).toPlainDateTime());
    replace(Now, "plainDateISO", () => (zone) => zoned(zone).toPlainDate());
    replace(Now, "plainTimeISO", () => (zone) => zoned(zone).toPlainTime());
  }

  // ---- performance and events -----------------------------------------------------------------
  const since = () => read() - origin;
  replace(Performance.prototype, "now", () => since);
  getter(Performance.prototype, "timeOrigin", () => () => origin);
  const { mark } = Performance.prototype;
  Performance.prototype.mark = { mark(name, options) {
    return mark.call(this, name, { startTime: since(), ...options });
  } }.mark;
  const { measure } = Performance.prototype;
  Performance.prototype.measure = { measure(name, start, end) {
    if (start && typeof start === "object") {
      const open = start.end === undefined && start.duration === undefined;
      return measure.call(this, name, open ? { ...start, end: since() } : start);
    }
    return measure.call(this, name, { start: start ?? 0, end: end ?? since() });
  } }.measure;
  // What the real network and the real processor took.
  for (const owner of [window.PerformanceEntry, window.PerformanceResourceTiming, window.PerformanceNavigationTiming,
    window.PerformancePaintTiming, window.PerformanceTiming]) {
    if (!owner) continue;
    for (const [name, old] of Object.entries(Object.getOwnPropertyDescriptors(owner.prototype))) {
      if (!old.get || !/(Time|Start|End|Interactive|Complete|Loading|duration)$/.test(name)) continue;
      const epoch = owner === window.PerformanceTiming; // its members are times since 1970
      getter(owner.prototype, name, (native) => function () {
        const value = native.call(this);
        if (this instanceof PerformanceMark || this instanceof PerformanceMeasure) return value;
        return typeof value !== "number" || value === 0 ? value : epoch ? origin : 0;
      });
    }
  }
  const stamps = new WeakMap();
  getter(Event.prototype, "timeStamp", (native) => function () {
    if (!stamps.has(this)) {
      native.call(this); // throws for what is no event
      stamps.set(this, now - origin);
    }
    return stamps.get(this);
  });
  getter(window.IntersectionObserverEntry?.prototype, "time", () => () => now - origin);
  getter(window.AnimationTimeline?.prototype, "currentTime", (native) => function () {
    return this === document.timeline ? now - origin : native.call(this);
  });
  const modified = getOwnPropertyDescriptor(Document.prototype, "lastModified").get;
  const born = now;
  getter(Document.prototype, "lastModified", () => function () {
    // A document without Last-Modified tells the real now (HTML §3.1.1).
    const told = modified.call(this);
    if (Math.abs(NativeDate.parse(told) - realNow()) > 2000) return told;
    const two = (n) => String(n).padStart(2, "0");
    const date = new NativeDate(born);
    return `${two(date.getMonth() + 1)}/${two(date.getDate())}/${date.getFullYear()} ` +
      `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  });
  function realNow() {
    return new NativeDate().getTime();
  }

  // ---- timers ---------------------------------------------------------------------------------
  const globalEval = eval;
  const callable = (code, args) => typeof code === "function" ? () => code.apply(window, args) : () => globalEval(String(code));
  replace(window, "setTimeout", () => (code, wait, ...args) => add(callable(code, args), wait));
  replace(window, "setInterval", () => (code, wait, ...args) => add(callable(code, args), wait, true));
  const clear = (id) => { due.delete(Number(id)); };
  replace(window, "clearTimeout", () => clear);
  replace(window, "clearInterval", () => clear);

  let frames = new Map();
  let frameTimer = 0;
  const frame = () => {
    frameTimer = 0;
    const callbacks = frames;
    frames = new Map();
    running = callbacks;
    for (const [id, callback] of callbacks) {
      if (!callbacks.delete(id)) continue;
      try {
        callback(now - origin);
      } catch (error) {
        report(error);
      }
    }
    running = null;
  };
  let running = null;
  replace(window, "requestAnimationFrame", () => (callback) => {
    if (typeof callback !== "function") throw new TypeError("requestAnimationFrame: parameter 1 is not of type 'Function'.");
    const id = ++ids;
    frames.set(id, callback);
    if (!frameTimer) {
      const before = depth;
      depth = 0; // frames are not nested timers
      frameTimer = add(frame, FRAME - ((now - origin) % FRAME));
      depth = before;
    }
    return id;
  });
  const cancelFrame = (id) => { frames.delete(id); running?.delete(id); };
  replace(window, "cancelAnimationFrame", () => cancelFrame);
  for (const name of ["webkitRequestAnimationFrame", "webkitCancelAnimationFrame"]) {
    replace(window, name, () => name.includes("Request") ? window.requestAnimationFrame : window.cancelAnimationFrame);
  }
  const deadline = () => {
    const end = now + 50;
    return { didTimeout: false, timeRemaining: () => Math.max(0, end - read()) };
  };
  replace(window, "requestIdleCallback", () => (callback) => add(() => callback(deadline()), 1));
  replace(window, "cancelIdleCallback", () => clear);
  replace(AbortSignal, "timeout", () => (wait) => {
    const controller = new AbortController();
    add(() => controller.abort(new DOMException("signal timed out", "TimeoutError")), wait);
    return controller.signal;
  });
  if (window.Scheduler) {
    const { postTask } = Scheduler.prototype;
    Scheduler.prototype.postTask = { postTask(callback, { delay = 0, ...options } = {}) {
      if (!delay) return postTask.call(this, callback, options);
      return new Promise((resolve, reject) => {
        add(() => postTask.call(this, callback, options).then(resolve, reject), delay);
      });
    } }.postTask;
  }

  // ---- animations end as soon as they begin ---------------------------------------------------
  // In a constructed sheet, so that neither the DOM nor `document.styleSheets` shows it. Durations are not
  // zero: at zero, `animationend` would not be fired (CSS Animations 1 §4.2). Of transitions it says nothing:
  // `transition-property` is `all` unless the page says otherwise, so that a duration for every element would
  // make a transition of every change of style, and what a script measures then would depend on whether a real
  // frame had been drawn since.
  const RULES =
    "*, ::before, ::after, ::backdrop { animation-duration: 0.01ms !important; animation-delay: 0s !important;" +
    " animation-iteration-count: 1 !important; scroll-behavior: auto !important; caret-color: transparent !important; }" +
    " ::view-transition-group(*), ::view-transition-old(*), ::view-transition-new(*) { animation: none !important; }";
  // A sheet belongs to the document that made it; and a window may get another document than its first, empty one.
  const sheets = new WeakMap();
  const sheet = () => {
    if (!sheets.has(document)) {
      const made = new CSSStyleSheet();
      made.replaceSync(RULES);
      sheets.set(document, made);
    }
    return sheets.get(document);
  };
  const adopted = getOwnPropertyDescriptor(Document.prototype, "adoptedStyleSheets");
  const put = { document: adopted.set, shadow: getOwnPropertyDescriptor(ShadowRoot.prototype, "adoptedStyleSheets").set };
  const apply = (root, list) => {
    const ours = (root.ownerDocument ?? root) === document ? [sheet()] : [];
    (root.host ? put.shadow : put.document).call(root, [...list, ...ours]);
  };
  const own = new WeakMap(); // document or shadow root -> the list that the page sees
  const visible = (root) => {
    if (!own.has(root)) {
      const after = (trap) => (target, ...rest) => {
        const done = Reflect[trap](target, ...rest.slice(0, trap === "set" ? 2 : 1));
        apply(root, target.filter(Boolean));
        return done;
      };
      own.set(root, new Proxy([], { set: after("set"), deleteProperty: after("deleteProperty") }));
    }
    return own.get(root);
  };
  for (const owner of [Document.prototype, ShadowRoot.prototype]) {
    const { get } = getOwnPropertyDescriptor(owner, "adoptedStyleSheets");
    defineProperty(owner, "adoptedStyleSheets", {
      configurable: true,
      enumerable: true,
      get() {
        get.call(this); // throws for what has no such list
        return visible(this);
      },
      set(list) {
        apply(this, [...list]);
        visible(this).splice(0, Infinity, ...list);
      },
    });
  }
  const { attachShadow } = Element.prototype;
  Element.prototype.attachShadow = { attachShadow(init) {
    const root = attachShadow.call(this, init);
    apply(root, []);
    endTransitions(root);
    return root;
  } }.attachShadow;
  const style = () => {
    if (!sheets.has(document)) apply(document, []);
  };
  style();
  // Transitions are ended in the frame that begins them, delays and all. Each tree is looked through once a frame.
  const swept = new WeakMap(); // tree -> the frame, by its real time
  const sweep = (tree, list) => {
    const frame = frameTime.call(document.timeline);
    if (swept.get(tree) === frame) return;
    swept.set(tree, frame);
    for (const animation of list.call(tree)) {
      if (animation instanceof Transition && animation.playState === "running" && animation.playbackRate) {
        finish.call(animation);
      }
    }
  };
  const endTransitions = (target) => {
    const ended = () => target === window ? sweep(document, inDocument) : sweep(target, inShadow);
    if (target === window) hold("transitionrun", ended, true);
    else listen.call(target, "transitionrun", ended, true);
  };
  endTransitions(window);
  const { animate } = Element.prototype;
  Element.prototype.animate = { animate(keyframes, options) {
    const timing = typeof options === "object" && options ? { ...options } : {};
    const at = timing.timeline && timing.timeline !== document.timeline;
    if (at) return animate.call(this, keyframes, options); // driven by scrolling, not by time
    return animate.call(this, keyframes, { ...timing, duration: 0.01, delay: 0, endDelay: 0, iterations: 1 });
  } }.animate;
}
