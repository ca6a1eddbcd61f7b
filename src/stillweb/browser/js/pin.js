// Level NETWORK: seeded randomness, and constants in place of machine properties. Runs in the page's own world, in
// every frame and worker, before any script of theirs. Adds no global name. Called with `pin` = {seed, control,
// hints}, for workers also `name`; clock.js, which runs later, sets `start`.
(pin) => {
  "use strict";
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  // The page may replace `call` and `apply` of all functions.
  const { apply: applyTo } = Reflect;
  const invoke = (called, self, ...args) => applyTo(called, self, args);
  Object.assign(pin, { invoke, applyTo });

  // The indices of this frame and its ancestors among their siblings, which distinguish equal frames. Comparing
  // WindowProxy objects and reading `length` is allowed across origins (HTML §7.2.3.2).
  const path = () => {
    if (pin.name) return pin.name;
    let found = "";
    for (let here = window; here !== here.parent; here = here.parent) {
      let index = 0;
      while (index < here.parent.length && here.parent[index] !== here) index++;
      found = `${index}/${found}`;
    }
    return found;
  };

  // 128 bits of a text by FNV-1a (RFC 9923) are the state of xoshiro128** (Blackman and Vigna, "Scrambled linear
  // pseudorandom number generators", 2018), which draws 32 bits at a time.
  const utf8 = TextEncoder.prototype.encode.bind(new TextEncoder());
  const { imul } = Math;
  const { asUintN } = BigInt;
  const FNV_OFFSET = 0x6c62272e07bb014262b821756295c58dn;
  const FNV_PRIME = (1n << 88n) + 0x13bn;
  const SPREAD = 64; // draws until a difference of one bit in the state has spread to all bits
  const fnv1a = (text) => {
    let hash = FNV_OFFSET;
    for (const byte of utf8(text)) hash = asUintN(128, (hash ^ BigInt(byte)) * FNV_PRIME);
    return hash;
  };
  const rotated = (word, by) => (word << by) | (word >>> (32 - by));
  const generator = (text) => {
    const hash = fnv1a(text);
    let [s0, s1, s2, s3] = [96n, 64n, 32n, 0n].map((bit) => Number(asUintN(32, hash >> bit)));
    const draw = () => {
      const drawn = imul(rotated(imul(s1, 5), 7), 9) >>> 0;
      const shifted = s1 << 9;
      s2 ^= s0;
      s3 ^= s1;
      s1 ^= s2;
      s0 ^= s3;
      s2 ^= shifted;
      s3 = rotated(s3, 11);
      return drawn;
    };
    for (let i = 0; i < SPREAD; i++) draw();
    return draw;
  };

  // Two streams, so that a draw from one API does not shift the other. Made at the first draw, when the document's
  // virtual start time is known.
  const streams = new Map();
  const stream = (name) => {
    if (!streams.has(name)) {
      // A blob URL differs each time.
      const here = location.origin + (location.protocol === "blob:" ? "" : location.pathname);
      streams.set(name, generator([pin.seed, name, path(), here, pin.start ?? ""].join("\n")));
    }
    return streams.get(name);
  };

  const random = {
    random() {
      const draw = stream("math");
      return ((draw() >>> 5) * 67108864 + (draw() >>> 6)) / 9007199254740992;
    },
  }.random;
  defineProperty(Math, "random", { value: random.bind(Math), writable: true, configurable: true });
  defineProperty(Math.random, "name", { value: "random" });

  const uuid = (bytes) => {
    bytes[6] = (bytes[6] & 0x0f) | 0x40; // RFC 9562 §5.4
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  };
  const native = globalThis.Crypto && Crypto.prototype.getRandomValues;
  if (native) {
    const fill = (bytes) => {
      const draw = stream("crypto");
      for (let i = 0; i < bytes.length; i++) bytes[i] = draw() >>> 24;
      return bytes;
    };
    const methods = {
      getRandomValues(array) {
        invoke(native, this, array); // throws for objects other than integer arrays and for long ones
        fill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
        return array;
      },
      randomUUID() {
        return uuid(fill(new Uint8Array(16)));
      },
    };
    defineProperty(Crypto.prototype, "getRandomValues", { value: methods.getRandomValues });
    if (Crypto.prototype.randomUUID) {
      defineProperty(Crypto.prototype, "randomUUID", { value: methods.randomUUID });
    }
  }

  // Identifiers that the browser draws itself. Each has one in its place, by what it identifies and how many there were.
  const drawn = new Map(); // identifier of the browser -> ours
  const counts = new Map();
  const identifier = (native, ...of) => {
    if (!native || drawn.has(native)) return drawn.get(native) ?? native;
    const text = [pin.seed, path(), ...of].join("\n");
    counts.set(text, (counts.get(text) ?? 0) + 1);
    const draw = generator(`${text}\n${counts.get(text)}`);
    drawn.set(native, uuid(Array.from({ length: 16 }, () => draw() >>> 24)));
    return drawn.get(native);
  };
  const identified = (name, member, of) => {
    const { prototype } = globalThis[name] ?? {};
    const old = prototype && getOwnPropertyDescriptor(prototype, member);
    if (!old) return;
    const { get } = { get() { return identifier(invoke(old.get, this), member, ...of(this)); } };
    defineProperty(get, "name", { value: old.get.name });
    defineProperty(prototype, member, { ...old, get });
  };
  // An entry of the session history keeps its identifiers in later documents, so they depend on its place.
  for (const name of ["NavigationHistoryEntry", "NavigationDestination"]) {
    identified(name, "key", ({ index }) => [index]);
    identified(name, "id", ({ index, url }) => [index, url]);
  }
  const { traverseTo } = globalThis.Navigation?.prototype ?? {};
  if (traverseTo) Navigation.prototype.traverseTo = { traverseTo(key, ...rest) {
    if (!arguments.length) return invoke(traverseTo, this); // throws
    const [own] = [...drawn].find(([, ours]) => ours === `${key}`) ?? [key];
    return invoke(traverseTo, this, own, ...rest);
  } }.traverseTo;
  identified("MediaStream", "id", () => []);
  identified("MediaStreamTrack", "id", ({ kind }) => [kind]);
  if (globalThis.MediaStream) MediaStream.prototype.getTrackById = { getTrackById(id) {
    return this.getTracks().find((track) => track.id === `${id}`) ?? null;
  } }.getTrackById;

  // Depends on the machine and its load.
  const constant = (prototype, values) => {
    if (!prototype) return;
    for (const [name, value] of Object.entries(values)) {
      const old = Object.getOwnPropertyDescriptor(prototype, name);
      if (old && old.get) defineProperty(prototype, name, { ...old, get: () => value });
    }
  };
  constant((globalThis.Navigator ?? globalThis.WorkerNavigator).prototype, { hardwareConcurrency: 4, deviceMemory: 8 });
  if (globalThis.performance?.memory) { // of a prototype without a name
    constant(Object.getPrototypeOf(performance.memory), {
      jsHeapSizeLimit: 4294705152, totalJSHeapSize: 10000000, usedJSHeapSize: 10000000,
    });
  }
  // From the profile's user agent, not from the browser in use (context.py).
  const { NavigatorUAData: data } = globalThis;
  if (data && "hints" in pin) {
    const holder = (globalThis.Navigator ?? globalThis.WorkerNavigator).prototype;
    if (!pin.hints) delete holder.userAgentData;
    else {
      const { fullVersion: uaFullVersion, ...hints } = { ...pin.hints };
      const { brands, mobile, platform } = hints;
      const shown = Object.freeze(brands.map(Object.freeze));
      constant(data.prototype, { brands: shown, mobile, platform });
      const { getHighEntropyValues: natively } = data.prototype;
      const known = { ...hints, uaFullVersion };
      const methods = {
        async getHighEntropyValues(names) {
          await invoke(natively, this, []); // throws for other objects
          const wanted = [...names].filter((name) => name in known).sort();
          return structuredClone({ brands, mobile, platform, ...Object.fromEntries(wanted.map((name) => [name, known[name]])) });
        },
        toJSON: () => structuredClone({ brands, mobile, platform }),
      };
      for (const name of Object.keys(methods)) {
        defineProperty(data.prototype, name, { value: methods[name], writable: true, configurable: true, enumerable: true });
      }
    }
  }
  // It differs between recording and replay, and sites send other requests for it (archiveweb.page#331).
  constant(globalThis.PerformanceResourceTiming?.prototype, { nextHopProtocol: "http/1.1" });
  const confidence = { value: "high", randomizedTriggerRate: 0 };
  const { PerformanceTimingConfidence: timing } = globalThis;
  constant(timing?.prototype, confidence);
  if (timing) timing.prototype.toJSON = { toJSON: () => ({ ...confidence }) }.toJSON;
  constant(globalThis.NetworkInformation && NetworkInformation.prototype, {
    rtt: 50, downlink: 10, effectiveType: "4g", saveData: false,
  });
}
