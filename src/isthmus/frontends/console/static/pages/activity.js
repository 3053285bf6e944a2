// @ts-check
// Activity: the calls of all callers as they end, with filters.
import { html, useMemo, useState } from "../vendor/ui.js";
import { calls, CALLS_KEPT, servers } from "../api.js";
import { clock, Command, frontendOf, go, link, outcomeOf, State, took, VirtualRows } from "../parts.js";

const WORDS = ["ok", "tool error", "server error", "not sent", "unknown"];

/** A table of calls, the newest first. */
export function CallTable(/** @type {any} */ { calls: shown, selected = 0, onPick = null, isLive = true }) {
  const longest = shown.reduce((/** @type {number} */ most, /** @type {any} */ call) => Math.max(most, call.seconds), 0.001);
  const transports = useMemo(() => new Map(servers.value.map((server) => [server.name, server.transport ?? (server.state === "ready" ? "the hub itself" : "not connected")])), [servers.value]);
  return html`<${VirtualRows} className="columns calls" label="Calls" items=${shown} isLive=${isLive} keyOf=${(/** @type {any} */ call) => String(call.number)} selected=${String(selected || "")}
    onPick=${onPick ?? ((/** @type {any} */ call) => go(link("activity", String(call.number))))}
    head=${html`<th>Time</th><th>Caller</th><th>Tool</th><th class="way hide">Way</th><th>Outcome</th><th class="r">Took</th><th class="about hide"><span class="vh">Duration</span></th>`}
    row=${(/** @type {any} */ call) => {
      const { word, look } = outcomeOf(call);
      return html`<td class="dim">${clock(call.at)}</td><td>${call.caller}</td><td><code>${call.name}</code></td>
        <td class="dim way hide">${frontendOf(call.frontend)} → ${transports.get(call.server) ?? call.server ?? "nowhere"}</td>
        <td><${State} look=${look}>${word}</${State}></td><td class="r">${took(call.seconds)}</td>
        <td class="dim hide about" title=${call.message ?? undefined}>${word === "ok" ? html`<span class="meter"><i ref=${(/** @type {any} */ el) => el && (el.style.width = `${(call.seconds / longest) * 100}%`)}></i></span>` : call.message ?? ""}</td>`;
    }} />`;
}

export function Activity(/** @type {any} */ { title, rest, search }) {
  const [server, setServer] = useState("");
  const [word, setWord] = useState("");
  const [text, setText] = useState("");
  const [held, setHeld] = useState(/** @type {any[] | null} */ (null));
  const all = held ?? calls.value;
  const fits = (/** @type {any} */ call) =>
    (!server || call.server === server) && (!word || outcomeOf(call).word === word) &&
    (!text || `${call.caller} ${call.tenant} ${call.name} ${call.message ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  const found = all.filter(fits);
  const number = Number(rest[0] ?? 0);
  const picked = all.find((call) => call.number === number);
  const names = useMemo(() => [...new Set([...servers.value.map((each) => each.name), ...all.map((call) => call.server).filter(Boolean)])].sort(), [servers.value]);
  const options = useMemo(() => names.map((name) => html`<option>${name}</option>`), [names]);
  return html`<div class="top"><h1>${title}</h1><span>${held ? "paused" : "live"}</span>${search}</div>
    ${number && !picked ? html`<p class="note">Call ${number} is not among the calls that the hub remembers. The audit log has it: <code>isthmus audit tail</code>.</p>` : null}
    ${picked ? html`<${OneCall} call=${picked} />` : null}
    <section class="panel">
      <div class="bar"><input class="grow" type="search" placeholder="Filter by caller, tool or message" aria-label="Filter by caller, tool or message" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
        <select aria-label="Server" value=${server} onChange=${(/** @type {any} */ e) => setServer(e.target.value)}><option value="">All servers</option>${options}</select>
        <select aria-label="Outcome" value=${word} onChange=${(/** @type {any} */ e) => setWord(e.target.value)}><option value="">All outcomes</option>${WORDS.map((each) => html`<option>${each}</option>`)}</select>
        <button type="button" aria-pressed=${Boolean(held)} onClick=${() => setHeld(held ? null : calls.value)}>${held ? "Resume" : "Pause"}</button></div>
      ${found.length ? html`<${CallTable} calls=${found} selected=${number} />`
        : html`<div class="empty"><p>${all.length ? "No call matches these filters." : "No calls yet. This one makes the first:"}</p>${all.length ? null : html`<${Command} text="isthmus call builtin.echo text=hello" />`}</div>`}
      ${all.length >= CALLS_KEPT ? html`<p class="empty">The newest ${CALLS_KEPT.toLocaleString("en")} calls${found.length < all.length ? `, of which ${found.length.toLocaleString("en")} match` : ""}. The audit log has all of them.</p>` : null}
    </section>`;
}

const EXECUTED = { yes: "yes", no: "no: it is safe to call again", unknown: "unknown: the tool may have run" };

function OneCall(/** @type {any} */ { call }) {
  const { word, look } = outcomeOf(call);
  return html`<section class="panel pad stack call" aria-label=${`Call ${call.number}`}>
    <div class="bar"><h2><code>${call.name}</code></h2><${State} look=${look}>${word}</${State}><span class="grow"></span><a href=${link("activity")}>Close</a></div>
    <dl class="facts"><dt>Ended</dt><dd>${clock(call.at)}</dd><dt>Took</dt><dd>${took(call.seconds)}</dd><dt>Caller</dt><dd>${call.caller}${call.tenant === "local" || call.tenant === "default" ? "" : ` of ${call.tenant}`}, ${frontendOf(call.frontend)}</dd>
      <dt>Server</dt><dd>${call.server ? html`<a href=${link("servers", call.server)}>${call.server}</a>` : "none was found"}</dd>
      <dt>Tool ran</dt><dd>${/** @type {any} */ (EXECUTED)[call.executed]}</dd>
      ${call.outcome === "result" || call.outcome === "tool_error" ? null : html`<dt>Reason</dt><dd>${call.outcome}</dd>`}
      ${call.message ? html`<dt>Message</dt><dd>${call.message}</dd>` : null}</dl>
    ${call.kind === "tool" && call.server ? html`<p><a href=${link("tools", call.name)}>Open this tool</a></p>` : null}
  </section>`;
}
