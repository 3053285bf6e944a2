// @ts-check
// The REST API of the hub, and what every page shares: the session, the servers, and the last calls.
import { signal, computed, useEffect, useState } from "./vendor/ui.js";

const ROOT = new URL("..", import.meta.url);
/** The hub's address, for commands and snippets. */
export const ORIGIN = ROOT.href.replace(/\/$/, "");

/** @type {any} */
export const session = signal(null);
/** What the hub does not answer, and what happens next; empty when all is well. */
export const offline = signal("");
/** Whether calls arrive as they end: "live" while the stream of activity is open, "not connected" after it broke; else empty. */
export const live = signal("");
export const servers = signal(/** @type {any[]} */ ([]));
/** Whether the hub has answered once: before that, "none" would be a guess. */
export const isLoaded = signal(false);
export const stats = signal(/** @type {any} */ (null));
/** The last calls, the newest first. */
export const calls = signal(/** @type {any[]} */ ([]));
/** The tools whose definition waits for approval, and the problems of the configuration; for operators. */
export const pending = signal(/** @type {any[]} */ ([]));
export const findings = signal(/** @type {any[]} */ ([]));
/** How many calls wait for a person; for operators. */
export const held = signal(0);
/** Names, titles and descriptions. The whole definition of a tool is at `v1/tools/NAME`. */
export const tools = signal(/** @type {any[] | null} */ (null));
/** Whether arguments and results of calls are being captured, or were; null if not. */
export const capture = signal(/** @type {any} */ (null));
/** Arguments that another page hands to the form of a tool: `{tool, value, runs}`; the form takes them. */
export const draft = signal(/** @type {any} */ (null));
/** How many calls a page remembers. */
export const CALLS_KEPT = 2000;

// -- JSON with exact numbers -------------------------------------------------------------------------------------------

/** A number that JavaScript would change, such as an integer above 2^53, with its digits. */
export class Exact {
  constructor(/** @type {string} */ digits) {
    this.digits = digits;
  }
  toString() {
    return this.digits;
  }
}

const isChanged = (/** @type {string} */ digits, /** @type {number} */ value) => !Number.isFinite(value) || (/^-?\d{16,}$/.test(digits) && String(value) !== digits);

/** The number that somebody typed: exact if JavaScript would change it, null if it is none. */
export function typedNumber(/** @type {string} */ text) {
  const digits = text.trim().replace(/^(-?)0+(?=\d)/, "$1").replace(/^-?(?=\.)/, "$&0"), value = Number(digits);
  if (!/^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(digits)) return null;
  // A float holds every number of up to 15 digits.
  const figures = digits.replace(/e.*/i, "").replace(/^[-0.]+|\./g, "");
  return isChanged(digits, value) || (figures.length > 15 && String(value) !== digits) || (figures && !value) ? new Exact(digits) : value;
}

/** JSON as a value. Browsers without `context.source` (before 2025) round long integers. */
export function parse(/** @type {string} */ text) {
  if (/\d{16}|\de[+-]?\d{3}/i.test(text)) {
    try {
      return /** @type {any} */ (JSON).parse(text, (/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
        typeof value === "number" && context?.source && isChanged(context.source, value) ? new Exact(context.source) : value);
    } catch { /* no JSON, or nested too deeply for a function on each value */ }
  }
  return JSON.parse(text);
}

/** Whether `parse` keeps all numbers of a text: false for long numbers in an old browser. */
export const isParsedExactly = (/** @type {string} */ text) => !/\d{16}|\de[+-]?\d{3}/i.test(text) || "rawJSON" in JSON;

/** A value as JSON, with exact numbers as they are. @param {any} value @returns {string} */
export function toJson(value, space = "", line = "\n") {
  if (value instanceof Exact) return value.digits;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = space && line + space, isList = Array.isArray(value);
  const parts = isList ? value.map((each) => toJson(each, space, inner))
    : Object.entries(value).filter(([, each]) => each !== undefined).map(([key, each]) => `${JSON.stringify(key)}:${space && " "}${toJson(each, space, inner)}`);
  const body = parts.length ? `${inner}${parts.join(`,${inner}`)}${space && line}` : "";
  return isList ? `[${body}]` : `{${body}}`;
}

// -- requests ------------------------------------------------------------------------------------------------------------

/** A failed request: what the hub says of it, with `executed` where a call was made. */
export class Problem extends Error {
  constructor(/** @type {any} */ body, /** @type {number} */ status) {
    super(body?.detail || body?.error || `The hub answered with HTTP ${status}.`);
    this.body = body || {};
    this.status = status;
  }
}

const GONE = "The hub does not answer. It may be restarting; this page tries again.";

/** Sends a request; a 401 shows the sign-in page. */
async function request(/** @type {string} */ path, /** @type {RequestInit} */ options = {}) {
  const headers = new Headers(options.headers);
  if (options.body !== undefined) headers.set("content-type", "application/json");
  if (session.value?.csrf) headers.set("x-csrf-token", session.value.csrf);
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    offline.value = GONE;
    throw new Problem({ detail: GONE }, 0);
  }
  if (response.ok || response.status === 304) return response;
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 && !path.startsWith("console/")) signedOut("Your key is no longer valid. Sign in again.");
  throw new Problem(body, response.status);
}

export const get = async (/** @type {string} */ path) => parse(await (await request(path)).text());

/** The same with every number as it is spelt, where a person decides about it. */
export const getSpelt = async (/** @type {string} */ path) => /** @type {any} */ (JSON).parse(await (await request(path)).text(), (/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
  typeof value === "number" && context?.source && String(value) !== context.source ? new Exact(context.source) : value);

/** The tags of the documents that this page has, by path. */
const tags = new Map();
/** A document, or null if it is the one that this page has. */
async function getChanged(/** @type {string} */ path) {
  const tag = tags.get(path);
  const response = await request(path, tag ? { headers: { "if-none-match": tag } } : {});
  if (response.status === 304) return null;
  const found = parse(await response.text());
  tags.set(path, response.headers.get("etag"));
  return found;
}

export const send = async (/** @type {string} */ method, /** @type {string} */ path, /** @type {any} */ body) =>
  parse(await (await request(path, { method, body: body === undefined ? undefined : toJson(body) })).text());

/**
 * Reads a stream of events until it ends.
 * @param {string} path @param {RequestInit} options @param {(event: string, data: any) => void} onEvent @param {() => void} onOpen
 */
export async function stream(path, options, onEvent, onOpen = () => {}, read = parse) {
  const response = await request(path, { ...options, headers: { accept: "text/event-stream" } });
  onOpen();
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return onEvent("result", parse(await response.text()));
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let cut;
    while ((cut = text.indexOf("\n\n")) >= 0) {
      const frame = text.slice(0, cut);
      text = text.slice(cut + 2);
      let event = "message", data = "";
      for (const line of frame.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) onEvent(event, read(data));
    }
  }
}

// -- the session ---------------------------------------------------------------------------------------------------

export async function loadSession() {
  session.value = await get("console/session");
  offline.value = "";
}

export async function signIn(/** @type {string} */ key) {
  session.value = await send("POST", "console/session", { key });
}

/** Ends the session. Throws a `Problem` if the hub did not end it. */
export async function signOut() {
  await send("DELETE", "console/session");
  signedOut("");
}

/** @param {string} why */
function signedOut(why) {
  session.value = { ...session.value, caller: null, operator: false, csrf: null, why };
  [servers.value, calls.value, pending.value, findings.value] = [[], [], [], []];
  [stats.value, tools.value, isLoaded.value, held.value] = [null, null, false, 0];
  [capture.value, draft.value, live.value, offline.value] = [null, null, "", ""];
  tags.clear();
  waiting = [];
}

/** Whether the pages can be shown. */
export const isSignedIn = computed(() => Boolean(session.value?.caller));

// -- what stays up to date while somebody looks ------------------------------------------------------------------------

const UPDATE_MS = 100;
let waiting = /** @type {any[]} */ ([]), updated = 0;

/** Shows new calls, at most ten times a second. @param {any[]} added The calls of one event, the oldest first. */
function takeCalls(added) {
  if (!waiting.length) setTimeout(() => { updated = performance.now(); addCalls(waiting.splice(0)); }, Math.max(0, updated + UPDATE_MS - performance.now()));
  waiting.push(...added);
}

/** @param {any[]} added */
function addCalls(added) {
  const newest = calls.value[0]?.number ?? 0;
  const last = added[added.length - 1]?.number ?? newest;
  // A restarted hub counts from 1 again.
  const kept = last < newest ? [] : calls.value;
  const fresh = added.filter((call) => last < newest || call.number > newest).reverse();
  if (fresh.length) calls.value = [...fresh, ...kept].slice(0, CALLS_KEPT);
}

const REFRESH_MS = 2000;
let watching = /** @type {AbortController | null} */ (null);

/** Follows the hub while the page is visible; with nobody looking, the hub has nothing to do for it. */
export function watch() {
  const update = () => {
    const wanted = document.visibilityState === "visible" && isSignedIn.value;
    if (wanted && !watching) start((watching = new AbortController()));
    if (!wanted && watching) {
      watching.abort();
      watching = null;
      live.value = "";
    }
  };
  document.addEventListener("visibilitychange", update);
  isSignedIn.subscribe(update);
}

/** @param {AbortController} control */
function start(control) {
  const { signal: aborted } = control;
  const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));
  (async () => {
    while (!aborted.aborted) {
      await refresh();
      await pause(REFRESH_MS);
    }
  })();
  if (!session.value.operator) return;
  (async () => {
    while (!aborted.aborted) {
      await stream("v1/activity?limit=500", { signal: aborted }, (event, data) => (event === "capture" ? (capture.value = data) : takeCalls(data)), () => { live.value = "live"; }, JSON.parse).catch(() => {});
      if (aborted.aborted) return;
      live.value = "not connected";
      await pause(1000);
    }
  })();
}

/** Reads anew what pages share. Each part stands for itself: one that fails is named, and does not hold up the others. */
export async function refresh() {
  const failed = /** @type {string[]} */ ([]);
  let isGone = false;
  const take = async (/** @type {string} */ path, /** @type {(path: string) => Promise<any>} */ ask, /** @type {(found: any) => void} */ use) => {
    try {
      const found = await ask(path);
      if (found && isSignedIn.value) use(found);
      return true;
    } catch (error) {
      const { status, body, message } = /** @type {Problem} */ (error);
      if (status === 0) isGone = true;
      else failed.push(`${path.split("?")[0]} (${status ? [`HTTP ${status}`, body.detail].filter(Boolean).join(": ") : message})`);
      return false;
    }
  };
  const listed = take("v1/servers", getChanged, (found) => { servers.value = found.servers; });
  const rest = session.value.operator ? [
    take("v1/stats", get, (found) => { stats.value = found; }),
    take("v1/definitions", get, (found) => { pending.value = found.pending; }),
    take("v1/approvals?state=pending&limit=0", get, (found) => { held.value = found.total; }),
    take("v1/configuration", get, (found) => { findings.value = found.findings; }),
  ] : [];
  const hasServers = await listed;
  await Promise.all(rest);
  if (hasServers && isSignedIn.value) isLoaded.value = true;
  // The list of tools is long: it has names and descriptions, is sent only when it has changed, and comes after the
  // first page is drawn.
  if (tools.value === null && !isGone) await new Promise((resolve) => setTimeout(resolve, 100));
  if (!isSignedIn.value) return;
  await take("v1/tools?expose=all&fields=title,description", getChanged, (found) => { tools.value = found.tools; });
  if (!isSignedIn.value) return;
  const named = failed.slice(0, 2).join(", ") + (failed.length > 2 ? ` and ${failed.length - 2} more` : "");
  offline.value = isGone ? GONE : failed.length ? `The hub could not answer ${named}. What you see may be old; this page tries again every ${REFRESH_MS / 1000} seconds.` : "";
}

/** The whole definition of a listed tool; null until it is here. It is read again when the list changes. */
export function useTool(/** @type {string} */ name) {
  const [tool, setTool] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isWanted = true;
    if (name) get(`v1/tools/${encodeURIComponent(name)}`).then((found) => isWanted && setTool(found), () => {});
    return () => { isWanted = false; };
  }, [name, tools.value]);
  return tool?.name === name ? tool : null;
}

/** A path with the parameters that have a value. */
export const at = (/** @type {string} */ path, /** @type {any} */ values) => `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value))}`;
/** The frontends that rules can name. */
export const RULE_FRONTENDS = ["mcp", "sse", "a2a", "rest"];

/** The hub's answer at a path, and why there is none. It is read again when the path or the mark changes. */
export function useAnswer(/** @type {string} */ path, mark = "") {
  const [state, set] = useState(/** @type {any} */ ([]));
  useEffect(() => {
    let isWanted = true;
    const tell = (/** @type {any[]} */ ...found) => isWanted && set(found);
    const timer = path && setTimeout(() => get(path).then(tell, (error) => tell(null, error.message)), 150);
    return () => { isWanted = false; clearTimeout(timer); };
  }, [path, mark]);
  return state;
}
