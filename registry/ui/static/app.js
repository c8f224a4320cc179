// Everything works without this script; with it parts of pages load by themselves, and commands can be copied.
"use strict";

function prepare(root) {
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
  for (const place of root.querySelectorAll("[data-load]")) load(place, place.dataset.load);
}

async function ask(address, signal) {
  const answer = await fetch(address, { signal, headers: { Accept: "text/html" } });
  return answer.text();
}

function show(place, text) {
  place.innerHTML = text; // rendered by this server, which escapes all values
  place.removeAttribute("aria-busy");
  prepare(place);
  place.dispatchEvent(new Event("shown", { bubbles: true }));
}

function fail(place) {
  place.removeAttribute("aria-busy");
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.textContent = "The server does not answer. Is reg ui still running?";
  place.replaceChildren(problem);
}

async function load(place, address) {
  delete place.dataset.load;
  place.setAttribute("aria-busy", "true");
  const note = place.querySelector(".waiting");
  if (note) note.textContent = "Computing …";
  try {
    show(place, await ask(address));
  } catch {
    if (place.isConnected) fail(place);
  }
}

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const word = copy.firstElementChild;
    const before = word.dataset.before ?? (word.dataset.before = word.textContent);
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      word.textContent = "Copied";
    } catch {
      word.textContent = "Select and copy";
    }
    setTimeout(() => { word.textContent = before; }, 2000);
    return;
  }
  const link = event.target.closest("[data-into]");
  if (link) {
    event.preventDefault();
    load(document.getElementById(link.dataset.into), link.dataset.part);
  }
});

function themes(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keepTheme(root.dataset.theme);
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* no storage: the choice lasts until the page is left */ }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

function unfold() {
  const fold = document.getElementById(location.hash.slice(1))?.parentElement.querySelector(":scope > details");
  if (fold) fold.open = true;
}

addEventListener("hashchange", unfold);
unfold();
prepare(document);
for (const button of document.querySelectorAll("[data-theme-switch]")) themes(button);
