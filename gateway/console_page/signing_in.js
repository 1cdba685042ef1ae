// Finds the operator's token: in the fragment of the page's URL, which is never sent; in this tab's storage; in the form.

import { Api } from "./api.js";

const KEPT = "lakesync.console";

/** Return a token's claims; empty if it is not a JWT. */
function claims(token) {
  try {
    const part = token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(part), (letter) => letter.charCodeAt(0))));
  } catch {
    return {};
  }
}

function api({ token, gateway }) {
  const id = gateway || claims(token ?? "").gw;
  return id ? new Api(id, token) : null;
}

/** Return an `Api` for the token and gateway in the URL or in this tab's storage; null without a gateway. */
export function remembered() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (given.token || given.gateway) {
    sessionStorage.setItem(KEPT, JSON.stringify(given));
    history.replaceState(null, "", location.pathname + location.search);
  }
  return api(JSON.parse(sessionStorage.getItem(KEPT) ?? "{}"));
}

/** Return an `Api` for the token and gateway in the form, and store them for this tab; null without a gateway. */
export function signedIn(form) {
  const given = { token: form.token.value.trim(), gateway: form.gateway.value.trim() };
  sessionStorage.setItem(KEPT, JSON.stringify(given));
  return api(given);
}

export function forget() {
  sessionStorage.removeItem(KEPT);
}
