// The page: signs in, then asks again and again while it is looked at. Who signs in or out loads it anew, so that nothing
// that was shown or asked for one caller is left for another.

import { Refused } from "./api.js";
import * as kept from "./kept.js";
import * as now from "./now.js";
import { forget, remembered, signedIn } from "./signing_in.js";
import { listen } from "./why.js";

const OFTEN_MS = 2_000;
const SELDOM_MS = 30_000;
const part = (id) => document.getElementById(id);
const faults = new Map();
let clients = [];
let timers = [];

/** What went wrong last with some work, or null: shown until that work succeeds. */
function fault(work, error) {
  if (error === null) faults.delete(work);
  else faults.set(work, error instanceof TypeError ? "The gateway does not answer." : error.message);
  part("fault").textContent = [...new Set(faults.values())].join(" · ");
  part("fault").hidden = !faults.size;
  if (error instanceof Refused && (error.status === 401 || error.status === 403)) signOut();
}

function signOut() {
  timers.forEach(clearInterval);
  timers = [];
  forget();
  part("sign-in").hidden = false;
  part("signed-in").hidden = part("sign-out").hidden = true;
  part("gateway").textContent = part("ready").textContent = "";
}

/** Work, now and again while the page is looked at; never twice at once. */
function repeat(work, everyMs) {
  let busy = false;
  const go = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      await work();
      fault(work, null);
    } catch (error) {
      fault(work, error);
    } finally {
      busy = false;
    }
  };
  timers.push(setInterval(go, everyMs));
  go();
}

async function flush(api) {
  part("flushed").textContent = "asked for…";
  try {
    const told = await api.post("flush", { wait: 20 });
    part("flushed").textContent = told.flushed ? `in the lake${told.snapshotId ? `, snapshot ${told.snapshotId}` : ""}` : "noted; it is not in the lake yet";
    fault(flush, null);
  } catch (error) {
    part("flushed").textContent = "";
    fault(flush, error);
  }
}

function begin(api) {
  if (api === null) {
    signOut();
    return;
  }
  part("sign-in").hidden = true;
  part("signed-in").hidden = part("sign-out").hidden = false;
  part("gateway").textContent = api.gateway;
  const choose = listen(part("why"), api, () => clients);
  part("flush").onclick = () => flush(api);
  repeat(async () => { clients = await now.refresh(api, choose); }, OFTEN_MS);
  repeat(() => kept.refresh(api, (error) => fault(kept.refresh, error)), SELDOM_MS);
  kept.tables(api).catch((error) => fault(kept.tables, error));
}

part("sign-in").onsubmit = (event) => {
  event.preventDefault();
  if (signedIn(event.target) === null) fault(signedIn, new Error("Name the gateway: the token does not."));
  else location.reload();
};
part("sign-out").onclick = () => {
  forget();
  location.reload();
};
window.onhashchange = () => location.reload(); // another link of `lakesync console` in the same tab
begin(remembered());
