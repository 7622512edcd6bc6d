"use strict";
// One model: its recipe, its means, and every collection that it was evaluated on.

const row = BOARD.rows[Number(document.body.dataset.id)];
const details = window.DETAILS;

function placesOf(kind) {
  return BOARD.places.filter((place) => place.kind === kind && row.cells[place.id]);
}

const EVERY = "every measure";
let shown = BOARD.measure;

function lines(kind) {
  return placesOf(kind).flatMap((place) =>
    place.measures
      .filter((name) => shown === EVERY || name === measureOf(place, shown))
      .map((measure) => ({
        place,
        measure,
        score: scoreOf(row, place, measure),
        missing: missingOf(row, place, measure),
      }))
      .filter((one) => one.score || one.missing.length),
  );
}

const group = {
  id: "group",
  label: "group",
  numeric: false,
  note: "1 is the best; models of one group cannot be told apart from its best",
  value: (one) => one.score?.group ?? null,
};
const score = {
  id: "score",
  label: "score",
  numeric: true,
  value: (one) => one.score?.value ?? null,
  fill: (one, cell) =>
    cell.append(
      one.score ? fixed(one.score.value) : "",
      one.score && inDomain(row, one.place, one.measure)
        ? el("abbr", { class: "seen", title: "the model was trained on it" }, "*")
        : "",
    ),
};
const measure = { id: "measure", label: "measure", value: (one) => one.measure };
const claim = {
  id: "claim",
  label: "published",
  note: "a claim; its source is below",
  numeric: true,
  value: (one) => one.score?.published ?? null,
  fill: (one, cell) => {
    cell.append(fixed(one.score?.published));
    if (one.score?.source) cell.title = one.score.source;
  },
};
const difference = {
  id: "difference",
  label: "difference",
  note: "measured minus published",
  numeric: true,
  value: (one) =>
    one.score && one.score.published !== null ? one.score.value - one.score.published : null,
  fill: (one, cell) => {
    const found = difference.value(one);
    if (found !== null) cell.append((found < 0 ? "−" : "+") + fixed(Math.abs(found)));
  },
};

function collectionTable() {
  const all = lines("collection");
  const cell = (one) => row.cells[one.place.id];
  const columns = [
    {
      id: "collection",
      label: "Collection",
      heading: true,
      kind: "model",
      value: (one) => one.place.name,
      fill: (one, td) => td.append(link(one.place.page, one.place.name)),
    },
    measure,
    score,
    whiskerColumn(all, (one) => one.score),
    intervalColumn((one) => one.score),
    group,
    claim,
    difference,
    numberColumn("judged", "judged@10", (one) => cell(one).j, rounded),
    numberColumn("speed", "tokens/s", (one) => cell(one).v, grouped),
    numberColumn("search", "search", (one) => cell(one).m, rounded, { sub: "ms/query" }),
  ];
  return sortedTable({ columns, rows: all, caption: "Scores by collection" }).element;
}

function suiteTable() {
  const all = lines("suite");
  if (!all.length) return null;
  const zero = (one) => (one.score ? zeroShotOf(row, one.place, one.measure) : null);
  const columns = [
    {
      id: "suite",
      label: "Suite",
      heading: true,
      kind: "model",
      value: (one) => one.place.name,
      fill: (one, td) => td.append(one.place.name, el("small", {}, one.place.title)),
    },
    measure,
    score,
    {
      id: "zero",
      label: "zero-shot mean",
      numeric: true,
      value: (one) => zero(one)?.value ?? null,
      fill: (one, td) => {
        const found = zero(one);
        if (found && found.value !== null)
          td.append(
            fixed(found.value),
            el("small", {}, `${found.members} of ${one.place.members.length}`),
          );
      },
    },
    intervalColumn((one) => one.score),
    group,
    claim,
    difference,
    {
      id: "missing",
      label: "missing",
      kind: "words",
      value: (one) => one.missing.length || null,
      fill: (one, td) => {
        if (one.missing.length)
          td.append(
            `${one.missing.length} of ${one.place.members.length}: ${one.missing.join(", ")}`,
          );
      },
    },
  ];
  return section("Means", sortedTable({ columns, rows: all, caption: "Means of suites" }).element);
}

function evaluations() {
  const made = placesOf("collection").map((place) => {
    const known = details[place.id];
    const cell = row.cells[place.id];
    const ties = cell.t[0] === null ? "" : `${fixed(cell.t[0])}–${fixed(cell.t[1])}`;
    const recall = Object.entries(cell.r)
      .map(([name, value]) => `${name} ${fixed(value, 3)}`)
      .join(", ");
    return el(
      "details",
      {},
      el("summary", {}, place.name),
      facts([
        ...Object.entries(known.facts),
        ["range over orders of ties", ties],
        ["recall of the index", recall],
        ["queries without an answer", cell.u ? grouped(cell.u) : ""],
        ["warnings", known.warnings.join("; ")],
      ]),
    );
  });
  return section("Evaluations", ...made);
}

function neighbours() {
  const own = BOARD.pairs.filter((one) => one.rows.some((number) => BOARD.rows[number] === row));
  if (!own.length) return null;
  const entry = (one) =>
    el("li", {}, link(one.page, one.rows.map((number) => BOARD.rows[number].name).join(" − ")));
  return section("Beside other models", el("ul", { class: "pages" }, ...own.map(entry)));
}

function sources() {
  const found = new Set(
    lines("collection")
      .concat(lines("suite"))
      .map((one) => one.score?.source)
      .filter(Boolean),
  );
  if (!found.size) return null;
  return section(
    "Where published scores come from",
    el("ul", {}, ...[...found].map((text) => el("li", {}, text))),
  );
}

const tables = el("div");

function draw(measure) {
  shown = measure;
  tables.replaceChildren(
    ...[suiteTable(), section("Collections", collectionTable()), sources()].filter(Boolean),
  );
}

const choices = [
  ["", "main of each collection"],
  [EVERY, EVERY],
  ...BOARD.measures.map((name) => [name, name]),
];

document
  .getElementById("content")
  .replaceChildren(
    ...[
      el("h1", {}, row.name),
      row.title ? el("p", { class: "lead" }, row.title) : null,
      facts([
        ...Object.entries(row.recipe),
        ["parameters", sizeOf(row)],
        ["trained on", row.trainedOn.join(", ")],
        ["encodes", row.speed ? `${grouped(row.speed)} tokens/s on ${row.device}` : ""],
      ]),
      el("form", { class: "controls" }, measureSelect(choices, shown, draw)),
      tables,
      neighbours(),
      evaluations(),
    ].filter(Boolean),
  );
draw(shown);
