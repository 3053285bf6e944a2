// @ts-check
// Overview: callers on one shore, servers on the other, calls crossing; figures, and what needs attention.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { calls, findings, held, ORIGIN, pending, servers, session, stats } from "../api.js";
import { ago, Command, count, Help, link, outcomeOf, Sparkline, State, stateOf, took, troubleOf } from "../parts.js";
import { CallTable } from "./activity.js";

const WINDOW_SECONDS = 300;
const RATE_SECONDS = 10;
const SHORES = [
  { id: "mcp", title: "MCP", frontends: ["mcp", "sse", "stdio"] },
  { id: "a2a", title: "A2A", frontends: ["a2a"] },
  { id: "rest", title: "REST and library", frontends: ["rest", "library", "cli"] },
  { id: "relay", title: "Devices", frontends: ["relay"] },
];
const SERVERS_SHOWN = 6;

const shoreOf = (/** @type {any} */ call) => SHORES.find((each) => each.frontends.includes(call.frontend)) ?? SHORES[2];

// -- what happened in each of the last seconds ---------------------------------------------------------------------------
// The page keeps the last 2,000 calls, four seconds at 500 a second. So the figures are counted as calls arrive.

const BINS = 192;
/** Durations in steps of 9 %, from 10 µs on. */
const binOf = (/** @type {number} */ seconds) => Math.min(BINS - 1, Math.max(0, Math.round(8 * Math.log2(seconds * 1e5))));
const secondsOf = (/** @type {number} */ bin) => 2 ** (bin / 8) / 1e5;

/** @type {{second: number, calls: number, faults: Record<string, number>, took: Uint16Array, flows: Map<string, number>}[]} */
let counted = [];
let countedTo = 0;
/** From when on all calls are counted: the hub keeps the last 500, so a page that opens at a busy hub knows less. */
let countedFrom = 0;
const CALLS_OF_HUB = 500;

calls.subscribe((/** @type {any[]} */ all) => {
  const newest = all[0]?.number ?? 0;
  if (newest < countedTo || !newest) [counted, countedTo, countedFrom] = [[], 0, 0];
  const end = all.findIndex((call) => call.number <= countedTo), added = end < 0 ? all.length : end;
  if (added >= CALLS_OF_HUB && all[added - 1].number > countedTo + 1) countedFrom = all[added - 1].at;
  for (let i = added - 1; i >= 0; i -= 1) {
    const call = all[i], second = Math.floor(call.at), { word } = outcomeOf(call);
    let last = counted[counted.length - 1];
    if (!last || second > last.second) counted.push((last = { second, calls: 0, faults: {}, took: new Uint16Array(BINS), flows: new window.Map() }));
    last.calls += 1;
    last.took[binOf(call.seconds)] += 1;
    if (word !== "ok") last.faults[word] = (last.faults[word] ?? 0) + 1;
    const key = `${shoreOf(call).id} ${call.server}`;
    last.flows.set(key, (last.flows.get(key) ?? 0) + 1);
  }
  countedTo = newest;
  const now = Date.now() / 1000;
  while (counted.length && counted[0].second < now - WINDOW_SECONDS) counted.shift();
  for (let i = counted.length - 1; i >= 0 && counted[i].flows.size; i -= 1) if (counted[i].second < now - 2 * RATE_SECONDS) counted[i].flows.clear();
});

/** The whole seconds of which the rates are, at most the last ten. */
function rateWindow(/** @type {number} */ now) {
  const to = Math.floor(now), from = Math.min(to - 1, Math.max(to - RATE_SECONDS, Math.ceil(countedFrom)));
  return { from, to, seconds: to - from };
}

/** The time of which all calls are counted, in words. */
const windowOf = (/** @type {number} */ now) => (countedFrom > now - WINDOW_SECONDS ? ago(countedFrom) : `${WINDOW_SECONDS / 60} minutes`);

/** The newest calls, read at most so often. */
function useCalls(/** @type {number} */ ms) {
  const [, tick] = useState(0);
  useEffect(() => {
    let timer = 0, last = -ms;
    const draw = () => { timer = 0; last = performance.now(); tick((n) => n + 1); };
    const unsubscribe = calls.subscribe(() => { timer ||= setTimeout(draw, Math.max(0, last + ms - performance.now())); });
    const beat = setInterval(() => { timer ||= setTimeout(draw, 0); }, 1000);
    return () => { unsubscribe(); clearTimeout(timer); clearInterval(beat); };
  }, [ms]);
  return calls.peek();
}

export function Overview(/** @type {any} */ { title, search }) {
  const all = useCalls(500);
  const now = Date.now() / 1000;
  const recent = all.filter((call) => call.at > now - WINDOW_SECONDS);
  return html`
    <div class="top"><h1>${title}</h1><span>last ${windowOf(now)}</span>${search}</div>
    <${Figures} now=${now} />
    <div class="cols"><${Map} recent=${recent} now=${now} /><${Attention} recent=${recent} />
      <section class="panel" aria-labelledby="recent"><h2 id="recent">Recent calls</h2><${Recent} /></section></div>`;
}

const Recent = () => (calls.value.length ? html`<${CallTable} calls=${calls.value.slice(0, 8)} />` : html`<${NoCalls} />`);

function Figures(/** @type {any} */ { now }) {
  const bins = Array(30).fill(0), took_ = new Uint32Array(BINS), faults = /** @type {Record<string, number>} */ ({});
  const { from, to, seconds } = rateWindow(now);
  let total = 0, lately = 0;
  for (const each of counted) {
    if (each.second < now - WINDOW_SECONDS) continue;
    bins[Math.min(29, Math.max(0, Math.floor(((each.second - (now - WINDOW_SECONDS)) / WINDOW_SECONDS) * 30)))] += each.calls;
    total += each.calls;
    if (each.second >= from && each.second < to) lately += each.calls;
    for (let bin = 0; bin < BINS; bin += 1) took_[bin] += each.took[bin];
    for (const [word, n] of Object.entries(each.faults)) faults[word] = (faults[word] ?? 0) + n;
  }
  const percentile = (/** @type {number} */ share) => {
    let left = total * share;
    return secondsOf(took_.findIndex((n) => (left -= n) <= 0));
  };
  const failed = Object.values(faults).reduce((a, b) => a + b, 0);
  const rate = lately / seconds;
  const running = (stats.value?.servers ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.running, 0);
  const queued = (stats.value?.servers ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.queued, 0);
  const lag = stats.value?.event_loop?.lag_seconds_max;
  const named = Object.entries(faults).map(([word, n]) => (word.endsWith("error") ? count(n, word) : `${n.toLocaleString("en")} ${word}`)).join(" · ");
  return html`<div class="kpis">
    <div class="panel kpi"><${Sparkline} values=${bins} /><small>Calls, last ${seconds} s</small><strong>${rate >= 10 ? Math.round(rate) : rate.toFixed(1)}<em> /s</em></strong><em>${count(total, "call")} in ${windowOf(now)}</em></div>
    <div class="panel kpi"><small>Latency p50 · p99</small><strong>${total ? html`${took(percentile(0.5))} · ${took(percentile(0.99))}` : "–"}</strong><em>${lag === undefined ? "" : `max. event loop lag ${took(lag)}`}</em></div>
    <div class="panel kpi"><small>Faults</small><strong>${total ? ((failed / total) * 100).toFixed(1) : "0"}<em> %</em></strong><em>${named || "none"}</em></div>
    <div class="panel kpi"><small>Running</small><strong>${running}<em> ${running === 1 ? "call" : "calls"}</em></strong><em>${queued ? `${queued} queued` : "none queued"}${held.value ? ` · ${held.value} held for approval` : ""}</em></div>
  </div>`;
}

const NoCalls = () => html`<div class="empty"><p>No calls yet. Call a tool from here:</p><${Command} text="isthmus call builtin.echo text=hello" /><p></p><p>Or connect a client:</p><${Command} text=${`claude mcp add --transport http isthmus ${ORIGIN}/mcp`} /></div>`;

// -- the two shores ------------------------------------------------------------------------------------------------------

/** Where the calls of servers end that are not drawn. */
const MORE = " more";
const LEFT = { x: 16, width: 212 }, RIGHT = { x: 672, width: 212 }, ROW = 64, TOP = 30, CARD = 54;

/** Positions and flows of the picture. */
function layout(/** @type {any[]} */ recent, /** @type {number} */ now) {
  const busy = /** @type {Record<string, number>} */ ({});
  for (const call of recent) busy[call.server] = (busy[call.server] ?? 0) + 1;
  const byName = (/** @type {any} */ a, /** @type {any} */ b) => (a.name < b.name ? -1 : 1);
  const ranked = [...servers.value].sort((a, b) => (busy[b.name] ?? 0) - (busy[a.name] ?? 0) || byName(a, b));
  // Half of the places are for the busiest servers: those in trouble are listed beside the picture too.
  const busiest = ranked.filter((server) => busy[server.name]).slice(0, SERVERS_SHOWN / 2);
  const others = ranked.filter((server) => !busiest.includes(server)).sort((a, b) => Number(Boolean(troubleOf(b))) - Number(Boolean(troubleOf(a))));
  const shown = [...busiest, ...others].slice(0, SERVERS_SHOWN).sort(byName);
  const rightY = new window.Map(shown.map((server, i) => [server.name, TOP + i * ROW]));
  const hidden = new Set(servers.value.filter((server) => !rightY.has(server.name)).map((server) => server.name));
  if (hidden.size) rightY.set(MORE, TOP + shown.length * ROW - CARD / 2 + 6);
  const keyOf = (/** @type {string} */ shore, /** @type {string} */ server) => `${shore} ${hidden.has(server) ? MORE : server}`;
  const gap = SHORES.length < shown.length ? (ROW * shown.length) / SHORES.length : ROW + 12;
  const leftY = new window.Map(SHORES.map((shore, i) => [shore.id, TOP + i * Math.max(gap, ROW + 4)]));
  const flows = new window.Map();
  for (const call of recent.slice(0, 500)) {
    const shore = shoreOf(call).id, key = keyOf(shore, call.server), server = key.slice(shore.length + 1);
    if (!rightY.has(server)) continue;
    const flow = flows.get(key) ?? { key, shore, server, calls: 0, refused: 0, rate: 0 };
    flow.calls += 1;
    flow.refused += outcomeOf(call).word === "not sent" ? 1 : 0;
    flows.set(key, flow);
  }
  const rates = new window.Map(SHORES.map((shore) => [shore.id, 0])), serverRates = new window.Map();
  const { from, to, seconds } = rateWindow(now);
  for (const each of counted) {
    if (each.second < from || each.second >= to) continue;
    for (const [key, n] of each.flows) {
      const shore = key.slice(0, key.indexOf(" "));
      const server = key.slice(shore.length + 1);
      rates.set(shore, (rates.get(shore) ?? 0) + n / seconds);
      serverRates.set(server, (serverRates.get(server) ?? 0) + n / seconds);
      const flow = flows.get(keyOf(shore, server));
      if (flow) flow.rate += n / seconds;
    }
  }
  for (const flow of flows.values()) {
    const [y1, y2] = [(leftY.get(flow.shore) ?? 0) + CARD / 2, (rightY.get(flow.server) ?? 0) + CARD / 2];
    flow.path = `M${LEFT.x + LEFT.width} ${y1} C430 ${y1} 470 ${y2} ${RIGHT.x} ${y2}`;
    flow.isBad = flow.refused * 2 > flow.calls;
    flow.width = Math.min(11, 1.5 + Math.log2(1 + flow.rate * 4));
  }
  const height = TOP + 8 + Math.max(...[...leftY.values(), ...shown.map((_, i) => TOP + i * ROW), 0]) + CARD;
  return { shown, leftY, rightY, rates, serverRates, flows: [...flows.values()], height };
}

function Map(/** @type {any} */ { recent, now }) {
  const { shown, leftY, rightY, rates, serverRates, flows, height } = layout(recent, now);
  const svg = useRef(/** @type {any} */ (null));
  useDots(svg);
  if (!hasServers()) return html`<div class="panel"><${NoServers} /></div>`;
  const callersOf = (/** @type {any} */ shore) => [...new Set(recent.filter((/** @type {any} */ call) => shoreOf(call) === shore).map((/** @type {any} */ call) => call.caller))];
  const more = servers.value.length - shown.length;
  const latency = new window.Map((stats.value?.servers ?? []).map((/** @type {any} */ each) => [each.name, each.latency?.p50]));
  return html`<div class="panel map"><svg ref=${svg} viewBox=${`0 0 900 ${height + (more > 0 ? 22 : 0)}`} role="group" aria-label=${`${count(flows.length, "route")} from callers to servers`}>
    <text class="shore" x="24" y="16">callers</text><text class="shore" x="876" y="16" text-anchor="end">servers</text>
    ${flows.map((flow) => html`<path key=${flow.key} class=${`flow ${flow.isBad ? "bad" : ""}`} data-flow=${flow.key} stroke-width=${flow.width.toFixed(1)} d=${flow.path} />`)}
    <g data-dots></g>
    ${SHORES.map((shore) => {
      const y = leftY.get(shore.id) ?? 0, names = callersOf(shore);
      return html`<g key=${shore.id}><rect class="card" x=${LEFT.x} y=${y} width=${LEFT.width} height=${CARD} rx="9" />
        <text x="32" y=${y + 23}>${shore.title}</text><text class="sub" x="32" y=${y + 41}>${cut(names.slice(0, 2).join(", "), 24)}${names.length > 2 ? `, ${names.length - 2} more` : names.length ? "" : "no calls"}</text>
        <text x="212" y=${y + 23} text-anchor="end">${perSecond(rates.get(shore.id))}</text></g>`;
    })}
    ${shown.map((server) => {
      const y = rightY.get(server.name) ?? 0, { word, look } = stateOf(server), p50 = latency.get(server.name);
      const about = server.state === "ready" ? [server.transport, p50 ? took(p50) : "", session.value.needsKey ? `${server.tools} for you` : count(server.tools, "tool")].filter(Boolean).join(" · ") : word;
      return html`<a key=${server.name} href=${link("servers", server.name)}><rect class="card" x=${RIGHT.x} y=${y} width=${RIGHT.width} height=${CARD} rx="9" />
        <${Shape} look=${look} x=${690} y=${y + 19} /><text x="704" y=${y + 23}>${cut(server.name, 24)}</text><text class="sub" x="704" y=${y + 41}>${cut(about, 32)}</text></a>`;
    })}
    ${more > 0 ? html`<a href=${link("servers")}><text class="sub" x="688" y=${TOP + shown.length * ROW + 10}>and ${more.toLocaleString("en")} more</text></a>` : null}
  </svg>
  <div class="shores"><h2 id="shore-callers">Callers</h2><ul aria-labelledby="shore-callers">${SHORES.map((shore) => {
      const names = callersOf(shore);
      return names.length ? html`<li key=${shore.id}><b>${shore.title}</b><span class="dim">${cut(names.slice(0, 2).join(", "), 40)}${names.length > 2 ? `, ${names.length - 2} more` : ""}</span><span>${perSecond(rates.get(shore.id))}</span></li>` : null;
    })}${recent.length ? null : html`<li class="dim">No calls.</li>`}</ul>
    <h2 id="shore-servers">Servers</h2><ul aria-labelledby="shore-servers">${shown.map((server) => {
      const { word, look } = stateOf(server);
      return html`<li key=${server.name}><a href=${link("servers", server.name)}>${server.name}</a><${State} look=${look}>${word}</${State}><span>${perSecond(serverRates.get(server.name))}</span></li>`;
    })}${more > 0 ? html`<li><a href=${link("servers")}>and ${more.toLocaleString("en")} more</a></li>` : null}</ul></div></div>`;
}

const perSecond = (/** @type {number | undefined} */ rate) => (rate ? `${rate >= 10 ? Math.round(rate) : rate.toFixed(1)}/s` : "");

const cut = (/** @type {string} */ text, /** @type {number} */ most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Shape(/** @type {any} */ { look, x, y }) {
  if (look === "bad") return html`<rect x=${x - 4} y=${y - 4} width="8" height="8" rx="1" fill="var(--bad)" />`;
  if (look === "warn") return html`<path d=${`M${x} ${y - 5}l5 9h-10z`} fill="var(--warn)" />`;
  return html`<circle cx=${x} cy=${y} r="4.5" fill=${look === "idle" ? "none" : "var(--ok)"} stroke=${look === "idle" ? "var(--idle)" : "none"} stroke-width="2" />`;
}

const DOTS_PER_SECOND = 30, CROSSING_MS = 900;

/** Moves a dot along its line for each new call: at most thirty a second, and none if the reader wants no motion. */
function useDots(/** @type {any} */ svg) {
  useEffect(() => {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return undefined;
    /** @type {{path: SVGPathElement, circle: SVGElement, begun: number, length: number}[]} */
    let dots = [];
    let seen = calls.value[0]?.number ?? 0, frame = 0, started = /** @type {number[]} */ ([]);
    const draw = (/** @type {number} */ now) => {
      dots = dots.filter((dot) => {
        const share = (now - dot.begun) / CROSSING_MS;
        if (share < 0 || share >= 1 || !dot.path.isConnected) { if (share >= 1 || !dot.path.isConnected) { dot.circle.remove(); return false; } return true; }
        const point = dot.path.getPointAtLength(dot.length * share);
        dot.circle.setAttribute("cx", String(point.x));
        dot.circle.setAttribute("cy", String(point.y));
        return true;
      });
      frame = dots.length ? requestAnimationFrame(draw) : 0;
    };
    const unsubscribe = calls.subscribe((/** @type {any[]} */ all) => {
      const now = performance.now();
      started = started.filter((at) => at > now - 1000);
      const group = svg.current?.querySelector("[data-dots]");
      if (!group) return;
      const fresh = all.slice(0, DOTS_PER_SECOND).filter((call) => call.number > seen);
      seen = all[0]?.number ?? 0;
      for (const call of fresh) {
        if (started.length >= DOTS_PER_SECOND) break;
        const pathTo = (/** @type {string} */ server) => svg.current.querySelector(`[data-flow="${CSS.escape(`${shoreOf(call).id} ${server}`)}"]`);
        const path = pathTo(call.server) ?? (call.server ? pathTo(MORE) : null);
        if (!path) continue;
        const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
        circle.setAttribute("class", outcomeOf(call).word === "ok" ? "dot" : "dot bad");
        circle.setAttribute("r", "3.5");
        circle.setAttribute("cx", "-9");
        group.append(circle);
        dots.push({ path, circle, begun: now + Math.random() * 100, length: path.getTotalLength() });
        started.push(now);
      }
      if (dots.length && !frame) frame = requestAnimationFrame(draw);
    });
    return () => { unsubscribe(); cancelAnimationFrame(frame); };
  }, []);
}

// -- attention -----------------------------------------------------------------------------------------------------------

function Attention(/** @type {any} */ { recent }) {
  const items = servers.value.map((server) => ({ server, trouble: troubleOf(server) })).filter((each) => each.trouble);
  items.sort((a, b) => Number(b.trouble?.look === "bad") - Number(a.trouble?.look === "bad"));
  const blocked = stats.value?.event_loop?.held ?? 0;
  return html`<aside class="panel" aria-labelledby="attention"><h2 id="attention">Needs attention</h2>
    ${held.value ? html`<div class="todo"><${State} look="warn">${count(held.value, "call waits", "calls wait")} for approval</${State}><p>A rule holds ${held.value === 1 ? "it" : "them"} until you decide. <a href=${link("approvals")}>Review</a></p></div>` : null}
    ${items.slice(0, 4).map(({ server, trouble }) => {
      const refused = recent.filter((/** @type {any} */ call) => call.server === server.name && call.executed === "no" && call.outcome !== "result").length;
      return html`<div class="todo" key=${server.name}><${State} look=${trouble?.look}><a href=${link("servers", server.name)}>${trouble?.title}</a></${State}>
        <p>${trouble?.text} ${refused ? `${count(refused, "call was", "calls were")} not sent.` : ""}</p>
        <${Help} trouble=${trouble} /></div>`;
    })}
    ${items.length > 4 ? html`<div class="todo"><a href=${link("servers")}>${items.length - 4} more</a></div>` : null}
    ${blocked ? html`<div class="todo"><${State} look="warn">The event loop was blocked</${State}><p>${count(blocked, "time")} for over 50 ms since the start. The log names the code.</p></div>` : null}
    ${pending.value.length ? html`<div class="todo"><${State} look="warn">${count(pending.value.length, "definition")} changed</${State}><p>${pending.value.slice(0, 3).map((each) => `${each.server}.${each.tool}`).join(", ")}${pending.value.length > 3 ? " …" : ""}: withheld until you approve. <a href=${link("definitions")}>Review</a></p></div>` : null}
    ${findings.value.length ? html`<div class="todo"><${State} look="warn">${count(findings.value.length, "problem")} in the configuration</${State}><p>${findings.value[0].problem}. <a href=${link("doctor")}>All</a></p></div>` : null}
    ${!items.length && !held.value && !blocked && !pending.value.length && !findings.value.length ? html`<div class="todo"><${State} look="">Nothing</${State}><p>All servers are connected.</p></div>` : null}
  </aside>`;
}

/** Whether the hub has servers beside its own tools. */
export const hasServers = () => servers.value.some((server) => server.name !== "builtin");

export const NoServers = () => html`<div class="empty"><p>No servers yet. <a href=${link("servers", "+")}>Paste one here</a>, or run one of these:</p>
  <${Command} text="isthmus add files -- npx -y @modelcontextprotocol/server-filesystem ." />
  <${Command} text="isthmus add search https://example.com/mcp" />
  <${Command} text="isthmus init" /></div>`;
