"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
const pairs = report.pairs;
const element = (id) => document.getElementById(id);
const memory = "judgements " + report.collection + " " + pairs.map((p) => p.query_id + " " + p.doc_id).join("|");
let place = 0;

function remember() {
  try {
    localStorage.setItem(memory, JSON.stringify([element("judge").value, pairs.map((p) => p.grade)]));
  } catch { /* a browser without storage */ }
}

function recall() {
  try {
    const [judge, grades] = JSON.parse(localStorage.getItem(memory));
    element("judge").value = judge;
    grades.forEach((grade, row) => { pairs[row].grade = grade; });
  } catch { /* nothing stored */ }
}

function show() {
  const pair = pairs[place];
  const judged = pairs.filter((p) => p.grade !== null).length;
  for (const [id, text] of [
    ["query-id", pair.query_id], ["query", pair.query], ["doc-id", pair.doc_id],
    ["title", pair.title], ["text", pair.text],
    ["copies", pair.copies.length ? "and its copies " + pair.copies.join(", ") : ""],
    ["done", judged + " of " + pairs.length + " judged"],
    ["place", (place + 1) + " / " + pairs.length],
  ]) element(id).textContent = text;
  element("progress").max = pairs.length;
  element("progress").value = judged;
  for (const button of element("grades").children) {
    button.setAttribute("aria-pressed", String(pair.grade === Number(button.dataset.grade)));
  }
}

function move(step) {
  place = Math.min(Math.max(place + step, 0), pairs.length - 1);
  show();
  window.scrollTo(0, 0);
}

function grade(value) {
  pairs[place].grade = pairs[place].grade === value ? null : value;
  remember();
  if (pairs[place].grade !== null && place < pairs.length - 1) move(1); else show();
}

function download() {
  const judge = element("judge").value.trim();
  if (!judge) {
    element("done").textContent = "Type your name first: it is stored with each judgement.";
    element("judge").focus();
    return;
  }
  const judged = pairs.filter((pair) => pair.grade !== null);
  const lines = judged.map(({ query_id, doc_id, copies, grade }) =>
    JSON.stringify({ query_id, doc_id, copies, grade, judge }) + "\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = "judged.jsonl";
  link.click();
  URL.revokeObjectURL(link.href);
}

const DIGITS = report.grades.filter((each) => each < 10); // higher grades have buttons only

function press(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "INPUT") return;
  const key = event.key.toLowerCase();
  const digit = DIGITS.find((each) => String(each) === key);
  if (digit !== undefined) grade(digit);
  else if (key === "arrowright" || key === "j") move(1);
  else if (key === "arrowleft" || key === "k") move(-1);
  else if (key === "d") download();
  else return;
  event.preventDefault();
}

element("heading").textContent = report.collection + ": " + report.holes.a + " and " + report.holes.b;
element("help").textContent = "Keys: " + DIGITS.join(", ") +
  " grade, the same key again takes it back; ← → or K J move; D downloads. 0: not relevant.";
for (const value of report.grades) {
  const button = document.createElement("button");
  button.textContent = button.dataset.grade = value;
  button.addEventListener("click", () => grade(value));
  element("grades").append(button);
}
element("judge").addEventListener("change", () => { remember(); show(); });
element("download").addEventListener("click", download);
element("back").addEventListener("click", () => move(-1));
element("next").addEventListener("click", () => move(1));
document.addEventListener("keydown", press);
recall();
show();
