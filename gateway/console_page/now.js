// Shows a gateway's backlog, pipeline and clients.

import { line } from "./chart.js";
import { element, offer, show, table } from "./dom.js";
import { ago, bytes, count, counted, span, wall } from "./words.js";

const KEPT = 150;
const LATE_MS = 60_000;
const past = { waiting: [], behind: [] };

function tile(name, value, ...more) {
  return element("div", { className: "tile" }, element("h3", {}, name), element("p", {}, value), ...more);
}

function remember(values, value) {
  values.push(value);
  if (values.length > KEPT) values.shift();
  return values;
}

function checkpoint(metrics) {
  if (metrics.checkpoint === null) return ["none yet", element("small", {}, "new clients pull from 0")];
  const reason = metrics.checkpoint.notServedReason;
  const rows = `${counted(metrics.checkpoint.rows, "row")}, ${bytes(metrics.checkpoint.bytes)}`;
  return [ago(metrics.checkpoint.createdMs), element("small", {}, reason === null ? rows : `${rows}; not served: ${reason}`)];
}

/** Return the tile of dead letters; null if the gateway has none. */
function setAside(metrics) {
  if (!metrics.deadLetters.length) return null;
  const oldest = Math.min(...metrics.deadLetters.map((each) => each.sinceMs));
  const sum = metrics.deadLetters.reduce((total, each) => total + each.count, 0);
  const lines = metrics.deadLetters.map((each) => element("small", { className: "bad" }, `${count(each.count)} of ${each.kind} ${each.name}`));
  return tile("Dead letters", count(sum), element("small", { title: "lakesync dlq list" }, `the first was seen ${ago(oldest)}`), ...lines);
}

/** Return the tile of the pipeline's latest report; null without a pipeline. */
function pipeline(metrics) {
  const report = metrics.pipeline;
  if (report === null) return null;
  const silent = Date.now() - report.reportedMs > LATE_MS;
  const failing = report.behind.filter((part) => part.requests > 2);
  const named = (part) => [part.part, part.name].filter(Boolean).join(" ");
  const lines = [];
  if (failing.length) lines.push(`runs fail for ${failing.map((part) => `${named(part)} (${counted(part.requests, "time")})`).join(", ")}`);
  if (report.queued.length) lines.push(`${counted(report.queued.length, "run")} not started: ${report.queued[0].job}, requested ${ago(report.queued[0].sinceMs)}`);
  if (silent) lines.push(`last reported ${ago(report.reportedMs)}: the pipeline does not run`);
  const oldest = Math.min(...report.behind.map((part) => part.sinceMs));
  const behind = report.behind.length ? `${report.behind.map(named).join(", ")} behind, the oldest for ${span(Date.now() - oldest)}` : "everything is up to date";
  const value = silent ? "silent" : failing.length ? "failing" : report.behind.length ? `${count(report.behind.length)} behind` : "up to date";
  return tile("Pipeline", value, element("small", {}, behind), ...lines.map((text) => element("small", { className: "bad" }, text)));
}

function tiles(metrics, newest) {
  const oldest = metrics.oldestMs === null ? "everything is in the lake" : `the oldest for ${span(Date.now() - metrics.oldestMs)}`;
  const full = metrics.shards.some((shard) => shard.byteSize > metrics.maxBackpressureBytes);
  const late = metrics.clients.filter((client) => client.behindMs > LATE_MS).length;
  show(
    "tiles",
    tile("Newest commit", ago(newest) || "none yet"),
    tile(
      "Unflushed",
      counted(metrics.logSize, "delta"),
      element("small", {}, `${bytes(metrics.byteSize)}; ${oldest}`),
      full ? element("small", { className: "bad" }, `pushes are rejected above ${bytes(metrics.maxBackpressureBytes)}`) : null,
      line(remember(past.waiting, metrics.logSize), "unflushed deltas in the last five minutes"),
    ),
    tile("Last flush", ago(metrics.flushedMs) || "none yet"),
    pipeline(metrics),
    setAside(metrics),
    tile("Checkpoint", ...checkpoint(metrics)),
    tile(
      "Clients",
      late ? `${late} of ${metrics.clients.length} behind` : `${metrics.clients.length}, none behind`,
      element("small", { title: "a change by others that they may see and were not sent" }, "by a minute or more"),
      line(remember(past.behind, Math.max(0, ...metrics.clients.map((client) => client.behindMs ?? 0))), "largest lag in the last five minutes"),
    ),
    tile("Rules", metrics.rulesVersion ? `version ${metrics.rulesVersion}` : "none", element("small", {}, metrics.rulesVersion ? "" : "every client sees every row")),
  );
}

function clients(metrics, choose) {
  const furthest = Math.max(LATE_MS, ...metrics.clients.map((client) => client.behindMs ?? 0));
  const rows = metrics.clients.map((client) => {
    const behind = client.behindMs;
    const unknown = client.pulledMs === null ? "never pulled" : "unknown yet";
    const words = behind === null ? unknown : behind === 0 ? "none" : span(behind);
    const meter = element("meter", { max: furthest, high: LATE_MS, optimum: 0, value: behind ?? 0, title: words });
    const again = client.repeats ? `, asks for the same page again (${counted(client.repeats, "time")})` : "";
    const state = (client.connected ? "connected" : "offline") + (client.hasMore ? ", more waits for it" : "") + again;
    const name = element("button", { className: "link", title: "why does it lack a row?", onclick: () => choose(client.clientId) }, client.clientId);
    return [name, element("span", {}, meter, ` ${words}`), state, ago(client.offlineSinceMs), ago(client.pulledMs), ago(client.pushedMs)];
  });
  show("clients", table(["client", "lag", "state", "offline since", "pulled", "pushed"], rows, "No client has talked to this process of the gateway since it started."));
}

/** Request and show the metrics; `choose` is called with the id of a client that is clicked. */
export async function refresh(api, choose) {
  const [metrics, unready] = await Promise.all([api.get("metrics", { clients: 200 }), api.ready()]);
  const newest = wall(metrics.lastArrivalHlc);
  tiles(metrics, newest);
  clients(metrics, choose);
  offer("client-ids", metrics.clients.map((client) => client.clientId));
  const ready = document.getElementById("ready");
  ready.textContent = unready === null ? "ready" : `not ready: ${unready}`;
  ready.className = `chip ${unready === null ? "good" : "bad"}`;
  return metrics.clients.map((client) => client.clientId);
}
