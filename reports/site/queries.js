"use strict";
// Two rows query by query: a cloud of dots that pointer and keyboard ask, and what changed most.

const SIDE = 440;
const EDGE = 56;
const LARGEST = 14; // radius of a dot: labels of the axes stand beyond it
const TICKS = [0, 0.25, 0.5, 0.75, 1];

const across = (value) => EDGE + value * (SIDE - EDGE - 18);
const upwards = (value) => SIDE - across(value);

// Scripts of queries are read when their collection is chosen: many pages share them.
const readScripts = new Map();

function queriesOf(place) {
  if (!readScripts.has(place.id)) {
    const script = el("script", { src: `${ROOT}/${place.script}` });
    const read = new Promise((resolve) => {
      script.addEventListener("load", () => resolve(window[`QUERIES${place.id}`]));
      script.addEventListener("error", () => resolve([]));
    });
    document.head.append(script);
    readScripts.set(place.id, read);
  }
  return readScripts.get(place.id);
}

function axes(names) {
  const parts = [
    drawn("line", {
      class: "same",
      x1: across(0),
      y1: upwards(0),
      x2: across(1),
      y2: upwards(1),
    }),
  ];
  const text = (x, y, words, more = {}) => {
    const made = drawn("text", { x, y, ...more });
    made.append(words);
    return made;
  };
  for (const tick of TICKS) {
    parts.push(
      drawn("line", {
        class: "grid",
        x1: across(tick),
        x2: across(tick),
        y1: upwards(0),
        y2: upwards(1),
      }),
      drawn("line", {
        class: "grid",
        x1: across(0),
        x2: across(1),
        y1: upwards(tick),
        y2: upwards(tick),
      }),
      text(across(tick), SIDE - EDGE + LARGEST + 14, String(tick), { "text-anchor": "middle" }),
      text(EDGE - LARGEST - 4, upwards(tick) + 4, String(tick), { "text-anchor": "end" }),
    );
  }
  const middle = across(0.5);
  parts.push(
    text(middle, SIDE - 6, clipped(names[0], 56), { class: "name", "text-anchor": "middle" }),
    text(-upwards(0.5), 13, clipped(names[1], 56), {
      class: "name",
      "text-anchor": "middle",
      transform: "rotate(-90)",
    }),
  );
  return parts;
}

function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Largest first, so that small dots are drawn on top; told in the order of their differences.
function cloud(found, names, place) {
  const largest = Math.max(...found.map((dot) => dot.count));
  const picture = drawn("svg", {
    class: "cloud",
    viewBox: `0 0 ${SIDE} ${SIDE}`,
    tabindex: "0",
    role: "application",
    "aria-roledescription": "scatter plot",
    "aria-label": `Scores of the queries of ${place.name}: ${names[0]} across, ${names[1]} upwards. Arrow keys go from dot to dot.`,
  });
  picture.append(...axes(names));
  const told = [...found].sort((one, other) => other.a - other.b - (one.a - one.b));
  const note = el("div", { class: "note", role: "status", "aria-live": "polite" });
  const holder = el("div", { class: "plot" }, picture, note);
  const marks = new Map();
  let chosen = -1;
  const choose = (number) => {
    if (chosen >= 0) marks.get(told[chosen]).classList.remove("chosen");
    chosen = number;
    note.replaceChildren();
    note.classList.toggle("shown", number >= 0);
    if (number < 0) return;
    const dot = told[number];
    marks.get(dot).classList.add("chosen");
    tell(note, dot, names, place);
    note.classList.toggle("left", across(dot.a) > SIDE / 2);
    note.classList.toggle("above", upwards(dot.b) > SIDE / 2);
    note.style.setProperty("--x", `${(100 * across(dot.a)) / SIDE}%`);
    note.style.setProperty("--y", `${(100 * upwards(dot.b)) / SIDE}%`);
  };
  for (const dot of [...found].sort((one, other) => other.count - one.count)) {
    const radius = 2.6 + (largest > 1 ? (LARGEST - 2.6) * Math.sqrt((dot.count - 1) / largest) : 0);
    const mark = drawn("circle", {
      class: "query",
      cx: across(dot.a).toFixed(1),
      cy: upwards(dot.b).toFixed(1),
      r: radius.toFixed(1),
    });
    mark.addEventListener("pointerenter", () => choose(told.indexOf(dot)));
    mark.addEventListener("click", () => choose(told.indexOf(dot)));
    marks.set(dot, mark);
    picture.append(mark);
  }
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  picture.addEventListener("keydown", (event) => {
    const last = told.length - 1;
    if (event.key in steps) choose(Math.min(last, Math.max(0, chosen + steps[event.key])));
    else if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(last);
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
  });
  picture.addEventListener("blur", () => choose(-1));
  picture.addEventListener("pointerleave", () => choose(-1));
  return holder;
}

function tell(note, dot, names, place) {
  const list = el("ul");
  note.append(
    el("strong", {}, count(dot.count, "query", "queries")),
    el("div", {}, `${names[0]} ${fixed(dot.a, 3)}, ${names[1]} ${fixed(dot.b, 3)}`),
    list,
  );
  queriesOf(place).then((queries) => {
    for (const [id, text] of dot.queries.map((number) => queries[number]).filter(Boolean))
      list.append(el("li", {}, text ? clipped(text, 160) : `query ${id}`));
    const more = dot.count - dot.queries.length;
    if (more > 0) list.append(el("li", {}, `and ${grouped(more)} more`));
  });
}

function changedQueries(changes, names, withoutRankings) {
  if (!changes) return null;
  const better = (side) =>
    changes.queries.filter((one) => (side ? one.score_a < one.score_b : one.score_a > one.score_b));
  const notes = [changes.without, withoutRankings].filter(Boolean).join("; ");
  return el(
    "div",
    {},
    el("h3", {}, "Most changed"),
    el("p", { class: "status" }, `${grouped(changes.changed)} changed${notes ? ` · ${notes}` : ""}`),
    ...names.flatMap((name, side) => {
      const own = better(side);
      if (!own.length) return [];
      return [
        el("h4", {}, `${name} is better`),
        ...own.map((one) => changedQuery(one, names, Boolean(withoutRankings))),
      ];
    }),
  );
}

function changedQuery(one, names, withoutRankings) {
  const scores = `${fixed(one.score_a, 3)} − ${fixed(one.score_b, 3)} = ${signed(one.score_a - one.score_b, 3)}`;
  const parts = [];
  const title = clipped(one.text || `query ${one.query_id}`, 200);
  if (one.text && title !== one.text) parts.push(el("p", {}, one.text));
  if (one.answers.length) parts.push(el("p", {}, `answers: ${one.answers.join("; ")}`));
  if (one.judged.length) parts.push(judgedList(one, names, withoutRankings));
  if (one.top_a.length || one.top_b.length) parts.push(rankings(one, names));
  const summary = [title, el("small", {}, scores)];
  if (!parts.length) return el("div", { class: "changed" }, ...summary);
  return el("details", { class: "changed" }, el("summary", {}, ...summary), ...parts);
}

function plainTable(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const lines = rows.map((cells) =>
    el("tr", {}, ...cells.map((text) => el("td", { class: "words" }, text))),
  );
  const table = el(
    "table",
    { class: "plain" },
    el("caption", {}, caption),
    el("thead", {}, head),
    el("tbody", {}, ...lines),
  );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    table,
  );
}

function judgedList(one, names, withoutRankings) {
  const rank = (value, name) => `${value === null ? "not found" : `rank ${value}`} by ${name}`;
  const entries = one.judged.map((document) => {
    const facts = [`grade ${document.grade}`];
    if (!withoutRankings)
      facts.push(rank(document.rank_a, names[0]), rank(document.rank_b, names[1]));
    return el(
      "li",
      {},
      el("strong", {}, document.doc_id),
      el("small", {}, facts.join(" · ")),
      el("div", {}, document.text || "(not in this corpus)"),
    );
  });
  if (one.more_judged) entries.push(el("li", {}, `and ${grouped(one.more_judged)} more`));
  return el("div", {}, el("h5", {}, "Relevant"), el("ul", { class: "judged" }, ...entries));
}

function rankings(one, names) {
  const shown = (ranked) =>
    ranked ? `${ranked.doc_id}${ranked.grade === null ? "" : ` (grade ${ranked.grade})`}` : "";
  const depth = Math.max(one.top_a.length, one.top_b.length);
  const rows = Array.from({ length: depth }, (_, place) => [
    String(place + 1),
    shown(one.top_a[place]),
    shown(one.top_b[place]),
  ]);
  return plainTable("Both rankings", ["rank", ...names], rows);
}

// A collection is chosen; its cloud and its changes are drawn.
function queryView(queries, names) {
  const places = BOARD.places.filter((place) => queries[place.id]);
  if (!places.length) return null;
  const select = el("select", { id: "queries-of" });
  for (const place of places) select.append(el("option", { value: place.id }, place.name));
  const holder = el("div", { id: "queries" });
  const draw = () => {
    const place = BOARD.places[Number(select.value)];
    const found = queries[place.id];
    queriesOf(place);
    const dots = found.dots.map(([a, b, number, named]) => ({
      a,
      b,
      count: number,
      queries: named,
    }));
    holder.replaceChildren(
      ...[
        cloud(dots, names, place),
        changedQueries(found.changes, names, found.withoutRankings),
      ].filter(Boolean),
    );
  };
  select.addEventListener("change", draw);
  draw();
  return section(
    "Query by query",
    el(
      "p",
      { class: "lead" },
      "A dot is one query, or several with nearly the same scores; on the line both score the same. Point at a dot, or focus the plot and press the arrow keys.",
    ),
    el("form", { class: "controls" }, el("label", { class: "field" }, "Collection", select)),
    holder,
  );
}
