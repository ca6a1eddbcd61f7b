// Level EXACT, in documents and workers: databases open, and their transactions end, one after the other. Runs after
// hold.js; called with `pin` = {hold}.
(pin) => {
  "use strict";
  const { IDBFactory: factory, IDBDatabase: database, IDBTransaction: ofRequests, IDBRequest: idbRequest, IDBObjectStore: store } = globalThis;
  if (!factory) return;
  const { invoke, applyTo } = pin;
  const { push, until, wrap, flag } = pin.hold;
  const { getOwnPropertyDescriptor } = Object;
  const NativePromise = Promise;
  const { IDBVersionChangeEvent: VersionChange, IDBCursor: Cursor } = globalThis;
  const listen = EventTarget.prototype.addEventListener;
  const dispatch = EventTarget.prototype.dispatchEvent;

  // ---- requests to open or delete a database -----------------------------------------------------
  // Their events come between tasks of the parser, and beside transactions of other databases, at any time. They are
  // delivered at rests, and a rest comes after the transactions.
  const OPENING = ["upgradeneeded", "success", "error", "blocked"];
  const announce = (request) => {
    let take = () => {};
    const next = () => {
      let deliver = () => {};
      push(() => deliver(), new NativePromise((resolve) => {
        take = (event) => {
          event.stopImmediatePropagation();
          const { type, bubbles, cancelable, oldVersion, newVersion } = event;
          const copy = event instanceof VersionChange ? new VersionChange(type, { oldVersion, newVersion })
            : new Event(type, { bubbles, cancelable });
          const announce = () => invoke(dispatch, request, copy);
          if (type === "blocked") next();
          deliver = type === "upgradeneeded" ? heldOpen(request, announce, next) : announce;
          resolve();
        };
      }));
    };
    next();
    for (const type of OPENING) invoke(listen, request, type, (event) => { if (event.isTrusted) take(event); }, true);
  };
  const STORE = "\u0000";
  // A transaction ends once it has no request: a store that no page sees is read until the event has been delivered.
  const heldOpen = ({ result, transaction }, announce, next) => {
    const made = result.createObjectStore(STORE);
    let isDue = false;
    const read = () => {
      invoke(listen, made.get(0), "success", () => {
        if (!isDue) return read();
        result.deleteObjectStore(STORE);
        announce();
      });
    };
    read();
    return () => {
      isDue = true;
      next();
      until(transaction, ["complete", "abort"]);
    };
  };
  wrap(factory.prototype, ["databases"]);
  for (const name of ["open", "deleteDatabase"]) {
    const native = factory.prototype[name];
    factory.prototype[name] = { [name](...args) {
      const request = applyTo(native, this, args);
      announce(request);
      return request;
    } }[name];
  }

  // ---- transactions ------------------------------------------------------------------------------
  // The browser process runs several beside each other, and their events come in any order. A realm gets them transaction
  // by transaction, in the order of creation. Reads keep a transaction alive until its turn.
  const ENDS = ["complete", "abort"];
  const live = []; // {transaction, held, read}, in the order of creation
  const turns = new WeakMap(); // transaction -> its entry
  const followed = new WeakSet(); // databases
  const { transaction: begin } = database.prototype;
  const { objectStore, commit } = ofRequests.prototype;
  const { getKey } = store.prototype;
  const { get: namesOf } = getOwnPropertyDescriptor(ofRequests.prototype, "objectStoreNames");
  const { get: ownerOf } = getOwnPropertyDescriptor(idbRequest.prototype, "transaction");
  const { get: resultOf } = getOwnPropertyDescriptor(idbRequest.prototype, "result");
  const read = (turn) => {
    const [name] = invoke(namesOf, turn.transaction);
    turn.read = invoke(getKey, invoke(objectStore, turn.transaction, name), 0);
  };
  const deliver = ({ held }) => {
    const { target, type } = held.shift();
    invoke(dispatch, target, new Event(type)); // the transaction is active meanwhile, as for the event of the browser
  };
  const arrived = (event) => {
    const { isTrusted, target, type } = event;
    const turn = isTrusted && turns.get(target instanceof ofRequests ? target : invoke(ownerOf, target));
    if (!turn) return; // an upgrade, or delivered
    if (target === turn.transaction) {
      live.splice(live.indexOf(turn), 1);
      return;
    }
    const isFirst = live[0] === turn;
    if (target === turn.read) {
      event.stopImmediatePropagation();
      turn.read = null;
      if (type === "error") return; // it was aborted
      if (!isFirst || turn.held.length > 1) read(turn);
      if (isFirst && turn.held.length) deliver(turn);
    } else if (!isFirst || turn.held.length) {
      // The value of a cursor exists for one event only, and errors are counted.
      if (type === "error" || invoke(resultOf, target) instanceof Cursor) {
        flag("cursors or errors of several transactions come at one time");
        return;
      }
      event.stopImmediatePropagation();
      turn.held.push(event);
      if (!turn.read) read(turn);
    }
  };
  database.prototype.transaction = { transaction(...args) {
    const made = applyTo(begin, this, args);
    const turn = { transaction: made, held: [], read: null };
    turns.set(made, turn);
    if (live.push(turn) > 1) read(turn);
    if (!followed.has(this)) {
      followed.add(this);
      for (const type of ["success", "error", ...ENDS]) invoke(listen, this, type, arrived, true);
    }
    until(made, ENDS);
    return made;
  } }.transaction;
  if (commit) ofRequests.prototype.commit = { commit() {
    const turn = turns.get(this);
    if (!turn || (live[0] === turn && !turn.held.length)) return invoke(commit, this);
    return undefined; // it commits after its turn
  } }.commit;
}
