// ---- gallery: the tiles that fit the filters, in the chosen order, a screenful at first
const gallery = { fitting: [] };
const tiles = all(".tile").map((figure, index) => ({
  ...data.tiles[index],
  index,
  figure,
  picture: find(".moving", figure),
  words: find(".step", figure),
  shown: -1,
}));

if (tiles.length) {
  const SCREENFUL = matchMedia("(max-width: 640px)").matches ? 8 : 24;
  const KEY = "leakscope-filters " + document.title;
  const form = find("#filters");
  const grid = find("#tiles");
  const cut = find("#cut");
  let most = SCREENFUL;

  const orders = {
    run: (a, b) => a.index - b.index,
    number: (a, b) => a.number - b.number,
    mse: (a, b) => by(a.mse, b.mse),
    "-mse": (a, b) => by(b.mse, a.mse),
    ssim: (a, b) => by(a.ssim, b.ssim),
    "-ssim": (a, b) => by(b.ssim, a.ssim),
    steps: (a, b) => a.steps - b.steps,
  };
  // A score that is not a number is the worst there is, wherever the best stands.
  function by(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    return a - b;
  }

  function wanted() {
    const tests = [];
    for (const select of all("select[data-axis]", form)) {
      if (!select.value) continue;
      const axis = select.dataset.axis;
      const value = data.choices[axis][Number(select.value) - 1];
      tests.push((tile) => tile.axes[axis] === value);
    }
    const outcome = form.elements.outcome.value;
    if (outcome) tests.push((tile) => tile.outcome === outcome);
    const hit = form.elements.hit.value;
    if (hit) tests.push((tile) => tile.hit === (hit === "yes"));
    const limit = cut ? data.cuts[Number(cut.value)] : undefined;
    if (limit) tests.push((tile) => tile.mse !== null && tile.mse <= limit[0]);
    return tests;
  }

  function arrange() {
    const tests = wanted();
    gallery.fitting = tiles.filter((tile) => tests.every((test) => test(tile)));
    gallery.fitting.sort((a, b) => orders[form.elements.sort.value](a, b) || a.index - b.index);
    for (const tile of tiles) tile.figure.hidden = true;
    gallery.fitting.forEach((tile, place) => {
      tile.figure.hidden = place >= most;
      grid.append(tile.figure);
    });
    tell();
  }

  function tell() {
    const n = gallery.fitting.length;
    const hits = gallery.fitting.filter((tile) => tile.hit).length;
    const part = n === tiles.length ? `${n} shown` : `${n} of ${tiles.length} fit the filter`;
    find("#count").textContent = `${part}, ${hits} of them recovered`;
    find("#empty").hidden = n > 0;
    find("#more").hidden = n <= most;
    find("#show-more").textContent = `Show the other ${n - most}`;
    if (cut) {
      const limit = data.cuts[Number(cut.value)];
      find("#cut-words").textContent = limit ? limit[1] : "any";
      cut.setAttribute("aria-valuetext", limit ? limit[1] : "any");
    }
  }

  function changed() {
    most = SCREENFUL;
    const chosen = [...form.elements].filter((field) => field.name).map((field) => field.value);
    keep("sessionStorage", KEY, JSON.stringify(chosen));
    arrange();
  }

  function restore() {
    const fields = [...form.elements].filter((field) => field.name);
    const chosen = JSON.parse(recall("sessionStorage", KEY) || "[]");
    if (chosen.length !== fields.length) return;
    fields.forEach((field, i) => {
      const before = field.value;
      field.value = chosen[i];
      if (field.value !== chosen[i]) field.value = before;
    });
  }

  find("#filtering").hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", changed);
  form.addEventListener("reset", () => setTimeout(changed));
  find("#show-more").addEventListener("click", () => {
    const next = gallery.fitting[most];
    most = Infinity;
    arrange();
    if (next) find(".enlarge", next.figure).focus();
  });
  form.reset();
  restore();
  arrange();
}
