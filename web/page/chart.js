// Curves over the last 15 minutes, drawn as SVG in a box of 1000 x 100 that stretches to its place.

const svgNS = "http://www.w3.org/2000/svg";
const span = 900;
const wide = 1000, high = 100;

function svg(tag, attributes) {
  const made = document.createElementNS(svgNS, tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  return made;
}

// niceTop is the first round number at or above v, so that the scale changes seldom.
function niceTop(v) {
  if (!(v > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(v));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((m) => m * power).find((top) => top >= v * 0.9999);
}

// chart makes an empty chart in a figure. lines are {label, style, thin, read(columns)}, format writes a
// value, bottomTop is the least top of the scale, banded draws the zones of a load ratio.
function chart(figure, { title, lines, format, bottomTop = 0, banded = false }) {
  const legend = element("div", "legend");
  const plot = element("div", "plot");
  plot.setAttribute("role", "img");
  const image = svg("svg", { viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const back = svg("g"), curves = svg("g");
  const cursor = svg("line", { class: "cursor", y1: 0, y2: high, visibility: "hidden" });
  image.append(back, curves, cursor);
  const top = element("span", "ymax"), when = element("span", "when"), empty = element("span", "empty", "no readings yet");
  const edges = banded ? [element("span", "edge", "full 1.0"), element("span", "edge", "watermark")] : [];
  plot.append(image, top, when, empty, ...edges);
  const times = element("div", "times");
  times.append(element("span", "", "15 min ago"), element("span", "", "10"), element("span", "", "5"), element("span", "", "now"));
  figure.append(legend, plot, times);

  const drawn = lines.map((line) => {
    const path = svg("path", { class: `${line.style}${line.thin ? " thin" : ""}` });
    curves.prepend(path);
    const item = element("span"), value = element("b", "", dash);
    const swatch = svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" });
    swatch.append(svg("path", { class: line.style, d: "M0 4H22" }));
    item.append(swatch, `${line.label} `, value);
    legend.append(item);
    return { ...line, path, item, value };
  });

  let data = null, end = 0, pointer = null;

  const x = (ms) => wide - ((end - ms) / 1000 / span) * wide;

  function draw(columns, endMilliseconds, watermark) {
    data = columns;
    end = endMilliseconds;
    const values = drawn.map((line) => (data && line.read(data)) || []);
    const most = Math.max(0, ...values.flat().filter(known));
    const limit = Math.max(bottomTop, most > bottomTop ? niceTop(most) : 0) || niceTop(most);
    const y = (v) => high - (Math.min(Math.max(v, 0), limit) / limit) * high;
    back.replaceChildren(...(banded ? bands(y, limit, watermark) : [svg("line", { class: "grid", x1: 0, x2: wide, y1: 0, y2: 0 }), svg("line", { class: "grid", x1: 0, x2: wide, y1: high / 2, y2: high / 2 })]));
    if (banded) {
      [1, watermark].forEach((v, i) => { edges[i].style.top = `${y(v)}%`; });
      // On a long scale the two lines are too close for a word each.
      edges[1].hidden = (Math.abs(y(watermark) - y(1)) / high) * plot.clientHeight < edges[0].offsetHeight;
    }
    const times = data ? data.unix_milliseconds : [];
    // A gap longer than a few steps is drawn as a gap.
    const steps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
    const gap = Math.max(5000, 4 * (steps[steps.length >> 1] || 0));
    drawn.forEach((line, i) => {
      let d = "", previous = null;
      values[i].forEach((v, j) => {
        if (!known(v) || x(times[j]) < 0) { previous = null; return; }
        d += `${previous === null || times[j] - previous > gap ? "M" : "L"}${x(times[j]).toFixed(1)} ${y(v).toFixed(2)}`;
        previous = times[j];
      });
      line.path.setAttribute("d", d);
      line.item.hidden = Boolean(line.thin) && !values[i].some(known);
    });
    say(top, format(limit));
    empty.hidden = values.flat().some(known);
    plot.setAttribute("aria-label", `${title}, the last 15 minutes: ${drawn.filter((l) => !l.item.hidden).map((l) => {
      const all = (data ? l.read(data) || [] : []).filter(known);
      return all.length ? `${l.label} now ${format(all[all.length - 1])}, highest ${format(Math.max(...all))}` : `${l.label} unknown`;
    }).join("; ")}`);
    read();
  }

  // read writes the values under the pointer, or the newest.
  function read() {
    const times = data ? data.unix_milliseconds : [];
    let at = times.length - 1;
    if (pointer !== null && times.length) {
      const target = end - (1 - pointer) * span * 1000;
      at = times.reduce((best, t, i) => (Math.abs(t - target) < Math.abs(times[best] - target) ? i : best), 0);
      cursor.setAttribute("x1", x(times[at]));
      cursor.setAttribute("x2", x(times[at]));
    }
    cursor.setAttribute("visibility", pointer === null || !times.length ? "hidden" : "visible");
    say(when, pointer === null || at < 0 ? "" : clock(new Date(times[at])));
    for (const line of drawn) {
      const column = data && line.read(data);
      say(line.value, column && known(column[at]) ? format(column[at]) : dash);
    }
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    pointer = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    read();
  });
  plot.addEventListener("pointerleave", () => { pointer = null; read(); });
  return draw;
}

function bands(y, limit, watermark) {
  const rect = (zone, from, to) => svg("rect", { class: zone, x: 0, width: wide, y: y(to), height: Math.max(0, y(from) - y(to)) });
  const line = (v, more) => svg("line", { class: `limit${more}`, x1: 0, x2: wide, y1: y(v), y2: y(v) });
  return [rect("stable", 0, watermark), rect("risk", watermark, 1), rect("unstable", 1, limit), line(watermark, ""), line(1, " full")];
}
