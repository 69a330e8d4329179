// Charts first; then tables that sort by a click on their head and filter by what is typed.
const source = document.getElementById("specs");
for (const [id, spec] of Object.entries(source ? JSON.parse(source.textContent) : {})) {
  try {
    await vegaEmbed(document.getElementById(id), spec, { mode: "vega-lite", actions: false, renderer: "svg" });
  } catch (error) {
    document.getElementById(id).textContent = `This chart could not be drawn (${error.message}); the table below has its numbers.`;
  }
}
const value = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
};
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const unknown = (x) => x === "" || Number.isNaN(x);
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => {
        if (unknown(a) || unknown(b)) return unknown(a) - unknown(b);
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
  const search = table.closest("figure, section")?.querySelector(`input[data-table="${table.id}"]`);
  search?.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) row.hidden = !words.every((w) => row.textContent.toLowerCase().includes(w));
  });
}
document.body.dataset.ready = "1";
