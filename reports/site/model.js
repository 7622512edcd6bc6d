// One model: its means, its score on every collection, its recipe, and its evaluations.

function showModel(row) {

  function datasetsOf(kind) {
    return DATASETS.filter(
      (dataset) => dataset.kind === kind && (row.cells[dataset.name] ?? row.means[dataset.name]),
    );
  }

  const EVERY = "every measure";
  let shown = MEASURE;

  function lines(kind) {
    return datasetsOf(kind).flatMap((dataset) =>
      dataset.measures
        .filter((name) => shown === EVERY || name === measureOf(dataset, shown))
        .map((measure) => ({
          dataset,
          measure,
          score: scoreOf(row, dataset, measure),
          missing: missingOf(row, dataset, measure),
        }))
        .filter((one) => one.score || one.missing.length),
    );
  }

  const group = {
    id: "group",
    label: "Group",
    numeric: false,
    note: "1 is the best; models in a group do not differ significantly from its best model (5 % level)",
    value: (one) => one.score?.group ?? null,
  };
  const score = {
    id: "score",
    label: "Score",
    numeric: true,
    value: (one) => one.score?.value ?? null,
    fill: (one, cell) =>
      cell.append(
        one.score ? fixed(one.score.value) : "",
        one.score && inDomain(row, one.dataset, one.measure)
          ? el("abbr", { class: "seen", title: "trained on this collection" }, "*")
          : "",
        intervalBelow(one.score),
      ),
  };
  const measure = { id: "measure", label: "Measure", value: (one) => one.measure };
  const claim = {
    id: "claim",
    label: "Published",
    note: "as printed in the source below",
    numeric: true,
    value: (one) => one.score?.published ?? null,
    fill: (one, cell) => {
      cell.append(fixed(one.score?.published));
      if (one.score?.source) cell.title = one.score.source;
    },
  };
  const unpublished = {
    id: "difference",
    label: "Difference",
    note: "measured minus published",
    numeric: true,
    value: (one) =>
      one.score && one.score.published !== null ? one.score.value - one.score.published : null,
    fill: (one, cell) => {
      const found = unpublished.value(one);
      if (found !== null) cell.append((found < 0 ? "−" : "+") + fixed(Math.abs(found)));
    },
  };

  function collectionTable() {
    const all = lines("collection");
    const cell = (one) => row.cells[one.dataset.name];
    const columns = [
      {
        id: "collection",
        label: "Collection",
        heading: true,
        kind: "model",
        value: (one) => one.dataset.name,
        fill: (one, td) => td.append(link("collection", one.dataset.name)),
      },
      measure,
      score,
      intervalColumn((one) => one.score),
      group,
      claim,
      unpublished,
      numberColumn("judged", "judged@10", (one) => cell(one).judged_at_10, rounded),
      numberColumn("speed", "Encoding", (one) => cell(one).tokens_per_s, grouped, { sub: "tokens/s" }),
      numberColumn("search", "Search", (one) => cell(one).search_ms, rounded, { sub: "ms/query" }),
    ];
    return sortedTable({ columns, rows: all, caption: "Scores by collection" }).element;
  }

  function suiteTable() {
    const all = lines("suite").filter((one) => one.score);
    if (!all.length) return null;
    const zero = (one) => (one.score ? zeroShotOf(row, one.dataset, one.measure) : null);
    const columns = [
      {
        id: "suite",
        label: "Suite",
        heading: true,
        kind: "model",
        value: (one) => one.dataset.label,
        fill: (one, td) => td.append(one.dataset.label, el("small", {}, one.dataset.title)),
      },
      measure,
      score,
      {
        id: "zero",
        label: "Zero-shot mean",
        numeric: true,
        value: (one) => zero(one)?.value ?? null,
        fill: (one, td) => {
          const found = zero(one);
          if (found && found.value !== null)
            td.append(
              fixed(found.value),
              el("small", {}, `${found.members} of ${one.dataset.members.length}`),
            );
        },
      },
      intervalColumn((one) => one.score),
      group,
      claim,
      unpublished,
    ];
    return section("Means", sortedTable({ columns, rows: all, caption: "Means of suites" }).element);
  }

  function missingMeans() {
    const gaps = lines("suite").filter((one) => one.missing.length);
    if (!gaps.length) return null;
    const lists = gaps.map(({ dataset, measure, missing }) => {
      const words = `${dataset.label}, ${measure}: ${missing.length} of ${dataset.members.length} collections missing`;
      return el("details", {}, el("summary", {}, words), missing.join(", "));
    });
    return section("Suites without a mean", ...lists);
  }

  function evaluations() {
    const made = datasetsOf("collection").map((dataset) => {
      const cell = row.cells[dataset.name];
      const ties = fixed(cell.tie_low) === fixed(cell.tie_high) ? "" : `${fixed(cell.tie_low)}–${fixed(cell.tie_high)}`;
      const recall = Object.entries(cell.index_recall)
        .map(([name, value]) => `${name} ${fixed(value, 3)}`)
        .join(", ");
      return el(
        "details",
        {},
        el("summary", {}, dataset.name),
        properties([
          ...Object.entries(cell.provenance),
          ["score range over orders of tied documents", ties],
          ["index recall", recall],
          ["queries without retrieved documents", cell.unanswered ? grouped(cell.unanswered) : ""],
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
      "Sources of published scores",
      el("ul", {}, ...[...found].map((text) => el("li", {}, outside(text)))),
    );
  }

  // Differences on the slices by one field against one baseline: a bar for each interval, on one
  // scale, with a line at 0.
  function sliceTable({ a, b, field, slices }) {
    const ends = slices.flatMap(({ paired }) => [paired.difference, paired.low ?? 0, paired.high ?? 0, 0]);
    const scale = { least: Math.min(...ends), most: Math.max(...ends) };
    const p = ({ paired }) => paired.p_adjusted;
    const columns = [
      { id: "value", label: field, heading: true, kind: "model", value: (one) => one.value },
      { id: "collection", label: "Collection", value: (one) => one.on },
      measure,
      numberColumn("queries", "Queries", (one) => one.queries, grouped),
      numberColumn("other", b, (one) => one.mean_b),
      numberColumn("own", a, (one) => one.mean_a),
      {
        id: "slice-difference",
        label: "Difference",
        note: `${a} − ${b}, with its 95 % interval and a line at 0; bold if significant`,
        numeric: true,
        value: ({ paired }) => paired.difference,
        fill: (one, cell) => {
          const { difference: value, low, high } = one.paired;
          cell.append(difference(one, b));
          if (low !== null) cell.append(intervalBar({ value, low, high }, scale, 0));
        },
      },
      numberColumn("p", "p", p, fixed, {
        note: "corrected for all slices and collections of this pair by joint sign flips (maxT)",
      }),
    ];
    const caption = `Slices by ${field} against ${b}`;
    return sortedTable({ columns, rows: slices, caption }).element;
  }

  function sliceSection() {
    const found = BOARD.contrasts
      .filter((one) => one.comparison.a === row.name)
      .flatMap((one) => one.slices)
      .filter((one) => one.slices.length);
    if (!found.length) return null;
    const select = el("select", { id: "slices" });
    for (const [number, one] of found.entries())
      select.append(el("option", { value: number }, `${one.field}, against ${one.b}`));
    const holder = el("div", { id: "slice-table" });
    const choose = () => holder.replaceChildren(sliceTable(found[Number(select.value)]));
    select.addEventListener("change", choose);
    choose();
    const label = el("label", { class: "field" }, "Slices by", select);
    return section("Slices", el("form", { class: "controls" }, label), holder);
  }

  const tables = el("div");

  function draw(measure) {
    shown = measure;
    tables.replaceChildren(
      ...[
        suiteTable(),
        section("Collections", collectionTable()),
        missingMeans(),
        sources(),
      ].filter(Boolean),
    );
  }

  const choices = [
    ["", "main measure of each collection"],
    [EVERY, EVERY],
    ...BOARD.measures.map((name) => [name, name]),
  ];

  document
    .getElementById("content")
    .replaceChildren(
      ...[
        el("h1", {}, row.name),
        row.title ? el("p", { class: "lead" }, row.title) : null,
        el("form", { class: "controls" }, measureSelect(choices, shown, draw)),
        tables,
        sliceSection(),
        section(
          "Recipe",
          properties([
            ...Object.entries(row.recipe),
            ["parameters", sizeOf(row)],
            ["bytes per document", grouped(row.document_bytes)],
            ["trained on", row.trained_on.join(", ")],
            [
              "encoding speed",
              row.tokens_per_s ? `${grouped(row.tokens_per_s)} tokens/s on ${row.speed_device}` : "",
            ],
          ]),
        ),
        evaluations(),
      ].filter(Boolean),
    );
  draw(shown);
}
