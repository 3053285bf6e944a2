// @ts-check
// Audit: records with filters, one in full, verification and export.
import { html, useRef, useState } from "../vendor/ui.js";
import { at, ORIGIN, servers, stream, tools, useAnswer } from "../api.js";
import { NOT_RUN, PERHAPS_RUN } from "../faults.js";
import { Beside, Command, Filters, link, outcomeOf, State, took, Tree } from "../parts.js";
import { Bad, Filter } from "./access.js";

const idOf = (/** @type {any} */ each) => `${each.slot ?? 0}:${each.number}`;
const time = (/** @type {number} */ seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");

function Outcome(/** @type {any} */ { record }) {
  const { word, look } = record.outcome === "cancelled" ? { word: "cancelled", look: "idle" } : record.outcome ? outcomeOf(record) : { word: record.event === "call.begun" ? "begun" : "event", look: "idle" };
  return html`<${State} look=${look}>${word}</${State}>`;
}

/** What a record is about. A record of a key names the key's caller, who need not be the one that created it. */
function What(/** @type {any} */ { record }) {
  if (record.name) return html`<code>${record.name}</code>`;
  return html`${record.event}${isOfKey(record) ? html` <span class="dim">for ${record.caller}</span>` : null}`;
}
const isOfKey = (/** @type {any} */ record) => record.event?.startsWith("key.") && Boolean(record.caller);

const outcomes = (/** @type {[string, string][]} */ faults) => faults.map(([reason, title]) => [title, `outcome=${reason}`]);

/** What can have happened, in words, and the parameter of `GET /v1/audit` that finds it. */
const HAPPENED = /** @type {[string, [string, string][]][]} */ ([
  ["Calls", [
    ["ok", "outcome=result"], ["tool error", "outcome=tool_error"], ["asked the caller", "outcome=asked"],
    ["begun, before it was sent", "event=call.begun"], ["running when the hub crashed", "event=call.lost"], ...outcomes(PERHAPS_RUN),
  ]],
  ["Calls that were refused", [["denied", "outcome=denied"], ...outcomes(NOT_RUN)]],
  ["Events", [
    ["hub started or stopped", "event=hub.*"], ["configuration reloaded", "event=configuration.*"], ["keys created, changed or revoked", "event=key.*"], ["requests without a valid key", "event=caller.refused"],
    ["keys guessed", "event=keys.guessed"], ["definitions of tools", "event=definition.*"], ["approvals of calls", "event=approval.*"], ["budgets used up", "event=budget.*"], ["servers enabled or disabled", "event=server.*"], ["logins at servers", "event=login.*"],
    ["captures of arguments", "event=capture.*"], ["tasks read or cancelled", "event=task.*"], ["problems of the log itself", "event=audit.*"],
  ]],
]);
const TOOLS_OFFERED = 300;
const TIMES = [["", "Any time"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["1w", "Last week"]];

/** A record by the day on which it was written, and its cells. */
function rowsOf(/** @type {any[]} */ records, /** @type {string} */ picked) {
  let day = "";
  return records.map((each) => {
    const [date, clock] = time(each.record.at ?? 0).split(" "), isNew = date !== day, { record } = each;
    day = date;
    return html`${isNew ? html`<tr class="day" key=${date}><th colspan="6" scope="rowgroup">${date}</th></tr>` : null}
      <tr key=${idOf(each)} aria-selected=${idOf(each) === picked}><td><a href=${link("audit", idOf(each))} title=${`${date} ${clock} UTC, record ${each.number}`}>${clock}</a></td><td><${Outcome} record=${record} /></td>
        <td class="who hide" title=${isOfKey(record) ? undefined : record.caller}>${isOfKey(record) ? "" : record.caller}</td><td class="wrap"><${What} record=${record} />${isOfKey(record) || !record.caller ? null : html`<span class="by dim">${record.caller}</span>`}</td>
        <td class="r dim hide">${record.seconds >= 0 ? took(record.seconds) : ""}</td><td class="r dim hide">${each.slot ? `${each.slot}/` : ""}${each.number}</td></tr>`;
  });
}

export function Audit(/** @type {any} */ { title, rest, search }) {
  const [wanted, setWanted] = useState(/** @type {any} */ ({}));
  const { cursor, tool, happened = "", ...others } = wanted;
  const filters = { ...others, ...Object.fromEntries(new URLSearchParams(happened)), tool: tool && `*${tool}*` };
  const [page, problem] = useAnswer(at("v1/audit", { ...filters, cursor }));
  const isFiltered = Object.values(filters).some(Boolean);
  // The log may name callers and servers that are gone.
  const seen = useRef({ caller: new Set(), server: new Set(), name: new Set() }).current;
  for (const { record } of page?.records ?? []) for (const each of /** @type {const} */ (["caller", "server", "name"])) if (record[each]) seen[each].add(record[each]);
  for (const server of servers.value) seen.server.add(server.name);
  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => setWanted({ ...wanted, cursor: "", [name]: value });
  return html`<div class="top"><h1>${title}</h1>${search}</div>
    <section class="panel call">
      <${Filters} set=${[wanted.caller, wanted.server, happened, wanted.since].filter(Boolean).length} first=${html`<${Filter} label="Tool" value=${tool ?? ""} set=${set("tool")} list="audit-tools" />`}>
        <datalist id="audit-tools">${[...new Set([...seen.name, ...(tools.value ?? []).slice(0, TOOLS_OFFERED).map((each) => each.name)])].sort().map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
        <${Filter} label="Caller" value=${wanted.caller ?? ""} set=${set("caller")} list="audit-callers" />
        <datalist id="audit-callers">${[...seen.caller].sort().map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
        <select aria-label="Server" value=${wanted.server ?? ""} onChange=${(/** @type {any} */ e) => set("server")(e.target.value)}><option value="">Any server</option>${[...seen.server].sort().map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
        <select aria-label="What happened" value=${happened} onChange=${(/** @type {any} */ e) => set("happened")(e.target.value)}><option value="">Anything</option>${HAPPENED.map(([group, choices]) => html`<optgroup label=${group}>${choices.map(([word, value]) => html`<option value=${value}>${word}</option>`)}</optgroup>`)}</select>
        <select aria-label="Time" value=${wanted.since ?? ""} onChange=${(/** @type {any} */ e) => set("since")(e.target.value)}>${TIMES.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select></${Filters}>
      <${Verify}><a href=${at(`${ORIGIN}/v1/audit`, { ...filters, format: "jsonl" })} download="audit.jsonl">Export as JSON Lines</a></${Verify}>
      <${Bad} text=${problem} />
    </section>
    <${Beside} id=${rest[0] ?? ""} back=${link("audit")} list=${html`<section class="panel">
      ${!page ? null : page.records.length ? html`<div class="scroll records" tabindex="0" role="region" aria-label="Records"><table>
        <thead><tr><th>Time (UTC)</th><th>Outcome</th><th class="hide">Caller</th><th>What</th><th class="r hide">Took</th><th class="r hide">Record</th></tr></thead>
        <tbody>${rowsOf(page.records, rest[0])}</tbody></table></div>`
        : html`<div class="empty"><p>${page.next ? `None among ${page.scanned.toLocaleString("en")} records; older ones were not searched yet.` : isFiltered ? "No record matches these filters." : page.mode === "off" ? "This hub keeps no audit log. This setting turns it on, after a restart:" : "The log has no records yet."}</p>
          ${page.mode === "off" && !isFiltered ? html`<${Command} text=${'[hub]\naudit = "batched"'} />` : null}</div>`}
      <div class="bar">${cursor ? html`<button type="button" onClick=${() => set("cursor")("")}>Newest records</button>` : null}${page?.next ? html`<button type="button" onClick=${() => set("cursor")(page.next)}>Older records</button>` : null}</div>
    </section>`}><${OneRecord} key=${rest[0]} id=${rest[0]} /></${Beside}>`;
}


/** A record with a name for the digest of the arguments, which are not in the log. */
const labelled = (/** @type {any} */ record) => Object.fromEntries(Object.entries(record).map(([name, value]) => [name === "arguments" ? "arguments (keyed digest)" : name, value]));

function OneRecord(/** @type {any} */ { id }) {
  const [slot, number] = id.split(":");
  const [page, problem] = useAnswer(at("v1/audit", { limit: 1, cursor: `${slot}:${Number(number) + 1}` }));
  const found = page?.records.find((/** @type {any} */ each) => idOf(each) === id);
  return html`<section class="panel pad stack" aria-label=${`Record ${number}`}>
    <div class="bar"><h2>Record ${number}</h2>${found && html`<${Outcome} record=${found.record} /><span class="dim">${time(found.record.at ?? 0)} UTC</span>`}<span class="grow"></span><a href=${link("audit")}>Close</a></div>
    <${Bad} text=${problem ?? (page && !found ? "There is no such record; it may be older than the log keeps." : "")} />
    ${found && html`<${Tree} value=${{ ...found, record: labelled(found.record) }} />`}
  </section>`;
}

/** Checks that nobody has altered the log. */
function Verify(/** @type {any} */ { children }) {
  const [step, setStep] = useState(/** @type {any} */ (null));
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const verify = async () => {
    setTold(null);
    setProblem("");
    setStep({ records: 0, total: 1 });
    await stream("v1/audit/verify", { method: "POST" }, (event, data) => (event === "progress" ? setStep(data) : event === "error" ? setProblem(data.detail) : setTold(data))).catch((error) => setProblem(error.message));
    setStep(null);
  };
  const percent = step && Math.round((step.records / Math.max(1, step.total)) * 100);
  return html`<section class="verify" aria-label="Verify"><div class="bar"><button type="button" disabled=${step} onClick=${verify}>Verify the log</button><span class="dim grow hide">Checks every record, the chain between them and the signatures.</span>${children}</div>
    ${step && html`<div class="progress" role="progressbar" aria-label="Verification" aria-valuenow=${percent}><i ref=${(/** @type {any} */ el) => el && (el.style.width = `${percent}%`)}></i></div>`}
    <${Bad} text=${problem} />
    ${told && html`<div role="status" class="verdict"><${State} look=${told.good ? "" : "bad"}>${told.said[0]}</${State}>${told.said.slice(1).map((/** @type {string} */ line) => html`<p class="dim">${line}</p>`)}</div>`}
  </section>`;
}
