// Runs before the first paint: apply the chosen colours, or else those of the system.
function keepTheme(name) { // reports, in a sandbox without storage, are sent in these colours
  document.cookie = `reg-theme=${name}; path=/; samesite=lax; max-age=31536000`;
}
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
    keepTheme(chosen);
  }
} catch { /* no storage: the system's colours */ }
