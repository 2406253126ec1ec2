// ---- a phone shows long tables and the filters when asked
if (matchMedia("(max-width: 640px)").matches) {
  for (const part of all(".rows, .filtering")) part.open = false;
}

// ---- theme: the system's, until the button says otherwise
{
  const root = document.documentElement;
  const button = find("#theme");
  const KEY = "leakscope-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };

  const before = recall("localStorage", KEY);
  if (before === "dark" || before === "light") root.dataset.theme = before;
  system.addEventListener("change", name);
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    keep("localStorage", KEY, root.dataset.theme);
    name();
  });
}
