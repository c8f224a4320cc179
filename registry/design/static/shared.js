// What pages and reports do alike: commands are copied, and dark or light colours are chosen.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const word = button.firstElementChild;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    word.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    word.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
  setTimeout(() => { word.textContent = "Copy"; }, 2000);
});

for (const button of document.querySelectorAll("[data-theme-switch]")) { // none in a report among local pages
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}
