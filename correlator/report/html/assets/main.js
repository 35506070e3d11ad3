// SPDX-License-Identifier: Apache-2.0
// What is shown: the whole, or one document of it; the address says which, so "back" works.

const main = document.getElementById("main");
let whole = null;
let wholeElement = null;
let opened = null;
let scrolled = 0;

function themeSwitch() {
  const names = ["auto", "light", "dark"];
  let at = 0;
  try { at = Math.max(0, names.indexOf(localStorage.getItem("gpucorrelate-theme"))); } catch { /* no storage here */ }
  const button = make("button", { type: "button", class: "theme" });
  const apply = () => {
    if (at) document.documentElement.dataset.theme = names[at];
    else delete document.documentElement.dataset.theme;
    button.textContent = `theme: ${names[at]}`;
    button.setAttribute("aria-label", `theme ${names[at]}; choose the next`);
    redraw();
  };
  button.addEventListener("click", () => {
    at = (at + 1) % names.length;
    try { localStorage.setItem("gpucorrelate-theme", names[at]); } catch { /* no storage here */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is light; pictures are painted for it before it is printed.
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; redraw(true); });
  addEventListener("afterprint", apply);
  apply();
  return button;
}

function open(kind, i) {
  scrolled = scrollY;
  location.hash = `${kind}=${i}`;
}

async function documentPage(place, back) {
  const view = new PathView(await documentAt(place), { back });
  const element = await view.element();
  opened = view;
  return element;
}

function back() {
  if (history.state !== null || history.length > 1) history.back();
  else location.hash = "";
}

function tabs() {
  if (HEAD.documents.length < 2) return "";
  return make("nav", { class: "tabs", "aria-label": "requests" }, HEAD.documents.map((one, i) =>
    make("a", { href: `#d=${i}`, "data-tab": i }, `${word(one.id)} ${duration(one.wall_ns)}`)));
}

async function route() {
  const [, kind, text] = /^#([rspd])=(\d+)$/.exec(location.hash) ?? [];
  const i = Number(text);
  hideTip();
  if (HEAD.kind === "documents") {
    const at = kind === "d" && HEAD.documents[i] ? i : 0;
    if (opened && at === route.at) return;
    route.at = at;
    const one = HEAD.documents[at];
    const element = await documentPage([one.block, one.place], null);
    main.replaceChildren(tabs(), element, ledgerSection());
    main.querySelector(`[data-tab="${at}"]`)?.setAttribute("aria-current", "page");
    return;
  }
  const place = kind && whole.placeOf(kind, i);
  if (place) {
    const element = await documentPage(place, back);
    main.replaceChildren(element, ledgerSection());
    scrollTo({ top: 0, behavior: "instant" });
    main.focus({ preventScroll: true });
    announce(`${word(opened.one.id)} opened`);
  } else if (opened || !main.contains(wholeElement)) {
    const returned = opened !== null;
    opened = null;
    main.replaceChildren(wholeElement, wholeLedger);
    redraw();
    if (!returned) return;
    scrollTo({ top: scrolled, behavior: "instant" });
    (whole.grid?.box ?? main).focus({ preventScroll: true });
  }
}

let wholeLedger = null;

async function begin() {
  main.setAttribute("tabindex", "-1");
  document.body.prepend(make("div", { class: "bar-top" }, make("span", { class: "brand" }, "gpucorrelate"), themeSwitch()));
  document.body.append(alive, tip);
  await loadWords();
  if (HEAD.kind !== "documents") {
    whole = new (HEAD.kind === "run" ? RunView : ProfileView)(open);
    wholeElement = await whole.element();
    wholeLedger = ledgerSection();
  }
  addEventListener("hashchange", () => void route());
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    hideTip();
    if ((opened ?? whole)?.escape?.()) return;
    if (opened && HEAD.kind !== "documents") back();
  });
  await route();
  document.documentElement.dataset.ready = "yes";
}

// For who wants to work with what is on the page, and for tests.
globalThis.gpucorrelate = { duration, share, segment: segmentValues, whole: () => whole, opened: () => opened };
void begin();
