// Level EXACT, in documents and workers: events of WebSockets and EventSources. They arrive at any time, and are
// delivered when the driver requests it (`move("arrive")`): connection by connection, in the order of their creation.
// Runs after hold.js; called with `pin` = {time, hold}.
(pin) => {
  "use strict";
  const { invoke, applyTo: apply } = pin;
  const { defineProperty, getOwnPropertyDescriptor } = Object;
  const { hooks } = pin.time;
  const { flag } = pin.hold;
  const TURNS = 32; // microtask turns between two events, in place of a full checkpoint
  const listen = EventTarget.prototype.addEventListener;
  const dispatch = EventTarget.prototype.dispatchEvent;
  const { WebSocket: socket, EventSource: source, MessageEvent: Message, CloseEvent: Close, Event: Plain } = globalThis;
  const open = new Set(); // connections that may have events
  const known = new WeakMap(); // object -> its connection: {target, events, state, binary, types}

  hooks.arrive = async () => {
    let given = 0;
    for (const connection of [...open]) {
      while (connection.events.length) {
        const [state, native] = connection.events.shift();
        const event = copyOf(connection, native);
        if (state !== null) connection.state = state;
        if (event.type === "close") open.delete(connection);
        invoke(dispatch, connection.target, event);
        connection.after?.();
        for (let turn = 0; turn < TURNS; turn++) await undefined;
        given += 1;
      }
    }
    return given;
  };
  const copyOf = (connection, event) => {
    const { type } = event;
    if (event instanceof Message) {
      const { data, origin, lastEventId } = event;
      const isBinary = data instanceof ArrayBuffer && connection.binary === "blob";
      return new Message(type, { data: isBinary ? new Blob([data]) : data, origin, lastEventId });
    }
    if (Close && event instanceof Close) {
      const { code, reason, wasClean } = event;
      return new Close(type, { code, reason, wasClean });
    }
    return new Plain(type);
  };
  const take = (connection, type, stateAfter) => {
    connection.types.add(type);
    invoke(listen, connection.target, type, (event) => {
      if (!event.isTrusted) return;
      event.stopImmediatePropagation();
      connection.events.push([stateAfter(event), event]);
    });
  };
  // A getter of what the page has received, for connections; the native one throws for other objects.
  const shows = (prototype, name, value, set) => {
    const old = getOwnPropertyDescriptor(prototype, name);
    defineProperty(prototype, name, { ...old,
      get() {
        const native = invoke(old.get, this);
        const connection = known.get(this);
        return connection ? value(connection, native) : native;
      },
      ...(set && { set(given) { set(old, this, given); } }),
    });
  };
  const replaceWith = (name, native, made) => {
    globalThis[name] = new Proxy(native, { construct(target, args, newTarget) {
      const object = Reflect.construct(target, args, newTarget === globalThis[name] ? target : newTarget);
      const connection = { target: object, events: [], state: 0, binary: "blob", types: new Set() };
      known.set(object, connection);
      open.add(connection);
      made(connection);
      return object;
    } });
    native.prototype.constructor = globalThis[name];
  };

  if (socket) {
    const { prototype } = socket;
    const binary = getOwnPropertyDescriptor(prototype, "binaryType");
    replaceWith("WebSocket", socket, (connection) => {
      invoke(binary.set, connection.target, "arraybuffer"); // the page may choose when it hears that it is open
      take(connection, "open", () => 1);
      take(connection, "message", () => null);
      take(connection, "error", () => null);
      take(connection, "close", () => 3);
    });
    shows(prototype, "readyState", ({ state }) => state);
    shows(prototype, "bufferedAmount", () => 0);
    for (const name of ["protocol", "extensions"]) shows(prototype, name, ({ state }, native) => state ? native : "");
    shows(prototype, "binaryType", (connection) => connection.binary, (old, object, given) => {
      const connection = known.get(object);
      if (!connection) invoke(old.set, object, given);
      else if (given === "blob" || given === "arraybuffer") connection.binary = given;
    });
    const { send, close } = prototype;
    prototype.send = { send(data) {
      if (arguments.length && known.get(this)?.state === 0) {
        throw new DOMException("Failed to execute 'send' on 'WebSocket': Still in CONNECTING state.", "InvalidStateError");
      }
      return apply(send, this, arguments);
    } }.send;
    prototype.close = { close(...args) {
      const result = apply(close, this, args);
      const connection = known.get(this);
      if (connection && connection.state < 2) {
        connection.state = 2;
        connection.events = connection.events.filter(([, { type }]) => type !== "message" && type !== "open");
      }
      return result;
    } }.close;
  }

  if (source) {
    const { prototype } = source;
    const stateOf = getOwnPropertyDescriptor(prototype, "readyState").get;
    replaceWith("EventSource", source, (connection) => {
      take(connection, "open", () => 1);
      take(connection, "message", () => null);
      take(connection, "error", () => invoke(stateOf, connection.target));
      connection.after = () => {
        const connects = connection.state === 0 && invoke(stateOf, connection.target) !== 2;
        if (connects) flag("an EventSource connects again by the real clock");
      };
    });
    shows(prototype, "readyState", ({ state }) => state);
    const { close } = prototype;
    prototype.close = { close() {
      invoke(close, this);
      const connection = known.get(this);
      if (!connection) return;
      connection.state = 2;
      connection.events = [];
      open.delete(connection);
    } }.close;
    // Events have names of the site: the page's first listener of a type shows it.
    defineProperty(prototype, "addEventListener", { configurable: true, writable: true, enumerable: true,
      value: { addEventListener(type, ...rest) {
        const connection = known.get(this);
        if (connection && !connection.types.has(String(type))) take(connection, String(type), () => null);
        return apply(listen, this, [type, ...rest]);
      } }.addEventListener });
  }
}
