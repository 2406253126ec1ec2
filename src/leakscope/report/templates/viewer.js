// ---- viewer: one picture large, with its film, its trace, its scores and what the baselines show
if (tiles.length && find("#viewer").showModal) {
  const dialog = find("#viewer");
  const scrub = find("#viewer-scrub");
  let current = null;
  let marks = [];

  function picture(element, key, place, words) {
    element.className = `pic ${key}`;
    element.style.setProperty("--i", String(place));
    element.setAttribute("aria-label", words);
  }

  function showSnapshot() {
    const frame = Number(scrub.value);
    const step = current.at[frame];
    const end = current.at[current.at.length - 1];
    picture(find("#viewer-result"), current.key, 1 + frame, `reconstruction of ${current.label} at step ${step}`);
    find("#viewer-step").textContent = `step ${step} of ${end}`;
    scrub.setAttribute("aria-valuetext", `step ${step} of ${end}`);
    for (const mark of marks) mark(step);
  }

  function facts() {
    const list = find("#viewer-facts");
    list.replaceChildren();
    const axes = data.axes.filter(([key]) => key in current.axes).map(([key, heading]) => [heading, current.axes[key]]);
    for (const [name, value] of [...current.facts, ...axes]) {
      const [term, words] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, words.textContent] = [name, value];
      list.append(term, words);
    }
  }

  function courses() {
    const place = find("#viewer-courses");
    const empty = find("#viewer-trace svg").cloneNode();
    const names = Object.keys(current.courses).filter((name) => current.courses[name].length > 1);
    place.hidden = !names.length;
    place.replaceChildren();
    return names.map((name) => {
      const [box, title, svg] = [document.createElement("div"), document.createElement("h3"), empty.cloneNode()];
      box.className = "trace";
      title.textContent = `${name}, step by step`;
      box.append(title, svg);
      place.append(box);
      return trace(svg, current, name);
    });
  }

  function baselines() {
    const row = find("#viewer-nulls .viewer-pictures");
    find("#viewer-nulls").hidden = !current.baselines.length;
    row.classList.toggle("rowwise", current.row);
    row.replaceChildren(...current.baselines.map(([name, scores], place) => {
      const [box, image, words, title] = ["div", "span", "span", "b"].map((tag) => document.createElement(tag));
      image.setAttribute("role", "img");
      picture(image, current.nulls, place, `${name} for ${current.label}`);
      words.className = "what";
      title.textContent = name;
      words.append(title, scores);
      box.append(image, words);
      return box;
    }));
  }

  function show(tile) {
    movie.pause();
    current = tile;
    find("#viewer-title").textContent = tile.label;
    const state = tile.hit ? "recovered" : "not recovered";
    find("#viewer-where").textContent = `${tile.where} · trial ${tile.number} · ${state}`;
    find("#viewer-pictures").classList.toggle("rowwise", tile.row);
    picture(find("#viewer-truth"), tile.key, 0, `truth: ${tile.label}`);
    picture(find("#viewer-start"), tile.key, 1, "the attack's start");
    find("#viewer-start").parentElement.hidden = tile.at.length < 2;
    find("#viewer-scrubbing").hidden = tile.at.length < 2;
    scrub.max = String(tile.at.length - 1);
    scrub.value = scrub.max;
    find("#viewer-trace").hidden = false;
    const mark = trace(find("#viewer-trace svg"), tile);
    find("#viewer-trace").hidden = mark === null;
    marks = [mark, ...courses()].filter((one) => one !== null);
    facts();
    baselines();
    showSnapshot();
    const place = gallery.fitting.indexOf(tile);
    find("#viewer-before").disabled = place <= 0;
    find("#viewer-after").disabled = place < 0 || place + 1 >= gallery.fitting.length;
  }

  function step(by) {
    const next = gallery.fitting[gallery.fitting.indexOf(current) + by];
    if (next) show(next);
  }

  const movie = player(find("#viewer-play"), scrub, showSnapshot);
  for (const tile of tiles) {
    find(".enlarge", tile.figure).addEventListener("click", () => {
      dialog.showModal();
      show(tile);
      find("#viewer-title").focus();
    });
  }
  find("#viewer-close").addEventListener("click", () => dialog.close());
  find("#viewer-before").addEventListener("click", () => step(-1));
  find("#viewer-after").addEventListener("click", () => step(1));
  dialog.addEventListener("close", () => {
    movie.pause();
    if (current && !current.figure.hidden) find(".enlarge", current.figure).focus();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || event.target === scrub) return;
    event.preventDefault();
    step(by);
  });
} else {
  for (const button of all(".enlarge")) button.disabled = true;
}
