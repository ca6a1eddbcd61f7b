// Level EXACT, in documents and workers: results of other threads and processes are delivered to the page only at
// rests, in the order of the calls. The work itself begins immediately. Runs after time.js; called with `pin` =
// {control, time}. The driver calls `pin.time.hooks.give` at a rest (`move("give")`); worker.js and clock.js use
// `pin.hold`.
(pin) => {
  "use strict";
  const { invoke, applyTo } = pin;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const { hooks, add, nativeTimeout, NativeDate, now, replace } = pin.time;
  const NativePromise = Promise;
  const listen = EventTarget.prototype.addEventListener;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const TIMEOUT = 5000; // real ms, for work that may never end
  const isLocal = (url) => /^\s*(blob|data):/i.test(url);
  const queue = []; // {ready, ended, deliver, rank, turn}, in the order of the calls
  const busy = new Set(); // promises of work that ends with events of its own
  const within = (promise) => NativePromise.race([promise, new NativePromise((resolve) => nativeTimeout(resolve, TIMEOUT, "late"))]);
  const starting = new Map(); // workers that have been created and have not begun -> what is one for equal ones
  const before = []; // calls before each delivery
  // Its end comes between two tasks of the parser: it counts from the next rest on. A realm without a document has none.
  let isParsed = !globalThis.document;
  let isLoaded = isParsed;
  before.push(() => {
    isParsed ||= document.readyState !== "loading";
    isLoaded ||= document.readyState === "complete";
  });
  const isParsing = () => !isParsed;
  const isLoading = () => !isLoaded || Boolean(globalThis.document && document.readyState !== "complete");
  const flags = [];
  const flag = (what) => { if (!flags.includes(what)) flags.push(what); };

  // Calls come in the order of the page's scripts. Arrivals between them while a document loads have a rank of their
  // own, since the parser decides by the real clock how many tasks run between two scripts.
  const RANKS = ["mutation", "toggle", "close", "select", "selectionchange", "unhandledrejection", "call", "arrival", "message", "observer"];
  const push = (deliver, ended = null, ready = null, rank = "call", turn = 0) => { queue.push({ deliver, ended, ready, rank: RANKS.indexOf(rank), turn }); };
  const later = (promise, ready = null) => new NativePromise((resolve, reject) => {
    let deliver = () => {};
    const ended = promise.then(
      (value) => { deliver = () => resolve(value); },
      (error) => { deliver = () => reject(error); },
    );
    push(() => deliver(), ended, ready);
  });
  const wrap = (owner, names, { ready = null, note = null } = {}) => {
    if (!owner) return;
    for (const name of names) {
      const old = getOwnPropertyDescriptor(owner, name);
      if (!old || typeof old.value !== "function") continue;
      const value = { [name](...args) {
        note?.(name, args);
        const result = applyTo(old.value, this, args);
        return result instanceof NativePromise ? later(result, ready && (() => invoke(ready, this))) : result;
      } }[name];
      defineProperty(value, "length", { value: old.value.length });
      defineProperty(owner, name, { ...old, value });
    }
  };
  // Messages and tasks that cause each other without end would keep the clock at one instant. FREE of them are free, where
  // a round of messages counts as ROUND; then a round takes as long as a nested timer (HTML §8.6).
  const FREE = 10_000;
  const ROUND = 20;
  const WAIT = 4; // ms
  let left = FREE;
  let counted = now();
  const refill = () => {
    left = Math.min(FREE, left + (now() - counted) * ROUND / WAIT);
    counted = now();
    return left;
  };
  const take = (cost = 1) => {
    if (refill() < cost) return false;
    left -= cost;
    return true;
  };
  hooks.pending = () => refill() < ROUND ? 0 : queue.filter((each) => !each.ready || each.ready()).length + busy.size;
  // Threads that share memory may block each other until a message arrives, so their messages are sent immediately.
  const SHARED = "threads share memory, which they change in any order"; // exact/workers.py compares this text
  const { WebAssembly: { Memory: memory } = {} } = globalThis;
  const { toString } = Object.prototype;
  const isShared = (buffer) => invoke(toString, buffer) === "[object SharedArrayBuffer]"; // the class may be added later
  let isSharing = false;
  const shares = (value, depth = 3) => {
    if (typeof value !== "object" || value === null) return false;
    if (ArrayBuffer.isView(value) || (memory && value instanceof memory)) return isShared(value.buffer);
    return isShared(value) || (depth > 0 && Object.values(value).some((each) => shares(each, depth - 1)));
  };
  const unsent = new Set(); // messages that wait for a rest, in the order of the calls
  const share = (message) => {
    isSharing ||= Boolean(globalThis.crossOriginIsolated) && shares(message);
    if (isSharing) for (const send of [...unsent]) send();
  };
  hooks.flags = () => {
    if (isSharing) flag(SHARED);
    return flags.splice(0);
  };
  // One result at a time; deliveries without a result (messages, storage events) together.
  hooks.give = async () => {
    for (const each of before) await each();
    for (const each of [...busy]) {
      if (await within(each) === "late") {
        busy.delete(each);
        flag("a database or a blob: URL did not answer in time");
      }
      return 1;
    }
    let given = 0;
    for (const each of [...queue].sort((one, other) => one.rank - other.rank || one.turn - other.turn)) {
      if (given && each.ended) break;
      if (each.ready && !each.ready()) continue; // it depends on the network
      if (!given && !take(each.ended ? 1 : ROUND)) break;
      if (each.ended && await within(each.ended) === "late") {
        flag("work on another thread did not end in time");
        each.ready = () => each.over;
        each.ended.then(() => { each.over = true; });
        continue;
      }
      queue.splice(queue.indexOf(each), 1);
      each.deliver();
      given += 1;
      if (each.ended) break;
    }
    return given;
  };
  const until = (target, types) => {
    const ends = new NativePromise((resolve) => {
      for (const type of types) invoke(listen, target, type, () => resolve(), { once: true });
    });
    busy.add(ends);
    ends.then(() => busy.delete(ends));
  };
  const { SubtleCrypto: subtle, Blob: blob, Cache: cache, CacheStorage: caches, CookieStore: cookies } = globalThis;
  // Symmetric keys are made of seeded bytes; other keys, and their signatures and ciphertexts, have no seed.
  const { generateKey, importKey } = subtle?.prototype ?? {};
  if (subtle) {
    const bytes = { "SHA-1": 64, "SHA-256": 64, "SHA-384": 128, "SHA-512": 128 };
    const sized = ({ name, length, hash }) => {
      if (/^AES-/i.test(name)) return length / 8;
      return /^HMAC$/i.test(name) ? (length ?? bytes[String(hash?.name ?? hash).toUpperCase()] * 8) / 8 : NaN;
    };
    subtle.prototype.generateKey = { generateKey(algorithm, extractable, usages) {
      const size = sized(typeof algorithm === "string" ? { name: algorithm } : algorithm ?? {});
      if (Number.isInteger(size) && size > 0 && size <= 1024) {
        const raw = crypto.getRandomValues(new Uint8Array(size));
        return invoke(importKey, this, "raw", raw, algorithm, extractable, usages);
      }
      flag("crypto.subtle made a key pair, which has no seed");
      return invoke(generateKey, this, algorithm, extractable, usages);
    } }.generateKey;
    const unseeded = (name, [algorithm]) => {
      const called = String(algorithm?.name ?? algorithm).toUpperCase();
      if (name === "sign" && /ECDSA|RSA-PSS/.test(called)) flag(`crypto.subtle signed with ${called}, which draws without a seed`);
      if (name === "encrypt" && called === "RSA-OAEP") flag("crypto.subtle encrypted with RSA-OAEP, which draws without a seed");
    };
    wrap(subtle.prototype, ["digest", "encrypt", "decrypt", "sign", "verify", "generateKey", "deriveKey", "deriveBits",
      "importKey", "exportKey", "wrapKey", "unwrapKey"], { note: unseeded });
  }
  wrap(globalThis, ["createImageBitmap"]);
  wrap(globalThis.HTMLImageElement?.prototype, ["decode"], { ready() { return this.complete; } });
  wrap(globalThis.OffscreenCanvas?.prototype, ["convertToBlob"]);
  wrap(blob?.prototype, ["text", "arrayBuffer", "bytes"]);
  wrap(cache?.prototype, ["match", "matchAll", "put", "delete", "keys"],
    { note: (name) => { if (/^match/.test(name)) flag("bodies out of the Cache API come at their own time"); } });
  if (cache) { // their fetches are held, and their writes are delivered at rests
    const { put } = cache.prototype;
    const store = async (name, held, wanted) => {
      const requests = [...wanted].map((each) => new Request(each));
      const responses = await NativePromise.all(requests.map((each) => fetch(each)));
      if (responses.some(({ ok, status }) => !ok || status === 206)) throw new TypeError(`Failed to execute '${name}' on 'Cache': Request failed`);
      for (const [place, each] of requests.entries()) await invoke(put, held, each, responses[place]);
    };
    cache.prototype.add = { add(request) { return store("add", this, [request]); } }.add;
    cache.prototype.addAll = { addAll(requests) { return store("addAll", this, requests); } }.addAll;
  }
  wrap(caches?.prototype, ["open", "has", "keys", "delete", "match"]);
  wrap(cookies?.prototype, ["get", "getAll", "set", "delete"]);
  wrap(globalThis.StorageManager?.prototype, ["getDirectory", "estimate", "persisted", "persist"]);
  for (const name of ["FileSystemDirectoryHandle", "FileSystemFileHandle", "FileSystemHandle", "FileSystemWritableFileStream"]) {
    wrap(globalThis[name]?.prototype, ["getFileHandle", "getDirectoryHandle", "removeEntry", "getFile", "createWritable",
      "createSyncAccessHandle", "isSameEntry", "write", "seek", "truncate"]);
  }
  wrap(globalThis.OfflineAudioContext?.prototype, ["startRendering"]);
  wrap(globalThis.BaseAudioContext?.prototype, ["decodeAudioData"]);
  wrap(globalThis.Permissions?.prototype, ["query"]);
  wrap(globalThis.MediaDevices?.prototype, ["enumerateDevices"]);
  wrap(globalThis.NavigatorUAData?.prototype, ["getHighEntropyValues"]);
  wrap(globalThis.Clipboard?.prototype, ["read", "readText", "write", "writeText"]);
  // WebAssembly is compiled on other threads; streams of it are first read to their end.
  const { WebAssembly: wasm } = globalThis;
  if (wasm) {
    wrap(wasm, ["compile", "instantiate"]);
    const { compile, instantiate } = wasm;
    const bytesOf = async (source) => {
      const response = await source;
      const type = response?.headers?.get("content-type")?.split(";")[0].trim().toLowerCase();
      return type === "application/wasm" && response.ok ? response.clone().arrayBuffer() : null;
    };
    for (const [name, whole] of [["compileStreaming", compile], ["instantiateStreaming", instantiate]]) {
      const native = wasm[name];
      if (!native) continue;
      wasm[name] = { async [name](source, ...rest) {
        const bytes = await bytesOf(source);
        return bytes ? invoke(whole, wasm, bytes, ...rest) : invoke(native, wasm, source, ...rest);
      } }[name];
    }
  }

  // The timeout of XMLHttpRequest follows the virtual clock.
  const timeout = globalThis.XMLHttpRequest && getOwnPropertyDescriptor(XMLHttpRequest.prototype, "timeout");
  if (timeout) {
    const limits = new WeakMap(); // request -> ms
    const { send } = XMLHttpRequest.prototype;
    defineProperty(XMLHttpRequest.prototype, "timeout", { ...timeout,
      get() { return limits.get(this) ?? invoke(timeout.get, this); },
      set(limit) {
        const ms = Math.max(0, Math.trunc(Number(limit)) || 0);
        invoke(timeout.set, this, 0);
        limits.set(this, ms);
      },
    });
    XMLHttpRequest.prototype.send = { send(...args) {
      const result = applyTo(send, this, args);
      const limit = limits.get(this);
      // Begun longer than 1 ms ago, so it ends immediately.
      if (limit) add(() => { if (this.readyState !== 4) invoke(timeout.set, this, 1); }, limit);
      return result;
    } }.send;
  }

  const { XMLHttpRequest: request } = globalThis;
  // CDP Fetch does not pause requests for blob: and data: URLs: they are sent at rests, one at a time.
  if (request) {
    const { prototype } = request;
    const { open: begin, send, abort } = prototype;
    const unsent = new WeakMap(); // request for such a URL -> the arguments of `send` that waits, null before it
    const sendNow = (object) => {
      const args = unsent.get(object);
      unsent.delete(object);
      until(object, ["loadend"]);
      applyTo(send, object, args);
    };
    prototype.open = { open(method, url) {
      const result = applyTo(begin, this, arguments);
      const isAsync = arguments.length < 3 || arguments[2];
      unsent.delete(this);
      if (isAsync && isLocal(url)) unsent.set(this, null);
      return result;
    } }.open;
    prototype.send = { send(...args) {
      if (!unsent.has(this) || unsent.get(this)) return applyTo(send, this, args);
      unsent.set(this, args);
      push(() => { if (unsent.get(this) === args) sendNow(this); }, NativePromise.resolve());
      return undefined;
    } }.send;
    defineProperty(prototype.send, "length", { value: send.length });
    prototype.abort = { abort() {
      if (unsent.get(this)) sendNow(this);
      return invoke(abort, this);
    } }.abort;
  }

  // The number of parts in which a body arrives is random: only the end is reported as progress. A request that is not sent
  // (to a blocked or local URL) fails in a task of its own, beside the parser.
  if (request) {
    const aborting = new WeakSet();
    const failures = new WeakMap(); // request -> copies of its last events, which wait
    const { open: opens, abort: aborts } = request.prototype;
    request.prototype.open = { open(method, url) {
      failures.delete(this);
      return applyTo(opens, this, arguments);
    } }.open;
    request.prototype.abort = { abort() {
      failures.delete(this);
      aborting.add(this);
      invoke(aborts, this);
      aborting.delete(this);
    } }.abort;
    const fail = (made, event) => {
      if (!event.isTrusted || made.readyState !== 4 || made.status || aborting.has(made) || !isLoading()) return;
      event.stopImmediatePropagation();
      const { type, lengthComputable, loaded, total } = event;
      const copies = failures.get(made) ?? [];
      copies.push(type === "readystatechange" ? new Event(type) : new ProgressEvent(type, { lengthComputable, loaded, total }));
      failures.set(made, copies);
      if (copies.length === 1) push(() => {
        while (failures.get(made) === copies && copies.length) invoke(dispatch, made, copies.shift());
      }, null, null, "arrival");
    };
    const watched = (made) => {
      for (const type of ["readystatechange", "error", "timeout", "loadend"]) invoke(listen, made, type, (event) => fail(made, event));
      let last = null;
      invoke(listen, made, "progress", (event) => {
        if (!event.isTrusted) return;
        last = { lengthComputable: event.lengthComputable, loaded: event.loaded, total: event.total };
        event.stopImmediatePropagation();
      });
      invoke(listen, made, "readystatechange", (event) => {
        if (made.readyState === 1) last = null;
        if (made.readyState === 3) event.stopImmediatePropagation();
        if (made.readyState === 4 && last) made.dispatchEvent(new ProgressEvent("progress", last));
      });
      return made;
    };
    globalThis.XMLHttpRequest = new Proxy(request, {
      construct: (target, args, newTarget) => watched(Reflect.construct(target, args, newTarget)),
    });
    request.prototype.constructor = globalThis.XMLHttpRequest;
  }
  // Blobs come from another process: their streams, and responses made of them, are delivered at rests.
  const { stream } = blob?.prototype ?? {};
  const { arrayBuffer } = blob?.prototype ?? {}; // delivers at rests
  if (stream) {
    blob.prototype.stream = { stream() {
      const native = invoke(stream, this); // throws for other objects
      native.cancel();
      return pieces(() => invoke(arrayBuffer, this));
    } }.stream;
  }
  const ofBlobs = new WeakSet(); // responses
  const ofMemory = new WeakSet(); // responses that are read in tasks of their own, which the parser may precede
  const { Response: response } = globalThis;
  if (response) {
    globalThis.Response = new Proxy(response, { construct(target, args, newTarget) {
      const made = Reflect.construct(target, args, newTarget === globalThis.Response ? target : newTarget);
      if (blob && args[0] instanceof blob) ofBlobs.add(made);
      if (typeof args[0] === "string" || args[0] instanceof ArrayBuffer || ArrayBuffer.isView(args[0])) ofMemory.add(made);
      return made;
    } });
    response.prototype.constructor = globalThis.Response;
    // Whether a body has arrived at the call is a race, and the native method words its errors by it.
    const { text, json } = response.prototype;
    const { parse } = JSON;
    const { then } = NativePromise.prototype;
    if (json) response.prototype.json = { json() { return invoke(then, invoke(text, this), (read) => parse(read)); } }.json;
    for (const name of ["arrayBuffer", "blob", "bytes", "formData", "json", "text"]) {
      const native = response.prototype[name];
      if (!native) continue;
      response.prototype[name] = { [name]() {
        const result = invoke(native, this);
        return ofBlobs.has(this) || (ofMemory.has(this) && isLoading()) ? later(result) : result;
      } }[name];
    }
    replace(globalThis, "fetch", (natively) => (...args) => {
      const result = applyTo(natively, globalThis, args);
      if (!isLocal(args[0]?.url ?? args[0])) return result;
      return later(result.then((got) => { ofBlobs.add(got); return got; }));
    });
  }
  // A body read as a stream arrives in pieces of fixed size, not as received.
  const PIECE = 65536;
  const pieces = (read, cancel = () => {}) => {
    let bytes = null;
    let at = 0;
    return new ReadableStream({
      type: "bytes",
      async pull(controller) {
        bytes ??= new Uint8Array(await read());
        if (at < bytes.length) return controller.enqueue(bytes.slice(at, at += PIECE));
        controller.close();
        controller.byobRequest?.respond(0);
      },
      cancel,
    }, { highWaterMark: 0 });
  };
  const body = globalThis.Response && getOwnPropertyDescriptor(Response.prototype, "body");
  if (body) {
    const bodies = new WeakMap();
    const whole = (native) => new Response(native).arrayBuffer();
    defineProperty(Response.prototype, "body", { ...body, get() {
      const native = invoke(body.get, this);
      if (!native || !this.url || this.bodyUsed || native.locked) return bodies.get(this) ?? native;
      if (!bodies.has(this)) bodies.set(this, pieces(() => whole(native), (reason) => native.cancel(reason)));
      return bodies.get(this);
    } });
  }

  const { addModule } = globalThis.Worklet?.prototype ?? {};
  if (addModule) {
    Worklet.prototype.addModule = { addModule(...args) {
      flag("a worklet has its own randomness");
      return applyTo(addModule, this, args);
    } }.addModule;
  }
  for (const name of ["RTCPeerConnection", "MediaRecorder", "WebTransport"]) {
    const native = globalThis[name];
    if (!native) continue;
    globalThis[name] = new Proxy(native, {
      construct(target, args, newTarget) {
        flag(`${name} runs on the real clock`);
        return Reflect.construct(target, args, newTarget);
      },
    });
  }

  // Messages between threads: copied at the call, sent at a rest.
  const channel = globalThis.BroadcastChannel;
  const broadcast = channel?.prototype.postMessage;
  const post = globalThis.MessagePort?.prototype.postMessage;
  const sends = (owner, natively = null, after = () => {}) => {
    const native = natively ?? owner?.postMessage;
    if (!native) return;
    const value = { postMessage(message, options) {
      const transfer = Array.isArray(options) ? options : options?.transfer ?? [];
      const { copy, given } = structuredClone({ copy: message, given: [...transfer] }, { transfer: [...transfer] });
      const send = () => {
        if (!unsent.delete(send)) return;
        try {
          invoke(native, this === undefined ? globalThis : this, copy, given);
          after(this);
        } catch { /* closed meanwhile */ }
      };
      unsent.add(send);
      share(message);
      push(send);
    } }.postMessage;
    defineProperty(owner, "postMessage", { value, writable: true, configurable: true });
  };
  if (channel) {
    // BroadcastChannel delivers in order: when our own message returns, earlier ones have been sent to all.
    const native = channel.prototype.postMessage;
    sends(channel.prototype, function (copy) {
      invoke(native, this, copy);
      const name = `${pin.control}/${Math.trunc(performance.now())}/${sequence++}`;
      const [there, back] = [new channel(name), new channel(name)];
      const ends = new NativePromise((resolve) => invoke(listen, back, "message", () => resolve()));
      busy.add(ends);
      ends.then(() => {
        busy.delete(ends);
        there.close();
        back.close();
      });
      invoke(native, there, 0);
    });
  }
  let sequence = 0;
  // Between its creation and its first event nothing shows a worker to the driver, so the creator reports it: until the
  // first message of a dedicated worker (worker.js), or the connection of a shared one, or its failure.
  hooks.starting = () => new Set(starting.values()).size;
  const begun = (worker) => { if (starting.delete(worker) && !starting.size) hooks.started?.(); };
  // A worker whose script does not load or parse: its thread says so at any time, the page gets it at a rest.
  const failed = (worker, event) => {
    event.stopImmediatePropagation();
    event.preventDefault();
    made -= 1;
    push(() => {
      const { message, filename, lineno, colno } = event;
      const parsed = event instanceof ErrorEvent;
      const copies = () => parsed ? new ErrorEvent("error", { message, filename, lineno, colno, cancelable: true }) : new Event("error");
      if (invoke(dispatch, worker, copies()) && parsed) invoke(dispatch, globalThis, copies()); // HTML §10.2.5
    });
  };
  let made = 0; // workers, without those that have failed
  hooks.made = () => made;
  const internal = (name) => channel && location.origin !== "null" ? new channel(`${pin.control}/${name}`) : null;
  const creates = (name, note) => {
    const native = globalThis[name];
    if (!native) return;
    globalThis[name] = new Proxy(native, { construct(target, args, newTarget) {
      const made = Reflect.construct(target, args, newTarget);
      invoke(listen, made, "error", (event) => {
        if (event.isTrusted && starting.has(made)) failed(made, event);
        begun(made);
      }, true);
      note(made, args);
      return made;
    } });
    native.prototype.constructor = globalThis[name];
  };
  creates("Worker", (worker) => {
    starting.set(worker, worker);
    made += 1;
    invoke(listen, worker, "message", (event) => {
      if (event.data !== pin.control) return;
      event.stopImmediatePropagation();
      begun(worker);
    }, true);
  });
  const { terminate, postMessage: toWorker } = globalThis.Worker?.prototype ?? {};
  if (toWorker) Worker.prototype.postMessage = { postMessage(message) {
    share(message);
    return applyTo(toWorker, this, arguments);
  } }.postMessage;
  if (terminate) Worker.prototype.terminate = { terminate() {
    begun(this);
    return invoke(terminate, this);
  } }.terminate;

  // Messages to another process arrive at any time. A second message follows each one, and the receiver acknowledges it
  // over a channel: both have arrived. A port that is not started acknowledges nothing: it is deaf.
  const unread = new Map(); // message -> port
  const ports = new Map(); // port -> whether it is started
  let acks = null;
  let sent = 0;
  hooks.unread = () => unread.size;
  hooks.deaf = () => [...ports.values()].filter((isStarted) => !isStarted).length;
  const mark = `${pin.control}#`;
  const realm = `${mark}${pin.name ?? ""}${new NativeDate().getTime()}`;
  const link = (port) => {
    ports.set(port, false);
    const { get, set } = getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
    defineProperty(port, "onmessage", { configurable: true, enumerable: true, get, set(handler) {
      ports.set(port, true);
      invoke(set, port, handler);
    } });
    const { start } = port;
    defineProperty(port, "start", { configurable: true, writable: true, value: { start() {
      ports.set(port, true);
      return invoke(start, port);
    } }.start });
    invoke(listen, port, "close", () => {
      ports.delete(port);
      for (const [message, by] of unread) if (by === port) unread.delete(message);
    });
    acks ??= internal("acks");
    if (acks) {
      acks.onmessage = ({ data }) => { if (unread.delete(data)) hooks.started?.(); };
      invoke(listen, port, "message", (event) => {
        if (typeof event.data !== "string" || !event.data.startsWith(mark)) return;
        event.stopImmediatePropagation();
        invoke(broadcast, acks, event.data);
      }, true);
    }
    return () => {
      if (!acks) return;
      const message = `${realm}/${++sent}`;
      unread.set(message, port);
      invoke(post, port, message);
    };
  };
  const { get: portOf } = getOwnPropertyDescriptor(globalThis.SharedWorker?.prototype ?? {}, "port") ?? {};
  let connections = null;
  creates("SharedWorker", (worker, [url, options]) => {
    if (globalThis.top !== globalThis) flag("a shared worker has several documents, which race to it");
    const port = invoke(portOf, worker);
    sends(port, post, link(port));
    connections ??= internal("connections");
    if (!connections || /^data:/i.test(url)) return;
    starting.set(worker, `${new URL(url, location)} ${options?.name ?? options ?? ""}`);
    connections.onmessage = () => {
      const [first] = [...starting.keys()].filter((each) => each instanceof SharedWorker);
      begun(first);
    };
  });
  const connected = () => {
    connections ??= internal("connections");
    if (connections) invoke(broadcast, connections, 0);
  };
  const audio = globalThis.AudioContext;
  if (audio) {
    globalThis.AudioContext = new Proxy(audio, {
      construct(target, args, newTarget) {
        const context = Reflect.construct(target, args, newTarget);
        invoke(listen, context, "statechange", () => {
          if (context.state === "running") flag("an AudioContext runs on the real clock");
        });
        return context;
      },
    });
  }
  pin.hold = { push, later, until, wrap, before, sends, share, flag, queue, link, connected, isLocal, isLoading, isParsing, within, take };
}
