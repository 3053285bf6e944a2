// @ts-check
// Servers: their state with its reason and what helps, latency, tools, log, restart.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { get, refresh, send, servers, session, stats, tools } from "../api.js";
import { clock, Command, count, go, link, Sparkline, State, stateOf, took, troubleOf, VirtualRows } from "../parts.js";
import { NoServers } from "./overview.js";

/** Latencies of the last minutes by server, for the sparklines. */
const history = /** @type {Record<string, number[]>} */ ({});
stats.subscribe((/** @type {any} */ found) => {
  for (const each of found?.servers ?? []) {
    if (!each.name || !each.latency) continue;
    const values = (history[each.name] ??= []);
    if (values.push(each.latency.p50) > 60) values.shift();
  }
});

export function Servers(/** @type {any} */ { title, rest, search }) {
  const name = rest[0];
  const server = servers.value.find((each) => each.name === name);
  const figures = new Map((stats.value?.servers ?? []).map((/** @type {any} */ each) => [each.name, each]));
  const sorted = useMemo(() => sortedServers(servers.value), [servers.value]);
  const down = sorted.filter(troubleOf).length;
  return html`<div class="top"><h1>${title}</h1><span>${count(servers.value.length, "server")}${down ? `, ${down} not working` : ""}</span>${search}</div>
    ${name && !server && servers.value.length ? html`<p class="note">There is no server ${name}.</p>` : null}
    <div class="stack">
      ${server ? html`<${OneServer} key=${server.name} server=${server} figures=${figures.get(server.name)} />` : null}
      <section class="panel">${sorted.length ? html`<${VirtualRows} className="columns" label="Servers" items=${sorted} keyOf=${(/** @type {any} */ each) => each.name} selected=${name ?? ""}
        onPick=${(/** @type {any} */ each) => go(link("servers", each.name))}
        head=${html`<th>Server</th><th>State</th><th class="hide">Transport</th><th class="r">Tools</th><th class="r hide">Calls</th><th class="r">p50</th><th class="hide">Latency</th>`}
        row=${(/** @type {any} */ each) => {
          const { word, look } = stateOf(each), counted = figures.get(each.name);
          return html`<td><a href=${link("servers", each.name)}>${each.name}</a></td><td><${State} look=${look}>${word}</${State}></td><td class="dim hide">${each.transport ?? ""}</td>
            <td class="r">${each.tools}</td><td class="r hide">${counted?.calls ?? ""}</td><td class="r">${counted?.latency ? took(counted.latency.p50) : ""}</td>
            <td class="hide"><${Sparkline} values=${history[each.name] ?? []} height=${20} /></td>`;
        }} />` : html`<${NoServers} />`}</section>
    </div>`;
}

/** Those that need attention first, then by name. */
function sortedServers(/** @type {any[]} */ all) {
  const byName = new Intl.Collator("en").compare;
  const ranked = all.map((server) => ({ server, rank: troubleOf(server) ? 0 : 1 }));
  return ranked.sort((a, b) => a.rank - b.rank || byName(a.server.name, b.server.name)).map((each) => each.server);
}

function OneServer(/** @type {any} */ { server, figures }) {
  const [told, setTold] = useState("");
  const { word, look } = stateOf(server), trouble = troubleOf(server);
  const restart = async () => {
    setTold("Restarting …");
    try {
      await send("POST", `v1/restart/${encodeURIComponent(server.name)}`);
      await refresh();
      setTold("The server was started anew.");
    } catch (error) {
      setTold(/** @type {Error} */ (error).message);
    }
  };
  const own = (tools.value ?? []).filter((tool) => tool.name.startsWith(`${server.name}.`));
  const outcomes = Object.entries(figures?.outcomes ?? {}).map(([key, n]) => `${n} ${key.replaceAll("_", " ")}`).join(", ");
  return html`<section class="panel pad stack" aria-label=${server.name}>
    <div class="bar"><h2>${server.name}</h2><${State} look=${look}>${word}</${State}><span class="grow"></span>
      ${session.value.operator ? html`<button type="button" onClick=${restart}>Restart</button>` : null}<a href=${link("servers")}>Close</a></div>
    <p role="status" class=${told ? "note" : "vh"}>${told}</p>
    ${trouble ? html`<div><p>${trouble.text}</p>${trouble.command ? html`<${Command} text=${trouble.command} />` : null}</div>` : null}
    ${server.detail ? html`<pre>${server.detail}</pre>` : null}
    <dl class="facts"><dt>Transport</dt><dd>${server.transport ?? (server.state === "ready" ? "inside the hub" : "not known yet")}${server.era ? `, MCP ${server.era}` : ""}</dd>
      <dt>Offers</dt><dd>${[count(server.tools, "tool"), server.prompts && count(server.prompts, "prompt"), server.resources && count(server.resources, "resource")].filter(Boolean).join(", ")}</dd>
      ${figures ? html`<dt>Calls</dt><dd>${figures.calls}${outcomes ? ` (${outcomes})` : ""}; ${figures.running} running, ${figures.queued} queued</dd>` : null}
      ${(server.notes ?? []).length ? html`<dt>Notes</dt><dd>${server.notes.map((/** @type {string} */ note) => html`<div>${note}</div>`)}</dd>` : null}</dl>
    ${own.length ? html`<details><summary>${count(own.length, "tool")}</summary><p>${own.slice(0, 300).map((tool) => html`<a href=${link("tools", tool.name)}><code>${tool.name.slice(server.name.length + 1)}</code></a> `)}</p></details>` : null}
    ${session.value.operator ? html`<${Log} server=${server.name} />` : null}
  </section>`;
}

const LINES_SHOWN = 300;

function Log(/** @type {any} */ { server }) {
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  const box = useRef(/** @type {any} */ (null));
  useEffect(() => {
    let last = 0, open = true;
    const read = async () => {
      try {
        const found = (await get(`v1/logs/${encodeURIComponent(server)}?after=${last}`)).lines;
        if (open && found.length) {
          last = found[found.length - 1].number;
          setLines((old) => [...old, ...found].slice(-LINES_SHOWN));
        }
      } catch { /* the next try may succeed; the frame says that the hub is away */ }
    };
    read();
    const timer = setInterval(() => document.visibilityState === "visible" && read(), 2000);
    return () => { open = false; clearInterval(timer); };
  }, [server]);
  useEffect(() => { if (box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines]);
  return html`<div><h2>Log</h2>${lines.length
    ? html`<div class="log" ref=${box} tabindex="0" role="log" aria-label=${`Log of ${server}`}>${lines.map((line) => html`<div key=${line.number}><time>${clock(line.at)}</time>${line.text}</div>`)}</div>`
    : html`<p class="dim">Nothing written to standard error, and nothing logged.</p>`}</div>`;
}
