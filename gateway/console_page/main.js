// The page: signs in, and then requests everything periodically while it is visible. Signing in or out reloads the page,
// so that nothing of one operator is left for another.

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

/** Show the latest error of a request until that request succeeds; null for no error. */
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

/** Call `work` periodically while the page is visible, one call at a time. */
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
  part("flushed").textContent = "requested…";
  try {
    const reply = await api.post("flush", { wait: 20 });
    part("flushed").textContent = reply.flushed ? `in the lake${reply.snapshotId ? `, snapshot ${reply.snapshotId}` : ""}` : "requested; not in the lake yet";
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
