"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // ---- films: one slider over iterations, every tile shows its latest frame up to there
  const slider = find("#film-slider");
  const play = find("#play");
  const FRAME_MS = 110;
  let timer = null;

  const tiles = all(".tile").map((figure, index) => ({
    figure,
    at: data.films[index],
    picture: figure.querySelector(".moving"),
    words: figure.querySelector(".step"),
    shown: -1,
  }));

  function latest(at, step) {
    let frame = 0;
    while (frame + 1 < at.length && at[frame + 1] <= step) frame += 1;
    return frame;
  }

  function showStep() {
    const step = data.timeline[Number(slider.value)];
    const words = `${step} of ${data.timeline[data.timeline.length - 1]}`;
    for (const tile of tiles) {
      const frame = latest(tile.at, step);
      if (frame === tile.shown) continue;
      tile.shown = frame;
      tile.picture.style.setProperty("--i", String(1 + frame));
      tile.figure.classList.toggle("running", frame + 1 < tile.at.length);
      tile.words.textContent = `step ${tile.at[frame]}`;
    }
    find("#film-step").textContent = words;
    slider.setAttribute("aria-valuetext", `step ${words}`);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function move(by) {
    slider.value = String(Number(slider.value) + by);
    showStep();
  }

  function advance() {
    if (Number(slider.value) >= Number(slider.max)) pause();
    else move(1);
  }

  if (slider) {
    find("#film-controls").hidden = false;
    slider.value = slider.max;
    showStep();
    slider.addEventListener("input", () => { pause(); showStep(); });
    play.addEventListener("click", () => {
      if (timer !== null) { pause(); return; }
      if (Number(slider.value) >= Number(slider.max)) { slider.value = "0"; showStep(); }
      play.textContent = "Pause";
      timer = setInterval(advance, FRAME_MS);
    });
    find("#films").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined || !event.target.classList.contains("tile")) return;
      event.preventDefault();
      pause();
      move(by);
    });
  }

  for (const skip of all(".skip")) {
    skip.addEventListener("click", () => {
      const tile = skip.parentElement.querySelector(".tile:last-child");
      if (tile) tile.focus();
    });
  }

  // ---- noise: the slider's place is the picture's place in its sprite
  const noise = find("#noise-slider");
  const noisy = all("#noise .moving");
  const rows = all(".levels tbody tr");

  function showNoise() {
    const level = Number(noise.value);
    for (const picture of noisy) picture.style.setProperty("--i", String(1 + level));
    rows.forEach((row, index) => {
      if (index === level) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    });
    find("#noise-words").textContent = data.noise[level];
    noise.setAttribute("aria-valuetext", data.noise[level]);
  }

  if (noise) {
    find("#noise-controls").hidden = false;
    noise.value = "0";
    showNoise();
    noise.addEventListener("input", showNoise);
  }

  // ---- theme: the system's, until the button says otherwise
  const root = document.documentElement;
  const theme = find("#theme");
  const KEY = "leakscope-theme";

  function remembered() {
    try { return localStorage.getItem(KEY); } catch { return null; }
  }

  function remember(name) {
    try { localStorage.setItem(KEY, name); } catch { /* a sandboxed frame has no storage */ }
  }

  function isDark() {
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function nameTheme() { theme.textContent = isDark() ? "Light theme" : "Dark theme"; }

  const before = remembered();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  theme.hidden = false;
  nameTheme();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    nameTheme();
  });
})();
