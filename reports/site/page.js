"use strict";
// What all pages share. Text is only ever set as text, so that a name is never markup.

const { board: BOARD, measure: MEASURE, legend: LEGEND } = JSON.parse(
  document.getElementById("data").textContent,
);
// Columns of the table: suites, then collections. A suite of the user's own is named by its file.
const PLACES = [
  ...BOARD.suites.map((suite) => ({
    ...suite,
    kind: "suite",
    label: suite.name.endsWith(".toml") ? suite.name.match(/([^/]*)\.toml$/)[1] : suite.name,
    measures: measuresOf(suite.name),
    official: true,
    main: true,
    title_track: "",
  })),
  ...BOARD.columns.map((column) => ({
    ...column,
    kind: "collection",
    label: column.name,
    title: column.about.title ?? "",
  })),
].map((place, id) => ({ ...place, id }));

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

// Each model and each collection has a page of its own in this file.
function link(kind, name) {
  return el("a", { href: `#${kind}/${encodeURIComponent(name)}` }, name);
}

// Only what is an address of the web becomes a link.
function outside(text) {
  if (!/^https?:\/\//.test(text)) return document.createTextNode(text);
  return el("a", { href: text, rel: "noreferrer" }, text);
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

const measureOf = (place, measure) => measure || place.main_measure;

function meanOf(row, place, measure) {
  return row.means[place.name]?.[measureOf(place, measure)];
}

function scoreOf(row, place, measure) {
  if (place.kind === "suite") return meanOf(row, place, measure)?.score ?? null;
  return row.cells[place.name]?.scores[measureOf(place, measure)] ?? null;
}

function zeroShotOf(row, place, measure) {
  const mean = place.kind === "suite" ? meanOf(row, place, measure) : null;
  return mean?.score ? { value: mean.zero_shot, members: mean.zero_shot_members } : null;
}

function missingOf(row, place, measure) {
  return (place.kind === "suite" && meanOf(row, place, measure)?.missing) || [];
}

// Where it is lowest.
function judgedOf(row) {
  const known = Object.values(row.cells).map((cell) => cell.judged_at_10);
  const found = known.filter((value) => value !== null);
  return found.length ? Math.min(...found) : null;
}

function inDomain(row, place, measure) {
  if (place.kind === "collection") return Boolean(row.cells[place.name]?.in_domain);
  const unseen = zeroShotOf(row, place, measure);
  return Boolean(unseen) && unseen.members < place.members.length;
}

// Where models are ranked: the first suite that any model has whole, else the fullest column.
function headline(measure) {
  const filled = (place) => BOARD.rows.filter((row) => scoreOf(row, place, measure)).length;
  const whole = PLACES.find((place) => place.kind === "suite" && filled(place));
  const columns = PLACES.filter((place) => place.kind === "collection");
  return whole || columns.reduce((best, one) => (filled(one) > filled(best) ? one : best));
}

// Names of facts that are not words already.
const WORDS = {
  dim: "dimension",
  exclude_self: "document with the query's id excluded",
  official: "published collection",
  kind: "type",
};
const VALUES = { True: "yes", False: "no" };

function inWords(name) {
  const words = WORDS[name] ?? name.replace(/^max_/, "maximum ").replace("sha256", "SHA-256");
  return words.replace(/[_.]/g, " ");
}

function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    const long = typeof value === "string" && value.length > 80;
    list.append(
      el("div", { class: long ? "long" : null }, el("dt", {}, inWords(name)), el("dd", {}, VALUES[value] ?? value)),
    );
  }
  return list;
}

// A name whose parts before the last slash are small, and which may break.
function named(text) {
  const cut = text.split("@")[0].lastIndexOf("/") + 1;
  return [el("small", {}, text.slice(0, cut)), ...breaking(text.slice(cut))];
}

// A name that may break after a sign between its parts.
function breaking(text) {
  return text.split(/(?<=[-@/_=])/).flatMap((part) => [part, el("wbr")]);
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

function scaleOf(scores) {
  const values = scores.map((one) => one.value);
  return { low: Math.min(...values), high: Math.max(...values) };
}

// Columns of a table whose rows have a score, or null.
function intervalColumn(score) {
  return {
    id: "interval",
    label: "95 % interval",
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
  const say = () => {
    button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
  };
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
    say();
  });
  say();
  return button;
}

function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}

function frame() {
  const home = el("a", { href: "#" }, "Leaderboard");
  document.getElementById("top").append(el("nav", { "aria-label": "Site" }, home), themeButton());
  const said = [count(BOARD.results, "result"), `newest ${BOARD.newest.slice(0, 10)}`, ...LEGEND];
  document.getElementById("end").append(said.join(" · "));
}

function addressed() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// Shows what the part of the address after # names: `model/NAME`, `collection/NAME`, or all.
function show() {
  const address = addressed();
  if (address === "content") return; // the link that skips to it
  const [, kind, name] = address.match(/^(model|collection)\/(.*)$/s) ?? [];
  const row = kind === "model" && BOARD.rows.find((one) => one.name === name);
  const place = kind === "collection" && PLACES.find((one) => one.name === name);
  document.title = row || place ? name : "Leaderboard";
  if (row) showModel(row);
  else if (place) showCollection(place);
  else showIndex();
  window.scrollTo(0, 0);
}

function start() {
  frame();
  show();
  window.addEventListener("hashchange", show);
}
