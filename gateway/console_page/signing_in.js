// Who asks: a token from the address's fragment, which is never sent, from this tab's storage, or from the form.

import { Api } from "./api.js";

const KEPT = "lakesync.console";

/** What a token says of itself; empty where it is none. */
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

/** The caller that the address or this tab names, or null. */
export function remembered() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (given.token || given.gateway) {
    sessionStorage.setItem(KEPT, JSON.stringify(given));
    history.replaceState(null, "", location.pathname + location.search);
  }
  return api(JSON.parse(sessionStorage.getItem(KEPT) ?? "{}"));
}

/** The caller that the form names, kept for this tab; null where nobody says which gateway. */
export function signedIn(form) {
  const given = { token: form.token.value.trim(), gateway: form.gateway.value.trim() };
  sessionStorage.setItem(KEPT, JSON.stringify(given));
  return api(given);
}

export function forget() {
  sessionStorage.removeItem(KEPT);
}
