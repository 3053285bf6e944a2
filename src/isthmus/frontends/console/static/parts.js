// @ts-check
// Small components that several pages share, and how figures and outcomes are written.
//
// A list that may be long is a `VirtualRows`: it draws only the rows in sight, and has the keys and the roles.
//
//   html`<${VirtualRows} label="Calls" items=${found} keyOf=${(call) => String(call.number)} selected=${rest[0] ?? ""}
//     onPick=${(call) => go(link("activity", String(call.number)))} isLive
//     head=${html`<th>Time</th><th>Caller</th>`} row=${(call) => html`<td>${clock(call.at)}</td><td>${call.caller}</td>`} />`
//
// - `items` is the whole list, `row` returns the cells of one item. A row is one line: 36 px, or `rowHeight`.
// - `selected` is the key of the marked row. Without `onPick` rows cannot be chosen, and the keys only scroll.
// - `isLive`: new items come at the top. What a reader has scrolled to stays where it is.
// - Columns for wide screens have the class `hide`. A list without `head` is a list of one column.
//
// What was picked of a list is shown by `Beside`, which leaves the list in its place.
//
// To search a list, use `matching`: it lower-cases the text of each list once.
import { html, useState, useRef, useEffect, useLayoutEffect } from "./vendor/ui.js";
import { Exact, toJson } from "./api.js";

// -- words -------------------------------------------------------------------------------------------------------------

/** The hub's word for how a call ended, and its shape: good, attention, bad. */
export function outcomeOf(/** @type {any} */ call) {
  if (call.outcome === "result") return { word: "ok", look: "" };
  if (call.outcome === "tool_error") return { word: "tool error", look: "warn" };
  if (call.denied || call.outcome === "approval_denied") return { word: "denied", look: "bad" };
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

const sentence = (/** @type {string} */ text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** A fix as a sentence, and the command with which it ends. @returns {[string, string]} */
export function fixOf(/** @type {string} */ fix) {
  const found = /^(run it by hand and read its output): (.+)$/s.exec(fix) ?? /^(.+): ((?:isthmus|openssl|chmod|pip) [^,]+)$/s.exec(fix);
  return found ? [`Fix: ${found[1]}:`, found[2]] : [`Fix: ${sentence(fix)}`, ""];
}

/** What is wrong with a server, and its fix, the command or the place in the file that helps; null if nothing is. */
export function troubleOf(/** @type {any} */ server) {
  const reason = server.reason ? sentence(`${server.reason[0].toUpperCase()}${server.reason.slice(1)}`) : "";
  const last = (server.detail ?? "").trim().split("\n").pop();
  const why = last && !reason.includes(last) ? `${reason} It wrote: ${sentence(last)}` : reason;
  // The place has the file, with its line and a button to copy it.
  const [fix, command] = server.fix ? fixOf(server.fix.replace(` of ${(server.place ?? "").replace(/:\d+$/, "")}, `, ", ")) : ["", `isthmus logs ${server.name}`];
  switch (server.state) {
    case "retrying": return { look: "bad", title: `${server.name} is not connected`, text: `${why} ${fix}`.trim(), command, place: server.place };
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

/** What helps against a problem: the command, or the place in the file. */
export const Help = (/** @type {any} */ { trouble }) => html`${trouble.command ? html`<${Command} text=${trouble.command} />` : null}${trouble.place ? html`<${Command} text=${trouble.place} what="place in the file" />` : null}`;

/** A command, or `what` it is, with a button that copies it. */
export function Command(/** @type {any} */ { text, what = "command" }) {
  const [told, setTold] = useState("copy");
  const shown = useRef(/** @type {any} */ (null));
  const copy = async () => {
    setTold(await copyText(text, shown.current) ? "copied" : "press Ctrl+C");
    setTimeout(() => setTold("copy"), 2500);
  };
  return html`<div class="cmd"><code ref=${shown}>${text}</code><button type="button" onClick=${copy} aria-label=${`Copy the ${what}`}>${told}</button></div>`;
}

/** Copy a text. Without the right to the clipboard, as on a page without HTTPS, the element that shows it is selected. */
export async function copyText(/** @type {string} */ text, /** @type {Element} */ element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection()?.selectAllChildren(element);
    return document.execCommand("copy");
  }
}

export function Sparkline(/** @type {any} */ { values, width = 92, height = 30 }) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1e-9);
  const points = values.map((/** @type {number} */ v, /** @type {number} */ i) => `${((i / (values.length - 1)) * width).toFixed(1)},${(height - 2 - (v / most) * (height - 4)).toFixed(1)}`).join(" ");
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"><polyline points=${points} /></svg>`;
}

/** JSON that can be folded. Long texts and lists are cut; "show all" opens them. */
export const Tree = (/** @type {any} */ { value }) => html`<div class="tree"><${Branch} value=${value} /></div>`;

/** What is nested deeper than this is shown as text. */
const LEVELS_MAX = 100;

function Branch(/** @type {any} */ { value, name = null, open = true, level = 0 }) {
  const [all, setAll] = useState(false);
  const label = name === null ? null : html`<span class="k">${name}: </span>`;
  if (value === null || typeof value !== "object" || value instanceof Exact) {
    const text = typeof value === "string" ? JSON.stringify(value) : String(value);
    const kind = typeof value === "string" ? "s" : "n";
    return html`<div class="leaf">${label}<span class=${kind}>${all || text.length <= 2000 ? text : `${text.slice(0, 2000)}…`}</span>${!all && text.length > 2000 ? html` <button class="plain" onClick=${() => setAll(true)}>show all</button>` : null}</div>`;
  }
  if (level >= LEVELS_MAX) return html`<div class="leaf">${label}<span class="n">${deepText(value)}</span></div>`;
  const entries = Array.isArray(value) ? value.map((v, i) => [i, v]) : Object.entries(value);
  const shown = all ? entries : entries.slice(0, 100);
  const kind = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return html`<details open=${open}><summary>${label}<span class="dim">${kind}</span></summary>
    ${shown.map(([key, each]) => html`<${Branch} key=${key} name=${String(key)} value=${each} open=${entries.length <= 20} level=${level + 1} />`)}
    ${shown.length < entries.length ? html`<button class="plain" onClick=${() => setAll(true)}>show all ${entries.length}</button>` : null}
  </details>`;
}

function deepText(/** @type {any} */ value) {
  try {
    const text = toJson(value);
    return text.length > 2000 ? `${text.slice(0, 2000)}…` : text;
  } catch {
    return "… nested too deeply to be shown here";
  }
}

/** The filters of a list. On a phone a button opens all but the first, so that the list begins near the top. */
export function Filters(/** @type {any} */ { first, set = 0, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class=${isOpen ? "bar filters open" : "bar filters"}>${first}
    <button type="button" class="fold" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Filters${set ? `: ${set}` : ""}</button>${children}</div>`;
}

const OVERSCAN = 8;

/**
 * A list that only draws the rows in sight, so that ten thousand cost no more than fifty. `j`, `k` and the arrows move.
 * @param {{items: any[], keyOf: (item: any) => string, row: (item: any) => any, label: string, head?: any, selected?: string,
 *   onPick?: ((item: any) => void) | null, rowHeight?: number, isLive?: boolean, className?: string}} props
 */
export function VirtualRows({ items, keyOf, row, label, head = null, selected = "", onPick = null, rowHeight = 36, isLive = false, className = "" }) {
  const box = useRef(/** @type {any} */ (null));
  const shown = useRef({ items, key: "" });
  const [first, setFirst] = useState(0);
  const [height, setHeight] = useState(720);
  useLayoutEffect(() => {
    const element = box.current;
    element.style.setProperty("--row", `${rowHeight}px`);
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    let top = first;
    if (isLive && first > 0 && shown.current.items !== items) {
      const moved = items.findIndex((item) => keyOf(item) === shown.current.key);
      if (moved > 0 && moved !== first) box.current.scrollTop += (moved - first) * rowHeight;
      if (moved > 0) top = moved;
    }
    shown.current = { items, key: top < items.length ? keyOf(items[top]) : "" };
  });
  const at = selected ? items.findIndex((item) => keyOf(item) === selected) : -1;
  useEffect(() => {
    if (at < 0) return;
    const element = box.current, covered = element.querySelector("thead")?.offsetHeight ?? 0;
    if (at * rowHeight < element.scrollTop) element.scrollTop = at * rowHeight;
    else element.scrollTop = Math.max(element.scrollTop, covered + (at + 1) * rowHeight - element.clientHeight);
  }, [selected, at >= 0]);
  const inSight = Math.ceil(height / rowHeight);
  const move = (/** @type {KeyboardEvent} */ event) => {
    if (/** @type {HTMLElement} */ (event.target).matches("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: inSight - 2, PageUp: 2 - inSight, Home: -items.length, End: items.length }[event.key];
    if (!step || !items.length) return;
    event.preventDefault();
    if (onPick) onPick(items[Math.min(items.length - 1, Math.max(0, at + step))]);
    else box.current.scrollTop += step * rowHeight;
  };
  const from = Math.max(0, Math.min(first, items.length - inSight) - OVERSCAN);
  const to = Math.min(items.length, from + inSight + 2 * OVERSCAN);
  const above = head ? 1 : 0;
  const id = `picked-${label.replace(/\W+/g, "-")}`;
  return html`<div class=${`scroll rows ${className}`} ref=${box} onScroll=${() => setFirst(Math.floor(box.current.scrollTop / rowHeight))}>
    <table role="grid" aria-label=${label} aria-rowcount=${items.length + above} aria-activedescendant=${at >= from && at < to ? id : undefined} tabindex="0" data-keys onKeyDown=${move}>
      ${head ? html`<thead><tr aria-rowindex="1">${head}</tr></thead>` : null}
      <tbody>
        <${Space} key="above" height=${from * rowHeight} />
        ${items.slice(from, to).map((item, i) => html`<tr key=${isLive ? i : keyOf(item)} aria-rowindex=${from + i + 1 + above} id=${from + i === at ? id : undefined}
          class=${onPick ? "pick" : ""} aria-selected=${onPick ? String(from + i === at) : undefined} onClick=${onPick ? () => onPick(item) : undefined}>${row(item)}</tr>`)}
        <${Space} key="below" height=${(items.length - to) * rowHeight} />
      </tbody>
    </table>
  </div>`;
}

const Space = (/** @type {any} */ { height }) => (height > 0 ? html`<tr class="space" aria-hidden="true"><td ref=${(/** @type {any} */ el) => el && (el.style.height = `${height}px`)}></td></tr>` : null);

/** Where what was picked lies over the list; style.css has the same width. */
const NARROW = matchMedia("(max-width: 1200px)");

/**
 * A list, and what was picked of it: beside the list, or over it on a narrow screen. The list stays where it is. Enter
 * leads from the list to what was picked; Esc closes that, and the list has the focus again.
 * @param {{id: string, back: string, list: any, children?: any}} props `id` is empty while nothing is picked.
 */
export function Beside({ id, back, list, children = null }) {
  const root = useRef(/** @type {any} */ (null)), from = useRef(/** @type {any} */ (null)), isShown = useRef(false);
  const panel = () => root.current.querySelector(":scope > .over");
  useEffect(() => {
    const active = document.activeElement, wasShown = isShown.current;
    isShown.current = true;
    if (!id) {
      if (active === document.body) from.current?.focus({ preventScroll: true });
      return;
    }
    from.current = root.current.querySelector("[data-keys], tr[aria-selected=true] a");
    // Who moves in the list by keys goes on there.
    const isMoving = active?.matches("[data-keys]") && (!NARROW.matches || active.matches(":focus-visible"));
    // On a busy machine this runs late: the reader may be in the panel already.
    if (wasShown && !isMoving && !panel().contains(active)) panel().focus({ preventScroll: true });
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.key === "Enter" && target.matches("[data-keys]")) panel().focus({ preventScroll: true });
      if (event.key === "Escape" && !target.matches("input, textarea, select") && !document.querySelector("dialog[open]")) go(back);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [id]);
  return html`<div class=${id ? "beside open" : "beside"} ref=${root}>${list}${id ? html`<div class="over" key=${id} tabindex="-1">${children}</div>` : null}</div>`;
}

/** The lower-cased text of each entry, by list. */
const texts = /** @type {WeakMap<any[], string[]>} */ (new WeakMap());

/**
 * The entries with all these words in their text, at most so many. A list that changes is a new array.
 * @param {any[]} list @param {(entry: any) => string} textOf @param {string} words @returns {any[]}
 */
export function matching(list, textOf, words, most = Infinity) {
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!parts.length) return most === Infinity ? list : list.slice(0, most);
  const lowered = loweredTexts(list, textOf), found = [];
  for (let i = 0; i < list.length && found.length < most; i += 1) if (parts.every((part) => lowered[i].includes(part))) found.push(list[i]);
  return found;
}

/** The texts that `matching` searches; a page may make those of a long list before somebody types. */
export function loweredTexts(/** @type {any[]} */ list, /** @type {(entry: any) => string} */ textOf) {
  let lowered = texts.get(list);
  if (!lowered) texts.set(list, (lowered = list.map((entry) => textOf(entry).toLowerCase())));
  return lowered;
}
export const toolText = (/** @type {any} */ tool) => `${tool.name} ${tool.title ?? ""} ${tool.description ?? ""}`;

/** The address of a view. */
export const go = (/** @type {string} */ hash) => { location.hash = hash; };
/** A part of an address as text; one that is badly encoded stays as it is. */
export const decoded = (/** @type {string} */ part) => {
  try { return decodeURIComponent(part); } catch { return part; }
};
export const link = (/** @type {string[]} */ ...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
