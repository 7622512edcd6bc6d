"use strict";
// Functions of all pages. Text is only ever set as text, so that a name is never markup.

const { board: BOARD, measure: MEASURE, legend: LEGEND } = JSON.parse(
  document.getElementById("data").textContent,
);
// Columns of the table: suites, then collections. A user's suite is named by its file.
const DATASETS = [
  ...BOARD.suites.map((suite) => ({
    ...suite,
    kind: "suite",
    label: suite.name.endsWith(".toml") ? suite.name.match(/([^/]*)\.toml$/)[1] : suite.name,
    measures: measuresOf(suite.name),
    official: true,
    main: true,
    title_track: "",
  })),
  ...BOARD.columns.map((column) => ({ ...column, kind: "collection", title: "" })),
].map((dataset, id) => ({ ...dataset, id }));

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

function measuresOf(suite) {
  return [...new Set(BOARD.rows.flatMap((row) => Object.keys(row.means[suite] ?? {})))];
}

// Each model and each collection has its own page in this file.
function link(kind, name) {
  return el("a", { href: `#${kind}/${encodeURIComponent(name)}` }, name);
}

// Text with a link if it begins with a web address, such as a source.
function outside(text) {
  const [, address, rest] = text.match(/^(https?:\/\/[^\s,;]+)(.*)$/s) ?? [];
  if (!address) return document.createTextNode(text);
  return el("span", {}, el("a", { href: address, rel: "noreferrer" }, address), rest);
}

function fixed(value, digits = 4) {
  return value === null || value === undefined ? "" : value.toFixed(digits);
}

function grouped(value) {
  return value === null || value === undefined ? "" : Math.round(value).toLocaleString("en");
}

// Number of parameters, with the adapter's, or "unknown".
function sizeOf(row) {
  if (!row.parameters) return "unknown";
  const { total, adapter } = row.parameters;
  return adapter ? `${short(total)}, of which ${short(adapter)} in the adapter` : short(total);
}

function short(number) {
  for (const [unit, name] of [
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (number >= unit) return `${fixed(number / unit, 1)} ${name}`;
  }
  return String(number);
}

const parametersColumn = {
  id: "parameters",
  label: "Parameters",
  note: "of the encoder and its adapter, without pre-training heads",
  numeric: true,
  value: (row) => row.parameters && row.parameters.total,
  fill: (row, cell) => {
    if (row.claim) return;
    if (!row.parameters) {
      cell.append(el("span", { class: "gap", title: "not recorded in its results" }, "unknown"));
      return;
    }
    const { total, adapter } = row.parameters;
    cell.append(short(total), adapter ? el("small", {}, `adapter ${short(adapter)}`) : "");
  },
};

function interval(score) {
  return score && score.low !== null ? `${fixed(score.low, 3)}–${fixed(score.high, 3)}` : "";
}

const measureOf = (dataset, measure) => measure || dataset.main_measure;

function meanOf(row, dataset, measure) {
  return row.means[dataset.name]?.[measureOf(dataset, measure)];
}

function scoreOf(row, dataset, measure) {
  if (dataset.kind === "suite") return meanOf(row, dataset, measure)?.score ?? null;
  return row.cells[dataset.name]?.scores[measureOf(dataset, measure)] ?? null;
}

function zeroShotOf(row, dataset, measure) {
  const mean = dataset.kind === "suite" ? meanOf(row, dataset, measure) : null;
  return mean?.score ? { value: mean.zero_shot, members: mean.zero_shot_members } : null;
}

function missingOf(row, dataset, measure) {
  return (dataset.kind === "suite" && meanOf(row, dataset, measure)?.missing) || [];
}

// Judged@10 on the collection on which it is lowest.
function judgedOf(row) {
  const known = Object.values(row.cells).map((cell) => cell.judged_at_10);
  const found = known.filter((value) => value !== null);
  return found.length ? Math.min(...found) : null;
}

function inDomain(row, dataset, measure) {
  if (dataset.kind === "collection") return Boolean(row.cells[dataset.name]?.in_domain);
  const unseen = zeroShotOf(row, dataset, measure);
  return Boolean(unseen) && unseen.members < dataset.members.length;
}

// The column that models are ranked by: the first suite that any model has completely, else the
// collection with most scores.
function headline(measure) {
  const filled = (dataset) => BOARD.rows.filter((row) => scoreOf(row, dataset, measure)).length;
  const complete = DATASETS.find((dataset) => dataset.kind === "suite" && filled(dataset));
  const columns = DATASETS.filter((dataset) => dataset.kind === "collection");
  return complete || columns.reduce((best, one) => (filled(one) > filled(best) ? one : best));
}

// Settings of recipes and protocols, for people.
const WORDS = {
  "adapter.kind": "adapter",
  adapter_files: "hash of adapter files",
  backend: "engine",
  depth: "ranking depth",
  dim: "dimension",
  exclude_self: "document with the query's id excluded",
  files: "hash of model files",
  kind: "type",
  lower_case: "lower-cased",
  normalize: "normalised to length 1",
  official: "published collection",
  "prompts.document": "document prompt",
  "prompts.query": "query prompt",
  query_files: "hash of query encoder files",
  segment_ids: "token type ids for pairs",
  store_dtype: "dtype of stored vectors",
  title_join: "title and text joined by",
};
const VALUES = { True: "yes", False: "no" };

function inWords(name) {
  const bare = name.replace(/^options\./, "");
  const words = WORDS[bare] ?? bare.replace(/^max_/, "maximum ").replace("sha256", "SHA-256");
  return words.replace(/[_.]/g, " ");
}

function valueInWords(name, value) {
  if (name === "index" && value === "flat") return "exact search";
  return VALUES[value] ?? value;
}

function properties(pairs) {
  const list = el("dl", { class: "properties" });
  const shown = new Set();
  for (const [name, value] of pairs) {
    const fact = `${inWords(name)} ${value}`;
    if (value === null || value === undefined || value === "" || shown.has(fact)) continue;
    shown.add(fact);
    const long = typeof value === "string" && value.length > 80;
    list.append(
      el("div", { class: long ? "long" : null }, el("dt", {}, inWords(name)), el("dd", {}, valueInWords(name, value))),
    );
  }
  return list;
}

// A name that may break, with the part before the last slash in small letters.
function named(text) {
  const cut = text.split("@")[0].lastIndexOf("/") + 1;
  return [el("small", {}, text.slice(0, cut)), ...breaking(text.slice(cut))];
}

// A name that may break after a separator.
function breaking(text) {
  return text.split(/(?<=[-@/_=])/).flatMap((part) => [part, el("wbr")]);
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

function scaleOf(scores) {
  const values = scores.map((one) => one.value);
  const lows = scores.map((one) => one.low ?? one.value);
  const highs = scores.map((one) => one.high ?? one.value);
  return {
    low: Math.min(...values),
    high: Math.max(...values),
    least: Math.min(...lows),
    most: Math.max(...highs),
  };
}

// The interval of a score has a column, or a line below the score on narrow screens.
function intervalBelow(score) {
  return score && score.low !== null ? el("small", { class: "narrow" }, interval(score)) : "";
}

function intervalColumn(score) {
  return {
    id: "interval",
    label: "95 % interval",
    kind: "wide",
    numeric: true,
    value: (row) => score(row)?.low ?? null,
    fill: (row, cell) => cell.append(interval(score(row))),
  };
}

function measureSelect(measures, chosen, choose) {
  const select = el("select", { id: "measure" });
  for (const [value, text] of measures) {
    select.append(el("option", { value, selected: value === chosen }, text));
  }
  select.addEventListener("change", () => choose(select.value));
  return el("label", { class: "field" }, "Measure", select);
}

function themeButton() {
  const button = el("button", { type: "button", id: "theme" });
  const showTheme = () => {
    button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
  };
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    chooseTheme(THEMES[(now + 1) % THEMES.length]);
    showTheme();
  });
  showTheme();
  return button;
}

function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}

function frame() {
  const home = el("a", { href: "#" }, "Leaderboard");
  document.getElementById("top").append(el("nav", { "aria-label": "Site" }, home), themeButton());
  const parts = [count(BOARD.results, "result"), `newest ${BOARD.newest.slice(0, 10)}`, ...LEGEND];
  document.getElementById("end").append(parts.join(" · "));
}

function addressed() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// Show the page that follows # in the address: `model/NAME`, `collection/NAME`, or the index.
function show() {
  const address = addressed();
  if (address === "content") return; // "Skip to content"
  const [, kind, name] = address.match(/^(model|collection)\/(.*)$/s) ?? [];
  const row = kind === "model" && BOARD.rows.find((one) => one.name === name);
  const dataset = kind === "collection" && DATASETS.find((one) => one.name === name);
  document.title = row || dataset ? name : "Leaderboard";
  if (row) showModel(row);
  else if (dataset) showCollection(dataset);
  else showIndex();
  window.scrollTo(0, 0);
}

function start() {
  frame();
  show();
  window.addEventListener("hashchange", show);
}
