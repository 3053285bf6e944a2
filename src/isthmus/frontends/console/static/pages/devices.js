// @ts-check
// Devices: the agents of the relay, the servers that dialled in, and the connected devices.
import { html, useEffect, useState } from "../vendor/ui.js";
import { get } from "../api.js";
import { ago, count, State } from "../parts.js";

const LOOKS = { ready: "", connecting: "idle", away: "warn" };

export function Devices(/** @type {any} */ { title, search }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let open = true;
    const read = async () => {
      try {
        const [agents, dialled, devices] = await Promise.all(["agents", "servers", "devices"].map((each) => get(`v1/relay/${each}`)));
        if (open) setFound({ agents: agents.agents, servers: dialled.servers, devices: devices.devices });
      } catch (error) {
        if (open && /** @type {any} */ (error).status) setFound({ problem: /** @type {Error} */ (error).message });
      }
    };
    read();
    const timer = setInterval(() => document.visibilityState === "visible" && read(), 2000);
    return () => { open = false; clearInterval(timer); };
  }, []);
  const top = html`<div class="top"><h1>${title}</h1><span>${found?.devices ? `${count(found.devices.length, "device")} connected` : ""}</span>${search}</div>`;
  if (!found) return html`${top}<p class="loading">Loading …</p>`;
  if (found.problem) return html`${top}<section class="panel empty"><p>${found.problem}</p><p>The relay connects xiaozhi devices, and servers behind NAT that dial in. Switch it on in the configuration file:</p><pre>[relay]${"\n"}enabled = true</pre></section>`;
  return html`${top}<div class="stack">
    <section class="panel"><h2>Agents</h2>${found.agents.length ? html`<${Table} heads=${["Agent", "Servers", "Tools", "Devices", "Calls"]} rows=${found.agents.map((/** @type {any} */ each) => [each.agent, each.servers, each.tools, each.devices, each.calls])} />`
      : html`<div class="empty"><p>No agent has a server or a device yet. <code>isthmus token relay AGENT</code> prints the addresses for both.</p></div>`}</section>
    <section class="panel"><h2>Servers that dialled in</h2>${found.servers.length ? html`<${Table} heads=${["Server", "State", "Since", "Agent", "Tools", "Calls"]} rows=${found.servers.map((/** @type {any} */ each) => [each.name, html`<${State} look=${/** @type {any} */ (LOOKS)[each.state]}>${each.state}</${State}>`, `${ago(each.since)}`, each.agent, each.tools.length, each.calls])} />` : html`<p class="empty">None.</p>`}</section>
    <section class="panel"><h2>Connected devices</h2>${found.devices.length ? html`<${Table} heads=${["Device", "Agent", "Since", "From", "Calls"]} rows=${found.devices.map((/** @type {any} */ each) => [each.title ?? each.id, each.agent, ago(each.since), each.client ?? "", each.calls])} />` : html`<p class="empty">None.</p>`}</section>
  </div>`;
}

const Table = (/** @type {any} */ { heads, rows }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${heads[0]}><table><thead><tr>${heads.map((/** @type {string} */ head) => html`<th>${head}</th>`)}</tr></thead>
  <tbody>${rows.map((/** @type {any[]} */ row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
