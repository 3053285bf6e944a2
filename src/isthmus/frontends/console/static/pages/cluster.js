// @ts-check
// Cluster: the nodes that this hub sees, the servers that each owns, and how quickly each answers over the bus.
import { html, useEffect, useState } from "../vendor/ui.js";
import { get, servers } from "../api.js";
import { ago, count, link, State, took } from "../parts.js";

const READ_MS = 2000;
/** A node that has been silent for longer has missed two heartbeats; after 2.4 s it is away. */
const SILENCE_SECONDS = 1.5;
const NAMED_MAX = 20;

export function Cluster(/** @type {any} */ { title, search }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isShown = true;
    const read = () => get("v1/cluster").then((report) => isShown && setFound(report), (error) => isShown && error.status && setFound({ problem: error.message, isNone: error.status === 404 }));
    read();
    const timer = setInterval(() => document.visibilityState === "visible" && read(), READ_MS);
    return () => { isShown = false; clearInterval(timer); };
  }, []);
  const top = html`<div class="top"><h1>${title}</h1><span>${found?.nodes ? count(found.nodes.length, "node") : ""}</span>${search}</div>`;
  if (!found) return html`${top}<p class="loading">Loading …</p>`;
  if (found.isNone) return html`${top}<div class="stack"><${NoCluster} /></div>`;
  if (found.problem) return html`${top}<div class="stack"><p class="note bad" role="alert">${found.problem}</p></div>`;
  const { bus } = found, isAway = bus.state !== "connected", differing = found.nodes.filter((/** @type {any} */ each) => each.differs.length);
  return html`${top}<div class="stack">
    <section class="panel"><h2>Bus</h2><div class="todo"><${State} look=${isAway ? "bad" : ""}>${isAway ? "not connected" : "connected"}</${State}> <span class="unit">for ${ago(bus.since)}</span>
      ${isAway ? html`<p>${bus.reason ? `${bus.reason}. ` : ""}This node serves its own servers; calls to those of other nodes fail as not sent. It tries again by itself.</p>` : null}</div></section>
    <section class="panel"><h2>Nodes</h2><div class="scroll" tabindex="0" role="region" aria-label="Nodes"><table class="cards" role="table">
      <thead role="rowgroup"><tr role="row">${["Node", "State", "Version", "For", "Last heard", "Lag", "Epoch"].map((head) => html`<th role="columnheader">${head}</th>`)}</tr></thead>
      <tbody role="rowgroup">${found.nodes.map((/** @type {any} */ each) => html`<${Node} key=${each.name} node=${each} isAway=${isAway} />`)}</tbody></table></div></section>
    ${differing.length ? html`<section class="panel"><h2>Configurations that differ</h2>${differing.map((/** @type {any} */ each) => html`<div class="todo" key=${each.name}><${State} look="warn">${each.name} has another configuration than this node</${State}>
      <p>${each.differs.map((/** @type {string} */ table, /** @type {number} */ i) => html`${i ? ", " : ""}<code>[${table}]</code>`)}. Give all nodes the same file.</p></div>`)}</section>` : null}
    <section class="panel"><h2>Servers by owner</h2>${found.nodes.some((/** @type {any} */ each) => each.servers.length)
      ? found.nodes.filter((/** @type {any} */ each) => each.servers.length).map((/** @type {any} */ each) => html`<${Owned} key=${each.name} node=${each} />`)
      : html`<p class="empty">No server belongs to one node. Servers that dial in do, and programs with <code>placement = "one"</code>; all others run on each node.</p>`}</section>
  </div>`;
}

function Node(/** @type {any} */ { node, isAway }) {
  const isLate = node.silence > SILENCE_SECONDS || (!node.isSelf && node.lag === null);
  const [look, word] = node.isSelf ? [isAway ? "bad" : "", isAway ? "cut off" : "this node"] : isLate ? ["warn", "slow to answer"] : ["", "present"];
  const cells = { Node: html`<b>${node.name}</b>`, State: html`<${State} look=${look}>${word}</${State}>`, Version: node.version || "unknown", For: ago(node.since),
    "Last heard": node.silence === null ? "–" : `${took(node.silence)} ago`, Lag: node.isSelf ? "–" : node.lag === null ? "no answer" : took(node.lag), Epoch: html`<code>${node.epoch}</code>` };
  return html`<tr role="row">${Object.entries(cells).map(([head, cell]) => html`<td role="cell" data-head=${head}>${cell}</td>`)}</tr>`;
}

function Owned(/** @type {any} */ { node }) {
  const [isAll, setAll] = useState(false);
  const names = isAll ? node.servers : node.servers.slice(0, NAMED_MAX), known = new Set(servers.value.map((each) => each.name));
  return html`<div class="todo"><b>${node.name}</b> <span class="unit">${count(node.servers.length, "server")}</span>
    <p>${names.map((/** @type {string} */ name, /** @type {number} */ i) => html`${i ? ", " : ""}${known.has(name) ? html`<a href=${link("servers", name)}>${name}</a>` : name}`)}${names.length < node.servers.length ? html` <button class="plain" onClick=${() => setAll(true)}>show all ${node.servers.length.toLocaleString("en")}</button>` : null}</p></div>`;
}

const NoCluster = () => html`<section class="panel empty"><p>This hub is no node of a cluster.</p>
  <p>Several hubs behind one load balancer share servers, sessions and tasks. Name a NATS server and a PostgreSQL database in the configuration file of each:</p>
  <pre>[cluster]${"\n"}nats = "nats://nats.internal:4222"${"\n\n"}[storage]${"\n"}url = "postgresql://hub@db/isthmus"</pre>
  <p>On one machine, <code>isthmus serve --workers 4</code> needs no NATS. <code>docs/cluster.md</code> of the documentation describes both.</p></section>`;
