// Creates elements. Text is always set as text, so that no row id or error is parsed as HTML.

/** Create an element with properties and children; children that are null are left out. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Replace an element's contents. */
export function show(id, ...children) {
  document.getElementById(id).replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** Create a table. A cell is an element or a text. */
export function table(heads, rows, none) {
  if (!rows.length) return element("p", { className: "none" }, none);
  const line = (cells, tag) => element("tr", {}, cells.map((cell) => element(tag, {}, cell ?? "")));
  return element("table", {}, element("thead", {}, line(heads, "th")), element("tbody", {}, rows.map((row) => line(row, "td"))));
}

/** Set the suggestions of an input. */
export function offer(id, values) {
  show(id, values.map((value) => element("option", { value })));
}
