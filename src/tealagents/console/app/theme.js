/** Dark or light: the system's choice, until the user has made another. */
const KEPT = "tealagents.console.theme";

const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (localStorage.getItem(KEPT) ?? (system.matches ? "dark" : "light")) === "dark";

export const applyTheme = () => (document.documentElement.dataset.theme = localStorage.getItem(KEPT) ?? "");

/** The other one; where that is the system's, nothing is kept. */
export function switchTheme() {
  const wanted = isDark() ? "light" : "dark";
  if ((wanted === "dark") === system.matches) localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, wanted);
  applyTheme();
}
