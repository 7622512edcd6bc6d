// One collection under one protocol: every model on it, published scores, and its properties.

function showCollection(dataset) {
  const rows = BOARD.rows.filter((row) => row.cells[dataset.name]);

  function modelTable(measure) {
    const known = rows.filter((row) => scoreOf(row, dataset, measure));
    const score = (row) => scoreOf(row, dataset, measure);
    const cell = (row) => row.cells[dataset.name];
    const others = dataset.measures.filter((name) => name !== measure);
    const columns = [
      {
        id: "group",
        label: "Group",
        kind: "group",
        note: "models in a group do not differ significantly from its best model (5 % level)",
        value: (row) => score(row).group,
      },
      {
        id: "model",
        label: "Model",
        kind: "model",
        heading: true,
        value: (row) => row.name,
        fill: (row, td) => td.append(link("model", row.name)),
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
          if (cell(row).in_domain)
            td.append(el("abbr", { class: "seen", title: "trained on this collection" }, "*"));
          td.append(intervalBelow(score(row)));
        },
      },
      intervalColumn(score),
      {
        id: "claim",
        label: "Published",
        note: "as printed; point at a score for its source",
        numeric: true,
        value: (row) => score(row).published,
        fill: (row, td) => {
          td.append(fixed(score(row).published));
          if (score(row).source) td.title = score(row).source;
        },
      },
      ...others.map((name) =>
        numberColumn(`measure-${name}`, name, (row) => scoreOf(row, dataset, name)?.value ?? null),
      ),
      numberColumn("judged", "judged@10", (row) => cell(row).judged_at_10, rounded),
      numberColumn("search", "Search", (row) => cell(row).search_ms, rounded, { sub: "ms/query" }),
      {
        id: "tokens",
        label: "Max. tokens",
        sub: "query / document",
        numeric: true,
        value: (row) => Number(row.recipe.max_document_tokens) || null,
        fill: (row, td) => {
          const { max_query_tokens: query, max_document_tokens: text } = row.recipe;
          if (query && text) td.append(`${query} / ${text}`);
        },
      },
      parametersColumn,
      { id: "dtype", label: "Dtype", value: (row) => row.recipe.dtype },
      { id: "index", label: "Index", value: (row) => (row.recipe.index === "flat" ? "exact" : row.recipe.index) },
    ];
    return sortedTable({ columns, rows: known, by: "score", caption: `Models on ${dataset.name}` })
      .element;
  }

  function claimTable(measure) {
    const found = BOARD.claims.filter(
      (one) => one.name === dataset.name && one.measure === measure,
    );
    if (!found.length) return null;
    const columns = [
      { id: "model", label: "Model", heading: true, kind: "model", value: (one) => one.model },
      numberColumn("value", measure, (one) => one.value),
      {
        id: "source",
        label: "Source",
        kind: "words",
        value: (one) => one.source,
        fill: (one, td) => {
          td.append(outside(one.source), one.second_hand ? " (copied from elsewhere)" : "");
          if (one.note) td.append(el("small", {}, one.note));
        },
      },
    ];
    return section(
      "Published scores",
      el("p", {}, "As printed in the sources, including models that were not evaluated here."),
      sortedTable({ columns, rows: found, by: "value", caption: "Published scores" }).element,
    );
  }

  function otherProtocols() {
    const found = DATASETS.filter(
      (one) => one.kind === "collection" && one.collection === dataset.collection && one !== dataset,
    );
    if (!found.length) return null;
    return section(
      "Other protocols",
      el("p", {}, "Their scores are not comparable with these."),
      el("ul", {}, ...found.map((one) => el("li", {}, link("collection", one.name)))),
    );
  }

  const holder = el("div", { id: "table" });
  const choose = (measure) => holder.replaceChildren(modelTable(measure), claimTable(measure) ?? "");
  document.getElementById("content").replaceChildren(
    ...[
      el("h1", {}, dataset.name),
      dataset.official
        ? null
        : el("p", { class: "warning" }, "This is not the published collection: its counts differ."),
      el(
        "form",
        { class: "controls" },
        measureSelect(
          dataset.measures.map((name) => [name, name]),
          dataset.main_measure,
          choose,
        ),
      ),
      holder,
      section(
        "Protocol",
        properties([
          ["queries", grouped(dataset.queries)],
          ["documents", grouped(dataset.documents)],
          ...Object.entries(dataset.protocol),
        ]),
      ),
      otherProtocols(),
    ].filter(Boolean),
  );
  choose(dataset.main_measure);
}
