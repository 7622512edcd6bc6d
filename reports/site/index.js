// All models on all collections.

const view = {
  measure: MEASURE,
  models: "",
  datasets: "",
  only: "all",
  intervals: false,
  claims: false,
  recipes: false,
  unseen: false,
  systems: BOARD.published,
  baseline: BOARD.baselines[0] ?? "",
  by: null, // dataset whose groups are shown
  sorted: { by: null, falling: null },
};

// Systems with published scores only: one line for each source, in the shape of a row.
const SYSTEMS = claimedSystems();

function claimedSystems() {
  const measured = new Set(BOARD.rows.map((row) => row.model));
  const found = new Map();
  for (const one of BOARD.claims) {
    if (!one.publication && measured.has(one.model)) continue;
    const key = `${one.model}\n${one.source}`;
    if (!found.has(key))
      found.set(key, {
        name: one.model,
        title: one.publication,
        claim: one,
        recipe: {},
        cells: {},
        means: {},
      });
    const { cells, means } = found.get(key);
    const score = { value: one.value, low: null, group: null, published: null, source: one.source };
    cells[one.name] ??= { scores: {}, judged_at_10: null };
    cells[one.name].scores[one.measure] = score;
    means[one.name] ??= {};
    means[one.name][one.measure] = { score, zero_shot: null, missing: [] };
  }
  return [...found.values()];
}

function shownRows() {
  return view.systems ? BOARD.rows.concat(SYSTEMS) : BOARD.rows;
}

const RECIPE = [
  "pooling",
  "max_query_tokens",
  "max_document_tokens",
  "dtype",
  "store_dtype",
  "dimensions",
  "precision",
  "rescore",
  "index",
  "adapter.kind",
  "dim",
];

function shownDatasets() {
  const suite = DATASETS.find((dataset) => dataset.kind === "suite" && dataset.name === view.only);
  const words = view.datasets.toLowerCase();
  const first = headline(view.measure);
  return [first, ...DATASETS.filter((dataset) => dataset !== first)].filter((dataset) => {
    if (view.only === "suites" && dataset.kind !== "suite") return false;
    if (
      suite &&
      dataset !== suite &&
      !suite.collections.includes(dataset.name) &&
      !suite.members.includes(dataset.name)
    )
      return false;
    return (
      dataset.label.toLowerCase().includes(words) &&
      shownRows().some(
        (row) =>
          scoreOf(row, dataset, view.measure) || missingOf(row, dataset, view.measure).length,
      )
    );
  });
}

function scoreColumn(dataset) {
  const visible = (row) => {
    const score = scoreOf(row, dataset, view.measure);
    return score &&
      !(view.unseen && dataset.kind === "collection" && inDomain(row, dataset, view.measure))
      ? score
      : null;
  };
  const scale = scaleOf(BOARD.rows.map(visible).filter(Boolean));
  const notes = [
    dataset.title,
    dataset.kind === "suite"
      ? `mean of ${dataset.members.length}`
      : `${grouped(dataset.queries)} queries`,
    dataset.title_track && `${dataset.title_track} track`,
    dataset.official ? "" : "not the published collection",
  ];
  return {
    id: `dataset-${dataset.id}`,
    dataset,
    always: true,
    label: dataset.label,
    sub: [
      measureOf(dataset, view.measure),
      dataset.kind === "suite" ? `mean of ${dataset.members.length}` : dataset.title_track,
      dataset.main ? "" : "other protocol",
    ]
      .filter(Boolean)
      .join(" · "),
    note: notes.filter(Boolean).join(", "),
    numeric: true,
    kind: dataset.kind,
    value: (row) => visible(row)?.value ?? null,
    fill: (row, cell) => fillScore(row, dataset, visible(row), scale, cell),
  };
}

function fillScore(row, dataset, score, scale, cell) {
  if (!score) {
    const missing = missingOf(row, dataset, view.measure);
    if (missing.length)
      cell.append(
        el(
          "span",
          { class: "gap", title: `missing: ${missing.join(", ")}` },
          `${missing.length} of ${dataset.members.length} missing`,
        ),
      );
    return;
  }
  if (row.claim) {
    const mean = dataset.kind === "suite" ? `, mean of ${dataset.members.length} sets` : "";
    cell.append(
      el("span", { class: "claimed", title: `published${mean}: ${score.source}` }, fixed(score.value)),
    );
    return;
  }
  cell.classList.add("heat");
  cell.style.setProperty(
    "--heat",
    ((score.value - scale.low) / (scale.high - scale.low || 1)).toFixed(3),
  );
  cell.append(el("span", { class: score.group === 1 ? "best" : null }, fixed(score.value)));
  if (inDomain(row, dataset, view.measure))
    cell.append(el("abbr", { class: "seen", title: "trained on this collection" }, "*"));
  const contrast = contrastOn(row, dataset);
  if (contrast) cell.append(difference(contrast));
  if (score.low !== null) cell.append(intervalBar(score, scale));
  if (view.intervals) cell.append(el("small", {}, interval(score)));
  if (view.claims && score.published !== null) {
    cell.append(
      el(
        "small",
        { class: "claim", title: `published: ${score.source}` },
        `published ${fixed(score.published)}`,
      ),
    );
  }
}

// The interval of a score as a bar with a tick at the score, on the scale of its column, and a line
// at `zero` if that is a number.
function intervalBar(score, { least, most }, zero = null) {
  const place = (value) => `${((100 * (value - least)) / (most - least || 1)).toFixed(1)}%`;
  const bar = el("span", { class: "bar", title: `95 % interval ${interval(score)}` }, el("i"), el("b"));
  const [range, tick] = bar.children;
  range.style.setProperty("left", place(score.low));
  range.style.setProperty("right", `calc(100% - ${place(score.high)})`);
  tick.style.setProperty("left", place(score.value));
  if (zero !== null) {
    const line = el("s");
    line.style.setProperty("left", place(zero));
    bar.append(line);
  }
  return bar;
}

const CONTRASTS = new Map(
  BOARD.contrasts.map((one) => [`${one.comparison.a}\n${one.comparison.b}`, one]),
);
const contrastOf = (row) => CONTRASTS.get(`${row.name}\n${view.baseline}`);

// The row's difference from the chosen baseline, by the measure that is shown.
function contrastOn(row, dataset) {
  const contrast = contrastOf(row)?.comparison;
  const measure = measureOf(dataset, view.measure);
  return [...(contrast?.collections ?? []), ...(contrast?.suites ?? [])].find(
    (one) => one.on === dataset.name && one.measure === measure && one.paired,
  );
}

const signed = (value, digits = 3) => (value < 0 ? "\u2212" : "+") + fixed(Math.abs(value), digits);

function difference({ paired, verdict }, baseline = view.baseline) {
  const { difference: mean, low, high, p, p_adjusted } = paired;
  const limits = (low ?? null) === null ? "" : `, 95 % interval ${signed(low)} to ${signed(high)}`;
  const kind = { a: "better", b: "worse", neither: "unclear" }[verdict];
  return el(
    "small",
    {
      class: `difference ${kind}`,
      title: `difference from ${baseline}${limits}, p ${fixed(p_adjusted ?? p)}`,
    },
    signed(mean),
  );
}

// The decision of `check` on the row against the chosen baseline.
function verdictColumn() {
  return {
    id: "verdict",
    label: "Gate",
    sub: `against ${view.baseline}`,
    note: "the decision of `check` with its default limits; point at it for the reasons",
    value: (row) => contrastOf(row)?.outcome ?? null,
    fill: (row, cell) => {
      const contrast = contrastOf(row);
      if (!contrast) return;
      const title = contrast.reasons.map((reason) => reason.what).join("; ");
      const kind = `verdict ${contrast.outcome.toLowerCase()}`;
      cell.append(el("span", { class: kind, title }, contrast.outcome));
    },
  };
}

function baselineSelect() {
  if (!BOARD.baselines.length) return null;
  const select = el("select", { id: "baseline" }, el("option", { value: "" }, "nothing"));
  for (const name of BOARD.baselines)
    select.append(el("option", { value: name, selected: name === view.baseline }, name));
  select.addEventListener("change", () => {
    view.baseline = select.value;
    draw();
  });
  return el("label", { class: "field" }, "Compare with", select);
}

function zeroShotColumn(dataset) {
  const value = (row) =>
    scoreOf(row, dataset, view.measure)
      ? (zeroShotOf(row, dataset, view.measure)?.value ?? null)
      : null;
  return {
    id: `zero-${dataset.id}`,
    label: "Zero-shot",
    sub: dataset.label,
    note: `mean of ${dataset.label} without collections that the model was trained on`,
    numeric: true,
    kind: "suite",
    value,
    fill: (row, cell) => {
      if (value(row) === null) return;
      const { members } = zeroShotOf(row, dataset, view.measure);
      cell.append(fixed(value(row)), el("small", {}, `${members} of ${dataset.members.length}`));
    },
  };
}

function columns() {
  const model = {
    id: "model",
    label: "Model",
    kind: "model",
    always: true,
    heading: true,
    value: (row) => row.name,
    fill: (row, cell) => cell.append(...(row.claim ? systemName(row) : [link("model", row.name)])),
  };
  const group = {
    id: "group",
    label: "Group",
    kind: "group",
    always: true, // its values depend on the sorting
    note: "models in a group do not differ significantly from its best model (5 % level)",
    numeric: false,
    value: (row) => groupOf(row),
  };
  const scores = shownDatasets().flatMap((dataset) =>
    dataset.kind === "suite" ? [scoreColumn(dataset), zeroShotColumn(dataset)] : [scoreColumn(dataset)],
  );
  const verdict = view.baseline ? [verdictColumn()] : [];
  return [group, model, ...verdict, ...scores, ...(view.recipes ? recipeColumns() : speedColumns())];
}

function systemName(row) {
  const { publication, second_hand, note, source } = row.claim;
  const words = `${second_hand ? "copied in" : "published:"} ${publication}`;
  const title = [source, note].filter(Boolean).join("; ");
  return [
    el("span", { class: "claimed" }, row.name),
    el("small", { title }, publication ? words : "published"),
  ];
}

function speedColumns() {
  return [
    {
      id: "speed",
      label: "Encoding",
      sub: "tokens/s",
      note: "point at a value for its machine",
      numeric: true,
      value: (row) => row.tokens_per_s ?? null,
      fill: (row, cell) => {
        cell.append(grouped(row.tokens_per_s));
        if (row.speed_device) cell.title = row.speed_device;
      },
    },
    {
      id: "bytes",
      label: "Document",
      sub: "bytes",
      note: "vector or codes, links in a graph, and what candidates are scored again with",
      numeric: true,
      value: (row) => row.document_bytes ?? null,
      fill: (row, cell) => cell.append(grouped(row.document_bytes)),
    },
    {
      id: "judged",
      label: "judged@10",
      sub: "lowest",
      note: "share of judged documents in the top ten, on the collection with the lowest share",
      numeric: true,
      value: judgedOf,
      fill: (row, cell) => cell.append(fixed(judgedOf(row), 2)),
    },
    parametersColumn,
  ];
}

function recipeColumns() {
  const used = RECIPE.filter((name) => BOARD.rows.some((row) => row.recipe[name]));
  return [
    ...speedColumns(),
    ...used.map((name) => {
      const counts = name.endsWith("tokens") || name === "dim";
      return {
        id: `recipe-${name}`,
        label: inWords(name),
        numeric: counts,
        value: (row) =>
          counts && row.recipe[name] ? Number(row.recipe[name]) : row.recipe[name] || null,
      };
    }),
  ];
}

// Groups refer to the column that the table is sorted by, or else to the headline.
function groupDataset() {
  return DATASETS.find((dataset) => view.by === `dataset-${dataset.id}`) || headline(view.measure);
}

function groupOf(row) {
  const score = scoreOf(row, groupDataset(), view.measure);
  return score && score.group ? score.group : null;
}

let table = null;

function draw() {
  const all = columns();
  const first = `dataset-${headline(view.measure).id}`;
  const { sorted } = view;
  const by = [sorted.by, view.by, first, "model"].find((id) => all.some((one) => one.id === id));
  const holder = document.getElementById("table");
  const was = holder.firstChild ? holder.firstChild.scrollLeft : 0;
  table = sortedTable({
    columns: all,
    rows: shownRows(),
    by,
    falling: by === sorted.by ? sorted.falling : null,
    caption: "Scores of all models",
    sorted: afterSort,
  });
  holder.replaceChildren(table.element);
  table.element.scrollLeft = was;
  filter();
}

function afterSort(column, lines, falling) {
  view.sorted = { by: column.id, falling: Boolean(falling) };
  if (column.dataset) view.by = column.id;
  const dataset = groupDataset();
  document.getElementById("groups").textContent =
    `Groups refer to ${dataset.label}, ${measureOf(dataset, view.measure)}.`;
  let before = null;
  for (const { row, line } of lines) {
    if (row.claim) continue;
    const group = groupOf(row);
    line.firstChild.textContent = group ?? "";
    line.classList.toggle("edge", Boolean(column.dataset) && before !== null && group !== before);
    before = group;
  }
}

function filter() {
  const words = view.models.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { row, line } of table.lines) {
    const text = `${row.name} ${row.title} ${Object.values(row.recipe).join(" ")}`.toLowerCase();
    line.hidden = !words.every((word) => text.includes(word));
    shown += !line.hidden && !row.claim;
  }
  document.getElementById("count").textContent = `${shown} of ${BOARD.rows.length} models`;
}

function field(label, id, value, change) {
  const input = el("input", { type: "search", id, value, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => change(input.value));
  return el("label", { class: "field" }, label, input);
}

function tick(label, name) {
  const input = el("input", { type: "checkbox", id: name, checked: view[name] });
  input.addEventListener("change", () => {
    view[name] = input.checked;
    draw();
  });
  return el("label", { class: "tick" }, input, label);
}

function suiteSelect() {
  const suites = DATASETS.filter((dataset) => dataset.kind === "suite");
  if (!suites.length) return null;
  const select = el(
    "select",
    { id: "only" },
    el("option", { value: "all" }, "all"),
    el("option", { value: "suites", selected: view.only === "suites" }, "only means"),
  );
  for (const dataset of suites) select.append(el("option", { value: dataset.name, selected: dataset.name === view.only }, dataset.label));
  select.addEventListener("change", () => {
    view.only = select.value;
    draw();
  });
  return el("label", { class: "field" }, "Suites", select);
}

function showIndex() {
  const choose = (measure) => {
    view.measure = measure;
    draw();
  };
  const measures = [["", "main measure of each collection"], ...BOARD.measures.map((name) => [name, name])];
  const controls = el(
    "form",
    { class: "controls", role: "search" },
    field("Find models", "find", view.models, (text) => {
      view.models = text;
      filter();
    }),
    field("Find collections", "find-collections", view.datasets, (text) => {
      view.datasets = text;
      draw();
    }),
    suiteSelect(),
    measureSelect(measures, view.measure, choose),
    baselineSelect(),
    el(
      "fieldset",
      {},
      el("legend", {}, "Show"),
      tick("95 % intervals", "intervals"),
      tick("published scores of these models", "claims"),
      tick("recipes", "recipes"),
      tick("zero-shot only", "unseen"),
      SYSTEMS.length ? tick("published scores of other systems", "systems") : null,
    ),
  );
  controls.addEventListener("submit", (event) => event.preventDefault());
  document
    .getElementById("content")
    .replaceChildren(
      el("h1", {}, "Leaderboard"),
      el(
        "p",
        { class: "lead" },
        `${count(BOARD.rows.length, "model")} on ${count(DATASETS.filter((dataset) => dataset.kind === "collection").length, "collection")}. `,
        "Models in a group do not differ significantly from its best model (5 % level); scores of the first group are bold. ",
        "An asterisk marks a collection that the model was trained on. A suite has a mean only if all its collections were evaluated. ",
        SYSTEMS.length
          ? "Rows in italics are published scores of other systems, not measured here."
          : "",
      ),
      controls,
      el(
        "p",
        { class: "status" },
        el("span", { id: "count", "aria-live": "polite" }),
        " · ",
        el("span", { id: "groups" }),
      ),
      el("div", { id: "table" }),
      collectionList(),
      claimSources() ?? "",
    );
  draw();
}

function collectionList() {
  const list = el("ul", { class: "pages" });
  for (const dataset of DATASETS.filter((one) => one.kind === "collection"))
    list.append(el("li", {}, link("collection", dataset.name)));
  return section("Collections", list);
}

function claimSources() {
  const used = [...new Set(SYSTEMS.map((row) => row.claim.source))];
  if (!used.length) return null;
  return section(
    "Sources of published scores",
    el("ul", {}, ...used.map((text) => el("li", {}, outside(text)))),
  );
}
