// What the driver sees of a document, and how it moves a pinned clock. Runs in an isolated world of
// every frame: the page shares the DOM with it and nothing else, so real timers are at hand here.
(() => {
  "use strict";
  if (globalThis.eye) return;
  let changes = 0;
  const wanted = { subtree: true, childList: true, attributes: true, characterData: true };
  const seen = new WeakSet();
  const observer = new MutationObserver((records) => { changes += records.length; });
  const watch = (root) => {
    if (!seen.has(root)) {
      seen.add(root);
      observer.observe(root, wanted);
      changes += 1;
    }
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.shadowRoot) watch(node.shadowRoot);
    }
  };
  seen.add(document);
  observer.observe(document, wanted);

  const look = () => {
    changes += observer.takeRecords().length;
    return { changes, loading: document.readyState === "loading" };
  };
  const within = (promise, ms) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, ms))]);
  // One frame drawn, with its resize and intersection observers, and the tasks behind it.
  const drawn = () => within(
    new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))), 1000,
  ).then(() => new Promise((resolve) => setTimeout(resolve)));

  globalThis.eye = {
    look,
    // Tell the page's clock to move; null where the page has none.
    clock(door, command, time) {
      return new Promise((resolve) => {
        addEventListener(door + "!", (event) => {
          event.stopImmediatePropagation();
          resolve({ ...JSON.parse(event.detail), ...look() });
        }, { once: true, capture: true });
        const detail = JSON.stringify({ command, time });
        const heard = !dispatchEvent(new CustomEvent(door, { detail, cancelable: true }));
        if (!heard) resolve(null);
      });
    },
    async barrier(ms) {
      watch(document);
      if (document.readyState === "loading") {
        await within(new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve)), ms);
      }
      await drawn();
      const images = [...document.images].filter((image) => image.complete && image.naturalWidth);
      await within(Promise.all(images.map((image) => image.decode().catch(() => null))), ms);
      if (document.fonts.status === "loading") await within(document.fonts.ready, ms);
      return look();
    },
    // Resolves when nothing has changed for so long, or at the limit.
    quiet(span, limit) {
      return new Promise((resolve) => {
        let timer = 0;
        const restart = () => { clearTimeout(timer); timer = setTimeout(finish, span); };
        const local = new MutationObserver(restart);
        const end = setTimeout(() => finish(), limit);
        const finish = () => {
          local.disconnect();
          clearTimeout(end);
          clearTimeout(timer);
          resolve(look());
        };
        local.observe(document, wanted);
        restart();
      });
    },
  };
})()
