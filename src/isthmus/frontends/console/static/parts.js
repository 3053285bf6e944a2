// @ts-check
// Small components that several pages share, and how figures and outcomes are written.
import { html, useState, useRef, useEffect, useLayoutEffect } from "./vendor/ui.js";

// -- words -------------------------------------------------------------------------------------------------------------

/** The hub's word for how a call ended, and its shape: good, attention, bad. */
export function outcomeOf(/** @type {any} */ call) {
  if (call.outcome === "result") return { word: "ok", look: "" };
  if (call.outcome === "tool_error") return { word: "tool error", look: "warn" };
  if (call.executed === "no") return { word: "not sent", look: "bad" };
  if (call.executed === "yes") return { word: "server error", look: "warn" };
  return { word: "unknown", look: "warn" };
}

const STATES = {
  ready: ["ready", ""], starting: ["starting", "idle"], retrying: ["not connected", "bad"], login: ["needs a login", "warn"],
  away: ["away", "warn"], stopped: ["stopped", "idle"], disabled: ["disabled", "idle"],
};
/** A server's state as a word and a shape. */
export const stateOf = (/** @type {any} */ server) => {
  const [word, look] = /** @type {any} */ (STATES)[server.state] ?? [server.state, "idle"];
  return { word, look };
};

/** What is wrong with a server, and the command that helps; null if nothing is. */
export function troubleOf(/** @type {any} */ server) {
  const reason = server.reason ? `${server.reason[0].toUpperCase()}${server.reason.slice(1)}.`.replace(/\.\.$/, ".") : "";
  const last = (server.detail ?? "").trim().split("\n").pop();
  const why = last && !reason.includes(last) ? `${reason} It wrote: ${last}` : reason;
  switch (server.state) {
    case "retrying": return { look: "bad", title: `${server.name} is not connected`, text: why, command: `isthmus logs ${server.name}` };
    case "login": return { look: "warn", title: `${server.name} needs a login`, text: reason, command: `isthmus login ${server.name}` };
    case "away": return { look: "warn", title: `${server.name} is away`, text: `${reason} Its tools stay listed; calls fail until it dials in again.`.trim(), command: "" };
    default: return null;
  }
}

/** Seconds as people write them. */
export function took(/** @type {number} */ seconds) {
  if (seconds >= 100) return `${Math.round(seconds)} s`;
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  const ms = seconds * 1000;
  return ms >= 10 ? `${Math.round(ms)} ms` : ms >= 0.1 ? `${ms.toFixed(1)} ms` : "< 0.1 ms";
}
export const clock = (/** @type {number} */ at) => new Date(at * 1000).toLocaleTimeString("en-GB");
export function ago(/** @type {number} */ at) {
  const seconds = Math.max(0, Date.now() / 1000 - at);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
export const count = (/** @type {number} */ n, /** @type {string} */ one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

const FRONTENDS = { mcp: "MCP", sse: "MCP (SSE)", stdio: "MCP (stdio)", a2a: "A2A", rest: "REST", library: "library", relay: "device", cli: "command line" };
export const frontendOf = (/** @type {string} */ name) => /** @type {any} */ (FRONTENDS)[name] ?? (name || "hub");

// -- components --------------------------------------------------------------------------------------------------------

export const State = (/** @type {any} */ { look, children }) => html`<span class=${`state ${look}`}>${children}</span>`;

/** A command with a button that copies it. */
export function Command(/** @type {any} */ { text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="cmd"><code>${text}</code><button type="button" onClick=${copy} aria-label="Copy the command">${copied ? "copied" : "copy"}</button></div>`;
}

export function Sparkline(/** @type {any} */ { values, width = 92, height = 30 }) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1e-9);
  const points = values.map((/** @type {number} */ v, /** @type {number} */ i) => `${((i / (values.length - 1)) * width).toFixed(1)},${(height - 2 - (v / most) * (height - 4)).toFixed(1)}`).join(" ");
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"><polyline points=${points} /></svg>`;
}

/** JSON that can be folded. Long texts and lists are cut; "show all" opens them. */
export function Tree(/** @type {any} */ { value, name = null, open = true }) {
  const [all, setAll] = useState(false);
  const label = name === null ? null : html`<span class="k">${name}: </span>`;
  if (value === null || typeof value !== "object") {
    const text = typeof value === "string" ? JSON.stringify(value) : String(value);
    const kind = typeof value === "string" ? "s" : "n";
    return html`<div class="leaf">${label}<span class=${kind}>${all || text.length <= 2000 ? text : `${text.slice(0, 2000)}…`}</span>${!all && text.length > 2000 ? html` <button class="plain" onClick=${() => setAll(true)}>show all</button>` : null}</div>`;
  }
  const entries = Array.isArray(value) ? value.map((v, i) => [i, v]) : Object.entries(value);
  const shown = all ? entries : entries.slice(0, 100);
  const kind = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return html`<details open=${open}><summary>${label}<span class="dim">${kind}</span></summary>
    ${shown.map(([key, each]) => html`<${Tree} key=${key} name=${String(key)} value=${each} open=${entries.length <= 20} />`)}
    ${shown.length < entries.length ? html`<button class="plain" onClick=${() => setAll(true)}>show all ${entries.length}</button>` : null}
  </details>`;
}

/**
 * A list that only draws the rows in sight, so that ten thousand cost no more than fifty. `j`, `k` and the arrows move.
 * @param {{items: any[], rowHeight: number, selected: string, keyOf: (item: any) => string, onPick: (item: any) => void, row: (item: any) => any, label: string}} props
 */
export function VirtualList({ items, rowHeight, selected, keyOf, onPick, row, label }) {
  const box = useRef(/** @type {any} */ (null));
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useLayoutEffect(() => setHeight(box.current.clientHeight), []);
  const at = items.findIndex((item) => keyOf(item) === selected);
  useEffect(() => {
    if (at < 0) return;
    const element = box.current;
    if (at * rowHeight < element.scrollTop) element.scrollTop = at * rowHeight;
    if ((at + 1) * rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = (at + 1) * rowHeight - element.clientHeight;
  }, [at]);
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!step || !items.length) return;
    event.preventDefault();
    onPick(items[Math.min(items.length - 1, Math.max(0, at + step))]);
  };
  const first = Math.max(0, Math.floor(top / rowHeight) - 8);
  const seen = items.slice(first, first + Math.ceil(height / rowHeight) + 16);
  return html`<div class="list" role="listbox" aria-label=${label} tabindex="0" data-keys ref=${box} onKeyDown=${move} onScroll=${(/** @type {any} */ e) => setTop(e.currentTarget.scrollTop)}>
    <div ref=${(/** @type {any} */ el) => el && (el.style.height = `${items.length * rowHeight}px`)}></div>
    ${seen.map((item, i) => html`<div key=${keyOf(item)} class="row" role="option" aria-selected=${keyOf(item) === selected}
      ref=${(/** @type {any} */ el) => el && ((el.style.top = `${(first + i) * rowHeight}px`), (el.style.height = `${rowHeight}px`))}
      onClick=${() => onPick(item)}>${row(item)}</div>`)}
  </div>`;
}

/** The address of a view. */
export const go = (/** @type {string} */ hash) => { location.hash = hash; };
export const link = (/** @type {string[]} */ ...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
