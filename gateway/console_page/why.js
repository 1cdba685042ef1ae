// Why a client has a row or lacks it, clause by clause; or every client at once.

import { element, offer, show, table } from "./dom.js";
import { ago } from "./words.js";

const MOOD = { delivered: "good", waiting: "fair", hidden: "fair", deleted: "bad", absent: "bad" };
const MOST_CLIENTS = 50;
const AT_ONCE = 4;

function chip(verdict) {
  return element("span", { className: `chip ${MOOD[verdict] ?? ""}` }, verdict);
}

function clauses(told) {
  return told.buckets.flatMap((bucket) => {
    if (!bucket.coversTable) return [[bucket.bucket, "its tables", "", "", "not about this table"]];
    if (!bucket.filters.length) return [[bucket.bucket, "every row", "", "", "✓ holds"]];
    return bucket.filters.map((filter) => [
      bucket.bucket,
      `${filter.column} ${filter.op} ${filter.value}`,
      filter.found ?? "no such column",
      filter.operands.join(", ") || "no such claim",
      filter.holds ? "✓ holds" : "✗ does not hold",
    ]);
  });
}

function one(told) {
  const facts = [
    told.row.changedMs ? `The row last changed ${ago(told.row.changedMs)}.` : null,
    told.nextPull.length ? `Its next pull brings: ${told.nextPull.join(", ")}.` : null,
    `Claims, from the ${told.client.claimsFrom}: ${JSON.stringify(told.client.claims)}`,
  ];
  return [
    element("h3", {}, chip(told.verdict), ` ${told.reasons[0] ?? ""}`),
    element("ul", {}, [...told.reasons.slice(1), ...facts.filter(Boolean)].map((reason) => element("li", {}, reason))),
    told.row.visible ? table(["bucket", "clause", "row", "compared with", ""], clauses(told), "The gateway has no rules: every client sees every row.") : "",
    table(
      ["column", "whose value", "since"],
      told.row.columns.map((column) => [column.column, column.clientId, ago(column.touchedMs)]),
      "Nothing of the row is stored.",
    ),
  ];
}

/** Results in the order of their inputs, a few at a time. */
async function spread(inputs, work) {
  const results = [];
  let next = 0;
  const worker = async () => {
    while (next < inputs.length) {
      const place = next++;
      results[place] = await work(inputs[place]);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return results;
}

async function every(api, asked, clients, choose) {
  if (!clients.length) return [element("p", { className: "none" }, "No client was seen: name one.")];
  const told = await spread(clients.slice(0, MOST_CLIENTS), (clientId) => api.get("explain", { ...asked, clientId }));
  const rows = told.map((each) => [
    element("button", { className: "link", onclick: () => choose(each.client.clientId) }, each.client.clientId),
    chip(each.verdict),
    each.reasons[0] ?? "",
    ago(each.standing?.seenMs ?? each.client.lastSeenMs),
  ]);
  const left = clients.length - rows.length;
  return [
    table(["client", "", "because", "seen"], rows, ""),
    ...(left > 0 ? [element("p", {}, `${left} clients that are less far behind are not shown: name one.`)] : []),
  ];
}

/** Make the form answer, with `known` for the clients' ids; what asks about one client by its id. */
export function listen(form, api, known) {
  const choose = (clientId) => {
    form.clientId.value = clientId;
    if (form.checkValidity()) form.requestSubmit();
    else form.reportValidity();
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    const asked = { table: form.table.value, rowId: form.rowId.value, claims: form.claims.value };
    const clientId = form.clientId.value;
    show("because", element("p", {}, "asking…"));
    try {
      show("because", clientId ? one(await api.get("explain", { ...asked, clientId })) : await every(api, asked, known(), choose));
    } catch (error) {
      show("because", element("p", { className: "bad" }, error.message));
    }
  };
  form.table.onchange = async () => {
    const found = await api.get("rows", { table: form.table.value, limit: 200 }).catch(() => ({ rows: [] }));
    offer("rows", found.rows.map((row) => row.rowId));
  };
  return choose;
}
