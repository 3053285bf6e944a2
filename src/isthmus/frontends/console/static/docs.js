// @ts-check
// The page at /docs: the hub's OpenAPI document for people. It loads nothing but that document and the session.
import { html, render, signal, useEffect, useState } from "./vendor/ui.js";
import { get, loadSession, ORIGIN, session, signIn } from "./api.js";
import { Command, decoded } from "./parts.js";

const page = signal(/** @type {any} */ (null));
const problem = signal("");

const dark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = () => { document.documentElement.dataset.theme = localStorage.getItem("isthmus-theme") || (dark.matches ? "dark" : "light"); };
dark.addEventListener("change", applyTheme);
applyTheme();

async function load() {
  try {
    await loadSession();
    if (session.value.caller) page.value = await get("openapi.json");
    problem.value = "";
  } catch (error) {
    problem.value = /** @type {Error} */ (error).message;
    setTimeout(load, 2000);
  }
}

// -- operations ----------------------------------------------------------------------------------------------------------

/** All operations in the order of the document. */
const operationsOf = (/** @type {any} */ found) =>
  Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(/** @type {any} */ (methods)).map(([method, each]) => ({ ...each, path, method: method.toUpperCase() })));

const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The same request for a terminal. Names in capitals are to be replaced. */
function curlOf(/** @type {any} */ operation) {
  const needed = operation.parameters.filter((/** @type {any} */ each) => each.in === "query" && each.required);
  const query = needed.map((/** @type {any} */ each) => `${each.name}=${each.name.toUpperCase()}`).join("&");
  const path = operation.path.replace(/\{(.*)\}/, (/** @type {string} */ _, /** @type {string} */ name) => name.toUpperCase());
  const words = ["curl"];
  if (operation.method !== "GET") words.push(`-X ${operation.method}`);
  words.push(quoted(`${ORIGIN}${path}${query ? `?${query}` : ""}`));
  if (session.value.needsKey) words.push(`-H "Authorization: Bearer $KEY"`);
  const body = operation.requestBody?.content["application/json"];
  if (body) words.push(`-H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body.example ?? {}))}`);
  return words.join(" ");
}

/** Text with `code` in it. */
const Text = (/** @type {any} */ { text }) => html`${String(text).split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part))}`;

function Operation(/** @type {any} */ { operation, isOpen }) {
  const [open, setOpen] = useState(false);
  useEffect(() => { if (isOpen) setOpen(true); }, [isOpen]);
  const answers = operation.responses["200"].content;
  return html`<details class="panel op" id=${operation.operationId} open=${open} onToggle=${(/** @type {any} */ e) => setOpen(e.currentTarget.open)}>
    <summary><b class=${`verb ${operation.method}`}>${operation.method}</b><code>${operation.path}</code><span>${operation.summary}</span></summary>
    ${open ? html`<div class="pad stack">
      <${Command} text=${curlOf(operation)} />
      ${operation.parameters.length ? html`<div><h3>Parameters</h3><dl class="facts">${operation.parameters.map((/** @type {any} */ each) => html`<dt><code>${each.name}</code></dt>
        <dd>${each.in === "path" ? "in the path" : `in the query, ${each.schema.type}`}${each.required ? ", required" : ""}. <${Text} text=${each.description} /></dd>`)}</dl></div>` : null}
      ${operation.requestBody ? html`<div><h3>Body</h3><p><${Text} text=${operation.requestBody.description} /></p><${Members} schema=${operation.requestBody.content["application/json"].schema} /></div>` : null}
      <div><h3>Answer</h3><${Schema} schema=${answers["application/json"].schema} />
        ${answers["text/event-stream"] ? html`<p>With <code>Accept: text/event-stream</code>: <${Text} text=${answers["text/event-stream"].schema.description} /></p>` : null}
        <p>Everything else is a <a href="#problems">problem</a>.</p></div>
    </div>` : null}</details>`;
}

// -- schemas -------------------------------------------------------------------------------------------------------------

/** What a schema allows, in one line; objects are written out by `Schema`. */
function kindOf(/** @type {any} */ schema) {
  if (schema.$ref) return html`<a href=${`#schema-${schema.$ref.split("/").pop()}`}>${schema.$ref.split("/").pop()}</a>`;
  if (schema.enum) return html`one of ${schema.enum.map((/** @type {any} */ each, /** @type {number} */ i) => html`${i ? ", " : ""}<code>${String(each)}</code>`)}`;
  if (schema.anyOf) return html`${schema.anyOf.map((/** @type {any} */ each, /** @type {number} */ i) => html`${i ? " or " : ""}${Object.keys(each).length ? kindOf(each) : "any value"}`)}`;
  if (schema.type === "array") return html`list of ${kindOf(schema.items ?? {})}`;
  if (Array.isArray(schema.type)) return schema.type.join(" or ");
  return schema.type ?? "any value";
}

/** The object inside a schema, if it has members to show. */
const objectIn = (/** @type {any} */ schema) => [schema, schema.items, schema.additionalProperties, ...(schema.anyOf ?? [])].find((each) => each?.properties);

function Schema(/** @type {any} */ { schema }) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return html`<p>${kindOf(schema)}</p><${Schema} schema=${page.value.components.schemas[name]} />`;
  }
  const inner = objectIn(schema);
  return html`${schema.description ? html`<p><${Text} text=${schema.description} /></p>` : null}
    ${inner ? html`<${Members} schema=${inner} />` : html`<p class="dim">${kindOf(schema)}</p>`}`;
}

/** The members of an object; nothing for one that may have any. */
function Members(/** @type {any} */ { schema: inner }) {
  return inner.properties ? html`<dl class="facts schema">${Object.entries(inner.properties).map(([name, each]) => html`<dt><code>${name}</code></dt>
      <dd>${kindOf(each)}${inner.required?.includes(name) ? "" : ", may be absent"}${/** @type {any} */ (each).description && !objectIn(each) ? html`. <${Text} text=${/** @type {any} */ (each).description} />` : null}${objectIn(each) ? html`<${Schema} schema=${each} />` : null}</dd>`)}</dl>` : null;
}

function Named(/** @type {any} */ { name, schema, isOpen }) {
  const [open, setOpen] = useState(false);
  useEffect(() => { if (isOpen) setOpen(true); }, [isOpen]);
  return html`<details class="panel op" id=${`schema-${name}`} open=${open} onToggle=${(/** @type {any} */ e) => setOpen(e.currentTarget.open)}><summary><code>${name}</code></summary>
    ${open ? html`<div class="pad"><${Schema} schema=${schema} /></div>` : null}</details>`;
}

// -- the page ------------------------------------------------------------------------------------------------------------

const readHash = () => decoded(location.hash.slice(1));
const target = signal(readHash());
addEventListener("hashchange", () => { target.value = readHash(); });

const slug = (/** @type {string} */ text) => `group-${text.toLowerCase().replace(/\W+/g, "-")}`;

function Page() {
  const [words, setWords] = useState("");
  const found = page.value;
  useEffect(() => { if (found && target.value) document.getElementById(target.value)?.scrollIntoView(); }, [Boolean(found), target.value]);
  if (!session.value || (session.value.caller && !found)) return html`<p class="loading" role="status">${problem.value || "Loading the description …"}</p>`;
  if (!session.value.caller) return html`<${NeedsKey} />`;
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = operationsOf(found).filter((each) => parts.every((part) => `${each.operationId} ${each.method} ${each.path} ${each.summary}`.toLowerCase().includes(part)));
  const groups = found.tags.map((/** @type {any} */ tag) => [tag.name, shown.filter((each) => each.tags[0] === tag.name)]).filter((/** @type {any} */ each) => each[1].length);
  const schemas = Object.entries(found.components.schemas);
  return html`<div class="app">
    <a class="skip" href="#main">Skip to content</a>
    <header class="side"><div class="brand"><a href="console/">Isthmus</a></div>
      <nav aria-label="Groups">${groups.map((/** @type {any} */ [name, list]) => html`<a href=${`#${slug(name)}`}>${name}<b>${list.length}</b></a>`)}<a href="#problems">Problems</a><a href="#schemas">Schemas</a></nav>
      <div class="foot"><a href="openapi.json">openapi.json</a><a href="console/">Console</a></div></header>
    <main id="main" tabindex="-1"><div class="top"><h1>REST API</h1><span>version ${found.info.version}</span>
      <div class="find"><input type="search" placeholder="Filter operations" aria-label="Filter operations" value=${words} onInput=${(/** @type {any} */ e) => setWords(e.target.value)} /></div></div>
      <p class="dim">${found.info.summary} ${session.value.needsKey ? html`Send a key with every request: <code>Authorization: Bearer KEY</code> or <code>X-Api-Key: KEY</code>.` : "This hub needs no key."} Words in capitals stand for your values.</p>
      <div class="stack">${groups.map((/** @type {any} */ [name, list]) => html`<section class="stack" aria-labelledby=${slug(name)}><h2 id=${slug(name)}>${name}</h2>
          ${list.map((/** @type {any} */ each) => html`<${Operation} key=${each.operationId} operation=${each} isOpen=${target.value === each.operationId} />`)}</section>`)}
        ${groups.length ? null : html`<p class="note">No operation has all these words.</p>`}
        <section class="panel" aria-labelledby="problems"><h2 id="problems">Problems</h2><div class="pad"><${Schema} schema=${found.components.schemas.Problem} /></div>
          <div class="scroll" tabindex="0" role="region" aria-label="Reasons"><table><thead><tr><th class="r">Status</th><th>Reason</th><th>Meaning</th></tr></thead>
            <tbody>${found.components.schemas.Problem["x-reasons"].map((/** @type {any} */ each) => html`<tr><td class="r">${each.status}</td><td><code>${each.reason}</code></td><td class="wrap">${each.title}</td></tr>`)}</tbody></table></div></section>
        <section class="stack" aria-labelledby="schemas"><h2 id="schemas">Schemas</h2>${schemas.map(([name, schema]) => html`<${Named} key=${name} name=${name} schema=${schema} isOpen=${target.value === `schema-${name}`} />`)}</section>
      </div></main></div>`;
}

function NeedsKey() {
  const [wrong, setWrong] = useState("");
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    try {
      await signIn(event.target.key.value);
      await load();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  return html`<main class="panel sign"><h1>REST API</h1><p>This hub needs a key to show its description.</p>
    <form onSubmit=${submit}><div class="field"><label for="key">Key</label><input id="key" name="key" type="password" autocomplete="current-password" required /></div>
    ${wrong ? html`<p class="note bad" role="alert">${wrong}</p>` : null}<button class="main">Sign in</button></form></main>`;
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.replaceChildren();
render(html`<${Page} />`, root);
load();
