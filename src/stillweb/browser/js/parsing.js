// Level EXACT, in documents: what comes beside the parser, which runs in tasks of its own and yields by the real clock, reaches
// the page at rests. Runs after arrivals.js; called with `pin` = {time, hold}. clock.js uses `pin.hold`.
(pin) => {
  "use strict";
  const { invoke, applyTo: apply } = pin;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const { push, isLocal, isLoading, isParsing, take } = pin.hold;
  const NativePromise = Promise;
  const listen = EventTarget.prototype.addEventListener;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const report = globalThis.reportError.bind(globalThis);

  // ---- messages, tasks and events ----------------------------------------------------------------
  const waiting = new WeakMap(); // port -> number of messages that wait
  const { postMessage } = MessagePort.prototype;
  const { structuredClone } = globalThis;
  MessagePort.prototype.postMessage = { postMessage(message, ...rest) {
    const count = waiting.get(this) ?? 0;
    if (!count && !isLoading() && take()) return apply(postMessage, this, [message, ...rest]);
    const [options] = rest;
    const transfer = [...(Array.isArray(options) ? options : options?.transfer ?? [])];
    const { copy, given } = structuredClone({ copy: message, given: transfer }, { transfer });
    waiting.set(this, count + 1);
    push(() => {
      waiting.set(this, waiting.get(this) - 1);
      apply(postMessage, this, [copy, given]);
    });
    return undefined;
  } }.postMessage;
  pin.hold.message = (event) => {
    if (!event.isTrusted || (event.source === window && !isLoading() && take())) return;
    event.stopImmediatePropagation();
    const { data, origin, lastEventId, source, ports } = event;
    const copy = new MessageEvent("message", { data, origin, lastEventId, source, ports: [...ports] });
    push(() => invoke(dispatch, window, copy), null, null, "message");
  };
  const { ToggleEvent: Toggle, PromiseRejectionEvent: Rejection, Event: Plain, AnimationEvent: Animated, TransitionEvent: Transitioned } = globalThis;
  pin.hold.event = (event) => {
    if (!event.isTrusted || !isLoading()) return;
    event.stopImmediatePropagation();
    const { type, bubbles, composed, oldState, newState, source, promise, reason } = event;
    const [target] = event.composedPath();
    const copy = Toggle && event instanceof Toggle ? new Toggle(type, { oldState, newState, source })
      : event instanceof Rejection ? new Rejection(type, { promise, reason, cancelable: true })
      : new Plain(type, { bubbles, composed });
    push(() => invoke(dispatch, target, copy), null, null, type);
  };
  // Some events come in the order of memory addresses, or beside the parser. They are delivered at the next rest, all
  // together: as they are due, then in tree order.
  const unordered = []; // {target, due, event}
  const place = (node) => { // the indices of a node and its ancestors among their siblings, the uppermost first
    const found = [];
    for (let here = node; here; here = here.parentNode ?? here.host) {
      let index = here.host ? -1 : 0; // a shadow tree comes before the children of its host
      for (let other = here; (other = other.previousSibling); ) index++;
      found.unshift(index);
    }
    return found;
  };
  const inOrder = (one, other) => {
    if (one.due !== other.due) return one.due - other.due;
    for (let depth = 0; depth < one.place.length && depth < other.place.length; depth++) {
      if (one.place[depth] !== other.place[depth]) return one.place[depth] - other.place[depth];
    }
    return one.place.length - other.place.length;
  };
  const order = (native, event, due) => {
    native.stopImmediatePropagation();
    if (!unordered.length) push(() => {
      const all = unordered.splice(0).map((each) => ({ ...each, place: place(each.target) }));
      for (const { target, event } of all.sort(inOrder)) invoke(dispatch, target, event);
    }, null, null, "arrival");
    unordered.push({ target: native.composedPath()[0], due, event });
  };
  // In a frame, Blink serves animations in the order of addresses (AnimationTimeline::ServiceAnimations).
  pin.hold.moved = (event) => {
    if (!event.isTrusted) return;
    const { type, bubbles, cancelable, elapsedTime, pseudoElement, animationName, propertyName } = event;
    const options = { bubbles, cancelable, elapsedTime, pseudoElement };
    const copy = propertyName === undefined ? new Animated(type, { ...options, animationName }) : new Transitioned(type, { ...options, propertyName });
    order(event, copy, elapsedTime);
  };
  // CDP Fetch does not pause the requests of images, styles and frames for blob: and data: URLs.
  // Beside the parser, a source that needs no request (it is empty, no URL, or blocked) fails between any two scripts,
  // and a style loads there. A script that the parser waits for is not held: its handlers may write into the document.
  const BESIDE = ["img", "link", "style", "input", "object", "embed", "image"];
  const { canParse } = URL;
  const hasUrl = (element) => Boolean(element.getAttribute("src")) && canParse(element.getAttribute("src"), document.baseURI);
  const isBeside = (element, type) => isParsing() && (BESIDE.includes(element.localName)
    || (element.localName === "script" && type === "error" && (element.async || !hasUrl(element)))
    || (element.localName === "iframe" && element.hasAttribute("src") && !hasUrl(element)));
  const isOfLocal = ({ localName, currentSrc, src, href, srcdoc }) => ["img", "link", "iframe"].includes(localName)
    && Boolean(srcdoc || isLocal(currentSrc || src || href));
  pin.hold.loaded = (event) => {
    const { isTrusted, target, type } = event;
    if (!isTrusted || !(isBeside(target, type) || isOfLocal(target))) return;
    order(event, new Plain(type), 0);
    loading.get(target)?.();
  };
  const source = getOwnPropertyDescriptor(HTMLImageElement.prototype, "src");
  const followed = new WeakSet(); // images, which may be in no document
  const loading = new WeakMap(); // image -> call at its end; the end of an SVG image comes some tasks after its content
  defineProperty(HTMLImageElement.prototype, "src", { ...source, set(url) {
    if ((isLocal(url) || isParsing()) && !followed.has(this)) {
      followed.add(this);
      for (const type of ["load", "error"]) invoke(listen, this, type, pin.hold.loaded, true);
    }
    if (isLocal(url) && this.loading !== "lazy") push(() => {}, new NativePromise((resolve) => { loading.set(this, resolve); }));
    invoke(source.set, this, url);
  } });
  const { postTask, yield: yields } = globalThis.Scheduler?.prototype ?? {};
  if (postTask) {
    Scheduler.prototype.postTask = { postTask(callback, ...rest) {
      if (!isLoading() && take()) return apply(postTask, this, [callback, ...rest]);
      return new NativePromise((resolve, reject) => {
        push(() => apply(postTask, this, [callback, ...rest]).then(resolve, reject));
      });
    } }.postTask;
  }
  if (yields) {
    Scheduler.prototype.yield = { yield() {
      return isLoading() || !take() ? new NativePromise((resolve) => push(resolve)) : invoke(yields, this);
    } }.yield;
  }

  // ---- mutations ---------------------------------------------------------------------------------
  // An observer of the document is called as often as the parser yields: its records wait, too.
  const { MutationObserver: mutations } = globalThis;
  const { observe, disconnect, takeRecords } = mutations.prototype;
  const { get: isConnected } = getOwnPropertyDescriptor(Node.prototype, "isConnected");
  const records = new WeakMap(); // observer of the document -> its records that wait
  const taken = (made) => records.get(made)?.splice(0) ?? [];
  let observers = 0;
  globalThis.MutationObserver = new Proxy(mutations, { construct(target, [callback, ...rest], newTarget) {
    const turn = ++observers;
    const own = typeof callback !== "function" ? callback : function (found, made) {
      const queued = records.get(made);
      if (!queued || !(queued.length || isParsing())) return apply(callback, made, [found, made]);
      if (!queued.length) push(() => {
        const all = taken(made);
        try {
          if (all.length) apply(callback, made, [all, made]);
        } catch (error) {
          report(error);
        }
      }, null, null, "mutation", turn);
      for (const each of found) queued.push(each);
      return undefined;
    };
    return Reflect.construct(target, [own, ...rest], newTarget === globalThis.MutationObserver ? target : newTarget);
  } });
  mutations.prototype.constructor = globalThis.MutationObserver;
  if (globalThis.WebKitMutationObserver) globalThis.WebKitMutationObserver = globalThis.MutationObserver;
  mutations.prototype.observe = { observe(node, options) {
    invoke(observe, this, node, options);
    if (isParsing() && invoke(isConnected, node) && !records.has(this)) records.set(this, []);
  } }.observe;
  mutations.prototype.disconnect = { disconnect() {
    taken(this);
    return invoke(disconnect, this);
  } }.disconnect;
  mutations.prototype.takeRecords = { takeRecords() { return [...taken(this), ...invoke(takeRecords, this)]; } }.takeRecords;
}
