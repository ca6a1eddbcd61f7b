// A clock that moves only on command: time, timers and other sources of time, in any realm. Runs after pin.js, in a
// page's own world or in a worker; sets `pin.time` for the script that adds the control. Called with `pin` = {start}:
// the time of this realm's first instant, in ms since 1970. Reasons against Playwright's clock:
// docs/decisions/0008-clock-level.md.
(pin) => {
  "use strict";
  const { invoke, applyTo } = pin;
  const FRAME = 16; // ms between animation frames
  const NESTED = 4; // HTML §8.6: timers nested deeper than five wait at least this long
  const TURNS = 32; // microtask turns between two callbacks, in place of a full checkpoint
  const FREE_READS = 1000; // readings at one instant after which the clock advances slowly, so that busy loops end
  const READS_PER_MS = 10;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const NativeDate = Date;
  const report = globalThis.reportError.bind(globalThis);
  const nativeTimeout = globalThis.setTimeout.bind(globalThis);
  const nativeFrame = globalThis.requestAnimationFrame?.bind(globalThis);
  // Set by hold.js: delivers results of other threads, and counts them.
  const hooks = { added() {}, give: () => 0, pending: () => 0, flags: () => [], starting: () => 0, unread: () => 0, deaf: () => 0,
    steps: () => 0, step: () => 0, arrive: () => 0, captures: () => 0, capture: () => 0 };

  // ---- time -----------------------------------------------------------------------------------
  let now = pin.start;
  let origin = pin.start; // performance.timeOrigin
  let reads = 0;
  const read = () => {
    if (++reads > FREE_READS && (reads - FREE_READS) % READS_PER_MS === 0) now += 1;
    return now;
  };

  // ---- due timers -----------------------------------------------------------------------------
  const due = new Map(); // id -> {id, at, order, call, every, depth}
  let ids = 0;
  let order = 0;
  let depth = 0; // nesting of the current callback
  let ran = 0;
  const add = (call, wait, every = null) => {
    hooks.added();
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
  // All in one task: no external event (a response, a frame) can come between two callbacks.
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
  // A document younger than the driver's clock moves to it with all its timers.
  const adopt = (time) => {
    const shift = time - now;
    if (shift <= 0) return;
    now += shift;
    origin += shift;
    for (const timer of due.values()) timer.at += shift;
  };

  // ---- replacement of natives -----------------------------------------------------------------
  // Bound functions print as `[native code]`, which pages check.
  const replace = (owner, name, make) => {
    let holder = owner; // in workers, the members are the global object's prototypes'
    while (holder && !getOwnPropertyDescriptor(holder, name)) holder = Object.getPrototypeOf(holder);
    if (!holder) return;
    const old = getOwnPropertyDescriptor(holder, name);
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
  defineProperty(globalThis, "Date", { value: PinnedDate, writable: true, configurable: true, enumerable: false });

  const { File: NativeFile } = globalThis;
  if (NativeFile) {
    const dated = (options) => {
      const { type, endings, lastModified = read() } = options ?? {};
      return { type, endings, lastModified };
    };
    globalThis.File = new Proxy(NativeFile, { construct(target, args, newTarget) {
      const [bits, name, options] = args;
      const plain = args.length > 1 && (typeof options === "object" || options === undefined);
      return Reflect.construct(target, plain ? [bits, name, dated(options)] : args, newTarget === globalThis.File ? target : newTarget);
    } });
    NativeFile.prototype.constructor = globalThis.File;
  }

  const format = Intl.DateTimeFormat.prototype;
  getter(format, "format", (old) => function () {
    const native = invoke(old, this);
    return (date) => native(date === undefined ? read() : date);
  });
  const { formatToParts } = format;
  format.formatToParts = { formatToParts(date) { return invoke(formatToParts, this, date === undefined ? read() : date); } }.formatToParts;

  if (globalThis.Temporal) {
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
    return invoke(mark, this, name, { startTime: since(), ...options });
  } }.mark;
  const { measure } = Performance.prototype;
  Performance.prototype.measure = { measure(name, start, end) {
    if (start && typeof start === "object") {
      const open = start.end === undefined && start.duration === undefined;
      return invoke(measure, this, name, open ? { ...start, end: since() } : start);
    }
    return invoke(measure, this, name, { start: start ?? 0, end: end ?? since() });
  } }.measure;
  // Durations of the real network and processor.
  const timed = Object.getOwnPropertyNames(globalThis).map((name) => /^(Performance|Largest|Layout|Interaction|Task|Visibility)/.test(name) && globalThis[name])
    .filter((owner) => owner?.prototype && (owner === globalThis.PerformanceTiming || owner === PerformanceEntry || owner.prototype instanceof PerformanceEntry));
  for (const owner of timed) {
    const natives = Object.getOwnPropertyDescriptors(owner.prototype);
    for (const [name, old] of Object.entries(natives)) {
      if (old.get && name === "navigationId") getter(owner.prototype, name, (native) => function () { invoke(native, this); return 1; });
      if (!old.get || !/(Time|Start|End|Interactive|Complete|Loading|duration)$/.test(name)) continue;
      const epoch = owner === globalThis.PerformanceTiming; // its members are times since 1970
      getter(owner.prototype, name, (native) => function () {
        const value = invoke(native, this);
        if (this instanceof PerformanceMark || this instanceof PerformanceMeasure) return value;
        return typeof value !== "number" || value === 0 ? value : epoch ? origin : 0;
      });
    }
    if (!natives.toJSON) continue;
    owner.prototype.toJSON = { toJSON() {
      const natively = invoke(natives.toJSON.value, this);
      for (const name of Object.keys(natively)) if (name in this && typeof natively[name] === "number") natively[name] = this[name];
      return natively;
    } }.toJSON;
  }
  const whole = Performance.prototype.toJSON;
  Performance.prototype.toJSON = { toJSON() {
    const natively = invoke(whole, this);
    natively.timeOrigin = origin;
    if (natively.timing) natively.timing = this.timing.toJSON();
    return natively;
  } }.toJSON;
  // Cookies end by the browser's own clock. One that has not ended by the page's clock gets no end, like those of recorded
  // responses (replay/server/answer.py).
  const attribute = /^\s*(expires|max-age)\s*=\s*(.*?)\s*$/i;
  const lasting = (text) => {
    const [pair, ...attributes] = text.split(";");
    let age = null, date = null;
    for (const [, name, value] of attributes.map((each) => attribute.exec(each)).filter(Boolean)) {
      if (name.toLowerCase() === "expires") date = NativeDate.parse(value);
      else if (/^-?\d+$/.test(value)) age = Number(value);
    }
    if (age === null && (date === null || date !== date)) return text; // NaN: not a date
    if (age === null ? date <= now : age <= 0) return `${text};max-age=0`;
    return [pair, ...attributes.filter((each) => !attribute.test(each))].join(";");
  };
  const cookie = globalThis.Document && getOwnPropertyDescriptor(Document.prototype, "cookie");
  if (cookie) {
    const { set } = getOwnPropertyDescriptor({ set cookie(text) { invoke(cookie.set, this, lasting(`${text}`)); } }, "cookie");
    defineProperty(Document.prototype, "cookie", { ...cookie, set });
  }
  const { set: store } = globalThis.CookieStore?.prototype ?? {};
  if (store) CookieStore.prototype.set = { set(...args) {
    const [options] = args;
    if (typeof options !== "object" || options?.expires == null) return applyTo(store, this, args);
    return invoke(store, this, { ...options, expires: options.expires > now ? null : 0 });
  } }.set;

  // Their existence depends on the machine's speed; layout shifts soon after an input are not counted.
  const SLOW = ["longtask", "long-animation-frame", "event", "first-input", "layout-shift"];
  // Reported after a frame was shown, by other threads.
  if (pin.exact) SLOW.push("paint", "largest-contentful-paint", "element", "interaction-contentful-paint", "soft-navigation");
  // The browser sorts by the real times of resources.
  const inTime = (entries) => entries.sort((one, other) => one.startTime - other.startTime);
  if (pin.exact) {
    for (const name of ["getEntries", "getEntriesByType", "getEntriesByName"]) {
      const native = Performance.prototype[name];
      Performance.prototype[name] = { [name](...args) {
        return inTime(applyTo(native, this, args).filter(({ entryType }) => !SLOW.includes(entryType)));
      } }[name];
    }
  }
  const { observe } = globalThis.PerformanceObserver?.prototype ?? {};
  if (observe) {
    PerformanceObserver.prototype.observe = { observe(options) {
      if (SLOW.includes(options?.type)) return undefined;
      const types = options?.entryTypes && [...options.entryTypes].filter((type) => !SLOW.includes(type));
      if (types && !types.length && options.entryTypes.length) return undefined;
      return invoke(observe, this, types ? { ...options, entryTypes: types } : options);
    } }.observe;
  }
  const stamps = new WeakMap();
  getter(Event.prototype, "timeStamp", (native) => function () {
    if (!stamps.has(this)) {
      invoke(native, this); // throws for other objects
      stamps.set(this, now - origin);
    }
    return stamps.get(this);
  });
  // ---- timers ---------------------------------------------------------------------------------
  const globalEval = eval;
  const callable = (code, args) => typeof code === "function" ? () => applyTo(code, globalThis, args) : () => globalEval(String(code));
  replace(globalThis, "setTimeout", () => (code, wait, ...args) => add(callable(code, args), wait));
  replace(globalThis, "setInterval", () => (code, wait, ...args) => add(callable(code, args), wait, true));
  const clear = (id) => { due.delete(Number(id)); };
  replace(globalThis, "clearTimeout", () => clear);
  replace(globalThis, "clearInterval", () => clear);

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
  replace(globalThis, "requestAnimationFrame", () => (callback) => {
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
  replace(globalThis, "cancelAnimationFrame", () => cancelFrame);
  for (const name of ["webkitRequestAnimationFrame", "webkitCancelAnimationFrame"]) {
    replace(globalThis, name, () => name.includes("Request") ? globalThis.requestAnimationFrame : globalThis.cancelAnimationFrame);
  }
  const deadline = () => {
    const end = now + 50;
    return { didTimeout: false, timeRemaining: () => Math.max(0, end - read()) };
  };
  replace(globalThis, "requestIdleCallback", () => (callback) => add(() => callback(deadline()), 1));
  replace(globalThis, "cancelIdleCallback", () => clear);
  replace(AbortSignal, "timeout", () => (wait) => {
    const controller = new AbortController();
    add(() => controller.abort(new DOMException("signal timed out", "TimeoutError")), wait);
    return controller.signal;
  });
  if (globalThis.Scheduler) {
    const { postTask } = Scheduler.prototype;
    Scheduler.prototype.postTask = { postTask(callback, { delay = 0, ...options } = {}) {
      if (!delay) return invoke(postTask, this, callback, options);
      return new Promise((resolve, reject) => {
        add(() => invoke(postTask, this, callback, options).then(resolve, reject), delay);
      });
    } }.postTask;
  }

  pin.time = {
    hooks,
    add,
    nativeTimeout,
    nativeFrame,
    NativeDate,
    replace,
    getter,
    inTime,
    now: () => now,
    since: () => now - origin,
    // Sets the clock's time at the beginning of this realm.
    begin(time) {
      now = origin = Math.max(now, time);
    },
    state(given = 0) {
      const state = { now, next: next(), ran, given, pending: hooks.pending(), flags: hooks.flags(),
        starting: hooks.starting(), unread: hooks.unread(), deaf: hooks.deaf(), steps: hooks.steps(), captures: hooks.captures() };
      ran = 0;
      return state;
    },
    async move(command, time) {
      const given = await { advance, adopt, give: hooks.give, step: hooks.step, arrive: hooks.arrive, capture: hooks.capture }[command](time);
      return this.state(given ?? 0);
    },
  };
}
