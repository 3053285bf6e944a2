// @ts-check
// Activity: the calls of all callers as they end, with filters; one call as a waterfall; the capture of arguments.
import { html, useEffect, useMemo, useState } from "../vendor/ui.js";
import { at, calls, CALLS_KEPT, capture, draft, get, live, parse, RULE_FRONTENDS, send, servers, tools, useAnswer, useTool } from "../api.js";
import { Beside, clock, Command, Filters, frontendOf, go, link, outcomeOf, State, took, Tree, VirtualRows } from "../parts.js";

const WORDS = ["ok", "tool error", "server error", "denied", "not sent", "cancelled", "unknown"];

/** How a call ended; a caller that cancels is no problem of the server. */
const endOf = (/** @type {any} */ call) => (call.outcome === "cancelled" ? { word: "cancelled", look: "idle" } : outcomeOf(call));

const width = (/** @type {number} */ share) => (/** @type {any} */ el) => el && (el.style.width = `${share * 100}%`);

/** How the server of a call is reached, by name. */
const transportsOf = () => new Map(servers.value.map((server) => [server.name, server.transport ?? (server.state === "ready" ? "the hub itself" : "not connected")]));

/** A table of calls, the newest first. */
export function CallTable(/** @type {any} */ { calls: shown, selected = 0, onPick = null, isLive = true }) {
  const longest = shown.reduce((/** @type {number} */ most, /** @type {any} */ call) => Math.max(most, call.seconds), 0.001);
  const transports = useMemo(transportsOf, [servers.value]);
  return html`<${VirtualRows} className="columns calls" label="Calls" items=${shown} isLive=${isLive} keyOf=${(/** @type {any} */ call) => String(call.number)} selected=${String(selected || "")}
    onPick=${onPick ?? ((/** @type {any} */ call) => go(link("activity", String(call.number))))}
    head=${html`<th>Time</th><th>Caller</th><th>Tool</th><th class="way hide">Way</th><th>Outcome</th><th class="r">Took</th><th class="about hide">Detail</th>`}
    row=${(/** @type {any} */ call) => {
      const { word, look } = endOf(call);
      return html`<td class="dim">${clock(call.at)}</td><td>${call.caller}</td><td><code>${call.name}</code></td>
        <td class="dim way hide">${frontendOf(call.frontend)} → ${transports.get(call.server) ?? call.server ?? "nowhere"}</td>
        <td><${State} look=${look}>${word}</${State}></td><td class="r">${took(call.seconds)}</td>
        <td class="dim hide about" title=${call.denied ? undefined : call.message ?? undefined}>${word === "ok" ? html`<span class="meter"><i ref=${width(call.seconds / longest)}></i></span>` : call.denied ? "the caller may not use it" : call.message ?? ""}</td>`;
    }} />`;
}

// -- the page ----------------------------------------------------------------------------------------------------------

/** The filters with a fixed choice: their label, the name for all, and what a call has. */
const FILTERS = /** @type {[string, string, (call: any) => string][]} */ ([
  ["Caller", "All callers", (call) => call.caller],
  ["Server", "All servers", (call) => call.server ?? ""],
  ["Tool", "All tools", (call) => call.name],
  ["Frontend", "All frontends", (call) => frontendOf(call.frontend)],
  ["Outcome", "All outcomes", (call) => endOf(call).word],
]);
const CHOICES_MAX = 300;
const CHOICES_MS = 2000;

function Choice(/** @type {any} */ { label, all, choices, value, onChange }) {
  return html`<select aria-label=${label} value=${value} onChange=${(/** @type {any} */ e) => onChange(e.target.value)}>
    <option value="">${all}</option>${choices.map((/** @type {string} */ each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>`;
}

export function Activity(/** @type {any} */ { title, rest, search }) {
  const [wanted, setWanted] = useState(/** @type {Record<string, string>} */ ({}));
  const [text, setText] = useState("");
  const [held, setHeld] = useState(/** @type {any[] | null} */ (null));
  const all = held ?? calls.value;
  const words = text.toLowerCase();
  const found = all.filter((call) => FILTERS.every(([label, , of]) => !wanted[label] || of(call) === wanted[label])
    && (!words || `${call.caller} ${call.tenant} ${call.name} ${call.message ?? ""}`.toLowerCase().includes(words)));
  // Calls come ten times a second; the choices need not change as often.
  const choices = useMemo(() => FILTERS.map(([label, name, of]) => {
    const seen = new Set(label === "Outcome" ? WORDS : all.map(of).filter(Boolean));
    if (label === "Server") for (const server of servers.value) seen.add(server.name);
    if (wanted[label]) seen.add(wanted[label]);
    const found = label === "Outcome" ? WORDS : [...seen].sort().slice(0, CHOICES_MAX);
    return html`<${Choice} key=${label} label=${label} all=${name} choices=${found} value=${wanted[label] ?? ""} onChange=${(/** @type {string} */ value) => setWanted({ ...wanted, [label]: value })} />`;
  }), [Math.floor(Date.now() / CHOICES_MS), all.length < CHOICES_MAX && all.length, wanted, servers.value]);
  const number = Number(rest[0] ?? 0);
  return html`<div class="top"><h1>${title}</h1><span>${held ? "paused" : live.value || "connecting …"}</span>${search}</div>
    <${CaptureNote} />
    <section class="panel call">
      <${Filters} set=${Object.values(wanted).filter(Boolean).length} first=${html`<input class="grow" type="search" placeholder="Filter by caller, tool or message" aria-label="Filter by caller, tool or message" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />`}>
        ${choices}
        <button type="button" class="keep" aria-pressed=${Boolean(held)} onClick=${() => setHeld(held ? null : calls.value)}>${held ? "Resume" : "Pause"}</button></${Filters}>
      <${CaptureForm} wanted=${wanted} />
    </section>
    <${Beside} id=${number ? String(number) : ""} back=${link("activity")} list=${html`<section class="panel">
      ${found.length ? html`<${CallTable} calls=${found} selected=${number} />`
        : html`<div class="empty"><p>${all.length ? "No call matches these filters." : "No calls yet. This one makes the first:"}</p>${all.length ? null : html`<${Command} text="isthmus call builtin.echo text=hello" />`}</div>`}
      ${all.length >= CALLS_KEPT ? html`<p class="empty">The newest ${CALLS_KEPT.toLocaleString("en")} calls${found.length < all.length ? `, of which ${found.length.toLocaleString("en")} match` : ""}. The audit log has all of them.</p>` : null}
    </section>`}><${OneCall} key=${number} number=${number} known=${all.find((call) => call.number === number)} /></${Beside}>`;
}

// -- capture of arguments and results ----------------------------------------------------------------------------------

const CAPTURE = "v1/activity/capture";
const TIMES = /** @type {[number, string][]} */ ([[60, "one minute"], [300, "five minutes"], [600, "ten minutes"]]);
const CAPTURED_MAX = 200;

/** What a capture is limited to, in words. */
const limitsOf = (/** @type {any} */ { caller, server, tool }) => [caller && `of ${caller}`, tool ? `to ${tool}` : server && `to ${server}`].filter(Boolean).join(" ");

/** Tells everybody on this page that arguments and results are captured, and by whom. */
function CaptureNote() {
  const [problem, setProblem] = useState("");
  const state = capture.value;
  if (!state) return null;
  const change = async (/** @type {string} */ method, /** @type {any} */ body) => {
    try {
      capture.value = (await send(method, CAPTURE, body)).capture;
      setProblem("");
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  const only = limitsOf(state);
  return html`<div class="note bar" role="status"><span class="grow">${state.isOn
    ? `Arguments and results${only ? ` of calls ${only}` : ""} are being captured: by ${state.by}, until ${clock(state.until)}, ${state.calls} of ${CAPTURED_MAX} calls so far.`
    : `Arguments and results of ${state.calls} calls were captured by ${state.by}; they are deleted at ${clock(state.until + 600)}.`}</span>
    ${state.isOn ? html`<button type="button" onClick=${() => change("POST", { seconds: 0 })}>Stop capturing</button>` : null}
    <button type="button" onClick=${() => change("DELETE", undefined)}>Delete what was captured</button>
    ${problem ? html`<p role="alert">${problem}</p>` : null}</div>`;
}

function CaptureForm(/** @type {any} */ { wanted }) {
  const [seconds, setSeconds] = useState("60");
  const [problem, setProblem] = useState("");
  if (capture.value?.isOn) return null;
  const only = { caller: wanted.Caller || undefined, server: wanted.Server || undefined, tool: wanted.Tool || undefined };
  const start = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      capture.value = (await send("POST", CAPTURE, { seconds: Number(seconds), ...only })).capture;
      setProblem("");
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  const words = limitsOf(only);
  return html`<details class="capture"><summary>Capture arguments and results</summary><form onSubmit=${start}>
    <p>The hub keeps no arguments and no results. Here you can let it keep those of the next calls${words ? html` <b>${words}</b>` : ""}, in memory, for all operators to see: at most ${CAPTURED_MAX} calls and 4,096 characters of each text.
      ${words ? "" : " Choose a caller, a server or a tool above to capture only these."} The audit log notes who captures and who reads.</p>
    <div class="bar"><label>For <select value=${seconds} onChange=${(/** @type {any} */ e) => setSeconds(e.target.value)}>${TIMES.map(([value, name]) => html`<option value=${String(value)}>${name}</option>`)}</select></label>
      <button>Start capturing</button></div>
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}</form></details>`;
}

// -- one call ----------------------------------------------------------------------------------------------------------

const EXECUTED = { yes: "yes", no: "no: it is safe to call again", unknown: "unknown: the tool may have run" };

function OneCall(/** @type {any} */ { number, known }) {
  const [details, setDetails] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  // Captured texts may be deleted, or end before the page shows the call.
  const caught = `${capture.value?.since ?? ""}`;
  useEffect(() => {
    let isWanted = true;
    get(`v1/activity/${number}`).then((found) => isWanted && setDetails(found), (error) => isWanted && setProblem(error.message));
    return () => { isWanted = false; };
  }, [number, caught]);
  const call = details?.call ?? known;
  if (!call) return problem ? html`<p class="note">${problem}: <code>isthmus audit tail</code>.</p>` : null;
  const { word, look } = endOf(call);
  return html`<section class="panel pad stack" aria-label=${`Call ${call.number}`}>
    <div class="bar"><h2><code>${call.name}</code></h2><${State} look=${look}>${word}</${State}><span class="dim">${took(call.seconds)}</span><span class="grow"></span><a href=${link("activity")}>Close</a></div>
    ${details ? html`<${Waterfall} details=${details} />` : null}
    <dl class="facts"><dt>Ended</dt><dd>${clock(call.at)}</dd><dt>Caller</dt><dd>${call.caller}${call.tenant === "local" || call.tenant === "default" ? "" : ` of ${call.tenant}`}, ${frontendOf(call.frontend)}</dd>
      <dt>Server</dt><dd>${call.server ? html`<a href=${link("servers", call.server)}>${call.server}</a>` : "none was found"}</dd>
      <dt>Tool ran</dt><dd>${/** @type {any} */ (EXECUTED)[call.executed]}</dd>
      ${call.outcome === "result" || call.outcome === "tool_error" ? null : html`<dt>Reason</dt><dd>${call.denied ? html`<${WhyDenied} call=${call} />` : call.outcome}</dd>`}
      ${call.message ? html`<dt>${call.denied ? "The caller read" : "Message"}</dt><dd>${call.message}</dd>` : null}</dl>
    ${details ? html`<${Again} details=${details} /><${Captured} title="Arguments" captured=${details.arguments} /><${Captured} title="Result" captured=${details.result} />
      ${details.arguments ? null : html`<p class="dim">Its arguments and result were not captured.</p>`}` : null}
  </section>`;
}

/** The rule that keeps a caller from a tool. The activity does not keep it: it is asked for, and may have changed. */
function WhyDenied(/** @type {any} */ { call }) {
  const frontend = RULE_FRONTENDS.includes(call.frontend) ? call.frontend : "";
  const [found] = useAnswer(at("v1/access", { caller: call.caller, tool: call.name, frontend, limit: 1 }));
  const cell = found?.features.find((/** @type {any} */ each) => each.name === call.name)?.cells[0];
  const rules = html`<a href=${link("access", call.caller)}>rules of ${call.caller}</a>`;
  if (!cell) return html`denied by the ${rules}`;
  return cell.allowed ? html`denied by rules that have changed: the ${rules} now allow it` : html`${cell.reason} (${rules})`;
}

/**
 * The spans of a call: from, to, and what it waited for.
 * @param {any} details @returns {{name: string, from: number, to: number, look?: string}[]}
 */
export function spansOf(details) {
  const { call, steps } = details;
  const at = (/** @type {string} */ step) => steps.find((/** @type {any} */ each) => each.step === step)?.seconds;
  const [held, decided, checked, queued, assigned, sent, first, done] = ["held", "decided", "checked", "queued", "assigned", "sent", "first_byte", "done"].map(at);
  const spans = [];
  if (held !== undefined) spans.push({ name: "Waits for approval", from: held, to: decided ?? done, look: "wait" });
  if (checked !== undefined) spans.push({ name: "Checks and audit log", from: decided ?? 0, to: checked });
  if (queued !== undefined) spans.push({ name: "Queue", from: queued, to: assigned ?? sent ?? done, look: "wait" });
  if (assigned !== undefined) spans.push({ name: "Own connection", from: assigned, to: sent, look: "wait" });
  if (sent !== undefined) {
    const server = call.server ?? "the server";
    if (first === undefined || first >= done) spans.push({ name: `${server} works`, from: sent, to: done });
    else spans.push({ name: `${server}, first byte`, from: sent, to: first }, { name: `${server}, the rest`, from: first, to: done });
  }
  let asked = /** @type {number | null} */ (null);
  for (const { step, seconds } of steps) {
    if (step === "question") asked ??= seconds;
    if ((step === "answer" || step === "done") && asked !== null) {
      spans.push({ name: "The caller answers", from: asked, to: seconds, look: "wait" });
      asked = null;
    }
  }
  return spans;
}

function Waterfall(/** @type {any} */ { details }) {
  const { call, steps } = details, whole = Math.max(call.seconds, 1e-6);
  const place = (/** @type {number} */ from, /** @type {number} */ to) => (/** @type {any} */ el) => {
    if (el) [el.style.left, el.style.width] = [`${Math.min(from / whole, 1) * 100}%`, `${Math.max(0, Math.min(to, whole) - from) / whole * 100}%`];
  };
  const spans = spansOf(details);
  const events = ["progress", "log"].map((step) => ({ step, times: steps.filter((/** @type {any} */ each) => each.step === step).map((/** @type {any} */ each) => each.seconds) })).filter((each) => each.times.length);
  const way = `${frontendOf(call.frontend)} → ${call.server ? transportsOf().get(call.server) ?? call.server : "nowhere"}`;
  return html`<ol class="fall" aria-label="The way of the call">
    <li><b>Whole call</b><span class="track"><i ref=${place(0, whole)} class="whole"></i></span><span class="r">${took(call.seconds)}</span><small>${way}</small></li>
    ${spans.map(({ name, from, to, look }) => html`<li key=${name + from}><b>${name}</b><span class="track"><i ref=${place(from, to)} class=${look ?? ""}></i></span><span class="r">${took(to - from)}</span><small>${from ? `from ${took(from)}` : "from the start"}</small></li>`)}
    ${events.map(({ step, times }) => html`<li key=${step}><b>${step === "log" ? "Log lines" : "Progress"}</b><span class="track ticks">${times.map((/** @type {number} */ at) => html`<i ref=${place(at, at)} title=${took(at)}></i>`)}</span><span class="r">${times.length}</span><small>${times.slice(0, 4).map(took).join(", ")}${times.length > 4 ? " …" : ""}</small></li>`)}
    ${spans.length ? null : html`<li class="dim">It was not sent to a server.</li>`}
    ${details.isCut ? html`<li class="dim">Only the first events are kept.</li>` : null}</ol>`;
}

/** The call once more: at once if the tool only reads and its arguments are known as they were, else in the tool's form. */
function Again(/** @type {any} */ { details }) {
  const tool = useTool((tools.value ?? []).some((each) => each.name === details.tool) ? details.tool : "");
  if (!tool) return null;
  const isReading = tool.annotations?.readOnlyHint === true;
  const given = details.arguments && !details.arguments.isCut ? parsed(details.arguments.text) : undefined;
  if (given === undefined) return html`<p><a href=${link("tools", tool.name)}>Open this tool</a></p>`;
  const open = (/** @type {boolean} */ runs) => () => {
    draft.value = { tool: tool.name, value: given, runs };
    go(link("tools", tool.name));
  };
  const canRun = isReading && !details.arguments.isRedacted;
  return html`<div class="bar">${canRun ? html`<button type="button" class="main" onClick=${open(true)}>Run again</button>` : null}
    <button type="button" onClick=${open(false)}>Open the form with these arguments</button>
    <span class="dim">${canRun ? "It runs as you, with your permissions." : isReading ? "Secrets were removed from the arguments: fill them in." : "Its server does not say that it only reads, so it is not run from here."}</span></div>`;
}

function parsed(/** @type {string} */ text) {
  try { return parse(text); } catch { return undefined; }
}

function Captured(/** @type {any} */ { title, captured }) {
  if (!captured) return null;
  const value = captured.isCut ? undefined : parsed(captured.text);
  return html`<section class="captured" aria-label=${title}><h3>${title} <span class="dim">${captured.bytes.toLocaleString("en")} bytes${captured.isCut ? ", of which this is the beginning" : ""}${captured.isRedacted ? "; *** stands for a secret" : ""}</span></h3>
    ${value === undefined ? html`<pre tabindex="0">${captured.text}</pre>` : html`<${Tree} value=${value} />`}</section>`;
}
