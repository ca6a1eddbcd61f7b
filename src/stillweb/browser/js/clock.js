// Levels CLOCK and EXACT: the control event that moves a document's clock (time.js, which has run), and time sources
// that only documents have. Runs in the page's own world. Called with `pin` = {control, exact, time}. `pin.control` is
// the name of the event by which the driver, from its isolated world, moves the clock.
(pin) => {
  "use strict";
  const { invoke, applyTo } = pin;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const { replace, getter, now, since, hooks } = pin.time;
  const { NativeDate } = pin.time;
  const { parse, stringify } = JSON;
  const NativeEvent = CustomEvent;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const listen = EventTarget.prototype.addEventListener;
  const { finish } = Animation.prototype;
  const Transition = CSSTransition;
  const { getAnimations: inDocument } = Document.prototype;
  const { getAnimations: inShadow } = ShadowRoot.prototype;
  // Before its replacement below.
  const { get: frameTime } = getOwnPropertyDescriptor(AnimationTimeline.prototype, "currentTime");

  const MOVES = ["animation", "transition"].flatMap((kind) => ["run", "start", "iteration", "end", "cancel"].map((name) => kind + name));
  const LOADS = ["load", "error"];
  const followShadow = (root) => { // these events do not leave it
    for (const type of MOVES) invoke(listen, root, type, pin.hold.moved, true);
    for (const type of LOADS) invoke(listen, root, type, pin.hold.loaded, true);
  };

  // ---- the control event ----------------------------------------------------------------------
  // `document.open()` removes all listeners of the window (HTML §8.4.1), including ours: they are stored and added
  // again.
  const held = [];
  const hold = (type, listener, capture = false, owner = () => window) => {
    held.push([owner, type, listener, capture]);
    invoke(listen, owner(), type, listener, capture);
  };
  const holdAgain = () => { // a repeated listener counts once (DOM §2.7)
    for (const [owner, ...listener] of held) applyTo(listen, owner(), listener);
  };
  if (pin.exact) {
    // For a pinned window whose first document is replaced only its listeners are missing. A member that no list of
    // members has shows that a window is pinned: any listener could be removed.
    const again = () => {
      holdAgain();
      return true;
    };
    const get = (target, name, receiver) => name === pin.mark ? again : Reflect.get(target, name, receiver);
    globalThis.StyleSheetList = new Proxy(StyleSheetList, { get });
    StyleSheetList.prototype.constructor = StyleSheetList;
    // Playwright may let a popup run before the driver's script is in its first, empty document.
    const foreign = (made) => {
      try {
        return !made.document;
      } catch {
        return true; // of another origin
      }
    };
    replace(window, "open", (native) => (...args) => {
      const made = applyTo(native, window, args);
      if (!made || foreign(made)) return made;
      try {
        made.eval(pin.source());
      } catch {
        pin.hold.flag("a popup's empty document may have run before it was pinned");
      }
      return made;
    });
  }
  hold(pin.control, async (event) => {
    event.stopImmediatePropagation();
    event.preventDefault(); // reports that the event was handled
    const { command, time } = parse(event.detail);
    style();
    // "peek" replies synchronously: a frame's first document, while it is replaced, loses its listeners.
    const reply = command === "peek" ? pin.time.state() : await pin.time.move(command, time);
    // Pages may define a `toJSON` of their own for objects and arrays, as Prototype.js does.
    const detail = stringify({ __proto__: null, ...reply, flags: reply.flags.join("\n") });
    invoke(dispatch, window, new NativeEvent(pin.control + "!", { detail }));
  });
  hooks.started = () => invoke(dispatch, window, new NativeEvent(pin.control + "*"));
  // The order in which frames get storage events is not defined: they are delivered at a rest, in frame order.
  if (pin.hold) {
    hold("message", pin.hold.message, true);
    for (const type of ["toggle", "close", "select", "selectionchange", "unhandledrejection"]) hold(type, pin.hold.event, true);
    for (const type of MOVES) hold(type, pin.hold.moved, true);
    for (const type of LOADS) hold(type, pin.hold.loaded, true, () => document);
    hold("storage", (event) => {
      if (!event.isTrusted) return;
      event.stopImmediatePropagation();
      const { key, oldValue, newValue, url, storageArea } = event;
      pin.hold.push(() => invoke(dispatch, window, new StorageEvent("storage", { key, oldValue, newValue, url, storageArea })));
    }, true);
  }
  // Frames of the same origin, and popups, begin at the time of their creator. A plain call, since the opener's
  // listeners get no events during `open()`.
  for (const maker of [parent, opener]) {
    try {
      if (maker && maker !== window) {
        pin.time.begin(maker.Date.now());
        break;
      }
    } catch {
      continue; // of another origin: the driver sets the time
    }
  }
  // The driver's newer script gives the clock's time at the beginning of this document.
  hold(pin.control + "@", (event) => {
    pin.time.begin(event.detail);
    pin.start = now();
  });
  for (const name of ["open", "write", "writeln"]) { // the latter two open a document that was closed
    const native = Document.prototype[name];
    Document.prototype[name] = { [name](...args) {
      const result = applyTo(native, this, args);
      holdAgain();
      return result;
    } }[name];
  }
  pin.start = now();

  // ---- other sources of time ------------------------------------------------------------------
  getter(window.IntersectionObserverEntry?.prototype, "time", () => () => since());
  getter(window.AnimationTimeline?.prototype, "currentTime", (native) => function () {
    return this === document.timeline ? since() : invoke(native, this);
  });
  const modified = getOwnPropertyDescriptor(Document.prototype, "lastModified").get;
  const born = now();
  getter(Document.prototype, "lastModified", () => function () {
    // A document without Last-Modified reports the real time (HTML §3.1.1).
    const shown = invoke(modified, this);
    if (Math.abs(NativeDate.parse(shown) - realNow()) > 2000) return shown;
    const two = (n) => String(n).padStart(2, "0");
    const date = new NativeDate(born);
    return `${two(date.getMonth() + 1)}/${two(date.getDate())}/${date.getFullYear()} ` +
      `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  });
  function realNow() {
    return new NativeDate().getTime();
  }

  // ---- animations end as soon as they begin; at level EXACT they run, since frames have virtual times --------
  // In a constructed sheet, so that neither the DOM nor `document.styleSheets` shows it. Durations are not zero: at
  // zero, `animationend` would not fire (CSS Animations 1 §4.2). It sets nothing for transitions: `transition-
  // property` is `all` unless the page says otherwise, so a duration for every element would turn every change of
  // style into a transition, and measurements by scripts would depend on whether a real frame had been drawn since.
  const STILL = "*, ::before, ::after, ::backdrop { scroll-behavior: auto !important; caret-color: transparent !important; }";
  const RULES = pin.exact ? STILL : STILL +
    " *, ::before, ::after, ::backdrop { animation-duration: 0.01ms !important; animation-delay: 0s !important;" +
    " animation-iteration-count: 1 !important; }" +
    " ::view-transition-group(*), ::view-transition-old(*), ::view-transition-new(*) { animation: none !important; }";
  // A sheet belongs to the document that made it, and a window may get another document than its first, empty one.
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
    invoke(root.host ? put.shadow : put.document, root, [...list, ...ours]);
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
        invoke(get, this); // throws for objects without such a list
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
    const root = invoke(attachShadow, this, init);
    apply(root, []);
    endTransitions(root);
    if (pin.hold) followShadow(root);
    return root;
  } }.attachShadow;
  const style = () => {
    if (!sheets.has(document)) apply(document, []);
  };
  hooks.added = style;
  style();
  // Transitions end in the frame that begins them, including delays. Each tree is searched once per frame.
  const swept = new WeakMap(); // tree -> the frame, by its real time
  const sweep = (tree, list) => {
    const frame = invoke(frameTime, document.timeline);
    if (swept.get(tree) === frame) return;
    swept.set(tree, frame);
    for (const animation of invoke(list, tree)) {
      if (animation instanceof Transition && animation.playState === "running" && animation.playbackRate) {
        invoke(finish, animation);
      }
    }
  };
  const endTransitions = (target) => {
    if (pin.exact) return;
    const ended = () => target === window ? sweep(document, inDocument) : sweep(target, inShadow);
    if (target === window) hold("transitionrun", ended, true);
    else invoke(listen, target, "transitionrun", ended, true);
  };
  endTransitions(window);
  if (pin.exact) {
    // Frame times are far in the future (stillweb.browser.exact.context); the page gets animation start times on its
    // own clock.
    const ahead = () => Math.round(invoke(frameTime, document.timeline) - since());
    const { get, set } = getOwnPropertyDescriptor(Animation.prototype, "startTime");
    defineProperty(Animation.prototype, "startTime", {
      configurable: true,
      enumerable: true,
      get() {
        const start = invoke(get, this);
        return start === null || this.timeline !== document.timeline ? start : start - ahead();
      },
      set(start) {
        invoke(set, this, typeof start === "number" && this.timeline === document.timeline ? start + ahead() : start);
      },
    });
    // The driver pauses running animations and steps them (eye.js); the page sees them as running.
    const { pause, play } = Animation.prototype;
    const paused = new WeakSet(); // by the page
    Animation.prototype.pause = { pause() {
      paused.add(this);
      return invoke(pause, this);
    } }.pause;
    Animation.prototype.play = { play() {
      paused.delete(this);
      return invoke(play, this);
    } }.play;
    getter(Animation.prototype, "playState", (native) => function () {
      const state = invoke(native, this);
      if (state !== "paused" || paused.has(this)) return state;
      const styled = this instanceof CSSAnimation && this.effect?.target
        && getComputedStyle(this.effect.target, this.effect.pseudoElement).animationPlayState === "paused";
      return styled ? state : "running";
    });
    return;
  }
  const { animate } = Element.prototype;
  Element.prototype.animate = { animate(keyframes, options) {
    const timing = typeof options === "object" && options ? { ...options } : {};
    const at = timing.timeline && timing.timeline !== document.timeline;
    if (at) return invoke(animate, this, keyframes, options); // driven by scrolling, not by time
    return invoke(animate, this, keyframes, { ...timing, duration: 0.01, delay: 0, endDelay: 0, iterations: 1 });
  } }.animate;
}
