"use strict";
// One collection under one protocol: every model on it, and what was published.

const place = BOARD.places[Number(document.body.dataset.id)];
const rows = BOARD.rows.filter((row) => row.cells[place.id]);

function modelTable(measure) {
  const known = rows.filter((row) => scoreOf(row, place, measure));
  const score = (row) => scoreOf(row, place, measure);
  const scale = scaleOf(known.map(score));
  const cell = (row) => row.cells[place.id];
  const others = place.measures.filter((name) => name !== measure);
  const columns = [
    {
      id: "group",
      label: "Group",
      kind: "group",
      note: "models of one group cannot be told apart from its best at the 5 % level",
      value: (row) => score(row).group,
    },
    {
      id: "model",
      label: "Model",
      kind: "model",
      heading: true,
      value: (row) => row.name,
      fill: (row, td) => td.append(link(row.page, row.name)),
    },
    {
      id: "score",
      label: measure,
      numeric: true,
      value: (row) => score(row).value,
      fill: (row, td) => {
        td.append(
          el("span", { class: score(row).group === 1 ? "best" : null }, fixed(score(row).value)),
        );
        if (cell(row).d)
          td.append(el("abbr", { class: "seen", title: "the model was trained on it" }, "*"));
      },
    },
    {
      id: "picture",
      label: `${fixed(scale.low, 2)} to ${fixed(scale.high, 2)}`,
      note: "dot: measured, line: 95 % interval, ring: published",
      numeric: true,
      value: (row) => score(row).value,
      fill: (row, td) => td.append(whisker(score(row), scale)),
    },
    {
      id: "interval",
      label: "95 % interval",
      numeric: true,
      value: (row) => score(row).low,
      fill: (row, td) => td.append(interval(score(row))),
    },
    {
      id: "claim",
      label: "published",
      note: "a claim",
      numeric: true,
      value: (row) => score(row).published,
      fill: (row, td) => {
        td.append(fixed(score(row).published));
        if (score(row).source) td.title = score(row).source;
      },
    },
    ...others.map((name) => ({
      id: `measure-${name}`,
      label: name,
      numeric: true,
      value: (row) => scoreOf(row, place, name)?.value ?? null,
      fill: (row, td) => td.append(fixed(scoreOf(row, place, name)?.value)),
    })),
    {
      id: "judged",
      label: "judged@10",
      numeric: true,
      value: (row) => cell(row).j,
      fill: (row, td) => td.append(fixed(cell(row).j, 2)),
    },
    {
      id: "search",
      label: "search, ms/query",
      numeric: true,
      value: (row) => cell(row).m,
      fill: (row, td) => td.append(fixed(cell(row).m, 2)),
    },
    {
      id: "query",
      label: "max_query_tokens",
      numeric: true,
      value: (row) => Number(row.recipe.max_query_tokens) || null,
    },
    {
      id: "document",
      label: "max_document_tokens",
      numeric: true,
      value: (row) => Number(row.recipe.max_document_tokens) || null,
    },
    parametersColumn,
    { id: "dtype", label: "dtype", value: (row) => row.recipe.dtype },
    { id: "index", label: "index", value: (row) => row.recipe.index },
  ];
  return sortedTable({ columns, rows: known, by: "score", caption: `Models on ${place.name}` })
    .element;
}

function claimTable() {
  const found = BOARD.claims.filter((one) => one.name === place.name);
  if (!found.length) return null;
  const columns = [
    { id: "model", label: "Model", heading: true, kind: "model", value: (one) => one.model },
    { id: "measure", label: "measure", value: (one) => one.measure },
    {
      id: "value",
      label: "published",
      numeric: true,
      value: (one) => one.value,
      fill: (one, td) => td.append(fixed(one.value)),
    },
    { id: "copied", label: "read in", value: (one) => (one.copied ? "a copy" : "the source") },
    { id: "source", label: "source", value: (one) => BOARD.sources[one.source] },
    { id: "note", label: "note", value: (one) => one.note, kind: "words" },
  ];
  return section(
    "Published scores",
    el("p", {}, "Claims, also of models that were not evaluated here."),
    sortedTable({ columns, rows: found, by: "value", caption: "Published scores" }).element,
  );
}

function otherProtocols() {
  const found = BOARD.places.filter(
    (one) => one.kind === "collection" && one.collection === place.collection && one !== place,
  );
  if (!found.length) return null;
  return section(
    "Other protocols",
    el("p", {}, "Their scores do not compare with these."),
    el("ul", {}, ...found.map((one) => el("li", {}, link(one.page, one.name)))),
  );
}

const holder = el("div", { id: "table" });
const choose = (measure) => holder.replaceChildren(modelTable(measure));
document.getElementById("content").replaceChildren(
  ...[
    el("h1", {}, place.name),
    place.about.title ? el("p", { class: "lead" }, place.about.title) : null,
    place.official
      ? null
      : el("p", { class: "warning" }, "This is not the published collection: its counts differ."),
    facts([
      ["queries", grouped(place.queries)],
      ["documents", grouped(place.documents)],
      ...Object.entries(place.protocol),
      ["licence", place.about.licence],
      ["citation", place.about.citation],
      ["homepage", place.about.homepage ? outside(place.about.homepage) : ""],
    ]),
    el(
      "form",
      { class: "controls" },
      measureSelect(
        place.measures.map((name) => [name, name]),
        place.main,
        choose,
      ),
    ),
    holder,
    claimTable(),
    otherProtocols(),
  ].filter(Boolean),
);
choose(place.main);
