"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = specs[place.dataset.chart];
    if (!spec) continue;
    window
      .vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true, tooltip: { theme: "own" } })
      .catch((error) => {
        place.textContent = "This chart cannot be drawn here; its figures are in the table.";
        console.error(error);
      });
  }
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Switch to the light page" : "Switch to the dark page");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
})();
