// The page of a job: follow it until it ends.
"use strict";

const between = 1000; // milliseconds

async function follow(place, status) {
  while (place.firstElementChild?.dataset.follow) {
    await new Promise((done) => { setTimeout(done, between); });
    const before = place.firstElementChild.dataset.state;
    const focused = place.contains(document.activeElement) ? document.activeElement.localName : null;
    const read = place.querySelector(".lines")?.scrollTop ?? 0;
    try {
      show(place, await ask(place.firstElementChild.dataset.follow));
    } catch {
      return fail(place);
    }
    const now = place.firstElementChild.dataset.state;
    if (now !== before) status.textContent = `The job is ${now}.`;
    if (now !== before) document.title = document.title.replace(before, now);
    if (focused) (place.querySelector(focused) ?? place.querySelector("a, button"))?.focus({ preventScroll: true });
    const lines = place.querySelector(".lines");
    if (lines) lines.scrollTop = read;
  }
}

follow(document.getElementById("job"), document.querySelector("[data-job-status]"));
