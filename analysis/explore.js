// Makes the report explorable. Everything that it shows is in this file: it loads nothing. Without it the page is whole.
const data = JSON.parse(document.getElementById("report-data").textContent);
const points = data.points.data.map((line) => Object.fromEntries(line.map((value, place) => [data.points.columns[place], value])));
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// ---- curves
const section = document.getElementById("explore");
const form = document.getElementById("explore-form");
const chart = document.getElementById("explore-chart");
const choice = (name, label, options) => {
  const select = make("select", { name, id: `explore-${name}` });
  for (const [value, text] of options) select.append(make("option", { value }, text));
  form.append(make("label", { for: select.id }, `${label} `, select));
};
const present = (name) => points.some((point) => point[name] !== null);
choice("suite", "Suite", data.suites.map((suite) => [suite, suite]));
choice("metric", "Show", Object.entries(data.metrics));
choice("unit", "against", Object.entries(data.units).filter(([unit]) => present(unit)));
choice("scale", "on a scale that is", [["log", "logarithmic"], ["linear", "linear"]]);
if (data.suites.length < 2) form.firstChild.hidden = true;

const rows = make("fieldset", { class: "rows" }, make("legend", {}, "Rows "));
const all = make("button", { type: "button" }, "all");
const none = make("button", { type: "button" }, "none");
rows.firstChild.append(all, none);
for (const row of data.rows) {
  const swatch = make("span", { class: "swatch" });
  swatch.innerHTML = `<svg viewBox="-12 -5 24 10" aria-hidden="true"><path d="M-12,0H12" stroke="currentColor" stroke-width="1.5"/><circle r="3" fill="currentColor"/></svg>`;
  const box = make("input", { type: "checkbox", name: "row", value: row, checked: "" });
  rows.append(make("label", {}, box, swatch, row));
}
form.append(rows);
for (const [button, on] of [[all, true], [none, false]]) {
  button.addEventListener("click", () => {
    for (const box of form.querySelectorAll("[name=row]")) box.checked = on;
    draw();
  });
}

const number = (value) => value.toFixed(Math.abs(value) >= 1000 ? 0 : 2).replace("-", "−"); // as tables have it
const named = (name, scale) => (name.endsWith(")") ? `${name.slice(0, -1)}, ${scale})` : `${name} (${scale})`);
const HEIGHT = 360;
const coloured = () => { // as analysis/figures.py colours the rows of a figure
  const shown = data.rows.filter((row) => form.querySelector(`[value="${CSS.escape(row)}"][name=row]`).checked);
  const named = data.colours.filter(([row]) => shown.includes(row));
  const own = new Map(shown.length > data.clear + 1 ? named.slice(0, data.clear) : named);
  return shown.map((row) => ({ row, grey: !own.has(row), colour: own.get(row) ?? "var(--faint)" }));
};
const namesAtEnds = (ends, height) => { // they move down where they would overlap, and up again from the bottom
  const gap = 13;
  ends.sort((a, b) => a.place - b.place);
  ends.reduce((above, end) => (end.place = Math.max(end.place, above + gap)), -Infinity);
  ends.reduceRight((below, end) => (end.place = Math.min(end.place, below - gap)), height + gap);
  return ends;
};
const setSegments = (values) => { // a line breaks where a stage begins, unless only the stage's end was measured
  const counts = new Map();
  const stageOf = ({ row, stage }) => JSON.stringify([row, stage]);
  for (const point of values) if (!point.is_start) counts.set(stageOf(point), (counts.get(stageOf(point)) ?? 0) + 1);
  let segment = 0;
  for (const point of values) {
    if (point.is_start && counts.get(stageOf(point)) > 1) segment += 1;
    point.segment = segment;
  }
  return values;
};
const bands = (values, unit) => { // where each domain begins and ends, as a mean over rows
  const stages = new Map();
  for (const { row, stage, [unit]: spent } of values) {
    const ends = stages.get(stage) ?? stages.set(stage, {}).get(stage);
    ends[row] = Math.max(ends[row] ?? 0, spent);
  }
  const ends = [...stages].map(([stage, of]) => [stage, Object.values(of).reduce((a, b) => a + b) / Object.keys(of).length]);
  ends.sort((a, b) => a[1] - b[1]);
  return ends.map(([stage, to], place) => ({ stage, from: place ? ends[place - 1][1] : 0, to, opacity: place % 2 ? 0 : 0.05 }));
};
const specification = () => {
  const { suite, metric, unit, scale } = Object.fromEntries(new FormData(form));
  const shown = coloured();
  const names = new Set(shown.map(({ row }) => row));
  const grey = new Set(shown.filter(({ grey }) => grey).map(({ row }) => row));
  const values = points.filter((p) => p.suite === suite && names.has(p.row) && p[metric] !== null && p[unit] !== null)
    .map((p) => ({ ...p, said: number(p[metric]), low: number(p[`${metric}_seed_min`]), high: number(p[`${metric}_seed_max`]) }))
    .sort((a, b) => grey.has(b.row) - grey.has(a.row)); // coloured lines are drawn over grey ones
  setSegments(values);
  const within = values.some((p) => p.learned) ? values.filter((p) => p.learned) : values; // these set the scale
  const [lowest, highest] = [Math.min(...within.map((p) => p[`${metric}_seed_min`])), Math.max(...within.map((p) => p[`${metric}_seed_max`]))];
  const type = lowest <= 0 ? "linear" : scale;
  const [into, back] = { log: [Math.log, Math.exp], linear: [(v) => v, (v) => v] }[type];
  const margin = 0.04 * (into(highest) - into(lowest) || 1);
  const [bottom, top] = [into(lowest) - margin, into(highest) + margin];
  const y = { type: "quantitative", scale: { type, nice: false, domain: [back(bottom), back(top)], ...(type === "linear" && { zero: false }) } };
  for (const point of values) point.outside = point[metric] < back(bottom) || point[metric] > back(top);
  const title = named(data.metrics[metric], type);
  const tooltip = [
    { field: "row", title: "row" }, { field: "stage", title: "stage" },
    { field: "said", title: data.metrics[metric] },
    { field: "low", title: "lowest seed" }, { field: "high", title: "highest seed" },
    { field: "n_seeds" }, { field: unit, title: data.units[unit], format: ",.4~g" },
  ];
  const last = new Map(values.map((point) => [point.row, point]));
  const ends = shown.filter(({ row, grey }) => last.has(row) && !grey)
    .map(({ row }) => ({ row, text: chart.clientWidth < 500 ? row : `${row} ${last.get(row).said}`, place: HEIGHT * Math.min(1, Math.max(0, (top - into(last.get(row)[metric])) / (top - bottom))) }));
  const domains = bands(points.filter((p) => p.suite === suite && p[unit] !== null && p[metric] !== null), unit);
  const room = Math.min(0.33 * chart.clientWidth, 16 + 5.8 * Math.max(0, ...ends.map(({ text }) => text.length)));
  const width = chart.clientWidth - room - 60;
  const spent = values.map((p) => p[unit]);
  const x = { field: unit, type: "quantitative", title: named(data.units[unit], "linear").match(new RegExp(`.{1,${Math.max(12, Math.floor(width / 7))}}(\\s|$)`, "g")), axis: { format: "~s", tickCount: Math.min(6, Math.ceil(width / 60)), grid: false }, scale: { nice: false, zero: false, domain: [metric === "ap" ? 0 : Math.min(...spent), Math.max(...spent)] } };
  const color = { field: "row", type: "nominal", scale: { domain: shown.map(({ row }) => row), range: shown.map(({ colour }) => colour) }, legend: null };
  const first = x.scale.domain[0];
  const inside = domains.filter(({ to }) => to > first).map((each) => ({ ...each, middle: (Math.max(each.from, first) + each.to) / 2 }));
  const narrowest = (width * Math.min(...domains.map(({ from, to }) => to - from))) / (x.scale.domain[1] - first); // pixels
  const upright = Math.max(...inside.map(({ stage }) => 6.5 * stage.length)) > narrowest;
  const turned = upright ? { angle: 270, align: "left", baseline: "middle", limit: 120 } : { baseline: "bottom" };
  const lines = { x, color, detail: [{ field: "row" }, { field: "segment" }] };
  const opacity = { condition: { param: "near", empty: false, value: 1 }, value: 0.6 };
  return {
    data: { values }, width: "container", height: HEIGHT, background: null, autosize: { type: "fit-x", contains: "padding" },
    padding: 5,
    layer: [
      { data: { values: domains }, mark: { type: "rect", color: "var(--text)", clip: true }, encoding: { x: { ...x, field: "from" }, x2: { field: "to" }, opacity: { field: "opacity", type: "quantitative", scale: null } } },
      { data: { values: inside.filter((_, place) => place % Math.ceil(12 / narrowest) === 0) },
        mark: { type: "text", y: -4, color: "var(--soft)", ...turned }, encoding: { x: { ...x, field: "middle" }, text: { field: "stage" } } },
      { transform: [{ filter: "datum.learned && !datum.is_start" }], mark: { type: "area", opacity: 0.12, clip: true }, encoding: { ...lines, y: { ...y, field: `${metric}_seed_min`, title }, y2: { field: `${metric}_seed_max` } } },
      { transform: [{ filter: "!datum.is_start && !datum.outside" }], mark: { type: "line", strokeWidth: 1.5 }, encoding: { ...lines, y: { ...y, field: metric, title } } },
      { transform: [{ filter: "!datum.is_start" }], mark: { type: "point", filled: true, size: 30, clip: true }, encoding: { ...lines, y: { ...y, field: metric, title }, opacity } },
      { transform: [{ filter: "datum.is_start" }], mark: { type: "point", filled: false, size: 30, clip: true }, encoding: { ...lines, y: { ...y, field: metric, title }, opacity } },
      { // wider than a marker, so that it is easily met; `nearest: true` would say "undefined" of all but the axis
        params: [{ name: "near", select: { type: "point", on: "pointerover", clear: "pointerout" } }],
        mark: { type: "circle", size: 200, opacity: 0, clip: true },
        encoding: { ...lines, y: { ...y, field: metric, title }, tooltip },
      },
      { data: { values: namesAtEnds(ends, HEIGHT) }, mark: { type: "text", align: "left", dx: 8, limit: room - 10, x: "width" }, encoding: { y: { field: "place", type: "quantitative", scale: null }, text: { field: "text" }, color } },
    ],
    config: {
      view: { stroke: null }, text: { fontSize: 11 },
      axis: { labelColor: "var(--text)", titleColor: "var(--text)", gridColor: "var(--line)", domainColor: "var(--soft)", tickColor: "var(--soft)" },
    },
  };
};
const unpacked = async () => {
  const bytes = Uint8Array.from(atob(document.getElementById("report-library").textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(make("script", {}, text));
};
let drawing = null;
const draw = () => {
  const colours = new Map(coloured().map(({ row, colour }) => [row, colour]));
  for (const label of rows.querySelectorAll("label")) label.querySelector(".swatch").style.color = colours.get(label.textContent) ?? "var(--soft)";
  drawing = (drawing ?? unpacked()).then(async () => {
    const drawn = specification();
    await vegaEmbed(chart, drawn, { actions: false, renderer: "svg", ast: false });
    const count = form.querySelectorAll("[name=row]:checked").length;
    chart.setAttribute("aria-label", `Curves of ${count} rows; the tables have their last values`);
    chart.dataset.points = drawn.data.values.length;
  });
  return drawing;
};
form.addEventListener("change", draw);
addEventListener("resize", draw); // a phone that is turned
if (points.length) {
  section.hidden = false;
  draw();
}

// ---- tables that sort; the order of the file is a third click away
const valueOf = (row, column) => parseFloat(row.cells[column]?.dataset.value ?? row.cells[column]?.textContent);
for (const table of document.querySelectorAll("table.sorts")) {
  const head = [...table.tHead.rows].at(-1);
  const files = new Map([...table.tBodies].map((body) => [body, [...body.rows]]));
  [...head.cells].forEach((cell, column) => {
    const button = make("button", { type: "button", class: "sort", title: "sort by this column" }, ...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[cell.ariaSort ?? "none"];
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (next !== "none") cell.setAttribute("aria-sort", next);
      for (const [body, order] of files) {
        const movable = order.filter((row) => row.dataset.row);
        const sign = next === "descending" ? -1 : 1;
        const compare = (one, other) => {
          const [a, b] = [valueOf(one, column), valueOf(other, column)];
          if (column === 0) return sign * one.cells[0].textContent.localeCompare(other.cells[0].textContent);
          return Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : sign * (a - b);
        };
        const sorted = next === "none" ? movable : [...movable].sort(compare);
        const queue = [...sorted];
        body.append(...order.map((row) => (row.dataset.row ? queue.shift() : row)));
      }
    });
  });
}
