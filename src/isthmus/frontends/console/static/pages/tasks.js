// @ts-check
// Tasks: the durable tasks as they change, one task with its timeline and result, and cancelling it.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { get, ORIGIN, send, servers, session, stream, toJson } from "../api.js";
import { clock, Command, count, frontendOf, go, link, State, Tree, VirtualRows } from "../parts.js";

const STATES = /** @type {any} */ ({
  submitted: ["queued", "idle"], working: ["running", "idle"], input_required: ["waits for an answer", "warn"], auth_required: ["waits for a login or an approval", "warn"],
  completed: ["completed", ""], failed: ["failed", "bad"], canceled: ["cancelled", "idle"], rejected: ["rejected", "bad"],
});
const isOver = (/** @type {any} */ task) => task.executed !== null;
const keyOf = (/** @type {any} */ { id, tenant, caller }) => link("tasks", id, ...(caller === session.value.caller && tenant === session.value.tenant ? [] : [tenant, caller]));
const saysOf = (/** @type {any} */ { message, progress }) => message ?? progress?.message ?? (progress ? `${progress.progress} of ${progress.total ?? "?"}` : "");
const KEPT = 2000;
const toolOf = (/** @type {any} */ task) => task.tool ?? "no tool yet";

/** Whether trying again would not help. */
const isRefused = (/** @type {any} */ error) => error?.status >= 400 && error.status < 500;

/** Follows a stream while somebody looks, and again after it broke, until `isDone`. */
function useStream(/** @type {string} */ path, /** @type {any} */ onEvent, /** @type {any} */ isDone) {
  useEffect(() => {
    let control = new AbortController();
    const follow = async () => {
      control.abort();
      const { signal } = (control = new AbortController());
      while (!signal.aborted && document.visibilityState === "visible") {
        const error = await stream(path, { signal }, onEvent).catch((thrown) => thrown);
        if (signal.aborted || isDone(error)) return;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    };
    document.addEventListener("visibilitychange", follow);
    follow();
    return () => { control.abort(); document.removeEventListener("visibilitychange", follow); };
  }, [path]);
}

const Choice = (/** @type {any} */ { label, value, set, options }) => html`<select aria-label=${label} value=${value} onChange=${(/** @type {any} */ e) => set(e.target.value)}>
  <option value="">Any ${label.toLowerCase()}</option>${options.map(([each, word]) => html`<option value=${each}>${word}</option>`)}</select>`;

export function Tasks(/** @type {any} */ { title, rest, search }) {
  const [state, setState] = useState("");
  const [server, setServer] = useState("");
  const [text, setText] = useState("");
  const [found, setFound] = useState(/** @type {any} */ ({}));
  const query = `v1/tasks?${new URLSearchParams({ limit: "100", ...(state && { state }), ...(server && { server }) })}`;
  const add = (/** @type {any} */ { tasks, next }, isFirst = false) => setFound((/** @type {any} */ old) => {
    const all = new Map([...(isFirst ? [] : old.tasks), ...tasks].map((task) => [keyOf(task), task]));
    return { query, next: next ?? old.next, tasks: [...all.values()].filter((task) => !state || task.state === state).sort((a, b) => b.updated - a.updated).slice(0, KEPT) };
  });
  // The first event is a page, the others have what changed.
  useStream(query, (/** @type {any} */ _, /** @type {any} */ data) => add(data, data.next !== undefined), (/** @type {any} */ error) => isRefused(error) && (setFound({ query, tasks: [], problem: error.message }), true));
  const { tasks = [], next, problem = "Loading …" } = found.query === query ? { problem: state || server ? "No task matches." : "No tasks yet.", ...found } : {};
  const shown = tasks.filter((/** @type {any} */ task) => `${task.tool} ${task.caller} ${task.id} ${saysOf(task)}`.toLowerCase().includes(text.toLowerCase()));
  return html`<div class="top"><h1>${title}</h1><span>${tasks.filter((/** @type {any} */ task) => !isOver(task)).length} unfinished</span>${search}</div>
    <div class="split"><section class="panel">
      <div class="bar choices"><input class="grow" type="search" placeholder="Filter by tool, caller or message" aria-label="Filter by tool, caller or message" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
        <${Choice} label="State" value=${state} set=${setState} options=${Object.entries(STATES).map(([each, [word]]) => [each, word])} /><${Choice} label="Server" value=${server} set=${setServer} options=${servers.value.map(({ name }) => [name, name])} /></div>
      ${shown.length ? html`<${VirtualRows} className="list" items=${shown} rowHeight=${52} selected=${link("tasks", ...rest)} keyOf=${keyOf} label="Tasks" onPick=${(/** @type {any} */ task) => go(keyOf(task))}
        row=${(/** @type {any} */ task) => html`<td><b>${toolOf(task)}</b><span><em class=${`state ${STATES[task.state][1]}`}>${STATES[task.state][0]}</em> ${[clock(task.updated), task.caller, saysOf(task)].filter(Boolean).join(", ")}</span></td>`} />` : html`<p class="empty">${problem}</p>`}
      ${next ? html`<div class="bar"><button onClick=${async () => add(await get(`${query}&cursor=${next}`))}>Show older tasks</button></div>` : null}
    </section>
    ${rest[0] ? html`<${OneTask} key=${rest.join("/")} rest=${rest} />` : html`<${Start} />`}</div>`;
}

function Start() {
  // A message with a known id joins its task, so each visit has another.
  const [messageId] = useState(() => `m${Date.now().toString(36)}`);
  const message = { messageId, role: "ROLE_USER", parts: [{ data: { tool: "builtin.echo", arguments: { text: "hello" } } }] };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "SendMessage", params: { message } });
  return html`<section class="panel empty"><p>A task is a call that outlives its request: it is stored, survives a restart, and its result waits. A message of A2A starts one:</p>
    <${Command} text=${`curl -X POST ${ORIGIN}/a2a${session.value.needsKey ? " -H \"Authorization: Bearer $KEY\"" : ""} -H 'Content-Type: application/json' -d '${body}'`} /></section>`;
}

const RAN = /** @type {any} */ ({ yes: "yes", no: "no: it is safe to start it again", unknown: "unknown: the tool may have run" });
const TEXT_MAX = 20000;
const Value = (/** @type {any} */ { value }) => (typeof value === "string" ? html`<pre tabindex="0">${value.length > TEXT_MAX ? `${value.slice(0, TEXT_MAX)}…` : value}</pre>` : html`<${Tree} value=${value} />`);

function OneTask(/** @type {any} */ { rest: [id, tenant, caller] }) {
  const [task, setTask] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const [seen, setSeen] = useState(/** @type {any[]} */ ([]));
  const [content, setContent] = useState("");
  const [isSure, setSure] = useState(false);
  const last = useRef(/** @type {any} */ (null));
  const path = `${encodeURIComponent(id)}?${caller ? new URLSearchParams({ tenant, caller }) : ""}`;
  useStream(`v1/tasks/${path}${content}`, (/** @type {string} */ name, /** @type {any} */ data) => {
    const what = name === "task" ? STATES[data.state][0] : name === "progress" ? saysOf({ progress: data.data }) : toJson(data.data.data);
    if (last.current && what !== last.current.what && !data.executed) setSeen((old) => [...old, [data.updated ?? data.at, what]].slice(-50));
    setTask((last.current = { ...last.current, ...(name === "task" ? data : name === "progress" ? { progress: data.data } : {}), what }));
  }, (/** @type {any} */ error) => (isRefused(error) ? (setProblem(error.message), true) : last.current && isOver(last.current)));
  const alert = problem ? html`<p class="note bad" role="alert">${problem}</p>` : null;
  if (!task) return alert ?? html`<p class="loading">Loading …</p>`;
  const { progress, result, error } = task, [word, look] = STATES[task.state];
  const cancel = () => send("POST", `v1/cancel/${path}`).catch((thrown) => setProblem(thrown.message)).then(() => setSure(false));
  return html`<section class="panel" aria-label=${`Task ${id}`}>
    <div class="pad stack"><div class="bar"><h2><code>${toolOf(task)}</code></h2><${State} look=${look}>${word}</${State}><span class="grow"></span>
        ${isOver(task) || isSure ? null : html`<button onClick=${() => setSure(true)}>Cancel task</button>`}</div>
      ${isSure ? html`<div class="bar"><span class="grow">Cancel this task? What the tool has done stays done.</span><button class="main" onClick=${cancel}>Cancel it</button><button onClick=${() => setSure(false)}>Keep it</button></div>` : null}
      ${alert}${progress?.total && !isOver(task) ? html`<progress aria-label="Progress" max=${progress.total} value=${progress.progress}></progress>` : null}
      <dl class="facts"><dt>Task</dt><dd><code>${id}</code></dd><dt>Caller</dt><dd>${task.caller}${["local", "default"].includes(task.tenant) ? "" : ` of ${task.tenant}`}, by ${frontendOf(task.protocol)}</dd>
        ${task.server ? html`<dt>Server</dt><dd><a href=${link("servers", task.server)}>${task.server}</a></dd>` : null}
        ${saysOf(task) ? html`<dt>Message</dt><dd>${saysOf(task)}${task.question ? " (answer in the agent that started the task)" : ""}</dd>` : null}
        ${isOver(task) ? html`<dt>Tool ran</dt><dd>${RAN[task.executed]}</dd><dt>Outcome</dt><dd>${task.outcome?.replaceAll("_", " ")}${task.resultBytes ? `, ${count(task.resultBytes, "byte")}` : ""}</dd>` : null}</dl></div>
    <div class="out"><ol class="timeline" aria-label="Timeline"><li><time>${clock(task.created)}</time>created</li>
      ${task.messages.map((/** @type {any} */ each) => html`<li><b>${each.role === "user" ? task.caller : "hub"}</b>${each.parts.map((/** @type {any} */ part) => html`<${Value} value=${part.text ?? part.data ?? part.url ?? part.name} />`)}</li>`)}
      ${seen.map(([at, what]) => html`<li><time>${clock(at)}</time>${what}</li>`)}
      ${isOver(task) ? html`<li><time>${clock(task.updated)}</time>${word}</li>` : null}</ol></div>
    ${task.content ? null : html`<div class="out"><p>Another caller's messages and result are hidden. The audit log notes who reads them.</p><button onClick=${() => setContent("&content=true")}>Show messages and result</button></div>`}
    ${result ?? error ? html`<div class="out"><${Value} value=${(result?.content?.length === 1 && result.content[0].text) || (result ?? error)} /></div>` : null}
  </section>`;
}
