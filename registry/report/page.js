// The charts; shared.js of the design stands before it.
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
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
})();
