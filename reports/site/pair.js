"use strict";
// Two rows beside each other: differences with intervals, first minus second.

const pair = window.PAIR;
const [first, second] = pair.rows.map((number) => BOARD.rows[number]);
const LEVEL = 0.05;

const found = pair.versus.map(
  ([id, measure, difference, low, high, p, corrected, wins, ties, losses, detectable]) => ({
    place: BOARD.places[id],
    measure,
    difference,
    low,
    high,
    p: corrected ?? p,
    wins,
    ties,
    losses,
    detectable,
  }),
);

function signed(value, digits = 4) {
  if (value === null) return "";
  return `${value < 0 ? "−" : "+"}${fixed(Math.abs(value), digits)}`;
}

function better(one) {
  if (one.p > LEVEL) return "cannot tell";
  return one.difference > 0 ? first.name : second.name;
}

function reach(all) {
  const ends = all
    .flatMap((one) => [one.difference, one.low, one.high])
    .filter((value) => value !== null);
  return Math.max(...ends.map(Math.abs), 1e-4);
}

function forest(one, most) {
  const place = (value) => (100 + (94 * value) / most).toFixed(1);
  const spoken = `difference ${signed(one.difference)}${one.low === null ? "" : `, 95 % interval ${signed(one.low)} to ${signed(one.high)}`}`;
  const picture = drawn("svg", {
    class: "forest",
    viewBox: "0 0 200 16",
    role: "img",
    "aria-label": spoken,
  });
  picture.append(drawn("line", { class: "axis", x1: 100, x2: 100, y1: 0, y2: 16 }));
  if (one.low !== null)
    picture.append(
      drawn("line", { class: "range", x1: place(one.low), x2: place(one.high), y1: 8, y2: 8 }),
    );
  picture.append(drawn("circle", { class: "dot", cx: place(one.difference), cy: 8, r: 3.5 }));
  return picture;
}

function pairTable() {
  const most = reach(found);
  const score = (row) => (one) => scoreOf(row, one.place, one.measure)?.value ?? null;
  const columns = [
    {
      id: "place",
      label: "On",
      heading: true,
      kind: "model",
      value: (one) => one.place.name,
      fill: (one, td) =>
        td.append(
          one.place.page ? link(one.place.page, one.place.name) : el("strong", {}, one.place.name),
          el("small", {}, one.measure),
        ),
    },
    numberColumn("first", first.name, score(first), fixed, { names: true }),
    numberColumn("second", second.name, score(second), fixed, { names: true }),
    {
      id: "difference",
      label: "difference",
      sub: "95 % interval",
      numeric: true,
      value: (one) => one.difference,
      fill: (one, td) => {
        td.append(signed(one.difference));
        if (one.low !== null)
          td.append(el("small", {}, `${signed(one.low, 3)} to ${signed(one.high, 3)}`));
      },
    },
    {
      id: "forest",
      label: `${signed(-most, 2)} to ${signed(most, 2)}`,
      note: "dot: difference, line: 95 % interval, upright: none",
      numeric: true,
      value: (one) => one.difference,
      fill: (one, td) => td.append(forest(one, most)),
    },
    numberColumn("p", "p", (one) => one.p, pValue, {
      note: "paired sign flips; of collections corrected by Holm",
    }),
    {
      id: "better",
      label: "better",
      sub: "won, tied, lost",
      kind: "words",
      value: better,
      fill: (one, td) =>
        td.append(
          ...breaking(better(one)),
          el("small", {}, [one.wins, one.ties, one.losses].map(grouped).join(", ")),
        ),
    },
    numberColumn("detectable", "detectable", (one) => one.detectable, fixed, {
      note: "a true difference of this size would be found 80 times in 100",
    }),
  ];
  const table = sortedTable({ columns, rows: found, caption: `${first.name} and ${second.name}` });
  return table.element;
}

function recipeTable() {
  const names = new Set([...Object.keys(first.recipe), ...Object.keys(second.recipe)]);
  const rows = [...names]
    .filter((name) => first.recipe[name] !== second.recipe[name])
    .map((name) => ({ name, values: [first.recipe[name] ?? "", second.recipe[name] ?? ""] }));
  const sizes = [first, second].map(sizeOf);
  if (sizes[0] !== sizes[1]) rows.push({ name: "parameters", values: sizes });
  if (!rows.length) return null;
  const columns = [
    { id: "name", label: "field", heading: true, kind: "model", value: (one) => one.name },
    { id: "first", label: first.name, names: true, kind: "words", value: (one) => one.values[0] },
    { id: "second", label: second.name, names: true, kind: "words", value: (one) => one.values[1] },
  ];
  return section(
    "What differs in the recipes",
    sortedTable({ columns, rows, by: "name", caption: "Recipes" }).element,
  );
}

document
  .getElementById("content")
  .replaceChildren(
    ...[
      el("h1", {}, ...breaking(first.name), " − ", ...breaking(second.name)),
      el(
        "p",
        { class: "lead" },
        "Above zero ",
        link(first.page, first.name),
        " is better, below it ",
        link(second.page, second.name),
        ".",
      ),
      found.length ? pairTable() : el("p", {}, "They have no collection in common."),
      el(
        "p",
        { class: "status" },
        "The queries that changed most: ",
        el("code", {}, `python -m bench compare ${first.name} ${second.name} --changed 3`),
      ),
      recipeTable(),
    ].filter(Boolean),
  );
