// Everything works without this script; with it parts of pages load by themselves, and commands can be copied.
"use strict";

const wait = 200; // milliseconds without a change before the page sends a request

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

function composer(form) {
  const result = document.getElementById("result");
  const experts = document.getElementById("experts");
  const count = form.querySelector("[data-count]");
  const status = form.querySelector("[data-status]");
  const search = form.elements.q;
  const last = {};
  form.querySelector(".submit").hidden = true;

  function query() {
    const asked = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      const field = form.elements[name];
      const untouched = name !== "e" && field instanceof HTMLElement && value === (field.dataset.default ?? "");
      if (value && !untouched) asked.append(name, value);
    }
    return asked;
  }

  async function replace(part, place) {
    last[part]?.abort();
    const stop = (last[part] = new AbortController());
    const asked = query();
    if (part === "result") asked.delete("q");
    place.setAttribute("aria-busy", "true");
    const shown = new URLSearchParams(query()).toString();
    history.replaceState(null, "", shown ? `?${shown}` : location.pathname);
    asked.append("part", part);
    try {
      const text = await ask(`${form.action}?${asked}`, stop.signal);
      show(place, text);
      if (part === "result") status.textContent = place.querySelector(".problem") ? "There is no plan." : "The plan is up to date.";
    } catch (error) {
      if (error.name !== "AbortError") fail(place);
    }
  }

  function later(part, place) {
    clearTimeout(last[`${part} timer`]);
    last[`${part} timer`] = setTimeout(() => replace(part, place), wait);
  }

  function fields() {
    for (const field of form.querySelectorAll("[data-to]")) {
      const [other, ...methods] = (field.dataset.with ?? "").split(" ");
      const apart = other && !methods.includes(form.elements[other].value);
      field.hidden = apart || !field.dataset.to.split(" ").includes(form.elements.to.value);
    }
  }

  form.addEventListener("input", (event) => {
    if (event.target === search) return later("experts", experts);
    fields();
    if (["router", "to"].includes(event.target.name)) later("experts", experts);
    count.textContent = `${form.querySelectorAll("[name=e]:checked").length} ticked`;
    return later("result", result);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    replace("result", result);
  });
  fields();
}

prepare(document);
for (const button of document.querySelectorAll("[data-theme-switch]")) themes(button);
for (const form of document.querySelectorAll("[data-composer]")) composer(form);
