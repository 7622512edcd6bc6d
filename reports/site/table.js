// A table that is sorted by the buttons in its header.
//
// A column is {id, label, value, fill, numeric, note, kind}: value(row) is a number, a text or
// null and decides the order; fill(row, td) writes the cell, by default the value as text. Without a
// column to sort by, rows stay as they are given; numbers fall unless falling is given.

const sorter = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function isEmpty(value) {
  return value === null || value === undefined || value === "";
}

function compared(a, b, falling) {
  if (isEmpty(a) || isEmpty(b)) return isEmpty(a) - isEmpty(b); // gaps last, in either direction
  const order = typeof a === "number" ? a - b : sorter.compare(a, b);
  return falling ? -order : order;
}

// A column without a value in any row is left out, unless it says `always`.
function sortedTable({ columns: all, rows, caption, by = null, falling = null, sorted = () => {} }) {
  const columns = all.filter(
    (one) => one.always || rows.some((row) => !isEmpty(one.value(row))),
  );
  const state = { by, falling: falling ?? columns.find((one) => one.id === by)?.numeric };
  const heads = new Map();
  const body = el("tbody");
  const lines = rows.map((row) => {
    const line = el("tr");
    for (const column of columns) line.append(filledCell(column, row));
    return { row, line };
  });

  function sort() {
    const column = columns.find((one) => one.id === state.by);
    if (column)
      lines.sort((a, b) => compared(column.value(a.row), column.value(b.row), state.falling));
    body.append(...lines.map((one) => one.line));
    for (const [id, head] of heads) {
      if (id === state.by)
        head.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    sorted(column, lines, state.falling);
  }

  const header = el("tr");
  for (const column of columns) {
    const head = el("th", {
      scope: "col",
      class: column.kind,
      title: column.note,
      "data-column": column.id,
    });
    if (column.numeric) head.classList.add("number");
    const button = el(
      "button",
      { type: "button" },
      el("span", {}, ...heading(column)),
    );
    button.addEventListener("click", () => {
      state.falling = state.by === column.id ? !state.falling : Boolean(column.numeric);
      state.by = column.id;
      sort();
    });
    if (column.sub) button.append(el("small", {}, column.sub));
    head.append(button);
    heads.set(column.id, head);
    header.append(head);
  }
  const table = el("table", {}, el("caption", {}, caption), el("thead", {}, header), body);
  sort();
  return {
    lines,
    state,
    element: scroller(table, caption),
  };
}

// A box that scrolls, faded on the right while there is more to see.
function scroller(table, caption) {
  const box = el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    table,
  );
  const fade = () =>
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  box.addEventListener("scroll", fade);
  new ResizeObserver(fade).observe(box);
  return box;
}

// A column of numbers, of which `show` makes text.
function numberColumn(id, label, value, show = fixed, more = {}) {
  return { id, label, numeric: true, value, fill: (row, td) => td.append(show(value(row))), ...more };
}

const rounded = (value) => fixed(value, 2);

function heading(column) {
  return column.dataset ? named(column.label) : [column.label];
}

function filledCell(column, row) {
  const cell = el(column.heading ? "th" : "td", {
    class: column.kind,
    scope: column.heading ? "row" : null,
  });
  if (column.numeric) cell.classList.add("number");
  if (column.fill) column.fill(row, cell);
  else cell.append(column.value(row) ?? "");
  return cell;
}
