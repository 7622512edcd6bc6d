// One model: its recipe, its means, and every collection that it was evaluated on.

function showModel(row) {

  function placesOf(kind) {
    return PLACES.filter(
      (place) => place.kind === kind && (row.cells[place.name] ?? row.means[place.name]),
    );
  }

  const EVERY = "every measure";
  let shown = MEASURE;

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
    const cell = (one) => row.cells[one.place.name];
    const columns = [
      {
        id: "collection",
        label: "Collection",
        heading: true,
        kind: "model",
        value: (one) => one.place.name,
        fill: (one, td) => td.append(link("collection", one.place.name)),
      },
      measure,
      score,
      whiskerColumn(all, (one) => one.score),
      intervalColumn((one) => one.score),
      group,
      claim,
      difference,
      numberColumn("judged", "judged@10", (one) => cell(one).judged_at_10, rounded),
      numberColumn("speed", "tokens/s", (one) => cell(one).tokens_per_s, grouped),
      numberColumn("search", "search", (one) => cell(one).search_ms, rounded, { sub: "ms/query" }),
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
        value: (one) => one.place.label,
        fill: (one, td) => td.append(one.place.label, el("small", {}, one.place.title)),
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
      const cell = row.cells[place.name];
      const ties = cell.tie_low === null ? "" : `${fixed(cell.tie_low)}–${fixed(cell.tie_high)}`;
      const recall = Object.entries(cell.index_recall)
        .map(([name, value]) => `${name} ${fixed(value, 3)}`)
        .join(", ");
      return el(
        "details",
        {},
        el("summary", {}, place.name),
        facts([
          ...Object.entries(cell.facts),
          ["range over orders of ties", ties],
          ["recall of the index", recall],
          ["queries without an answer", cell.unanswered ? grouped(cell.unanswered) : ""],
          ["warnings", cell.warnings.join("; ")],
        ]),
      );
    });
    return section("Evaluations", ...made);
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
          ["trained on", row.trained_on.join(", ")],
          ["encodes", row.tokens_per_s ? `${grouped(row.tokens_per_s)} tokens/s on ${row.speed_device}` : ""],
        ]),
        el("form", { class: "controls" }, measureSelect(choices, shown, draw)),
        tables,
        evaluations(),
      ].filter(Boolean),
    );
  draw(shown);
}
