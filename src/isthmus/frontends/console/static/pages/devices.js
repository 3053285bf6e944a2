// @ts-check
// Devices: the agents of the relay, the servers that dialled in, the connected devices, and the sessions of callers.
import { html, useEffect, useState } from "../vendor/ui.js";
import { get, session } from "../api.js";
import { ago, count, frontendOf, link, State } from "../parts.js";

const LOOKS = { ready: "", connecting: "idle", away: "warn" };

export function Devices(/** @type {any} */ { title, search }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isShown = true;
    const read = async () => {
      try {
        const [agents, dialled, devices] = await Promise.all(["agents", "servers", "devices"].map((each) => get(`v1/relay/${each}`)));
        if (isShown) setFound({ agents: agents.agents, servers: dialled.servers, devices: devices.devices });
      } catch (error) {
        if (isShown && /** @type {any} */ (error).status) setFound({ problem: /** @type {Error} */ (error).message });
      }
    };
    const readAll = () => {
      read();
      if (session.value.operator) get("v1/sessions").then((sessions) => isShown && setOpen(sessions), () => {});
    };
    readAll();
    const timer = setInterval(() => document.visibilityState === "visible" && readAll(), 2000);
    return () => { isShown = false; clearInterval(timer); };
  }, []);
  const top = html`<div class="top"><h1>${title}</h1><span>${found?.devices ? `${count(found.devices.length, "device")} connected` : ""}</span>${search}</div>`;
  if (!found) return html`${top}<p class="loading">Loading …</p>`;
  const sessions = open ? html`<${Sessions} open=${open} />` : null;
  if (found.problem) return html`${top}<div class="stack"><section class="panel empty"><p>${found.problem}</p><p>The relay connects xiaozhi devices, and servers behind NAT that dial in. Switch it on in the configuration file:</p><pre>[relay]${"\n"}enabled = true</pre></section>${sessions}</div>`;
  return html`${top}<div class="stack">
    <section class="panel"><h2>Agents</h2>${found.agents.length ? html`<${Table} heads=${["Agent", "Servers", "Tools", "Devices", "Running calls"]} rows=${found.agents.map((/** @type {any} */ each) => [each.agent, each.servers, each.tools, each.devices, each.calls])} />`
      : html`<div class="empty"><p>No agent has a server or a device yet. <code>isthmus token relay AGENT</code> prints the addresses for both.</p></div>`}</section>
    <section class="panel"><h2>Servers that dialled in</h2>${found.servers.length ? html`<${Table} heads=${["Server", "State", "For", "Agent", "Tools", "Running calls"]} rows=${found.servers.map((/** @type {any} */ each) => [html`<a href=${link("servers", each.name)}>${each.name}</a>`, html`<${State} look=${/** @type {any} */ (LOOKS)[each.state]}>${each.state}</${State}>`, `${ago(each.since)}`, each.agent, each.tools.length, each.calls])} />` : html`<p class="empty">None. <code>isthmus token relay AGENT</code> prints an address, and <code>isthmus dial ADDRESS -- COMMAND</code> connects a server to it.</p>`}</section>
    <section class="panel"><h2>Connected devices</h2>${found.devices.length ? html`<${Table} heads=${["Device", "Agent", "For", "From", "Running calls", "Answered calls"]} rows=${found.devices.map((/** @type {any} */ each) => [each.title ?? each.id, each.agent, ago(each.since), each.client ?? "", each.calls, each.answered])} />` : html`<p class="empty">None. <code>isthmus token relay AGENT</code> prints the address for a device, which connects to it by WebSocket.</p>`}</section>
    ${sessions}
  </div>`;
}

/** The open sessions of callers, for operators. Modern MCP clients have none. */
function Sessions(/** @type {any} */ { open }) {
  const streams = open.streams.map((/** @type {any} */ each) => `${each.caller}: ${each.streams} by ${frontendOf(each.frontend)}`).join(", ");
  return html`<section class="panel"><h2>Sessions of callers</h2>${open.sessions.length ? html`<${Table} heads=${["Caller", "By", "Client", "Open for", "Last used", "Running calls"]} rows=${open.sessions.map((/** @type {any} */ each) => [each.caller, frontendOf(each.frontend), each.client ? `${each.client}${each.clientVersion ? `, version ${each.clientVersion}` : ""}` : "", ago(each.since), `${ago(each.lastUsed)} ago`, each.calls])} />`
    : html`<p class="empty">None. MCP clients of the earlier revisions and browsers that signed in have sessions.</p>`}
    ${open.total > open.sessions.length ? html`<p class="empty">The last used ${open.sessions.length} of ${open.total}.</p>` : null}${streams ? html`<p class="empty">Open event streams: ${streams}.</p>` : null}</section>`;
}

const Table = (/** @type {any} */ { heads, rows }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${heads[0]}><table class="cards" role="table"><thead role="rowgroup"><tr role="row">${heads.map((/** @type {string} */ head, /** @type {number} */ i) => html`<th role="columnheader" class=${typeof rows[0]?.[i] === "number" ? "r" : ""}>${head}</th>`)}</tr></thead>
  <tbody role="rowgroup">${rows.map((/** @type {any[]} */ row) => html`<tr role="row">${row.map((cell, /** @type {number} */ i) => html`<td role="cell" data-head=${heads[i]} class=${typeof cell === "number" ? "r" : ""}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
