// Shows what seldom changes: dead letters, actions, sync rules and tables.

import { element, offer, show, table } from "./dom.js";
import { ago, count } from "./words.js";

async function aside(api, fault) {
  const { deadLetters } = await api.get("dead-letters");
  const act = (label, work) => {
    const click = () =>
      work()
        .then(() => aside(api, fault))
        .then(() => fault(null), fault);
    return element("button", { onclick: click }, label);
  };
  const rows = deadLetters.map((each) => [
    each.table,
    count(each.deltaCount),
    each.failure,
    String(each.attempts),
    element("span", {}, act("Retry", () => api.post(`dead-letters/${each.jobId}`)), act("Drop", () => api.delete(`dead-letters/${each.jobId}`))),
  ]);
  show("aside", table(["table", "deltas", "failure", "tries", ""], rows, "Nothing: all work for destinations was done, or is still tried."));
}

async function done(api) {
  const { entries } = await api.get("actions", { limit: 20 });
  const rows = entries.map((each) => [ago(each.atMs), each.clientId, `${each.connector}: ${each.actionType}`, String(each.attempt), each.code ?? "done", `${each.ms} ms`]);
  show("done", table(["when", "client", "action", "try", "outcome", "took"], rows, "No client has requested an action yet."));
}

async function rules(api) {
  const [{ rules: active }, { writeScope }] = await Promise.all([api.get("sync-rules"), api.get("settings")]);
  if (!active) return show("rules", element("p", { className: "none" }, "No rules are active: every client sees every row."));
  const open = writeScope === "any" && active.buckets.length > 0;
  const warning = "The write scope is \"any\": a client can move any row into its own sight and read it.";
  show(
    "rules",
    element("p", { className: open ? "bad" : "" }, open ? warning : `Write scope: ${writeScope}`),
    element("pre", {}, JSON.stringify(active, null, 2)),
  );
}

/** Return the names of all tables. Those of unflushed deltas are read from the log, which is slow. */
export async function tables(api) {
  const [{ schemas }, { tables: waiting }] = await Promise.all([api.get("schema"), api.get("metrics", { clients: 0, tables: true })]);
  offer("tables", [...new Set([...schemas, ...(waiting ?? [])].map((each) => each.table))].sort());
}

/** Request and show everything; `fault` is called with the error of a button's request, or null if it succeeded. */
export async function refresh(api, fault) {
  await Promise.all([aside(api, fault), done(api), rules(api)]);
}
