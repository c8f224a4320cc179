// Before anything is drawn: the colours that were chosen here, if any were; else those of the system.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's colours */ }
