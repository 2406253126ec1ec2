// ---- films: one slider over iterations, every tile shows its latest frame up to there
{
  const slider = find("#film-slider");

  function latest(at, step) {
    let frame = 0;
    while (frame + 1 < at.length && at[frame + 1] <= step) frame += 1;
    return frame;
  }

  function show() {
    const step = data.timeline[Number(slider.value)];
    const words = `${step} of ${data.timeline[data.timeline.length - 1]}`;
    for (const tile of tiles) {
      const frame = latest(tile.at, step);
      if (frame === tile.shown) continue;
      tile.shown = frame;
      showFrame(tile.picture, frame);
      tile.figure.classList.toggle("running", frame + 1 < tile.at.length);
      tile.words.textContent = `step ${tile.at[frame]}`;
    }
    find("#film-step").textContent = words;
    slider.setAttribute("aria-valuetext", `step ${words}`);
  }

  if (slider) {
    find("#film-controls").hidden = false;
    slider.value = slider.max;
    show();
    player(find("#play"), slider, show);
  }
}
