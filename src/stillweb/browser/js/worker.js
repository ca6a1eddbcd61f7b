// Level EXACT, in a worker: the door by which the driver moves its clock, and what it has been sent.
// Evaluated when the worker's own first script is about to run; pin.js, time.js and hold.js have run.
// Called with `pin` = {seed, place, door, start, time}. The door is a property that cannot be enumerated.
(pin) => {
  "use strict";
  const { defineProperty } = Object;
  const { hold } = pin;
  let heard = 0;
  hold.sends(globalThis.MessagePort?.prototype);
  if (globalThis.DedicatedWorkerGlobalScope) hold.sends(globalThis, globalThis.postMessage.bind(globalThis));
  if (globalThis.Worker) hold.sends(Worker.prototype);
  const { close } = globalThis;
  if (close) {
    defineProperty(globalThis, "close", { configurable: true, writable: true, value: { close() {
      for (const each of hold.queue.splice(0)) if (!each.ended) each.deliver(); // what it has said, it has said
      return close.call(globalThis);
    } }.close });
  }
  globalThis.addEventListener("message", () => { heard += 1; });
  // Gives what is to be given, and tells whether anything has happened.
  const calm = async () => {
    await scheduler.postTask(() => {}, { priority: "background" });
    const told = await move("give", 0);
    return { heard, given: told.given, flags: told.flags };
  };
  const move = (command, time) => pin.time.move(command, time);
  defineProperty(globalThis, pin.door, { value: (command, time) => command ? move(command, time) : calm() });
}
