// @ts-check
// Servers: their state with its reason and what helps, latency, tools, log; restart, enable, disable, log in, add by pasting.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { get, refresh, send, servers, session, stats, tools } from "../api.js";
import { Beside, clock, Command, copyText, count, go, Help, link, Sparkline, State, stateOf, took, troubleOf, VirtualRows } from "../parts.js";
import { hasServers, NoServers } from "./overview.js";

/** The view that adds a server: no server can have this name. */
const ADD = "+";

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
  const down = sorted.filter(troubleOf).length, isAdding = name === ADD && session.value.operator;
  return html`<div class="top"><h1>${title}</h1><span>${count(servers.value.length, "server")}${down ? `, ${down} not working` : ""}</span>${search}</div>
    ${session.value.operator ? html`<p><a class="button" href=${link("servers", ADD)}>Add a server</a></p>` : null}
    ${name && name !== ADD && !server && servers.value.length ? html`<p class="note">There is no server ${name}.</p>` : null}
    <${Beside} id=${server?.name ?? (isAdding ? ADD : "")} back=${link("servers")} list=${html`<section class="panel">${sorted.length ? html`<${VirtualRows} className="servers" label="Servers" items=${sorted} keyOf=${(/** @type {any} */ each) => each.name} selected=${name ?? ""}
        onPick=${(/** @type {any} */ each) => go(link("servers", each.name))}
        head=${html`<th>Server</th><th>State</th><th class="hide">Transport</th><th class="r">${session.value.needsKey ? html`<span class="longer">Your </span>tools` : "Tools"}</th><th class="r hide">Calls</th><th class="r">p50</th><th class="hide">Latency</th>`}
        row=${(/** @type {any} */ each) => {
          const { word, look } = stateOf(each), counted = figures.get(each.name);
          return html`<td><a href=${link("servers", each.name)}>${each.name}</a></td><td><${State} look=${look}>${word}</${State}></td><td class="dim hide">${each.transport ?? ""}</td>
            <td class="r">${each.tools}</td><td class="r hide">${counted?.calls ?? ""}</td><td class="r">${counted?.latency ? took(counted.latency.p50) : ""}</td>
            <td class="hide"><${Sparkline} values=${history[each.name] ?? []} height=${20} /></td>`;
        }} />` : null}${hasServers() || !session.value.operator ? null : html`<${NoServers} />`}</section>`}>
      ${isAdding ? html`<${AddServer} />` : server ? html`<${OneServer} key=${server.name} server=${server} figures=${figures.get(server.name)} />` : null}</${Beside}>`;
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
  const isOff = server.state === "disabled";
  const wanted = useRef(false);
  useEffect(() => {
    if (wanted.current && server.state === "ready") setTold("The login has arrived: the server is connected.");
    wanted.current = server.state === "login" || (wanted.current && server.state !== "ready");
  }, [server.state]);
  const act = async (/** @type {string} */ verb, /** @type {string} */ doing, /** @type {(answer: any) => string} */ done) => {
    setTold(doing);
    try {
      const answer = await send("POST", `v1/${verb}/${encodeURIComponent(server.name)}`);
      await refresh();
      setTold(done(answer));
    } catch (error) {
      setTold(/** @type {Error} */ (error).message);
    }
  };
  const restart = () => act("restart", "Restarting …", () => "The server was started anew.");
  const enable = () => act("enable", "Enabling …", (answer) => `Enabled. ${answer.note}`);
  const disable = () => act("disable", "Disabling …", (answer) => `Disabled: its calls may finish, and its tools are gone. ${answer.note}`);
  const own = (tools.value ?? []).filter((tool) => tool.name.startsWith(`${server.name}.`));
  const outcomes = Object.entries(figures?.outcomes ?? {}).map(([key, n]) => `${n} ${key === "result" ? "ok" : key.replaceAll("_", " ")}`).join(", ");
  return html`<section class="panel pad stack" aria-label=${server.name}>
    <div class="bar"><h2>${server.name}</h2><${State} look=${look}>${word}</${State}><span class="grow"></span>
      ${session.value.operator ? html`${isOff ? html`<button type="button" onClick=${enable}>Enable</button>` : html`<button type="button" onClick=${disable}>Disable</button><button type="button" onClick=${restart}>Restart</button>`}` : null}<a href=${link("servers")}>Close</a></div>
    <p role="status" class=${told ? "note" : "vh"}>${told}</p>
    ${trouble ? html`<div><p>${trouble.text}</p><${Help} trouble=${trouble} />
      ${server.state === "login" ? html`<p class="dim">Run it on the hub's machine; with <code>--device</code> you enter a code on any other device. This page shows when the login has arrived.</p>` : null}</div>` : null}
    ${server.detail ? html`<pre>${server.detail}</pre>` : null}
    <dl class="facts"><dt>Transport</dt><dd>${server.transport ?? (server.state === "ready" ? "inside the hub" : isOff ? "none while it is disabled" : "not known yet")}${server.era ? `, MCP ${server.era}` : ""}</dd>
      <dt>${session.value.needsKey ? "Your key may use" : "Offers"}</dt><dd>${[count(server.tools, "tool"), server.prompts && count(server.prompts, "prompt"), server.resources && count(server.resources, "resource")].filter(Boolean).join(", ")}</dd>
      ${figures ? html`<dt>Calls</dt><dd>${figures.calls}${outcomes ? ` (${outcomes})` : ""}; ${figures.running} running, ${figures.queued} queued</dd>` : null}
      ${(server.notes ?? []).length ? html`<dt>Notes</dt><dd>${server.notes.map((/** @type {string} */ note) => html`<div>${note}</div>`)}</dd>` : null}</dl>
    ${own.length ? html`<details><summary>${count(own.length, "tool")}</summary><p>${own.slice(0, 300).map((tool) => html`<a href=${link("tools", tool.name)}><code>${tool.name.slice(server.name.length + 1)}</code></a> `)}</p></details>` : null}
    ${session.value.operator ? html`<${Log} server=${server.name} />` : null}
  </section>`;
}

// -- adding by pasting ---------------------------------------------------------------------------------------------------

const PREVIEW_MS = 250;
const SAMPLES = ["https://mcp.example.com/mcp", "npx -y @modelcontextprotocol/server-filesystem .", '{"mcpServers": {"search": {"url": "https://search.example/mcp"}}}'];
const FORMS = { json: "JSON", toml: "TOML", yaml: "YAML", url: "An address", command: "A command" };
const OUTCOMES = { new: ["new", ""], same: ["already there", "idle"], broken: ["not usable", "bad"] };

function AddServer() {
  const [text, setText] = useState("");
  const [name, setName] = useState("");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (!text.trim()) {
      setFound(null);
      return setProblem("");
    }
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const answer = await send("POST", "v1/configuration/preview", name ? { text, name } : { text });
        if (!isCurrent) return;
        setFound(answer);
        setProblem("");
      } catch (error) {
        if (!isCurrent) return;
        setFound(null);
        setProblem(/** @type {Error} */ (error).message);
      }
    }, PREVIEW_MS);
    return () => { isCurrent = false; clearTimeout(timer); };
  }, [text, name]);
  const paste = (/** @type {string} */ now) => { setText(now); setName(""); };
  return html`<section class="panel pad stack paste" aria-label="Add a server">
    <div class="bar"><h2>Add a server</h2><span class="grow"></span><a href=${link("servers")}>Close</a></div>
    <div class="field"><label for="paste">Paste the entry of any client, a URL, or a command</label>
      <textarea id="paste" spellcheck="false" autocomplete="off" value=${text} onInput=${(/** @type {any} */ e) => paste(e.target.value)} aria-describedby="paste-help" placeholder=${SAMPLES.join("\n")}></textarea>
      <p id="paste-help" class="hint">You see here what the hub makes of it. Nothing is written or started: you put the text into the file, or run the command.</p></div>
    <p role="status" class=${problem ? "note bad" : ""}>${problem || (found ? `${/** @type {any} */ (FORMS)[found.form]}${found.client ? ` of ${found.client}` : ""}: ${count(found.servers.length, "server")}.` : "")}</p>
    ${found ? html`<${Pasted} found=${found} name=${name} setName=${setName} />` : null}
  </section>`;
}

function Pasted(/** @type {any} */ { found, name, setName }) {
  const fresh = found.servers.filter((/** @type {any} */ each) => each.outcome === "new");
  const commands = fresh.map((/** @type {any} */ each) => each.command);
  const arrived = found.servers.filter((/** @type {any} */ each) => servers.value.some((server) => server.name === each.name));
  return html`${found.servers.map((/** @type {any} */ each) => {
      const [word, look] = /** @type {any} */ (OUTCOMES)[each.outcome];
      return html`<div class="pasted" key=${each.wanted}><div class="bar"><h3>${each.name}</h3><${State} look=${look}>${word}</${State}><span class="dim">${each.transport ?? ""}</span>
        ${found.servers.length === 1 && each.outcome !== "broken" ? html`<label class="grow bar">Name <input value=${name || each.name} maxlength="50" onInput=${(/** @type {any} */ e) => setName(e.target.value.trim())} /></label>` : null}</div>
        ${each.hasSecrets ? html`<p class="dim">It contains a secret in plain text. <code>${"${NAME}"}</code> as the value, and the variable set where the hub starts, keeps it out of the file.</p>` : null}</div>`;
    })}
    ${found.findings.length ? html`<div><h3>Findings</h3><ul>${found.findings.map((/** @type {any} */ each) => html`<li>${each.problem}. <span class="dim">${each.fix}</span></li>`)}</ul></div>` : null}
    ${found.text ? html`<div><h3>Put this into the file</h3><p class="dim"><code>${found.file}</code>${found.isNewFile ? ", which does not exist yet" : ""}. ${found.place} A running hub follows by itself.</p></div>
      <${Copied} text=${found.text} />` : null}
    ${commands.length && commands.every(Boolean) ? html`<div><h3>Or run</h3><p class="dim">It tries the server first, and writes the same.</p></div>${commands.map((/** @type {string} */ each) => html`<${Command} key=${each} text=${each} />`)}` : null}
    ${arrived.length ? html`<p class="note">The hub has ${arrived.map((/** @type {any} */ each, /** @type {number} */ i) => html`${i ? ", " : ""}<a href=${link("servers", each.name)}>${each.name}</a>`)}.</p>` : null}`;
}

/** Lines with a button that copies them. */
function Copied(/** @type {any} */ { text }) {
  const [told, setTold] = useState("Copy the text");
  const lines = useRef(/** @type {any} */ (null));
  const copy = async () => {
    setTold(await copyText(text, lines.current) ? "Copied" : "Selected: press Ctrl+C");
    setTimeout(() => setTold("Copy the text"), 2500);
  };
  return html`<pre ref=${lines} tabindex="0" role="region" aria-label="Text for the file">${text}</pre><div class="bar"><button type="button" class="main" onClick=${copy}>${told}</button></div>`;
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
