// @ts-check
// Access: who can reach what and why, by server, and what other rules would change.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { at, RULE_FRONTENDS, send, servers, session, useAnswer } from "../api.js";
import { Command, count, Filters, link, State } from "../parts.js";

const ROWS = 200;

/** The width of a caller's column, and of the names before them in a wide and a narrow window; style.css has the same. */
const COLUMN = 132, NAMES = [340, 200];
/** How many callers a phone shows, as lines below each server. */
const LINES = 8;

/** How many callers fit, so that nobody has to scroll sideways. */
function useFit(/** @type {any} */ box) {
  const [fit, setFit] = useState(LINES);
  useEffect(() => {
    const element = box.current;
    const observer = new ResizeObserver(() => setFit(innerWidth <= 600 ? LINES : Math.max(1, Math.floor((element.clientWidth - NAMES[innerWidth > 1000 ? 0 : 1]) / COLUMN))));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return fit;
}

export const Bad = (/** @type {any} */ { text }) => text && html`<p class="note bad" role="alert">${text}</p>`;
export const Filter = (/** @type {any} */ { label, value, set, list = undefined }) => html`<input class="grow" type="search" placeholder=${label} aria-label=${label} value=${value} list=${list} onInput=${(/** @type {any} */ e) => set(e.target.value.trim())} />`;

const nameOf = (/** @type {any} */ caller) => caller.name + (caller.operator ? " (operator)" : "");

export function Access(/** @type {any} */ { title, rest, search }) {
  const only = rest[0];
  const [typed, setTyped] = useState("");
  const [tool, setTool] = useState("");
  const [frontend, setFrontend] = useState("");
  const [why, setWhy] = useState("");
  const [first, setFirst] = useState(0);
  const box = useRef(/** @type {any} */ (null));
  const fit = useFit(box);
  const filters = { caller: only ?? (typed && `*${typed}*`), frontend };
  const [found, problem] = useAnswer(at("v1/access/servers", filters), servers.value.map((each) => each.state + each.tools).join());
  const chosen = found?.callers.find((/** @type {any} */ each) => each.name === only);
  // Rows that a browser draws at once, whatever the number of callers.
  const all = found?.callers.length ?? 0, from = first < all ? first : 0, to = Math.min(all, from + fit);
  const most = Math.max(20, Math.round(4000 / (all || 1))), callers = found?.callers.slice(from, to);
  const more = { ...filters, tool: tool && `*${tool}*`, limit: Math.min(most, ROWS) };
  return html`<div class="top"><h1>${title}</h1><span>${only ?? (found && count(found.callers.length + found.callersLeftOut, "caller"))}</span>${search}</div>
    ${session.value.needsKey ? null : html`<section class="panel empty call"><p>This hub is open: every program on this machine may call everything. The first key closes it:</p><${Command} text="isthmus token create NAME --operator --allow '*'" /><p>Keys that are no operator's, such as <code>isthmus token create NAME --allow 'SERVER.*'</code>, cannot open this page.</p></section>`}
    ${chosen && session.value.needsKey && only !== "local" ? html`<${Change} key=${only} caller=${chosen} />` : null}
    <section class="panel" ref=${box}>
      ${chosen?.set ? html`<p class="bound">Bound to the set <b>${chosen.set}</b>: it reaches only what the set has.</p>` : null}
      <${Filters} set=${[tool, frontend].filter(Boolean).length} first=${only ? html`<a class="grow" href=${link("access")}>All callers</a>` : html`<${Filter} label="Filter callers" value=${typed} set=${setTyped} />`}>
        <${Filter} label="Filter tools" value=${tool} set=${setTool} />
        <select aria-label="Frontend" value=${frontend} onChange=${(/** @type {any} */ e) => setFrontend(e.target.value)}><option value="">Any frontend</option>${RULE_FRONTENDS.map((each) => html`<option>${each}</option>`)}</select></${Filters}>
      ${all > fit ? html`<div class="bar pages" role="group" aria-label="Callers"><button type="button" disabled=${!from} onClick=${() => setFirst(Math.max(0, from - fit))}>Previous</button>
        <span role="status">Callers ${from + 1} to ${to} of ${all.toLocaleString("en")}</span><button type="button" disabled=${to >= all} onClick=${() => setFirst(to)}>Next</button></div>` : null}
      <${Bad} text=${problem} />
      ${found ? html`<div class=${`scroll matrix${only ? " one" : ""}`} tabindex="0" role="region" aria-label="Who can reach what"><table class=${only ? "" : "cards"} role="table">
        <thead role="rowgroup"><tr role="row"><th role="columnheader">Server</th>${callers.map((/** @type {any} */ each) => html`<th role="columnheader" title=${[nameOf(each), each.set && `bound to the set ${each.set}`].filter(Boolean).join(", ")}><a href=${link("access", each.name)}>${nameOf(each)}</a></th>`)}${only && html`<th>Why</th>`}</tr></thead>
        ${found.servers.slice(0, most).map((/** @type {any} */ each) => html`<${Server} key=${each.name} server=${each} callers=${callers} from=${from} only=${only} filters=${{ ...more, server: each.name }} onWhy=${setWhy} />`)}
      </table></div>` : null}
      ${found?.callersLeftOut || found?.servers.length > most ? html`<p class="empty">There are more callers or servers: filter the callers, or choose one.</p>` : null}
    </section>
    ${only ? null : html`<p class=${`why note${why ? " told" : ""}`} role="status">${why || "The figures count tools, prompts and resources. Open a server, and choose a cell to see why."}</p>`}`;
}

/** One server: how much of it callers reach and, if it is open, each of its features. */
function Server(/** @type {any} */ { server, callers, from, only, filters, onWhy }) {
  const [isPicked, setPicked] = useState(false);
  const isOpen = isPicked || Boolean(filters.tool);
  const [cursor, setCursor] = useState("");
  const [page, problem] = useAnswer(isOpen ? at("v1/access", { ...filters, cursor }) : "", server.features);
  const all = server.features;
  return html`<tbody role="rowgroup">
    <tr role="row"><th role="rowheader" scope="row"><button type="button" class="plain" aria-expanded=${isOpen} onClick=${() => setPicked(!isPicked)}>${server.name}</button></th>
      ${server.reached.slice(from, from + callers.length).map((/** @type {number} */ n, /** @type {number} */ i) => html`<td role="cell" data-head=${nameOf(callers[i])} title=${all ? `${n} of its ${count(all, "entry", "entries")}: tools, prompts and resources` : "It lists no tools, prompts or resources"}><${State} look=${!all ? "none" : n === all ? "" : n ? "part" : "idle"}>${all ? `${n} of ${all}` : "none"}</${State}></td>`)}${only && html`<td class="wrap"></td>`}</tr>
    ${isOpen && page?.features.map((/** @type {any} */ row) => html`<tr role="row" key=${row.list + row.name}><th role="rowheader" scope="row" class="leaf"><code>${row.name}</code> <span class="dim">${row.list === "tools" ? "" : row.list.slice(0, -1)}</span></th>
      ${row.cells.slice(from, from + callers.length).map((/** @type {any} */ cell, /** @type {number} */ i) => {
        const [word, look] = cell.allowed ? ["allowed", ""] : ["denied", cell.by === "definition" ? "warn" : "idle"];
        const state = html`<${State} look=${look}>${word}</${State}>`;
        const tell = () => onWhy(`${nameOf(callers[i])}, ${row.name}: ${word}, ${cell.reason}.`);
        return html`<td role="cell" data-head=${nameOf(callers[i])}>${only ? state : html`<button type="button" class="cell" onClick=${tell} onFocus=${tell} onMouseEnter=${tell}>${state}</button>`}</td>`;
      })}${only && html`<td class="dim wrap">${row.cells[0].reason}</td>`}</tr>`)}
    ${problem || page?.next || cursor ? html`<tr><td colspan=${callers.length + 2}>${problem}${cursor && html`<button type="button" onClick=${() => setCursor("")}>First page</button> `}${page?.next && html`<button type="button" onClick=${() => setCursor(page.next)}>Next page</button>`}</td></tr>` : null}
  </tbody>`;
}

/** Other rules for a caller, tried without applying them. */
function Change(/** @type {any} */ { caller }) {
  const [rules, setRules] = useState({ allow: caller.allow, deny: caller.deny });
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    send("POST", "v1/access/preview", { callers: { [caller.name]: rules } }).then((found) => { setTold(found); setProblem(""); }, (error) => { setTold(null); setProblem(error.message); });
  };
  const field = (/** @type {"allow" | "deny"} */ name, /** @type {string} */ label) => html`<div class="field"><label for=${name}>${label}</label><textarea id=${name} defaultValue=${rules[name].join("\n")} onInput=${(/** @type {any} */ e) => setRules({ ...rules, [name]: e.target.value.split("\n").map((/** @type {string} */ line) => line.trim()).filter(Boolean) })}></textarea></div>`;
  return html`<section class="panel call" aria-label="Try a change"><h2>Try a change</h2>
    <form class="pad change" onSubmit=${submit}>${field("allow", "Allow")}${field("deny", "Deny")}
      <div><p class="dim">One pattern a line: <code>*</code>, <code>server.*</code>, <code>server.tool</code>, <code>tag:NAME</code>, <code>hint:read-only</code>. Nothing is applied.</p><button class="main">See the difference</button></div></form>
    <${Bad} text=${problem} />
    ${told && html`<div class="out" role="status">${told.changes.map((/** @type {any} */ each) => html`<${Difference} change=${each} />`)}
      ${!told.changes.length ? "Nothing would change." : caller.key ? null : html`<p class="dim">To apply it, change the configuration; a running hub follows.</p><${Command} text=${`[callers.${JSON.stringify(caller.name)}]\nallow = ${JSON.stringify(rules.allow)}\ndeny = ${JSON.stringify(rules.deny)}`} />`}</div>`}
  </section>`;
}

function Difference(/** @type {any} */ { change }) {
  const rows = (/** @type {any[]} */ found, /** @type {string} */ look, /** @type {string} */ word) => found.slice(0, ROWS).map((each) => html`<tr><td><${State} look=${look}>${word}</${State}></td><td><code>${each.name}</code></td><td class="dim wrap">${each.reason}</td></tr>`);
  const title = `${change.caller}${change.frontend ? ` on ${change.frontend}` : ""}: ${change.appears} appear, ${change.vanishes} vanish`;
  const hidden = change.appears + change.vanishes - Math.min(change.appear.length, ROWS) - Math.min(change.vanish.length, ROWS);
  return html`<h3>${title}</h3><div class="diffs"><table aria-label=${title}><tbody>${rows(change.appear, "", "appears")}${rows(change.vanish, "idle", "vanishes")}</tbody></table></div>
    ${hidden > 0 ? html`<p class="dim">and ${hidden.toLocaleString("en")} more</p>` : null}`;
}
