// @ts-check
// Overview: callers on one shore, servers on the other, calls crossing; figures, and what needs attention.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { calls, findings, ORIGIN, pending, servers, stats } from "../api.js";
import { Command, count, link, outcomeOf, Sparkline, State, stateOf, took, troubleOf } from "../parts.js";
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
const percentile = (/** @type {number[]} */ sorted, /** @type {number} */ share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];

export function Overview(/** @type {any} */ { title, search }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const now = Date.now() / 1000;
  const recent = calls.value.filter((call) => call.at > now - WINDOW_SECONDS);
  const lately = recent.filter((call) => call.at > now - RATE_SECONDS);
  return html`
    <div class="top"><h1>${title}</h1><span>last 5 minutes</span>${search}</div>
    <${Figures} recent=${recent} lately=${lately} now=${now} />
    <div class="cols"><${Map} lately=${lately} recent=${recent} /><${Attention} recent=${recent} /></div>
    <section class="panel" aria-labelledby="recent"><h2 id="recent">Recent calls</h2>
      ${calls.value.length ? html`<${CallTable} calls=${calls.value.slice(0, 8)} />` : html`<${NoCalls} />`}
    </section>`;
}

function Figures(/** @type {any} */ { recent, lately, now }) {
  const bins = Array(30).fill(0);
  for (const call of recent) bins[Math.min(29, Math.max(0, Math.floor(((call.at - (now - WINDOW_SECONDS)) / WINDOW_SECONDS) * 30)))] += 1;
  const times = recent.map((/** @type {any} */ call) => call.seconds).sort((/** @type {number} */ a, /** @type {number} */ b) => a - b);
  const faults = { "not sent": 0, unknown: 0, "tool error": 0, "server error": 0 };
  for (const call of recent) {
    const { word } = outcomeOf(call);
    if (word in faults) /** @type {any} */ (faults)[word] += 1;
  }
  const failed = Object.values(faults).reduce((a, b) => a + b, 0);
  const rate = lately.length / RATE_SECONDS;
  const running = (stats.value?.servers ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.running, 0);
  const queued = (stats.value?.servers ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.queued, 0);
  const lag = stats.value?.event_loop?.lag_seconds_max;
  const named = Object.entries(faults).filter(([, n]) => n).map(([word, n]) => `${n} ${word}`).join(" · ");
  return html`<div class="kpis">
    <div class="panel kpi"><${Sparkline} values=${bins} /><small>Calls</small><strong>${rate >= 10 ? Math.round(rate) : rate.toFixed(1)}<em> /s</em></strong><em>${count(recent.length, "call")} in 5 minutes</em></div>
    <div class="panel kpi"><small>Latency p50 · p99</small><strong>${times.length ? html`${took(percentile(times, 0.5))} · ${took(percentile(times, 0.99))}` : "–"}</strong><em>${lag === undefined ? "" : `event loop at most ${took(lag)} late`}</em></div>
    <div class="panel kpi"><small>Faults</small><strong>${recent.length ? ((failed / recent.length) * 100).toFixed(1) : "0"}<em> %</em></strong><em>${named || "none"}</em></div>
    <div class="panel kpi"><small>Running</small><strong>${running}<em> ${running === 1 ? "call" : "calls"}</em></strong><em>${queued ? `${queued} queued` : "none queued"}</em></div>
  </div>`;
}

const NoCalls = () => html`<div class="empty"><p>No calls yet. Call a tool from here:</p><${Command} text="isthmus call builtin.echo text=hello" /><p></p><p>Or connect a client:</p><${Command} text=${`claude mcp add --transport http isthmus ${ORIGIN}/mcp`} /></div>`;

// -- the two shores ------------------------------------------------------------------------------------------------------

const LEFT = { x: 16, width: 212 }, RIGHT = { x: 672, width: 212 }, ROW = 64, TOP = 30, CARD = 54;

/** Positions and flows of the picture. */
function layout(/** @type {any[]} */ lately, /** @type {any[]} */ recent) {
  const busy = /** @type {Record<string, number>} */ ({});
  for (const call of recent) busy[call.server] = (busy[call.server] ?? 0) + 1;
  const rank = (/** @type {any} */ server) => (troubleOf(server) ? 1e9 : 0) + (busy[server.name] ?? 0);
  const shown = [...servers.value].sort((a, b) => rank(b) - rank(a) || a.name.localeCompare(b.name)).slice(0, SERVERS_SHOWN).sort((a, b) => a.name.localeCompare(b.name));
  const rightY = new window.Map(shown.map((server, i) => [server.name, TOP + i * ROW]));
  const gap = SHORES.length < shown.length ? (ROW * shown.length) / SHORES.length : ROW + 12;
  const leftY = new window.Map(SHORES.map((shore, i) => [shore.id, TOP + i * Math.max(gap, ROW + 4)]));
  const flows = new window.Map();
  for (const call of recent.slice(0, 500)) {
    const shore = shoreOf(call).id;
    if (!rightY.has(call.server)) continue;
    const key = `${shore} ${call.server}`;
    const flow = flows.get(key) ?? { key, shore, server: call.server, calls: 0, refused: 0, rate: 0 };
    flow.calls += 1;
    flow.refused += outcomeOf(call).word === "not sent" ? 1 : 0;
    flows.set(key, flow);
  }
  for (const call of lately) {
    const flow = flows.get(`${shoreOf(call).id} ${call.server}`);
    if (flow) flow.rate += 1 / RATE_SECONDS;
  }
  for (const flow of flows.values()) {
    const [y1, y2] = [(leftY.get(flow.shore) ?? 0) + CARD / 2, (rightY.get(flow.server) ?? 0) + CARD / 2];
    flow.path = `M${LEFT.x + LEFT.width} ${y1} C430 ${y1} 470 ${y2} ${RIGHT.x} ${y2}`;
    flow.isBad = flow.refused * 2 > flow.calls;
    flow.width = Math.min(11, 1.5 + Math.log2(1 + flow.rate * 4));
  }
  const height = TOP + 8 + Math.max(...[...leftY.values(), ...rightY.values(), 0]) + CARD;
  return { shown, leftY, rightY, flows: [...flows.values()], height };
}

function Map(/** @type {any} */ { lately, recent }) {
  const { shown, leftY, rightY, flows, height } = layout(lately, recent);
  const svg = useRef(/** @type {any} */ (null));
  useDots(svg);
  if (!servers.value.length) return html`<div class="panel"><${NoServers} /></div>`;
  const callersOf = (/** @type {any} */ shore) => [...new Set(recent.filter((/** @type {any} */ call) => shoreOf(call) === shore).map((/** @type {any} */ call) => call.caller))];
  const more = servers.value.length - shown.length;
  const latency = new window.Map((stats.value?.servers ?? []).map((/** @type {any} */ each) => [each.name, each.latency?.p50]));
  return html`<div class="panel map"><svg ref=${svg} viewBox=${`0 0 900 ${height + (more > 0 ? 22 : 0)}`} role="group" aria-label=${`${count(flows.length, "route")} from callers to servers`}>
    <text class="shore" x="24" y="16">callers</text><text class="shore" x="876" y="16" text-anchor="end">servers</text>
    ${flows.map((flow) => html`<path key=${flow.key} class=${`flow ${flow.isBad ? "bad" : ""}`} data-flow=${flow.key} stroke-width=${flow.width.toFixed(1)} d=${flow.path} />`)}
    <g data-dots></g>
    ${SHORES.map((shore) => {
      const y = leftY.get(shore.id) ?? 0, names = callersOf(shore);
      const rate = lately.filter((/** @type {any} */ call) => shoreOf(call) === shore).length / RATE_SECONDS;
      return html`<g key=${shore.id}><rect class="card" x=${LEFT.x} y=${y} width=${LEFT.width} height=${CARD} rx="9" />
        <text x="32" y=${y + 23}>${shore.title}</text><text class="sub" x="32" y=${y + 41}>${cut(names.slice(0, 2).join(", "), 24)}${names.length > 2 ? `, ${names.length - 2} more` : names.length ? "" : "no calls"}</text>
        <text x="212" y=${y + 23} text-anchor="end">${rate ? `${rate >= 10 ? Math.round(rate) : rate.toFixed(1)}/s` : ""}</text></g>`;
    })}
    ${shown.map((server) => {
      const y = rightY.get(server.name) ?? 0, { word, look } = stateOf(server), p50 = latency.get(server.name);
      const about = server.state === "ready" ? [server.transport, count(server.tools, "tool"), p50 ? took(p50) : ""].filter(Boolean).join(" · ") : word;
      return html`<a key=${server.name} href=${link("servers", server.name)}><rect class="card" x=${RIGHT.x} y=${y} width=${RIGHT.width} height=${CARD} rx="9" />
        <${Shape} look=${look} x=${690} y=${y + 19} /><text x="704" y=${y + 23}>${cut(server.name, 24)}</text><text class="sub" x="704" y=${y + 41}>${cut(about, 32)}</text></a>`;
    })}
    ${more > 0 ? html`<a href=${link("servers")}><text class="sub" x="778" y=${height + 12} text-anchor="middle">and ${more} more</text></a>` : null}
  </svg></div>`;
}

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
        const path = svg.current.querySelector(`[data-flow="${CSS.escape(`${shoreOf(call).id} ${call.server}`)}"]`);
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
  const held = stats.value?.event_loop?.held ?? 0;
  return html`<aside class="panel" aria-labelledby="attention"><h2 id="attention">Needs attention</h2>
    ${items.slice(0, 4).map(({ server, trouble }) => {
      const refused = recent.filter((/** @type {any} */ call) => call.server === server.name && call.executed === "no" && call.outcome !== "result").length;
      return html`<div class="todo" key=${server.name}><${State} look=${trouble?.look}>${trouble?.title}</${State}>
        <p>${trouble?.text} ${refused ? `${count(refused, "call was", "calls were")} not sent.` : ""}</p>
        ${trouble?.command ? html`<${Command} text=${trouble.command} />` : null}</div>`;
    })}
    ${items.length > 4 ? html`<div class="todo"><a href=${link("servers")}>${items.length - 4} more</a></div>` : null}
    ${held ? html`<div class="todo"><${State} look="warn">The event loop was blocked</${State}><p>${count(held, "time")} for over 50 ms since the start. The log names the code.</p></div>` : null}
    ${pending.value.length ? html`<div class="todo"><${State} look="warn">${count(pending.value.length, "definition")} changed</${State}><p>${pending.value.slice(0, 3).map((each) => `${each.server}.${each.tool}`).join(", ")}${pending.value.length > 3 ? " …" : ""}: withheld until you approve. <a href=${link("definitions")}>Review</a></p></div>` : null}
    ${findings.value.length ? html`<div class="todo"><${State} look="warn">${count(findings.value.length, "problem")} in the configuration</${State}><p>${findings.value[0].problem}. <a href=${link("doctor")}>All</a></p></div>` : null}
    ${!items.length && !held && !pending.value.length && !findings.value.length ? html`<div class="todo"><${State} look="">Nothing</${State}><p>All servers are connected.</p></div>` : null}
  </aside>`;
}

export const NoServers = () => html`<div class="empty"><p>No servers yet. Add one in any of three ways:</p>
  <${Command} text="isthmus add files -- npx -y @modelcontextprotocol/server-filesystem ." />
  <${Command} text="isthmus add search https://example.com/mcp" />
  <${Command} text="isthmus init" /></div>`;
