// Tables of figures (six rows and more) are sorted by a click on a column's head: numbers by value, the rest as text.
// A cell's number is its first one: "0.012 ± 0.003" is 0.012. Without scripts the tables are as they were written.
"use strict";

const number = (cell) => {
  const found = cell.replace(/[,\u2009\u00a0](?=\d{3})/g, "").match(/^[^\d\w]*?([-+]?\d*\.?\d+(?:e[-+]?\d+)?)/i);
  return found ? Number(found[1]) : NaN;
};

const text = (row, column) => (row.cells[column] ? row.cells[column].textContent.trim() : "");

const isNumeric = (rows, column) =>
  rows.filter((row) => !Number.isNaN(number(text(row, column)))).length > rows.length / 2;

function sort(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  const rows = [...table.tBodies[0].rows];
  const values = new Map(rows.map((row) => [row, number(text(row, column))]));
  const numeric = isNumeric(rows, column);
  const order = (a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (!numeric) return text(a, column).localeCompare(text(b, column)) * (down ? -1 : 1);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // empty cells stay last
    return (x - y) * (down ? -1 : 1);
  };
  table.tBodies[0].append(...rows.sort(order));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    if (!table.tHead || table.tHead.rows.length !== 1 || table.tBodies.length !== 1) continue;
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    if (rows.length < 6 || !heads.some((_, column) => isNumeric(rows, column))) continue;
    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.className = "sort";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, column, head));
      head.append(button);
    });
  }
});
