// Explains why a client has a row or lacks it, clause by clause; or the same for all clients.

import { element, offer, show, table } from "./dom.js";
import { ago, counted } from "./words.js";

const MOOD = { delivered: "good", waiting: "fair", hidden: "fair", deleted: "bad", absent: "bad" };
const MOST_CLIENTS = 50;
const AT_ONCE = 4;

function chip(verdict) {
  return element("span", { className: `chip ${MOOD[verdict] ?? ""}` }, verdict);
}

function clauses(explanation) {
  return explanation.buckets.flatMap((bucket) => {
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

/** Return the cause in one line: for a hidden row the first clause of each bucket that does not match. */
function cause(explanation) {
  const [verdict, ...details] = explanation.reasons;
  if (explanation.verdict === "absent") return `${verdict}; ${details[0]}`;
  if (explanation.verdict !== "hidden") return verdict ?? "";
  const about = explanation.buckets.filter((bucket) => bucket.coversTable);
  if (!about.length) return "no bucket contains the table";
  const unknown = explanation.client.claimsFrom === "client id" ? "its claims are not known here; " : "";
  const failed = about.map((bucket) => {
    const filter = bucket.filters.find((each) => !each.holds);
    if (!filter) return `bucket ${bucket.bucket} shows it once the re-index is done`;
    const { column, op, value, found, operands } = filter;
    const compared = operands.length ? `is ${found ?? "missing"}, not ${op} ${operands.join(" or ")}` : "has no claim to match";
    return `bucket ${bucket.bucket}: ${column} ${compared}${value.startsWith("jwt:") ? ` (${value})` : ""}`;
  });
  return unknown + failed.join("; ");
}

function one(explanation) {
  const facts = [
    explanation.row.changedMs ? `The row last changed ${ago(explanation.row.changedMs)}.` : null,
    explanation.nextPull.length ? `Its next pull brings: ${explanation.nextPull.join(", ")}.` : null,
    `Claims, from the ${explanation.client.claimsFrom}: ${JSON.stringify(explanation.client.claims)}`,
  ];
  return [
    element("h3", {}, chip(explanation.verdict), ` ${explanation.reasons[0] ?? ""}`),
    element("ul", {}, [...explanation.reasons.slice(1), ...facts.filter(Boolean)].map((reason) => element("li", {}, reason))),
    explanation.row.visible ? table(["bucket", "clause", "row", "compared with", ""], clauses(explanation), "The gateway has no rules: every client sees every row.") : "",
    table(
      ["column", "whose value", "since"],
      explanation.row.columns.map((column) => [column.column, column.clientId, ago(column.touchedMs)]),
      "Nothing of the row is stored.",
    ),
  ];
}

/** Call `work` with each input, a few at a time, and return the results in the order of the inputs. */
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
  if (!clients.length) return [element("p", { className: "none" }, "This server has seen no client: enter a client id.")];
  const explanations = await spread(clients.slice(0, MOST_CLIENTS), (clientId) => api.get("explain", { ...asked, clientId }));
  const rows = explanations.map((each) => [
    element("button", { className: "link", onclick: () => choose(each.client.clientId) }, each.client.clientId),
    chip(each.verdict),
    cause(each),
    ago(each.standing?.seenMs ?? each.client.lastSeenMs),
  ]);
  const left = clients.length - rows.length;
  return [
    table(["client", "", "because", "seen"], rows, ""),
    ...(left > 0 ? [element("p", {}, `Not shown: ${counted(left, "client")} with a smaller lag. Enter a client id.`)] : []),
  ];
}

/** Make the form show explanations. `known` returns the clients' ids. */
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
    show("because", element("p", {}, "requesting…"));
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
