// The pages of jobs: follow what is going on until nothing is.
"use strict";

const between = 1000; // milliseconds

async function follow(place, status) {
  while (place.firstElementChild?.dataset.follow) {
    await new Promise((done) => { setTimeout(done, between); });
    const before = place.firstElementChild.dataset;
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const read = place.querySelector(".lines")?.scrollTop ?? 0;
    try {
      show(place, await ask(before.follow));
    } catch {
      return fail(place);
    }
    const now = place.firstElementChild.dataset;
    if (now.state !== before.state) {
      status.textContent = now.said;
      document.title = document.title.replace(before.state, now.state);
    }
    if (focused) {
      const same = (one) => one.getAttribute("href") === focused.getAttribute("href");
      const again = [...place.querySelectorAll(focused.localName)].find(same);
      (again ?? place.querySelector("a, button"))?.focus({ preventScroll: true });
    }
    const lines = place.querySelector(".lines");
    if (lines) lines.scrollTop = read;
  }
}

follow(document.getElementById("following"), document.querySelector("[data-job-status]"));
