// ---- trace: a number of one trial over its steps; the mismatch on a log scale where all of it is above zero
const trace = (() => {
  const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [210, 48, 10, 10, 32];
  const raised = (n) => String(n).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));

  function add(parent, name, attributes, text) {
    const element = document.createElementNS(parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  function scale(values, plain) {
    const log = !plain && values.every((v) => v > 0);
    const seen = log ? values.map(Math.log10) : values;
    let [low, high] = [Math.min(...seen), Math.max(...seen)];
    if (log) [low, high] = [Math.floor(low + 1e-9), Math.ceil(high - 1e-9)];
    if (high <= low) high = low + 1;
    const place = (v) => HEIGHT - BOTTOM - (((log ? Math.log10(v) : v) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const ticks = [];
    if (log) {
      const every = Math.max(1, Math.ceil((high - low) / 5));
      for (let e = low; e <= high; e += every) ticks.push([place(10 ** e), "10" + raised(e)]);
    } else {
      for (let i = 0; i <= 4; i += 1) {
        const v = low + ((high - low) * i) / 4;
        ticks.push([place(v), String(Number(v.toPrecision(3)))]);
      }
    }
    return { place, ticks };
  }

  // Draws the trace of a tile, or the course of what else it found, by name; returns a function that moves the mark to a
  // step, null where there is nothing to draw.
  return function draw(svg, tile, name) {
    svg.replaceChildren();
    const WIDTH = Math.max(240, svg.clientWidth); // so that the text has the page's size
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const values = name ? tile.courses[name] : tile.trace;
    const seen = tile.trace_at.map((at, i) => [at, values[i]]).filter(([, v]) => v !== null);
    if (seen.length < 2) return null;
    const last = Math.max(tile.steps, seen[seen.length - 1][0], 1);
    const x = (at) => LEFT + (at / last) * (WIDTH - LEFT - RIGHT);
    const y = scale(seen.map(([, v]) => v), Boolean(name));
    for (const [at, text] of y.ticks) {
      add(svg, "path", { class: "grid", d: `M${LEFT} ${at}H${WIDTH - RIGHT}` });
      add(svg, "text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, text);
    }
    const middle = Math.round(last / 2);
    for (const at of new Set([0, middle, last])) {
      const anchor = at === last ? "end" : at === 0 ? "start" : "middle";
      add(svg, "text", { x: x(at), y: HEIGHT - 12, "text-anchor": anchor }, at === last ? `step ${at}` : String(at));
    }
    add(svg, "path", { class: "axis", d: `M${LEFT} ${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` });
    add(svg, "path", { class: "curve", d: seen.map(([at, v], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y.place(v).toFixed(1)}`).join("") });
    const now = add(svg, "path", { class: "now" });
    const here = add(svg, "circle", { class: "here", r: 5 });
    const [first, end] = [seen[0], seen[seen.length - 1]];
    svg.setAttribute("aria-label", `${name || "mismatch"} from ${first[1]} at step ${first[0]} to ${end[1]} at step ${end[0]}`);
    return (step) => {
      const near = seen.reduce((best, spot) => (Math.abs(spot[0] - step) < Math.abs(best[0] - step) ? spot : best));
      now.setAttribute("d", `M${x(step)} ${TOP}V${HEIGHT - BOTTOM}`);
      here.setAttribute("cx", x(near[0]));
      here.setAttribute("cy", y.place(near[1]));
    };
  };
})();
