// What is there for the pointer, besides controls: elements with a hand or the like under it, with listeners of
// their own, or to be dragged. Runs in the isolated world, between names.js and survey.js. Listeners of the page's own world
// cannot be seen from here; the driver asks the browser for them and has the elements learnt (`pointed.learn`).
(() => {
  "use strict";
  if (globalThis.pointed) return;
  const { SKIPPED, WIDGETS, flatChildren, flatParent, roleOf } = names;
  const CONTROLS = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, option, "
    + "[contenteditable]:not([contenteditable=false]), [tabindex], audio[controls], video[controls]";
  // What is in them is reached through them.
  const WHOLE = "a[href], button, summary, option, select";
  // An element with more in it, or with controls in it, listens for what is in it.
  const MOST_INSIDE = 20;
  const DRAGS = /^(grab|move|all-scroll)$|-resize$/;

  // A hand, and none above it but that of a list, which has it for its items. The rule of `eye.clickable`.
  const NO_HAND = "a[href], button, input, select, textarea, summary, option, label, [role], [tabindex], [contenteditable]";
  const isList = ({ children: items }) => items.length > 1
    && [...items].every((item) => item.localName === items[0].localName && item.classList[0] === items[0].classList[0]
      && item.textContent.trim() && getComputedStyle(item).display !== "inline");

  const learnt = new Map(); // CDP's number of a node -> the node, as long as it lives

  // The nodes that the driver is told of have numbers, so that it is told of each once: it says how many of them it knows.
  // `fresh` are the ones beyond.
  let numbers = new WeakMap();
  let fresh = [], told = 0;
  const numberOf = (node) => {
    let number = numbers.get(node);
    if (number === undefined) {
      numbers.set(node, number = told + fresh.length);
      fresh.push(node);
    }
    return number;
  };

  globalThis.pointed = {
    numberOf,
    begin(known) {
      if (known < told || known > told + fresh.length) { // it has forgotten, as with a document that left its window
        numbers = new WeakMap();
        fresh = [];
      } else fresh = fresh.slice(known - told);
      told = known;
    },
    telling(text) {
      return [text, ...fresh];
    },
    learn(numbers, ...nodes) {
      for (let i = 0; i < numbers.length; i++) learnt.set(numbers[i], new WeakRef(nodes[i]));
    },

    // Returns what tells of an element whether it acts: "" (not), "control", or "hand" for all others.
    // `listening`: numbers of elements with listeners; null for controls and hands only.
    finder(listening) {
      const listeners = new Set();
      for (const number of listening ?? []) {
        const element = learnt.get(number)?.deref();
        if (element?.isConnected) listeners.add(element);
      }
      const known = new Map();
      const hand = (element, cursor) => {
        if (!element || (cursor ?? getComputedStyle(element).cursor) !== "pointer") return { own: false, passes: false };
        let found = known.get(element);
        if (!found) {
          const own = !hand(flatParent(element)).passes && !element.matches(NO_HAND);
          const list = own && isList(element);
          known.set(element, found = { own: own && !list, passes: !list });
        }
        return found;
      };
      const small = (element) => element.getElementsByTagName("*").length <= MOST_INSIDE
        && element !== document.body && element !== document.documentElement
        && !element.querySelector(CONTROLS) && !element.parentElement?.closest(`${WHOLE}, label`);
      const isItems = (element) => (element.localName === "ul" || element.localName === "ol") && isList(element);
      const listens = (element) => {
        if (listeners.has(element)) return small(element) && !isItems(element);
        const above = element.parentElement; // a list listens for its items
        return element.localName === "li" && listeners.has(above) && small(element) && isItems(above);
      };
      const drags = (element, cursor) => element.matches("[draggable=true]")
        || (DRAGS.test(cursor) && element.parentElement && getComputedStyle(element.parentElement).cursor !== cursor);
      return (element, { cursor } = getComputedStyle(element)) => {
        if (element.matches(CONTROLS) || (element.matches("[role]") && WIDGETS.has(roleOf(element)))) return "control";
        const within = () => element.parentElement?.closest(WHOLE);
        if (cursor === "pointer" && hand(element, cursor).own) return listening && within() ? "" : "hand";
        return listening && (listens(element) || drags(element, cursor)) ? "hand" : "";
      };
    },

    // All of a document that are no controls, and the texts in them, in tree order: their numbers, and of each text the place
    // of the innermost such element around it, of each element -1.
    all(listening, known) {
      this.begin(known);
      const acts = this.finder(listening);
      const nodes = [], around = [];
      const todo = document.documentElement ? [[document.documentElement, -1]] : [];
      while (todo.length) {
        let [node, index] = todo.pop();
        if (node.nodeType === Node.TEXT_NODE) {
          if (index >= 0 && node.data.trim()) {
            nodes.push(node);
            around.push(index);
          }
          continue;
        }
        if (SKIPPED.has(node.localName) || !node.checkVisibility() && getComputedStyle(node).display !== "contents") continue;
        const style = getComputedStyle(node);
        if (style.visibility === "visible" && acts(node, style) === "hand") {
          index = nodes.length;
          nodes.push(node);
          around.push(-1);
        }
        const children = flatChildren(node);
        for (let i = children.length - 1; i >= 0; i--) {
          const type = children[i].nodeType;
          if (type === Node.ELEMENT_NODE || (type === Node.TEXT_NODE && index >= 0)) todo.push([children[i], index]);
        }
      }
      return this.telling(JSON.stringify([nodes.map(numberOf), around]));
    },
  };
})()
