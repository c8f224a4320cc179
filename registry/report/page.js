"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const formatLocale = { decimal: ".", thousands: ",", grouping: [3], currency: ["", ""], percent: "\u00a0%" }; // as in the text
  function draw(place) {
    const spec = specs[place.dataset.chart];
    if (!spec || place.dataset.drawn) return;
    place.dataset.drawn = "yes";
    window
      .vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true, tooltip: { theme: "own" }, formatLocale })
      .catch((error) => {
        place.textContent = "This chart cannot be drawn here; its figures are in the table.";
        console.error(error);
      });
  }
  for (const place of document.querySelectorAll("[data-chart]")) {
    const fold = place.closest("details");
    if (!fold || fold.open) draw(place);
    else fold.addEventListener("toggle", () => draw(place)); // a hidden chart has no width
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    const word = button.firstElementChild;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        word.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        word.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      }
      setTimeout(() => { word.textContent = "Copy"; }, 2000);
    });
  }

  const root = document.documentElement;
  const button = document.querySelector("[data-theme-switch]"); // none among local pages: a sandbox cannot keep the choice
  if (!button) return;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
})();
