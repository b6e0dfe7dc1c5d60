/* The way into the Learn tab: its script and styles come when it is first opened; links and the race lead there. */
(function (global) {
  "use strict";

  const { el } = global.SpeculoscopePage, HOME = "speculoscope-learn";
  let loading = null, opened = null, wanted = [];

  function load() {
    return (loading ??= new Promise((resolve, reject) => {
      const style = el("link"), script = el("script");
      Object.assign(style, { rel: "stylesheet", href: `${HOME}/learn.css` });
      Object.assign(script, { src: `${HOME}/learn.js`, onload: resolve, onerror: () => { loading = null; reject(new Error("no script")); } });
      document.head.append(style, script);
    }));
  }

  async function learn(element, server) {
    const root = element.querySelector(".sp-learn");
    try {
      await load();
    } catch {
      root.textContent = "The lessons could not be fetched. Reload the page in a moment.";
      return;
    }
    opened = await global.SpeculoscopeLearn.mountPage(root, server);
    root.removeAttribute("aria-busy");
    for (const act of wanted.splice(0)) await act(opened);
  }

  const tab = () => [...document.querySelectorAll(".sp-tabs button[role=tab]")].find((node) => node.textContent.trim() === "Learn");

  /** Bring the Learn tab forward and do something there, now or once it stands. */
  function toLearn(act) {
    if (opened) act(opened); else wanted.push(act);
    selectTab();
  }

  /** Clicks the tab as soon as Gradio has added it. */
  function selectTab() {
    if (tab()) { tab().click(); return; }
    const watch = new MutationObserver(() => {
      if (!tab()) return;
      watch.disconnect();
      tab().click();
    });
    watch.observe(document.documentElement, { childList: true, subtree: true });
  }

  /** From a token on the race to the step of its iteration that decides it. */
  function explain({ run, lane, iteration, index, drafted }) {
    toLearn(async (there) => {
      await there.openId(run);
      there.goTo({ place: "steps", lane, iteration, step: index < drafted ? "verdict" : "own" });
      there.places.steps.towards(index);
    });
  }

  Object.assign(global.SpeculoscopePage, { learn, toLearn, explain });
  const query = new URLSearchParams(global.location.search);
  if (query.has("lesson") || query.has("learn")) selectTab();
})(window);
