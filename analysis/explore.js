// Makes the report explorable. Everything that it shows is in this file: it loads nothing. Without it the page is whole.
const data = JSON.parse(document.getElementById("report-data").textContent);
const points = data.points.lines.map((line) => Object.fromEntries(line.map((value, place) => [data.points.names[place], value])));
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
for (const { row, colour, dash, shape } of data.rows) {
  const swatch = make("span", { class: "swatch" });
  swatch.innerHTML = `<svg viewBox="-12 -5 24 10" aria-hidden="true"><path d="M-12,0H12" stroke="${colour}" stroke-width="1.5" stroke-dasharray="${dash}"/><path d="${shape}" transform="scale(4)" fill="${colour}"/></svg>`;
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
const specification = () => {
  const { suite, metric, unit, scale } = Object.fromEntries(new FormData(form));
  const shown = data.rows.filter(({ row }) => form.querySelector(`[value="${CSS.escape(row)}"][name=row]`).checked);
  const names = new Set(shown.map(({ row }) => row));
  const values = points.filter((p) => p.suite === suite && names.has(p.row) && p[metric] !== null && p[unit] !== null)
    .map((p) => ({ ...p, said: number(p[metric]), low: number(p[`${metric}_low`]), high: number(p[`${metric}_high`]) }));
  const symlog = scale === "log" && values.some((point) => point[`${metric}_low`] <= 0);
  const type = symlog ? "symlog" : scale;
  const y = { type: "quantitative", scale: { type, nice: false, ...(type === "linear" && { zero: false }) } };
  const title = named(data.metrics[metric], type);
  const range = (field) => ({ domain: shown.map(({ row }) => row), range: shown.map((row) => row[field]) });
  const tooltip = [
    { field: "row", title: "row" }, { field: "stage", title: "stage" },
    { field: "said", title: data.metrics[metric] },
    { field: "low", title: "lowest seed" }, { field: "high", title: "highest seed" },
    { field: "seeds" }, { field: unit, title: data.units[unit], format: ",.4~g" },
  ];
  return {
    data: { values }, width: "container", height: 360, background: null, autosize: { type: "fit", contains: "padding" },
    encoding: {
      x: { field: unit, type: "quantitative", title: named(data.units[unit], "linear"), axis: { format: "~s", tickCount: 6 }, scale: { nice: false, zero: true } },
      color: { field: "row", type: "nominal", scale: range("colour"), legend: null },
      detail: { field: "row" },
    },
    layer: [
      { mark: { type: "area", opacity: 0.12 }, encoding: { y: { ...y, field: `${metric}_low`, title }, y2: { field: `${metric}_high` } } },
      { mark: { type: "line", strokeWidth: 1.5 }, encoding: { y: { ...y, field: metric, title }, strokeDash: { field: "row", scale: range("dash"), legend: null } } },
      {
        mark: { type: "point", filled: true, size: 30 },
        encoding: { y: { ...y, field: metric, title }, shape: { field: "row", type: "nominal", scale: range("shape"), legend: null }, opacity: { condition: { param: "near", empty: false, value: 1 }, value: 0.6 } },
      },
      { // wider than a marker, so that it is easily met; `nearest: true` would say "undefined" of all but the axis
        params: [{ name: "near", select: { type: "point", on: "pointerover", clear: "pointerout" } }],
        mark: { type: "circle", size: 200, opacity: 0 },
        encoding: { y: { ...y, field: metric, title }, tooltip },
      },
    ],
    config: { view: { stroke: null } },
  };
};
const unpacked = async () => {
  const bytes = Uint8Array.from(atob(document.getElementById("report-library").textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(make("script", {}, text));
};
let drawing = null;
const draw = () => {
  drawing = (drawing ?? unpacked()).then(async () => {
    const result = await vegaEmbed(chart, specification(), { actions: false, renderer: "svg", ast: false });
    const count = form.querySelectorAll("[name=row]:checked").length;
    chart.setAttribute("aria-label", `Curves of ${count} rows; the tables below have their last values`);
    chart.dataset.points = result.view.data("source_0").length;
  });
  return drawing;
};
form.addEventListener("change", draw);
if (points.length) {
  section.hidden = false;
  document.querySelector("nav").prepend(make("a", { href: "#explore" }, "Explore"));
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

// ---- from a cell to its runs
const dialog = document.getElementById("explore-runs");
const open = (suite, row, where) => {
  const body = dialog.querySelector("div");
  const list = make("table", {}, make("thead", {}, make("tr", {}, ...["Suite", "Seed", "Stages done", ...Object.values(data.metrics).map((name) => `final ${name}`)].map((name) => make("th", {}, name)))));
  const lines = list.createTBody();
  const files = make("div");
  for (const run of data.runs.filter((one) => one.suite === suite && one.row === row)) {
    const cells = [run.suite, run.seed, run.state, ...Object.keys(data.metrics).map((metric) => run[metric] ?? "–")];
    lines.append(make("tr", {}, ...cells.map((text) => make("td", {}, String(text)))));
    const paths = [run.record, ...run.stages.map((key) => `stages/${key}/records.jsonl`)];
    files.append(make("details", {}, make("summary", {}, `${run.suite}, seed ${run.seed}: records`),
      make("p", { class: "soft" }, `Records, below ${data.records || "the folder of runs"}:`), make("pre", {}, paths.join("\n"))));
  }
  const settings = [...document.querySelectorAll("details[data-settings]")].filter((one) => one.dataset.suite === suite && one.dataset.settings === row);
  body.replaceChildren(make("h3", {}, where ? `${row}: ${where}` : row), make("div", { class: "scroll" }, list), files,
    ...settings.map((one) => make("details", {}, make("summary", {}, "Settings"), one.querySelector("pre").cloneNode(true))));
  dialog.showModal();
};
for (const table of document.querySelectorAll("table.sorts")) {
  const [groups, heads] = table.tHead.rows.length > 1 ? table.tHead.rows : [null, table.tHead.rows[0]];
  const above = [...(groups?.cells ?? [])].flatMap((cell) => Array(cell.colSpan).fill(cell.textContent));
  const show = (cell) => {
    const { row } = cell.parentElement.dataset;
    const name = cell.parentElement.cells[0].textContent;
    const where = [name === row ? "" : name, cell.cellIndex ? `${above[cell.cellIndex] ?? ""} ${heads.cells[cell.cellIndex].textContent}` : ""];
    open(cell.closest("tbody").dataset.suite, row, where.map((part) => part.trim()).filter(Boolean).join(", "));
  };
  const beside = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  for (const line of table.querySelectorAll("tr[data-row]")) {
    const first = line.cells[0];
    const button = make("button", { type: "button", class: "runs", title: "its runs, records and settings" }, ...first.childNodes);
    first.append(button);
    for (const cell of [...line.cells].slice(1)) cell.tabIndex = 0;
    line.addEventListener("click", (event) => event.target.closest("td") && show(event.target.closest("td")));
    line.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td");
      const [down, right] = beside[event.key] ?? [0, 0];
      const near = [...table.querySelectorAll("tr[data-row]")];
      const next = near[near.indexOf(line) + down]?.cells[cell.cellIndex + right];
      if (down || right) (next?.querySelector("button") ?? next)?.focus();
      else if (event.key !== "Enter" || event.target !== cell) return; // a button's Enter is a click
      else show(cell);
      event.preventDefault();
    });
  }
}
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
document.documentElement.classList.add("explorable");
