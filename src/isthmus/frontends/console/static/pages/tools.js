// @ts-check
// Tools: search, a form made from the schema, progress and questions of the running call, the result, and snippets.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { draft, Exact, get, ORIGIN, parse, send, servers, session, stream, toJson, tools, useTool } from "../api.js";
import { clock, Command, count, go, link, matching, State, took, toolText, Tree, VirtualRows } from "../parts.js";
import { blank, bytesOf, Field, fill, read } from "../schema_form.js";

export function Tools(/** @type {any} */ { title, rest, search }) {
  const [words, setWords] = useState("");
  const all = tools.value ?? [];
  const found = matching(all, toolText, words);
  const isListed = all.some((each) => each.name === rest[0]);
  const tool = useTool(isListed ? rest[0] : "");
  return html`<div class="top"><h1>${title}</h1><span>${count(all.length, "tool")}</span>${search}</div>
    ${rest[0] && !isListed && tools.value ? html`<p class="note">There is no tool ${rest[0]}, or you may not use it.</p>` : null}
    <div class="split">
      <section class="panel"><div class="bar"><input class="grow" type="search" aria-label="Filter tools" placeholder="Filter by name or description" value=${words} onInput=${(/** @type {any} */ e) => setWords(e.target.value)} /></div>
        ${found.length ? html`<${VirtualRows} className="list" label="Tools" items=${found} rowHeight=${52} selected=${rest[0] ?? ""} keyOf=${(/** @type {any} */ each) => each.name}
          onPick=${(/** @type {any} */ each) => go(link("tools", each.name))} row=${(/** @type {any} */ each) => html`<td><b>${each.name}</b><span>${firstLine(each.description) || each.title || "no description"}</span></td>`} />`
          : html`<div class="empty"><p>${all.length ? "No tool matches." : NO_TOOLS()}</p></div>`}</section>
      ${tool ? html`<${OneTool} key=${tool.name} tool=${tool} />` : html`<section class="panel empty"><p>${isListed ? "Loading …" : "Choose a tool to read its description and to call it."}</p></section>`}
    </div>`;
}

const NO_TOOLS = () => (servers.value.length ? "No tools: no server has listed any, or your key may not call them." : "No tools yet: no server has listed any.");

const firstLine = (/** @type {string | undefined} */ text) => (text ?? "").trim().split("\n")[0];

const HINTS = [["readOnlyHint", true, "reads only"], ["destructiveHint", true, "may destroy"], ["idempotentHint", true, "safe to repeat"], ["openWorldHint", true, "reaches the outside world"]];

/** What is known of a running or ended call from this page. */
const NEW_RUN = { state: "idle", progress: null, log: [], questions: [], result: null, problem: null, seconds: 0 };

function OneTool(/** @type {any} */ { tool }) {
  const schema = tool.inputSchema ?? {};
  const handed = useRef(/** @type {any} */ (undefined));
  if (handed.current === undefined) {
    const waiting = draft.peek();
    handed.current = waiting?.tool === tool.name ? waiting : null;
    draft.value = null;
  }
  const [state, setState] = useState(() => (handed.current ? fill(schema, handed.current.value) : blank(schema)));
  const [run, setRun] = useState(/** @type {any} */ (NEW_RUN));
  const [problem, setProblem] = useState("");
  const control = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => {
    // Only a tool that reads is called without a click on this page.
    if (handed.current?.runs && tool.annotations?.readOnlyHint === true) execute(handed.current.value);
    return () => control.current?.abort();
  }, []);
  const hints = HINTS.filter(([key, value]) => tool.annotations?.[/** @type {string} */ (key)] === value).map((each) => each[2]);
  /** @returns {any} */
  const argumentsOf = () => {
    try { return read(schema, state); } catch { return null; }
  };
  const call = async (/** @type {Event} */ event) => {
    event.preventDefault();
    let given;
    try {
      given = read(schema, state);
      setProblem("");
    } catch (error) {
      return setProblem(/** @type {Error} */ (error).message);
    }
    return execute(given);
  };
  const execute = async (/** @type {any} */ given) => {
    control.current?.abort();
    const mine = (control.current = new AbortController()), begun = performance.now();
    const change = (/** @type {any} */ with_) => control.current === mine && setRun((/** @type {any} */ old) => ({ ...old, ...(typeof with_ === "function" ? with_(old) : with_), seconds: (performance.now() - begun) / 1000 }));
    setRun({ ...NEW_RUN, state: "running" });
    try {
      await stream(`v1/tools/${encodeURIComponent(tool.name)}?questions=form,url`, { method: "POST", body: toJson(given), signal: mine.signal }, (name, data) => {
        if (name === "progress") change({ progress: data });
        else if (name === "log") change((/** @type {any} */ old) => ({ log: [...old.log, { at: Date.now() / 1000, ...data }].slice(-200) }));
        else if (name === "question") change((/** @type {any} */ old) => ({ questions: [...old.questions, data] }));
        else if (name === "retracted") change((/** @type {any} */ old) => ({ questions: old.questions.filter((/** @type {any} */ each) => each.id !== data.id) }));
        else if (name === "result") change({ state: "done", result: data, questions: [] });
        else if (name === "error") change({ state: "done", problem: data, questions: [] });
      });
      change((/** @type {any} */ old) => (old.state === "running" ? { state: "done", problem: { detail: "The connection to the hub ended before the result.", executed: "unknown" } } : {}));
    } catch (error) {
      const thrown = /** @type {any} */ (error);
      change({ state: "done", problem: thrown.name === "AbortError" ? { detail: "You cancelled the call.", executed: "unknown" } : { ...thrown.body, detail: thrown.message } });
    }
  };
  const answer = async (/** @type {any} */ question, /** @type {any} */ reply) => {
    try {
      await send("POST", `v1/questions/${encodeURIComponent(question.id)}`, reply);
      setRun((/** @type {any} */ old) => ({ ...old, questions: old.questions.filter((/** @type {any} */ each) => each !== question) }));
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  return html`<section class="panel" aria-label=${tool.name}>
    <div class="pad stack">
      <div><h2><code>${tool.name}</code>${tool.title ? html` <span class="dim">${tool.title}</span>` : null}</h2>
        ${tool.description ? html`<p class="text">${tool.description}</p>` : null}
        ${hints.length ? html`<p class="dim">The server says: ${hints.join(", ")}.</p>` : null}</div>
      <form onSubmit=${call} noValidate>
        <${Field} schema=${schema} state=${state} onChange=${setState} />
        ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}
        <div class="bar"><button class="main" disabled=${run.state === "running"}>Call</button>
          ${run.state === "running" ? html`<button type="button" onClick=${() => control.current?.abort()}>Cancel</button>` : null}</div>
      </form>
    </div>
    <div aria-live="polite">
      ${run.state === "running" ? html`<${Running} run=${run} />` : null}
      ${run.questions.map((/** @type {any} */ question) => html`<${Question} key=${question.id ?? question.method} question=${question} onAnswer=${(/** @type {any} */ reply) => answer(question, reply)} />`)}
      ${run.log.length ? html`<div class="out"><div class="log" tabindex="0" role="log" aria-label="Log of the call">${run.log.map((/** @type {any} */ line) => html`<div><time>${clock(line.at)}</time>${line.level}: ${typeof line.data === "string" ? line.data : toJson(line.data)}</div>`)}</div></div>` : null}
      ${run.problem ? html`<${Failure} problem=${run.problem} />` : null}
      ${run.result ? html`<${Result} result=${run.result} seconds=${run.seconds} server=${tool.name.split(".")[0]} />` : null}
    </div>
    <${Snippets} tool=${tool} given=${argumentsOf()} />
  </section>`;
}

function Running(/** @type {any} */ { run }) {
  const [, tick] = useState(0), begun = useRef(Date.now());
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 200); return () => clearInterval(timer); }, []);
  const { progress = 0, total, message } = run.progress ?? {};
  const share = total ? Math.min(100, (progress / total) * 100) : null;
  return html`<div class="out"><${State} look="idle">${message ?? "Running"}</${State}> <span class="dim">${took((Date.now() - begun.current) / 1000)}${run.progress ? ` · ${progress}${total ? ` of ${total}` : ""}` : ""}</span>
    ${share === null ? null : html`<div class="progress" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share)}><i ref=${(/** @type {any} */ el) => el && (el.style.width = `${share}%`)}></i></div>`}</div>`;
}

const EXECUTED = { no: "The tool did not run. It is safe to call again.", unknown: "The tool may have run.", yes: "The tool ran." };

const Failure = (/** @type {any} */ { problem }) => html`<div class="out" role="alert"><${State} look=${problem.executed === "no" ? "bad" : "warn"}>${problem.title ?? "The call failed"}</${State}>
  <p>${problem.detail}</p><p class="dim">${/** @type {any} */ (EXECUTED)[problem.executed] ?? ""}${problem.retryAfter ? ` Try again in ${took(problem.retryAfter)}.` : ""}</p>
  ${problem.error ? html`<${Tree} value=${problem.error} />` : null}</div>`;

function Question(/** @type {any} */ { question, onAnswer }) {
  const { message, requestedSchema, mode, url } = question.params ?? {};
  const schema = requestedSchema ?? {};
  const [state, setState] = useState(() => blank(schema));
  const [problem, setProblem] = useState("");
  if (question.id === null) return html`<div class="out"><${State} look="warn">The server asked something that this page cannot answer</${State}><p>${message ?? question.method}</p></div>`;
  const accept = (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      onAnswer(mode === "url" ? { action: "accept" } : { action: "accept", content: read(schema, state) });
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  // Only web addresses become links: a server chooses this text.
  const isWeb = /^https?:\/\//i.test(url ?? "");
  return html`<form class="out question" onSubmit=${accept} noValidate><${State} look="warn">The server asks</${State}><p>${message}</p>
    ${mode === "url" ? html`<p>Open this page, finish there, then continue: ${isWeb ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>` : html`<code>${url}</code>`}</p>` : html`<${Field} schema=${schema} state=${state} onChange=${setState} />`}
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}
    <div class="bar"><button class="main">${mode === "url" ? "Continue" : "Answer"}</button><button type="button" onClick=${() => onAnswer({ action: "decline" })}>Decline</button></div></form>`;
}

// -- results -----------------------------------------------------------------------------------------------------------

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const TEXT_MAX = 20000;

function Result(/** @type {any} */ { result, seconds, server }) {
  const content = Array.isArray(result.content) ? result.content : null;
  return html`<div class="out"><${State} look=${result.isError ? "warn" : ""}>${result.isError ? "The tool reports an error" : "ok"}</${State}> <span class="dim">${took(seconds)}</span>
    ${content ? content.map((/** @type {any} */ block, /** @type {number} */ i) => html`<div class="block" key=${i}><${Block} block=${block} server=${server} /></div>`) : html`<${Tree} value=${result} />`}
    ${result.structuredContent !== undefined ? html`<details class="block"><summary>Structured result</summary><${Tree} value=${result.structuredContent} /></details>` : null}</div>`;
}

function Block(/** @type {any} */ { block, server }) {
  if (block?.type === "text") return html`<${Text} text=${String(block.text)} />`;
  if ((block?.type === "image" || block?.type === "audio") && typeof block.data === "string") return html`<${Media} data=${block.data} type=${String(block.mimeType ?? "")} name=${block.type} />`;
  if (block?.type === "resource_link") return html`<${ResourceLink} link=${block} server=${server} />`;
  if (block?.type === "resource" && block.resource) return html`<${Contents} contents=${block.resource} />`;
  return html`<${Tree} value=${block} />`;
}

/** Base64 as what it is: a picture or a sound if a browser shows that safely, and always a file to save. */
function Media(/** @type {any} */ { data, type, name }) {
  const size = `${Math.floor((data.replace(/=+$/, "").length * 3) / 4).toLocaleString("en")} bytes`;
  const save = () => {
    // Never as the server's type: the browser must save the file, not open it.
    const url = URL.createObjectURL(new Blob([bytesOf(data)], { type: "application/octet-stream" }));
    Object.assign(document.createElement("a"), { href: url, download: fileName(name, type) }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  return html`${IMAGES.includes(type) ? html`<img src=${`data:${type};base64,${data}`} alt="Image of the result" />` : null}
    ${/^audio\/[\w.+-]+$/.test(type) ? html`<audio controls src=${`data:${type};base64,${data}`} aria-label="Sound of the result"></audio>` : null}
    <p class="dim">${type || "unknown type"}, ${size} <button type="button" class="plain" onClick=${save}>Download</button></p>`;
}

const ENDINGS = { "image/jpeg": "jpg", "image/svg+xml": "svg", "audio/mpeg": "mp3", "text/plain": "txt", "application/octet-stream": "bin" };
function fileName(/** @type {string} */ name, /** @type {string} */ type) {
  const base = (name.split(/[/\\]/).pop() ?? "").replace(/[^\w.-]+/g, "-").slice(-60) || "result";
  const ending = /** @type {any} */ (ENDINGS)[type] ?? type.split("/")[1]?.replace(/[^a-z0-9]/gi, "").slice(0, 8) ?? "bin";
  return /\.\w{1,5}$/.test(base) ? base : `${base}.${ending || "bin"}`;
}

/** The contents of a resource: text, or a file. */
function Contents(/** @type {any} */ { contents, isNamed = false }) {
  return html`${isNamed ? null : html`<p class="dim">Resource <code>${contents.uri}</code></p>`}
    ${typeof contents.text === "string" ? html`<${Text} text=${contents.text} />` : typeof contents.blob === "string" ? html`<${Media} data=${contents.blob} type=${String(contents.mimeType ?? "")} name=${String(contents.uri ?? "")} />` : html`<${Tree} value=${contents} />`}`;
}

/** A resource that the result only names: it is read when somebody wants it. */
function ResourceLink(/** @type {any} */ { link: block, server }) {
  const [found, setFound] = useState(/** @type {any[] | null} */ (null));
  const [problem, setProblem] = useState("");
  const read = async (/** @type {string} */ uri) => (await get(`v1/resources/read?uri=${encodeURIComponent(uri)}`)).contents;
  const open = async () => {
    try {
      // If several servers list this URI, each has a name of its own in the hub.
      setFound(await read(block.uri).catch((error) => {
        if (error.body?.reason !== "unknown_resource") throw error;
        return read(`isthmus://hub/${server}/${block.uri}`);
      }));
      setProblem("");
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  return html`<p>Resource <code>${block.uri}</code> ${block.description ?? block.title ?? block.name ?? ""} ${found ? null : html`<button type="button" onClick=${open}>Open</button>`}</p>
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}
    ${found?.map((each, i) => html`<${Contents} key=${i} contents=${each} isNamed=${found.length === 1} />`)}`;
}

function Text(/** @type {any} */ { text }) {
  const [all, setAll] = useState(false);
  const parsed = useRef(/** @type {any} */ (undefined));
  if (parsed.current === undefined) {
    parsed.current = null;
    if (/^\s*[[{]/.test(text) && text.length < 200000) try { parsed.current = parse(text); } catch { /* it is only text */ }
  }
  const [raw, setRaw] = useState(false);
  if (parsed.current !== null && !raw) return html`<${Tree} value=${parsed.current} /><button type="button" class="plain" onClick=${() => setRaw(true)}>as text</button>`;
  return html`<pre tabindex="0">${all ? text : text.slice(0, TEXT_MAX)}</pre>${!all && text.length > TEXT_MAX ? html`<button type="button" class="plain" onClick=${() => setAll(true)}>show all ${text.length.toLocaleString("en")} characters</button>` : null}`;
}

// -- snippets ----------------------------------------------------------------------------------------------------------

const quoted = (/** @type {string} */ text) => (/^[\w./:@%+,=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const LONG = 30000;
const FILE = "arguments.json";

/**
 * The call as others make it. Arguments that are too long for a command line are in a file.
 * @param {any} tool @param {any} value
 */
function snippets(tool, value) {
  const json = toJson(value), isLong = json.length > LONG, key = session.value.needsKey, types = tool.inputSchema?.properties ?? {};
  const word = (/** @type {[string, any]} */ [name, each]) => {
    const type = types[name]?.type, isPlain = typeof each === "string" ? type === "string" && !each.startsWith("@") : ["number", "integer", "boolean"].includes(type);
    return quoted(`${name}${isPlain ? "=" : ":="}${isPlain ? each : toJson(each)}`);
  };
  const entries = Object.entries(value), hasPlainNames = entries.every(([name]) => /^[\w.-]+$/.test(name));
  const words = isLong ? ["--args", `@${FILE}`] : hasPlainNames ? entries.map(word) : ["--args", quoted(json)];
  const message = { jsonrpc: "2.0", id: 1, method: "message/send", params: { message: { kind: "message", role: "user", messageId: "MESSAGE-ID", parts: [{ kind: "data", data: { tool: tool.name, arguments: isLong ? "ARGUMENTS" : value } }] } } };
  const auth = key ? " -H \"Authorization: Bearer $KEY\"" : "", post = `curl -X POST${auth} -H 'Content-Type: application/json'`;
  const asked = toJson(message).replace("MESSAGE-ID", crypto.randomUUID?.() ?? String(Date.now()));
  return {
    "Command line": [`${key ? 'ISTHMUS_KEY="$KEY" ' : ""}isthmus call --hub ${ORIGIN} ${quoted(tool.name)}`, ...words].join(" "),
    curl: `${post} ${ORIGIN}/v1/tools/${encodeURIComponent(tool.name)} -d ${isLong ? `@${FILE}` : quoted(json)}`,
    Python: `import${isLong ? " json," : ""}${key ? " os," : ""} isthmus\n\nwith isthmus.connect("${ORIGIN}"${key ? ', key=os.environ["KEY"]' : ""}) as hub:\n    print(hub.call(${JSON.stringify(tool.name)}, **${isLong ? `json.load(open("${FILE}"))` : pythonOf(value)}))`,
    A2A: isLong
      ? `printf '%s' ${quoted(asked.split('"ARGUMENTS"')[0])} "$(cat ${FILE})" ${quoted(asked.split('"ARGUMENTS"')[1])} | ${post} ${ORIGIN}/a2a -d @-`
      : `${post} ${ORIGIN}/a2a -d ${quoted(asked)}`,
  };
}

/** JSON as Python writes it. */
function pythonOf(/** @type {any} */ value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object" && !(value instanceof Exact)) return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pythonOf(each)}`).join(", ")}}`;
  return toJson(value);
}

function Snippets(/** @type {any} */ { tool, given }) {
  const [shown, setShown] = useState("Command line");
  const value = given ?? {}, json = toJson(value);
  const all = useRef(/** @type {any} */ ({}));
  if (all.current.json !== json) all.current = { json, texts: snippets(tool, value) };
  const save = () => {
    const url = URL.createObjectURL(new Blob([json], { type: "application/octet-stream" }));
    Object.assign(document.createElement("a"), { href: url, download: FILE }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  return html`<div class="out"><div class="tabs" role="group" aria-label="The same call elsewhere">${Object.keys(all.current.texts).map((name) => html`<button type="button" aria-pressed=${name === shown} onClick=${() => setShown(name)}>${name}</button>`)}</div>
    <${Command} text=${all.current.texts[shown]} />
    ${json.length > LONG ? html`<p class="dim">The arguments are too long for a command line. <button type="button" class="plain" onClick=${save}>Save them as ${FILE}</button></p>` : null}
    ${given === null ? html`<p class="dim">Fill in the required fields to get the whole command.</p>` : null}</div>`;
}
