// Everything works without this script; with it parts of pages load by themselves.
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
  place.innerHTML = '<p class="problem">The server does not answer. Is reg ui still running?</p>';
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

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-into]");
  if (link) {
    event.preventDefault();
    load(document.getElementById(link.dataset.into), link.dataset.part);
  }
  if (event.target.closest("[data-theme-switch]")) { // all pages, and reports, are sent in the colours that were chosen
    document.cookie = `reg-theme=${document.documentElement.dataset.theme}; path=/; samesite=lax; max-age=31536000`;
  }
});

function unfold() {
  const fold = document.getElementById(location.hash.slice(1))?.parentElement.querySelector(":scope > details");
  if (fold) fold.open = true;
}

addEventListener("hashchange", unfold);
unfold();
prepare(document);
