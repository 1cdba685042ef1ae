// Calls the gateway's admin routes for the operator who is signed in.

export class Refused extends Error {
  constructor(status, body) {
    super(body.error ?? `the gateway answered ${status}`);
    this.status = status;
  }
}

export class Api {
  constructor(gateway, token) {
    this.gateway = gateway;
    this.token = token;
  }

  get(route, parameters = {}) {
    return this.#ask("GET", route, parameters);
  }

  post(route, parameters = {}) {
    return this.#ask("POST", route, parameters);
  }

  delete(route) {
    return this.#ask("DELETE", route, {});
  }

  /** Return null if the server is ready, otherwise its error message. */
  async ready() {
    const answer = await fetch(new URL("ready", document.baseURI));
    const body = await answer.json();
    return answer.ok ? null : body.error;
  }

  async #ask(method, route, parameters, tries = 5) {
    const [family, ...rest] = route.split("/");
    const path = ["admin", family, encodeURIComponent(this.gateway), ...rest.map(encodeURIComponent)].join("/");
    const url = new URL(path, document.baseURI);
    for (const [name, value] of Object.entries(parameters)) {
      if (value !== undefined && value !== "") url.searchParams.set(name, value);
    }
    const answer = await fetch(url, { method, headers: this.token ? { Authorization: `Bearer ${this.token}` } : {} });
    const body = await answer.json().catch(() => ({}));
    if (answer.status === 429 && tries > 1) {
      await new Promise((wake) => setTimeout(wake, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
      return this.#ask(method, route, parameters, tries - 1);
    }
    if (!answer.ok) throw new Refused(answer.status, body);
    return body;
  }
}
