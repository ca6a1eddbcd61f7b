// Level NETWORK: randomness from a seed, constants for what the machine would tell.
// Runs in the page's own world, in every frame, before any script of the page. Leaves no name behind.
// Called with `pin` = {seed, door}; `start` is filled in by clock.js, which runs after it.
(pin) => {
  "use strict";
  const { defineProperty } = Object;

  // The place of this frame among its siblings, up to the top: what tells equal frames apart.
  // Comparing WindowProxy objects and reading `length` is allowed across origins (HTML §7.2.3.2).
  const place = () => {
    let path = "";
    for (let here = window; here !== here.parent; here = here.parent) {
      let index = 0;
      while (index < here.parent.length && here.parent[index] !== here) index++;
      path = `${index}/${path}`;
    }
    return path;
  };

  // xmur3 to hash the seed text, sfc32 to draw: both small, public-domain, and good enough for pages.
  const generator = (text) => {
    let h = 1779033703 ^ text.length;
    for (let i = 0; i < text.length; i++) {
      h = Math.imul(h ^ text.charCodeAt(i), 3432918353);
      h = (h << 13) | (h >>> 19);
    }
    const word = () => {
      h = Math.imul(h ^ (h >>> 16), 2246822507);
      h = Math.imul(h ^ (h >>> 13), 3266489909);
      return (h ^= h >>> 16) >>> 0;
    };
    let [a, b, c, d] = [word(), word(), word(), word()];
    const draw = () => {
      const t = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (c << 21) | (c >>> 11);
      c = (c + t) | 0;
      return t >>> 0;
    };
    for (let i = 0; i < 15; i++) draw();
    return draw;
  };

  // Two streams, so that a draw from one API does not shift the other. Made at the first draw, when
  // the document's place in virtual time is known.
  const streams = new Map();
  const stream = (name) => {
    if (!streams.has(name)) {
      const here = location.origin + location.pathname;
      streams.set(name, generator([pin.seed, name, place(), here, pin.start ?? ""].join("\n")));
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

  const native = window.Crypto && Crypto.prototype.getRandomValues;
  if (native) {
    const fill = (bytes) => {
      const draw = stream("crypto");
      for (let i = 0; i < bytes.length; i++) bytes[i] = draw() >>> 24;
      return bytes;
    };
    const methods = {
      getRandomValues(array) {
        native.call(this, array); // throws as it should for what is no integer array or too long
        fill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
        return array;
      },
      randomUUID() {
        const bytes = fill(new Uint8Array(16));
        bytes[6] = (bytes[6] & 0x0f) | 0x40; // RFC 9562 §5.4
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
        return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
      },
    };
    defineProperty(Crypto.prototype, "getRandomValues", { value: methods.getRandomValues });
    if (Crypto.prototype.randomUUID) {
      defineProperty(Crypto.prototype, "randomUUID", { value: methods.randomUUID });
    }
  }

  // What depends on the machine and its load.
  const constant = (prototype, values) => {
    if (!prototype) return;
    for (const [name, value] of Object.entries(values)) {
      const old = Object.getOwnPropertyDescriptor(prototype, name);
      if (old && old.get) defineProperty(prototype, name, { ...old, get: () => value });
    }
  };
  constant(Navigator.prototype, { hardwareConcurrency: 4, deviceMemory: 8 });
  constant(window.NetworkInformation && NetworkInformation.prototype, {
    rtt: 50, downlink: 10, effectiveType: "4g", saveData: false,
  });
}
