// Level EXACT, in a worker: the control function that moves its clock and delivers its messages. Evaluated before the
// worker's first script runs; pin.js, time.js and hold.js have run. Called with `pin` = {seed, name, control, start,
// time}. The control function is a property that cannot be enumerated.
(pin) => {
  "use strict";
  const { invoke } = pin;
  const { defineProperty } = Object;
  const { hold } = pin;
  let heard = 0;
  const linked = new WeakMap(); // port of a shared worker -> the call after each message
  hold.sends(globalThis.MessagePort?.prototype, null, (port) => linked.get(port)?.());
  if (globalThis.SharedWorkerGlobalScope) {
    addEventListener("connect", ({ ports: [port] }) => {
      linked.set(port, hold.link(port));
      hold.connected();
    }, true);
  }
  if (globalThis.DedicatedWorkerGlobalScope) globalThis.postMessage(pin.control); // has begun
  if (globalThis.DedicatedWorkerGlobalScope) hold.sends(globalThis, globalThis.postMessage.bind(globalThis));
  if (globalThis.Worker) hold.sends(Worker.prototype);
  const { close } = globalThis;
  if (close) {
    defineProperty(globalThis, "close", { configurable: true, writable: true, value: { close() {
      for (const each of hold.queue.splice(0)) if (!each.ended) each.deliver(); // sent messages must arrive
      return invoke(close, globalThis);
    } }.close });
  }
  globalThis.addEventListener("message", (event) => {
    heard += 1;
    if (globalThis.crossOriginIsolated) hold.share(event.data);
  });
  // Delivers pending messages and results, and returns whether anything happened.
  const calm = async () => {
    await scheduler.postTask(() => {}, { priority: "background" });
    const { given, flags, starting, unread, deaf } = await move("give", 0);
    return { heard, given, flags, starting, unread, deaf, made: pin.time.hooks.made() };
  };
  const started = () => new Promise((resolve) => {
    pin.time.hooks.started = resolve;
    if (!pin.time.hooks.starting() && !pin.time.hooks.unread()) resolve();
  });
  const move = (command, time) => command === "started" ? started() : pin.time.move(command, time);
  defineProperty(globalThis, pin.control, { value: (command, time) => command ? move(command, time) : calm() });
}
