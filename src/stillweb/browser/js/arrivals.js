// Level EXACT, in documents and workers: what other processes answer reaches the page at rests. Runs after hold.js;
// called with `pin` = {time, hold}.
(pin) => {
  "use strict";
  const { invoke, applyTo: apply } = pin;
  const { then } = Promise.prototype;
  const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;
  const { hooks, inTime } = pin.time;
  const { push, later, wrap, before, flag, within } = pin.hold;
  const NativePromise = Promise;
  const listen = EventTarget.prototype.addEventListener;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const report = globalThis.reportError.bind(globalThis);
  const of = (name) => globalThis[name]?.prototype;

  const { request: lock, query } = of("LockManager") ?? {};
  const calledOn = (callback, self, args) => {
    try {
      apply(callback, self, args);
    } catch (error) {
      report(error);
    }
  };

  // ---- promises of the browser process, and of other threads -----------------------------------
  for (const [owner, ...names] of [
    ["Navigator", "getBattery", "requestMediaKeySystemAccess", "requestMIDIAccess", "getInstalledRelatedApps", "share", "setAppBadge", "clearAppBadge"],
    ["Document", "hasStorageAccess", "requestStorageAccess", "hasUnpartitionedCookieAccess", "browsingTopics", "hasPrivateToken", "hasRedemptionRecord"],
    ["Element", "requestPointerLock"],
    ["CSSStyleSheet", "replace"],
    ["ServiceWorkerContainer", "getRegistration", "getRegistrations"],
    ["ServiceWorkerRegistration", "update", "unregister"],
    ["CredentialsContainer", "get", "create", "store", "preventSilentAccess"],
    ["MediaCapabilities", "decodingInfo", "encodingInfo"],
    ["MediaDevices", "getUserMedia", "getDisplayMedia"],
    ["PaymentRequest", "canMakePayment", "hasEnrolledInstrument", "show"],
    ["Permissions", "request", "revoke"],
    ["LockManager", "query"],
    ["Keyboard", "getLayoutMap", "lock"],
    ["ScreenOrientation", "lock"],
    ["ImageDecoder", "decode"],
    ["WakeLock", "request"],
    ["GPU", "requestAdapter"],
    ["Bluetooth", "getAvailability", "getDevices", "requestDevice"],
    ["USB", "getDevices", "requestDevice"],
    ["HID", "getDevices", "requestDevice"],
    ["Serial", "getPorts", "requestPort"],
    ["XRSystem", "isSessionSupported", "requestSession"],
    ["StorageBucketManager", "open", "keys", "delete"],
    ["PushManager", "getSubscription", "permissionState", "subscribe"],
  ]) wrap(of(owner), names);
  for (const [owner, ...names] of [
    ["PublicKeyCredential", "isUserVerifyingPlatformAuthenticatorAvailable", "isConditionalMediationAvailable", "getClientCapabilities"],
    ["ImageDecoder", "isTypeSupported"],
    ["VideoDecoder", "isConfigSupported"],
    ["VideoEncoder", "isConfigSupported"],
    ["AudioDecoder", "isConfigSupported"],
    ["AudioEncoder", "isConfigSupported"],
    ["Notification", "requestPermission"],
    ["IdleDetector", "requestPermission"],
    ...["LanguageModel", "LanguageDetector", "Translator", "Summarizer", "Writer", "Rewriter", "Proofreader"].map((name) => [name, "availability", "create"]),
  ]) wrap(globalThis[owner], names);
  wrap(globalThis, ["queryLocalFonts", "getScreenDetails"]);
  const { waitAsync } = Atomics;
  if (waitAsync) Atomics.waitAsync = { waitAsync(...args) {
    const result = apply(waitAsync, this, args);
    if (result.async) flag("Atomics.waitAsync ends by the real clock, or when another thread notifies");
    return result;
  } }.waitAsync;

  // A file is written when its stream is closed, by a method of all streams.
  const { FileSystemWritableFileStream: writable, FileSystemDirectoryHandle: folder } = globalThis;
  if (writable) {
    for (const name of ["close", "abort"]) {
      const { value, ...rest } = getOwnPropertyDescriptor(WritableStream.prototype, name);
      defineProperty(writable.prototype, name, { ...rest, value });
    }
    wrap(writable.prototype, ["close", "abort"]);
  }
  // Their iterators have a prototype that only an iterator shows.
  const wrapped = new WeakSet();
  for (const name of folder ? ["entries", "keys", "values", Symbol.asyncIterator] : []) {
    const old = getOwnPropertyDescriptor(folder.prototype, name);
    const value = { [name]() {
      const made = apply(old.value, this, []);
      const prototype = getPrototypeOf(made);
      if (!wrapped.has(prototype)) {
        wrapped.add(prototype);
        wrap(prototype, ["next", "return"]);
      }
      return made;
    } }[name];
    defineProperty(folder.prototype, name, { ...old, value });
  }

  // ---- garbage collection ------------------------------------------------------------------------
  // Its time depends on the machine. No object that a page can ask about is collected, which ECMAScript permits.
  const targets = new WeakMap(); // reference -> its target
  const { WeakRef: reference, FinalizationRegistry: registry } = globalThis;
  globalThis.WeakRef = new Proxy(reference, { construct(target, args, newTarget) {
    const made = Reflect.construct(target, args, newTarget === globalThis.WeakRef ? target : newTarget);
    targets.set(made, args[0]);
    return made;
  } });
  reference.prototype.constructor = globalThis.WeakRef;
  globalThis.FinalizationRegistry = new Proxy(registry, { construct(target, [callback], newTarget) {
    const never = typeof callback === "function" ? () => {} : callback; // throws for other values
    return Reflect.construct(target, [never], newTarget === globalThis.FinalizationRegistry ? target : newTarget);
  } });
  registry.prototype.constructor = globalThis.FinalizationRegistry;

  // ---- observers -----------------------------------------------------------------------------------
  // Timers and tasks of their own call them, between those of the page, and Blink calls the intersection observers of one
  // frame in the order of memory addresses (IntersectionObserverController): each gets one call at a rest, in the order
  // of their creation.
  let observers = 0;
  const observe = (name, join) => {
    const native = globalThis[name];
    if (!native) return;
    globalThis[name] = new Proxy(native, { construct(target, [callback, ...rest], newTarget) {
      const turn = ++observers;
      const [options] = rest;
      if (options?.trackVisibility) flag(`${name} that tracks visibility waits by the real clock`);
      else if (options?.delay) rest[0] = { ...options, delay: 0 }; // of the real clock
      const batches = [];
      const own = typeof callback !== "function" ? callback : function (batch, ...more) {
        if (batches.push(batch) > 1) return;
        push(() => calledOn(callback, this, [join(batches.splice(0)), ...more]), null, null, "observer", turn);
      };
      return Reflect.construct(target, [own, ...rest], newTarget === globalThis[name] ? target : newTarget);
    } });
    native.prototype.constructor = globalThis[name];
  };
  const flat = (batches) => batches.flat();
  observe("IntersectionObserver", flat);
  observe("ReportingObserver", flat);
  const others = new WeakMap(); // list of entries -> those that belong to its call, too
  observe("PerformanceObserver", ([list, ...rest]) => {
    others.set(list, rest);
    return list;
  });
  const lists = of("PerformanceObserverEntryList");
  for (const name of lists ? ["getEntries", "getEntriesByType", "getEntriesByName"] : []) {
    const native = lists[name];
    lists[name] = { [name](...args) {
      return inTime([this, ...others.get(this) ?? []].flatMap((list) => apply(native, list, args)));
    } }[name];
  }

  // ---- what is not pinned ------------------------------------------------------------------------
  const notes = (owner, names, what) => {
    for (const name of names) {
      const native = owner?.[name];
      if (!native) continue;
      owner[name] = { [name](...args) {
        flag(what);
        return apply(native, this, args);
      } }[name];
    }
  };
  notes(globalThis, ["stop"], "window.stop() cancels requests in any order"); // of memory addresses (ResourceFetcher::loaders_)
  notes(of("Performance"), ["measureUserAgentSpecificMemory"], "memory is measured");
  notes(of("PressureObserver"), ["observe"], "a PressureObserver reports the machine's load");
  notes(of("SpeechSynthesis"), ["speak"], "speech runs on the real clock");
  // User activation, which consumers need, ends 5 s of the real clock after the input (HTML §6.4.1).
  const activation = globalThis.navigator.userActivation;
  if (activation) {
    const owner = getPrototypeOf(activation);
    const active = getOwnPropertyDescriptor(owner, "isActive");
    const { get: hasBeenActive } = getOwnPropertyDescriptor(owner, "hasBeenActive");
    let isConsumed = false;
    const isActive = () => {
      const is = invoke(active.get, activation);
      if (is) isConsumed = false;
      else if (!isConsumed && invoke(hasBeenActive, activation)) flag("a user activation ended by the real clock");
      return is;
    };
    defineProperty(owner, "isActive", { ...active, get() { return this === activation ? isActive() : invoke(active.get, this); } });
    const consumers = [
      [globalThis, "open", "showOpenFilePicker", "showSaveFilePicker", "showDirectoryPicker"],
      [Element.prototype, "requestFullscreen", "requestPointerLock"],
      [HTMLElement.prototype, "click"], // of a file field
      [HTMLInputElement.prototype, "showPicker"],
      [HTMLSelectElement.prototype, "showPicker"],
      [Document.prototype, "requestStorageAccess"],
      [of("Clipboard"), "read", "readText", "write", "writeText"],
      [of("Navigator"), "share"],
      [of("PaymentRequest"), "show"],
    ];
    for (const [consumer, ...names] of consumers) for (const name of names) {
      const native = consumer?.[name];
      if (!native) continue;
      const value = { [name](...args) {
        if (name === "click" && this?.type !== "file") return apply(native, this, args);
        const was = isActive();
        try {
          return apply(native, this, args);
        } finally {
          isConsumed ||= was && !invoke(active.get, activation);
        }
      } }[name];
      defineProperty(value, "length", { value: native.length });
      consumer[name] = value;
    }
  }
  // Elements in a document are reported by eye.js.
  const { HTMLMediaElement: media } = globalThis;
  const { get: isConnected } = getOwnPropertyDescriptor(globalThis.Node?.prototype ?? {}, "isConnected") ?? {};
  const loads = (element, url) => { if (!invoke(isConnected, element)) flag(`${url} was loaded on other threads`); };
  if (media) {
    const { load } = media.prototype;
    const src = getOwnPropertyDescriptor(media.prototype, "src");
    const { set: setUrl, get: urlOf } = src;
    media.prototype.load = { load() {
      invoke(load, this);
      loads(this, invoke(urlOf, this) || "media");
    } }.load;
    defineProperty(media.prototype, "src", { ...src, set(url) {
      invoke(setUrl, this, url);
      loads(this, invoke(urlOf, this));
    } });
    globalThis.Audio = new Proxy(globalThis.Audio, { construct(target, args, newTarget) {
      const made = Reflect.construct(target, args, newTarget === globalThis.Audio ? target : newTarget);
      if (args.length) loads(made, invoke(urlOf, made));
      return made;
    } });
  }
  // Without voices of the system, the list stays empty; the browser process announces it at any time.
  const speech = getOwnPropertyDescriptor(globalThis, "speechSynthesis");
  if (speech) {
    let known = null;
    defineProperty(globalThis, "speechSynthesis", { ...speech, get() {
      const made = invoke(speech.get, this ?? globalThis);
      if (known !== made) invoke(listen, known = made, "voiceschanged", (event) => event.stopImmediatePropagation());
      return made;
    } });
  }
  // Changes of cookies come from the network process, for pages that listen for them.
  const cookies = of("CookieStore");
  if (cookies) {
    const hears = "a page hears of changes of cookies at any time";
    const change = getOwnPropertyDescriptor(cookies, "onchange");
    if (change) defineProperty(cookies, "onchange", { ...change, set(handler) {
      flag(hears);
      invoke(change.set, this, handler);
    } });
    defineProperty(cookies, "addEventListener", { configurable: true, writable: true, enumerable: true,
      value: { addEventListener(...args) {
        flag(hears);
        return apply(listen, this, args);
      } }.addEventListener });
  }

  // ---- callbacks ---------------------------------------------------------------------------------
  const called = (callback, args) => calledOn(callback, undefined, args);
  // One of the functions among the arguments is called, once.
  const once = (owner, names) => {
    for (const name of names) {
      const native = owner?.[name];
      if (!native) continue;
      owner[name] = { [name](...args) {
        let deliver = () => {};
        let result;
        const ended = new NativePromise((resolve) => {
          const own = args.map((each) => typeof each !== "function" ? each : (...given) => {
            deliver = () => called(each, given);
            resolve();
          });
          result = apply(native, this, own);
        });
        push(() => deliver(), ended);
        return result;
      } }[name];
    }
  };
  once(of("HTMLCanvasElement"), ["toBlob"]);
  once(of("Geolocation"), ["getCurrentPosition"]);
  for (const kind of ["webkitTemporaryStorage", "webkitPersistentStorage"]) { // without an interface object
    const quota = globalThis.navigator[kind];
    if (quota) once(quota, ["queryUsageAndQuota", "requestQuota"]);
  }

  // A lock is granted at any time. The manager answers a query after what it granted before.
  if (lock) {
    const ungranted = new Set(); // requests that were not granted
    before.push(() => ungranted.size ? invoke(query, navigator.locks) : null);
    LockManager.prototype.request = { request(name, ...rest) {
      const callback = rest.at(-1);
      if (typeof callback !== "function" || this !== navigator.locks) return apply(lock, this, [name, ...rest]);
      const entry = { granted: null };
      ungranted.add(entry);
      push(() => entry.granted(), null, () => entry.granted !== null);
      const granted = (given) => new NativePromise((resolve, reject) => {
        entry.granted = () => {
          try {
            resolve(apply(callback, undefined, [given]));
          } catch (error) {
            reject(error);
          }
        };
        ungranted.delete(entry);
      });
      const result = apply(lock, this, [name, ...rest.slice(0, -1), granted]);
      result.catch(() => ungranted.delete(entry));
      return result;
    } }.request;
  }

  // Files are read in another process. Listeners of a target that is no node run in the order of their addition.
  const { FileReader: reader } = globalThis;
  if (reader) {
    const READ = ["loadstart", "progress", "load", "abort", "error", "loadend"];
    const reads = new WeakMap(); // reader -> what takes its events
    globalThis.FileReader = new Proxy(reader, { construct(target, args, newTarget) {
      const made = Reflect.construct(target, args, newTarget === globalThis.FileReader ? target : newTarget);
      for (const type of READ) invoke(listen, made, type, (event) => { if (event.isTrusted) reads.get(made)?.(event); });
      return made;
    } });
    reader.prototype.constructor = globalThis.FileReader;
    for (const name of ["readAsText", "readAsArrayBuffer", "readAsDataURL", "readAsBinaryString"]) {
      const native = reader.prototype[name];
      reader.prototype[name] = { [name](...args) {
        const result = apply(native, this, args); // throws for other objects
        const events = [];
        const ended = new NativePromise((resolve) => {
          reads.set(this, (event) => {
            event.stopImmediatePropagation();
            const { type, lengthComputable, loaded, total } = event;
            if (type !== "progress" || loaded === total) events.push(new ProgressEvent(type, { lengthComputable, loaded, total }));
            if (type === "loadend") resolve();
          });
        });
        push(() => { for (const event of events) invoke(dispatch, this, event); }, ended);
        return result;
      } }[name];
    }
  }
  // ---- modules -----------------------------------------------------------------------------------
  // Several importers of one module continue in the order of memory addresses (ModuleMap::Entry). Callbacks of `then`
  // get a module, or the error of its request, at a rest, in the order of the calls of `then`. `await` does not call it.
  const NONE = {};
  const tagOf = (value) => getOwnPropertyDescriptor(value, Symbol.toStringTag) ?? NONE;
  const isModule = (value) => typeof value === "object" && value !== null && getPrototypeOf(value) === null && tagOf(value).value === "Module";
  const { TypeError: unfetched } = globalThis;
  const { startsWith } = String.prototype;
  const isUnfetched = (reason) => reason instanceof unfetched && typeof reason.message === "string" && invoke(startsWith, reason.message, "Failed to fetch dynamically imported module");
  const importers = []; // {place, deliver}, whose module has arrived
  let places = 0;
  const inPlace = (place, isHeld, callback) => (value) => !isHeld(value) ? callback(value) : new NativePromise((resolve, reject) => {
    if (!importers.length) push(() => {
      for (const each of importers.splice(0).sort((one, other) => one.place - other.place)) each.deliver();
    }, null, null, "arrival");
    importers.push({ place, deliver() {
      try {
        resolve(callback(value));
      } catch (error) {
        reject(error);
      }
    } });
  });
  const passes = (value) => value;
  const throws = (reason) => { throw reason; };
  NativePromise.prototype.then = { then(fulfilled, rejected) {
    const place = ++places;
    const own = inPlace(place, isModule, typeof fulfilled === "function" ? fulfilled : passes);
    return apply(then, this, [own, inPlace(place, isUnfetched, typeof rejected === "function" ? rejected : throws)]);
  } }.then;
  if (!globalThis.document) return;

  // ---- view transitions ----------------------------------------------------------------------
  // A frame begins the capture of the old state, which the compositor ends at any time, and another one shows the new
  // state: the driver waits for the one and draws the other.
  const transitions = new Set(); // {isDrawn, isCalled, isUpdated, called}, until they are ready
  const isDue = ({ isDrawn, isCalled, isUpdated }) => isCalled ? isUpdated : isDrawn;
  const { startViewTransition } = Document.prototype;
  if (startViewTransition) Document.prototype.startViewTransition = { startViewTransition(...args) {
    const [given] = args;
    const update = typeof given === "function" ? given : given?.update;
    const transition = { isDrawn: false, isCalled: false, isUpdated: false };
    const { promise, resolve } = NativePromise.withResolvers();
    transition.called = promise;
    const own = (...rest) => {
      transition.isCalled = true;
      resolve();
      return update ? apply(update, undefined, rest) : undefined;
    };
    const made = invoke(startViewTransition, this, given && typeof given === "object" ? { types: given.types, update: own } : own);
    transitions.add(transition);
    pin.time.nativeFrame(() => { transition.isDrawn = true; });
    const updated = () => { transition.isUpdated = true; };
    const ended = () => { transitions.delete(transition); };
    invoke(then, made.updateCallbackDone, updated, updated);
    invoke(then, made.ready, ended, ended);
    return made;
  } }.startViewTransition;

  // Between two documents there are none: a new document that continues the old one's widget, which is paused for the
  // capture, would get no frame. The rule is set as late as possible, since pages see these sheets.
  const { CSSStyleSheet: Sheet, getComputedStyle: styleOf } = globalThis;
  const { get: sheetsOf, set: adopt } = getOwnPropertyDescriptor(Document.prototype, "adoptedStyleSheets");
  const none = new Sheet();
  none.replaceSync("@view-transition { navigation: none }");
  invoke(listen, window, "beforeunload", () => {
    const others = [...invoke(sheetsOf, document)].filter((each) => each !== none);
    invoke(adopt, document, [...others, none]);
    if (document.documentElement) styleOf(document.documentElement).color; // the browser process learns of the rule
  }, true);

  // ---- fullscreen ----------------------------------------------------------------------------
  // The browser process replies at any time, and a frame after that reaches the page: frames are drawn until one has.
  const TRIES = 20;
  const changes = new Set(); // {ended, tries}, until their event
  for (const [owner, name] of [[Element.prototype, "requestFullscreen"], [Document.prototype, "exitFullscreen"]]) {
    const native = owner[name];
    if (!native) continue;
    owner[name] = { [name](...args) {
      const result = apply(native, this, args);
      const { promise, resolve } = NativePromise.withResolvers();
      const change = { ended: promise, tries: 0 };
      const ended = () => {
        changes.delete(change);
        resolve();
      };
      changes.add(change);
      for (const type of ["fullscreenchange", "fullscreenerror"]) invoke(listen, this.ownerDocument ?? this, type, ended, { capture: true, once: true });
      invoke(then, result, () => {}, name === "exitFullscreen" ? ended : () => {}); // without an event
      return later(result, () => !changes.has(change));
    } }[name];
  }

  hooks.captures = () => [...transitions].filter(isDue).length + changes.size;
  hooks.capture = async () => {
    for (const transition of [...transitions]) {
      if (transition.isCalled || !transition.isDrawn || await within(transition.called) !== "late") continue;
      transitions.delete(transition);
      flag("a view transition did not begin in time");
    }
    for (const change of [...changes]) {
      await NativePromise.race([change.ended, new NativePromise((resolve) => pin.time.nativeTimeout(resolve, 10))]);
      if (change.tries++ > TRIES) changes.delete(change);
    }
    return 1;
  };

  // ---- steps in history --------------------------------------------------------------------------
  // The browser process takes them at any time; here they begin at a rest, and the driver waits for them.
  const steps = []; // [number of entries, native call]
  const { go } = History.prototype;
  const { get: lengthOf } = getOwnPropertyDescriptor(History.prototype, "length");
  for (const [name, by] of [["back", () => -1], ["forward", () => 1], ["go", (delta) => Math.trunc(Number(delta)) || 0]]) {
    const native = History.prototype[name];
    History.prototype[name] = { [name](delta) {
      const count = by(delta);
      if (this !== history || !count) return apply(native, this, [delta]);
      invoke(lengthOf, this); // throws if the document is gone
      steps.push([count, () => invoke(go, history, count)]);
      return undefined;
    } }[name];
  }
  const { navigation, Navigation: navigates } = globalThis;
  const toKey = ([key]) => {
    const entry = navigation.entries().find((each) => each.key === key);
    return entry ? entry.index - navigation.currentEntry.index : 0;
  };
  const stepped = [["back", () => navigation.canGoBack ? -1 : 0], ["forward", () => navigation.canGoForward ? 1 : 0], ["traverseTo", toKey]];
  for (const [name, by] of navigates ? stepped : []) {
    const native = navigates.prototype[name];
    navigates.prototype[name] = { [name](...args) {
      const count = this === navigation && args.length >= native.length ? by(args) : 0;
      if (!count) return apply(native, this, args);
      const begun = new NativePromise((resolve) => steps.push([count, () => resolve(apply(native, this, args))]));
      const finished = begun.then((result) => result.finished);
      finished.catch(() => {}); // no unhandled rejection (HTML §7.2.6.8)
      return { committed: begun.then((result) => result.committed), finished };
    } }[name];
  }
  hooks.steps = () => steps.length ? steps[0][0] : 0;
  hooks.step = () => {
    if (steps.length) steps.shift()[1]();
    return 1;
  };
}
