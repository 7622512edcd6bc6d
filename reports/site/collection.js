// One collection under one protocol: every model on it, published scores, and its facts.

function showCollection(place) {
  const rows = BOARD.rows.filter((row) => row.cells[place.name]);

  function modelTable(measure) {
    const known = rows.filter((row) => scoreOf(row, place, measure));
    const score = (row) => scoreOf(row, place, measure);
    const cell = (row) => row.cells[place.name];
    const others = place.measures.filter((name) => name !== measure);
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
        numberColumn(`measure-${name}`, name, (row) => scoreOf(row, place, name)?.value ?? null),
      ),
      numberColumn("judged", "judged@10", (row) => cell(row).judged_at_10, rounded),
      numberColumn("search", "Search", (row) => cell(row).search_ms, rounded, { sub: "ms/query" }),
      ...["max_query_tokens", "max_document_tokens"].map((name) => ({
        id: name,
        label: `${name.split("_")[1]} tokens`,
        sub: "maximum",
        numeric: true,
        value: (row) => Number(row.recipe[name]) || null,
      })),
      parametersColumn,
      { id: "dtype", label: "dtype", value: (row) => row.recipe.dtype },
      { id: "index", label: "index", value: (row) => row.recipe.index },
    ];
    return sortedTable({ columns, rows: known, by: "score", caption: `Models on ${place.name}` })
      .element;
  }

  function claimTable(measure) {
    const found = BOARD.claims.filter(
      (one) => one.name === place.name && one.measure === measure,
    );
    if (!found.length) return null;
    const columns = [
      { id: "model", label: "Model", heading: true, kind: "model", value: (one) => one.model },
      numberColumn("value", measure, (one) => one.value),
      { id: "copied", label: "Copied", value: (one) => (one.second_hand ? "by this source" : "") },
      { id: "source", label: "Source", value: (one) => one.source, kind: "words" },
      { id: "note", label: "Note", value: (one) => one.note, kind: "words" },
    ];
    return section(
      "Published scores",
      el("p", {}, "As printed in the sources, including models that were not evaluated here."),
      sortedTable({ columns, rows: found, by: "value", caption: "Published scores" }).element,
    );
  }

  function otherProtocols() {
    const found = PLACES.filter(
      (one) => one.kind === "collection" && one.collection === place.collection && one !== place,
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
      el("h1", {}, place.name),
      place.about.title ? el("p", { class: "lead" }, place.about.title) : null,
      place.official
        ? null
        : el("p", { class: "warning" }, "This is not the published collection: its counts differ."),
      el(
        "form",
        { class: "controls" },
        measureSelect(
          place.measures.map((name) => [name, name]),
          place.main_measure,
          choose,
        ),
      ),
      holder,
      section(
        "Protocol",
        facts([
          ["queries", grouped(place.queries)],
          ["documents", grouped(place.documents)],
          ...Object.entries(place.protocol),
          ["licence", place.about.licence],
          ["citation", place.about.citation],
          ["homepage", place.about.homepage ? outside(place.about.homepage) : ""],
        ]),
      ),
      otherProtocols(),
    ].filter(Boolean),
  );
  choose(place.main_measure);
}
