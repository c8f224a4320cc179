// The Compose page: what is ticked is planned as it changes, and a change that is offered is applied to the form.
"use strict";

const wait = 200; // milliseconds without a change before the page sends a request

function composer(form) {
  const outcome = document.querySelector(".outcome");
  const result = document.getElementById("result");
  const experts = document.getElementById("experts");
  const count = form.querySelector("[data-count]");
  const status = document.querySelector("[data-status]");
  const unticked = form.querySelector("[data-unticked]");
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
      if (part === "result") status.textContent = place.querySelector("[role=alert]") ? "It cannot be composed like that." : "The plan is up to date.";
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
    for (const group of form.querySelectorAll("[data-group]")) group.hidden = !group.querySelector(".field:not([hidden])");
  }

  function changed() {
    fields();
    count.textContent = `${form.querySelectorAll("[name=e]:checked").length} ticked`;
    for (const button of outcome.querySelectorAll("button[type=submit]")) button.disabled = true; // until it is up to date
    later("result", result);
  }

  function untickOthers(box) {
    const others = [...form.querySelectorAll("[name=e]:checked")];
    const same = others.filter((other) => other !== box && other.dataset.name === box.dataset.name);
    for (const other of same) other.checked = false;
    const refs = same.map((other) => other.value).join(", ");
    if (refs) unticked.textContent = `${refs} ${same.length > 1 ? "were" : "was"} unticked: one version of a name at a time.`;
  }

  function apply(link) {
    const wanted = new URL(link.href).searchParams;
    const refs = wanted.getAll("e");
    for (const field of form.elements) {
      if (!field.name || field === search) continue;
      if (field.name === "e") field.checked = refs.some((ref) => ref === field.value || ref === field.dataset.name);
      else if (field.type === "checkbox") field.checked = wanted.has(field.name);
      else field.value = wanted.get(field.name) ?? field.dataset.default ?? "";
    }
    unticked.textContent = "";
    changed();
    later("experts", experts);
    status.textContent = `Applied: ${link.textContent.trim()}`;
    document.getElementById("outcome").focus();
  }

  function isChanged(field) {
    if (field.tagName === "SELECT") return field.selectedIndex !== Math.max(0, [...field.options].findIndex((one) => one.defaultSelected));
    return field.tagName === "INPUT" && field !== search && (field.checked !== field.defaultChecked || field.value !== field.defaultValue);
  }

  form.addEventListener("input", (event) => {
    if (event.target === search) return later("experts", experts);
    if (event.target.name === "e") unticked.textContent = "";
    if (event.target.name === "e" && event.target.checked) untickOthers(event.target);
    if (["router", "to"].includes(event.target.name)) later("experts", experts);
    return changed();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    replace("result", result);
  });
  outcome.addEventListener("click", (event) => {
    const link = event.target.closest("[data-apply]");
    if (!link) return;
    event.preventDefault();
    apply(link);
  });
  outcome.addEventListener("submit", () => {
    // after the browser has taken the form: a second press starts nothing
    setTimeout(() => { for (const button of outcome.querySelectorAll("button[type=submit]")) button.disabled = true; });
  });
  outcome.addEventListener("shown", () => {
    form.elements.out.placeholder = result.querySelector("[data-out]")?.dataset.out ?? "";
    const faults = Number(result.querySelector("[data-faults]")?.dataset.faults ?? 0);
    for (const badge of result.querySelectorAll("[data-warnings]")) {
      const all = faults + Number(badge.dataset.warnings);
      badge.hidden = all === 0;
      badge.textContent = all === 1 ? "1 warning" : `${all} warnings`;
    }
  });
  if ([...form.elements].some(isChanged)) changed(); // before this script ran, or by the browser, which keeps what was typed
  new ResizeObserver(() => outcome.style.setProperty("--height", `${outcome.offsetHeight}px`)).observe(outcome);
  fields();
}

for (const form of document.querySelectorAll("[data-composer]")) composer(form);
