"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const FRAME_MS = 110;

// A frame of a film is its place among the pictures of a sprite, after the truth.
function showFrame(picture, frame) {
  picture.style.setProperty("--i", String(1 + frame));
}

// A slider and its button: play from the start when at the end, pause on any touch.
function player(button, slider, show) {
  let timer = null;
  const atEnd = () => Number(slider.value) >= Number(slider.max);
  function pause() {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  }
  function move(by) {
    slider.value = String(Number(slider.value) + by);
    show();
  }
  button.addEventListener("click", () => {
    if (timer !== null) { pause(); return; }
    if (atEnd()) { slider.value = "0"; show(); }
    button.textContent = "Pause";
    timer = setInterval(() => { if (atEnd()) pause(); else move(1); }, FRAME_MS);
  });
  slider.addEventListener("input", () => { pause(); show(); });
  return { pause, move };
}

// Choices survive a page that loads itself anew; a sandboxed frame has no storage.
function recall(store, key) {
  try { return window[store].getItem(key); } catch { return null; }
}
function keep(store, key, value) {
  try { window[store].setItem(key, value); } catch { /* not kept */ }
}
