// Pointer targets besides controls: elements with a hand cursor, elements that listen for the pointer, and draggable
// elements. Runs in the isolated world, after names.js and before survey.js.
(() => {
  "use strict";
  if (globalThis.pointed) return;
  const { bare, isList } = eye;
  const { SKIPPED, WIDGETS, flatChildren, flatParent, roleOf } = names;
  const CONTROLS = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, option, "
    + "[contenteditable]:not([contenteditable=false]), [tabindex], audio[controls], video[controls]";
  // Elements inside are reached through them.
  const WHOLE = "a[href], button, summary, option, select";
  // An element with more content, or with controls, listens on behalf of its content.
  const MOST_INSIDE = 20;
  const DRAGS = /^(grab|move|all-scroll)$|-resize$/;

  // A hand cursor without an ancestor that has one, except a list, whose items have it. The rule of `eye.clickable`.
  const NO_HAND = "a[href], button, input, select, textarea, summary, option, label, [role], [tabindex], [contenteditable]";

  const learnt = new Map(); // CDP's number of a node -> the node, weakly

  // Reported nodes have numbers, so that each is reported once: the driver says how many it knows. `fresh` are the
  // ones beyond.
  let numbers = new WeakMap();
  let fresh = [], reported = 0;
  const numberOf = (node) => {
    let number = numbers.get(node);
    if (number === undefined) {
      numbers.set(node, number = reported + fresh.length);
      fresh.push(node);
    }
    return number;
  };

  globalThis.pointed = {
    numberOf,
    begin(known) {
      if (known < reported || known > reported + fresh.length) { // the driver has dropped them, as with a document that left its window
        numbers = new WeakMap();
        fresh = [];
      } else fresh = fresh.slice(known - reported);
      reported = known;
    },
    withFresh(text) {
      return [text, ...fresh];
    },
    learn(numbers, ...nodes) {
      for (let i = 0; i < numbers.length; i++) learnt.set(numbers[i], new WeakRef(nodes[i]));
    },

    // Returns a function that classifies an element: "" (not interactive), "control", or "hand" for other pointer
    // targets. `listening`: numbers of elements with listeners; null for controls and hand cursors only.
    finder(listening) {
      const listeners = new Set();
      for (const number of listening ?? []) {
        const element = learnt.get(number)?.deref();
        if (bare(element)?.isConnected) listeners.add(element);
      }
      const known = new Map();
      const hand = (element, cursor) => {
        if (!element || (cursor ?? getComputedStyle(element).cursor) !== "pointer") return { own: false, passes: false };
        let found = known.get(element);
        if (!found) {
          const own = !hand(flatParent(element)).passes && !bare(element).matches(NO_HAND);
          const list = own && isList(element);
          known.set(element, found = { own: own && !list, passes: !list });
        }
        return found;
      };
      const small = (node) => {
        const element = bare(node);
        return element.getElementsByTagName("*").length <= MOST_INSIDE
          && node !== document.body && node !== document.documentElement
          && !element.querySelector(CONTROLS) && !bare(element.parentElement)?.closest(`${WHOLE}, label`);
      };
      const isItems = (element) => ["ul", "ol"].includes(bare(element).localName) && isList(element);
      const listens = (element) => {
        if (listeners.has(element)) return small(element) && !isItems(element);
        const { localName, parentElement: above } = bare(element); // a list listens for its items
        return localName === "li" && listeners.has(above) && small(element) && isItems(above);
      };
      const drags = (element, cursor) => {
        if (bare(element).matches("[draggable=true]")) return true;
        const above = DRAGS.test(cursor) && bare(element).parentElement;
        return above && getComputedStyle(above).cursor !== cursor;
      };
      return (element, { cursor } = getComputedStyle(element)) => {
        const node = bare(element);
        if (node.matches(CONTROLS) || (node.matches("[role]") && WIDGETS.has(roleOf(element)))) return "control";
        const within = () => bare(node.parentElement)?.closest(WHOLE);
        if (cursor === "pointer" && hand(element, cursor).own) return listening && within() ? "" : "hand";
        return listening && (listens(element) || drags(element, cursor)) ? "hand" : "";
      };
    },

    // All pointer targets of a document that are not controls, and the texts in them, in tree order: their numbers,
    // and for each text the index of the innermost target, for each target -1.
    all(listening, known) {
      this.begin(known);
      const acts = this.finder(listening);
      const nodes = [], around = [];
      const todo = document.documentElement ? [[document.documentElement, -1]] : [];
      while (todo.length) {
        let [node, index] = todo.pop();
        if (bare(node).nodeType === Node.TEXT_NODE) {
          if (index >= 0 && node.data.trim()) {
            nodes.push(node);
            around.push(index);
          }
          continue;
        }
        const element = bare(node);
        if (SKIPPED.has(element.localName)) continue;
        if (!element.checkVisibility() && getComputedStyle(node).display !== "contents") continue;
        const style = getComputedStyle(node);
        if (style.visibility === "visible" && acts(node, style) === "hand") {
          index = nodes.length;
          nodes.push(node);
          around.push(-1);
        }
        const children = flatChildren(node);
        for (let i = children.length - 1; i >= 0; i--) {
          const type = bare(children[i]).nodeType;
          if (type === Node.ELEMENT_NODE || (type === Node.TEXT_NODE && index >= 0)) todo.push([children[i], index]);
        }
      }
      return this.withFresh(JSON.stringify([nodes.map(numberOf), around]));
    },
  };
})()
