// @ts-check
// The frame of the console: sign-in, navigation, search, keys. Each page is a module of its own.
import { html, render, signal, useState, useEffect, useRef } from "./vendor/ui.js";
import { calls, findings, held, isLoaded, isSignedIn, live, loadSession, offline, pending, servers, session, signIn, signOut, tools, watch } from "./api.js";
import { decoded, go, link, loweredTexts, matching, outcomeOf, toolText, troubleOf } from "./parts.js";

/**
 * Pages in the order of the navigation, a row each. The component is in `pages/ID.js`, under the title as its name; it is
 * loaded when it is first shown. Those for operators are hidden from other callers.
 * @type {{id: string, title: string, operators?: boolean, badge?: () => {text: string, alert?: boolean} | null}[]}
 */
const PAGES = [
  { id: "overview", title: "Overview", operators: true },
  { id: "servers", title: "Servers", badge: () => {
    const down = servers.value.filter(troubleOf).length;
    return down ? { text: `${down} down`, alert: true } : { text: String(servers.value.length) };
  } },
  { id: "tools", title: "Tools", badge: () => ({ text: (tools.value ?? []).length.toLocaleString("en") }) },
  { id: "activity", title: "Activity", operators: true, badge: () => (live.value ? { text: live.value, alert: live.value !== "live" } : null) },
  { id: "tasks", title: "Tasks" },
  { id: "approvals", title: "Approvals", operators: true, badge: () => (held.value ? { text: `${held.value} waiting`, alert: true } : null) },
  { id: "devices", title: "Devices" },
  { id: "definitions", title: "Definitions", operators: true, badge: () => (pending.value.length ? { text: `${pending.value.length} waiting`, alert: true } : null) },
  { id: "access", title: "Access", operators: true },
  { id: "audit", title: "Audit", operators: true },
  { id: "cluster", title: "Cluster", operators: true },
  { id: "doctor", title: "Doctor", operators: true, badge: () => (findings.value.length ? { text: String(findings.value.length), alert: true } : null) },
];

/** The letter that leads to each page after `g`: the first one of its title that no page before it has. */
const LETTERS = PAGES.reduce((found, { id, title }) => {
  const letter = [...title.toLowerCase(), ..."abcdefghijklmnopqrstuvwxyz"].find((each) => each !== " " && !found.has(each));
  return letter ? found.set(letter, id) : found;
}, /** @type {Map<string, string>} */ (new Map()));
const letterOf = (/** @type {string} */ page) => [...LETTERS].find(([, id]) => id === page)?.[0];
/** Whether `g` was pressed: the navigation shows the letters, and the next key is one of them. */
const isGoing = signal(false);
/** Whether the navigation is open, where the window is too narrow to show it beside the page. */
const isMenuOpen = signal(false);

/** The pages that are loaded, by id; null if that failed. */
const loaded = signal(/** @type {Record<string, any>} */ ({}));
async function load(/** @type {{id: string, title: string}} */ { id, title }) {
  if (loaded.value[id]) return;
  const page = await import(`./pages/${id}.js`).then((module) => module[title.replaceAll(" ", "")], () => null);
  loaded.value = { ...loaded.value, [id]: page };
}

const pagesOf = () => PAGES.filter((each) => session.value?.operator || !each.operators);

const route = signal(readRoute());
function readRoute() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
}
addEventListener("hashchange", () => { route.value = readRoute(); isMenuOpen.value = false; });

// -- theme -------------------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = signal(localStorage.getItem("isthmus-theme") ?? "");
function applyTheme() {
  document.documentElement.dataset.theme = theme.value || (dark.matches ? "dark" : "light");
}
dark.addEventListener("change", applyTheme);
theme.subscribe(applyTheme);
function switchTheme() {
  theme.value = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("isthmus-theme", theme.value);
}

// -- frame -------------------------------------------------------------------------------------------------------------

function App() {
  if (session.value === null) return html`<p class="loading">${offline.value || "Loading the console …"}</p>`;
  if (!isSignedIn.value) return html`<${SignIn} />`;
  const pages = pagesOf();
  const current = pages.find((each) => each.id === route.value[0]) ?? pages[0];
  const page = loaded.value[current.id], isReady = isLoaded.value && Boolean(page);
  useEffect(() => { document.title = `${current.title} · Isthmus`; load(current); }, [current.id]);
  useEffect(() => { if (isReady) firstShown(); }, [isReady]);
  return html`<div class="app">
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
    <header class=${isMenuOpen.value || isGoing.value ? "side open" : "side"}>
      <div class="brand"><${Mark} /><span>Isthmus</span></div>
      <${MenuButton} title=${current.title} pages=${pages} />
      <nav aria-label="Pages" id="pages">${pages.map((each) => html`<${NavLink} key=${each.id} page=${each} isCurrent=${each === current} />`)}</nav>
      <div class="foot">
        <button class="plain" onClick=${switchTheme}>Light or dark</button>
        <button class="plain" onClick=${showKeys}>Shortcuts</button>
        <a href="../docs">REST API</a>
        <span>Version ${session.value.version}</span>
        ${session.value.needsKey
          ? html`<span>Signed in as <b>${session.value.caller}</b></span><${SignOut} />`
          : html`<span>Open hub: no key needed</span>`}
      </div>
    </header>
    <main id="main" tabindex="-1">
      ${offline.value ? html`<p class="note bad" role="alert">${offline.value}</p>` : null}
      ${!isReady ? html`<div class="top"><h1>${current.title}</h1></div>${page === null ? html`<p class="note bad" role="alert">This page could not be loaded. <button class="plain" onClick=${() => location.reload()}>Reload the console</button></p>` : html`<p class="loading" role="status">Loading …</p>`}`
        : html`<${page} title=${current.title} rest=${route.value.slice(1)} search=${html`<${Search} pages=${pages} />`} />`}
    </main>
    <${Keys} />
  </div>`;
}

const idle = window.requestIdleCallback ?? ((/** @type {() => void} */ then) => setTimeout(then, 500));
let isShown = false;
/** The first page can be used: the others are loaded when the browser has nothing else to do. */
function firstShown() {
  if (isShown) return;
  isShown = true;
  performance.mark("console-usable");
  const next = () => {
    const page = pagesOf().find((each) => loaded.value[each.id] === undefined);
    if (page) idle(() => load(page).then(next));
  };
  next();
  tools.subscribe((/** @type {any[] | null} */ list) => list && idle(() => loweredTexts(list, toolText)));
}

const Mark = () => html`<svg viewBox="0 0 26 26" aria-hidden="true"><path d="M0 5c6 0 7 5 13 5s7-5 13-5v5c-5 0-7 3-7 3s2 3 7 3v5c-6 0-7-5-13-5s-7 5-13 5v-5c5 0 7-3 7-3s-2-3-7-3z" fill="var(--sea)" /></svg>`;

/** Opens the navigation in a narrow window. It says what waits on the other pages. */
function MenuButton(/** @type {any} */ { title, pages }) {
  const alerts = pages.filter((/** @type {any} */ each) => each.title !== title && each.badge?.()?.alert).length;
  return html`<button type="button" class="menu" aria-expanded=${isMenuOpen.value} aria-controls="pages" onClick=${() => { isMenuOpen.value = !isMenuOpen.value; }}>${title}
    ${alerts ? html`<b class="alert">${alerts} ${alerts === 1 ? "page needs" : "pages need"} you</b>` : null}</button>`;
}

function NavLink(/** @type {any} */ { page, isCurrent }) {
  const badge = page.badge?.(), letter = letterOf(page.id);
  return html`<a href=${link(page.id)} aria-current=${isCurrent ? "page" : undefined} onClick=${() => { isMenuOpen.value = false; }}>${page.title}
    ${isGoing.value && letter ? html`<kbd>${letter}</kbd>` : badge && html`<b class=${badge.alert ? "alert" : ""}>${badge.text}</b>`}</a>`;
}

function SignOut() {
  const [problem, setProblem] = useState("");
  const leave = () => signOut().catch((error) => setProblem(`You are still signed in. ${error.message}`));
  return html`<button class="plain" onClick=${leave}>Sign out</button>${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}`;
}

const MAKE_KEY = "isthmus token create NAME --operator --allow '*'";

function SignIn() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn(event.target.key.value);
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
    setBusy(false);
  };
  return html`<main class="panel sign">
    <div class="brand"><${Mark} /><span>Isthmus</span></div>
    <h1>Sign in</h1>
    ${session.value.why ? html`<p class="note">${session.value.why}</p>` : null}
    <form onSubmit=${submit}>
      <div class="field"><label for="key">Key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" required autofocus aria-describedby="key-help" /></div>
      ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
      <button class="main" disabled=${busy}>Sign in</button>
    </form>
    <p id="key-help">This hub needs a key. Its operator makes one with <code>${MAKE_KEY.split(" ").map((word) => html`<span>${word}</span> `)}</code></p>
  </main>`;
}

// -- search over pages, servers, tools and calls ------------------------------------------------------------------------------

const FOUND_MAX = 12;

/** @param {string} words @param {any[]} pages */
function find(words, pages) {
  return [
    ...matching(pages, (page) => page.title, words).map((page) => ({ label: page.title, kind: "page", hash: link(page.id) })),
    ...matching(servers.value, (server) => server.name, words, FOUND_MAX / 2).map((server) => ({ label: server.name, kind: "server", hash: link("servers", server.name) })),
    ...matching(tools.value ?? [], toolText, words, FOUND_MAX).map((tool) => ({ label: tool.name, kind: "tool", hash: link("tools", tool.name) })),
    ...matching(calls.value, (call) => `${call.caller} ${call.name}`, words, FOUND_MAX).map((call) => ({ label: `${call.caller} → ${call.name}`, kind: outcomeOf(call).word, hash: link("activity", String(call.number)) })),
  ].slice(0, FOUND_MAX);
}

function Search(/** @type {any} */ { pages }) {
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef(/** @type {any} */ (null));
  const found = words ? find(words, pages) : [];
  const close = () => { setWords(""); input.current.blur(); };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") close();
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
    if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    if (event.key === "Enter" && found[at]) { go(found[at].hash); close(); }
    if (["ArrowDown", "ArrowUp"].includes(event.key)) event.preventDefault();
  };
  return html`<div class="find">
    <input type="search" ref=${input} data-search placeholder="Find a tool, server, call …" aria-label="Find a tool, server, call or page" role="combobox"
      aria-expanded=${found.length > 0} aria-controls="found" autocomplete="off" value=${words}
      onInput=${(/** @type {any} */ e) => { setWords(e.target.value); setAt(0); }} onKeyDown=${onKey} />
    ${words ? null : html`<kbd aria-hidden="true">/</kbd>`}
    ${words ? html`<ul id="found" role="listbox" aria-label="Found">${found.length
      ? found.map((each, i) => html`<li key=${each.hash} role="presentation"><a role="option" aria-selected=${i === at} href=${each.hash} onClick=${close}><code>${each.label}</code><span>${each.kind}</span></a></li>`)
      : html`<li class="dim pad">Nothing has this in its name or description.</li>`}</ul>` : null}
  </div>`;
}

// -- keys --------------------------------------------------------------------------------------------------------------

const KEYS = [["/", "find a tool, server, call or page"], ["j  k", "next, previous in a list"], ["Enter", "read what is picked"], ["Esc", "close"], ["?", "these shortcuts"]];
const GO_MS = 4000;
function showKeys() {
  const dialog = /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog.keys"));
  if (!dialog?.open) dialog?.showModal();
}

function Keys() {
  const dialog = useRef(/** @type {any} */ (null));
  useEffect(() => {
    let timer = 0;
    const going = (/** @type {boolean} */ now) => {
      isGoing.value = now;
      clearTimeout(timer);
      if (now) timer = setTimeout(() => going(false), GO_MS);
    };
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (target.matches("input, textarea, select") || event.metaKey || event.ctrlKey || event.altKey || event.key === "Shift") return;
      if (isGoing.value) {
        const page = pagesOf().find((each) => each.id === LETTERS.get(event.key.toLowerCase()));
        going(false);
        if (page) { dialog.current.close(); go(link(page.id)); }
      }
      else if (event.key === "g") going(true);
      else if (event.key === "/") document.querySelector(/** @type {any} */ ("[data-search]"))?.focus();
      else if (event.key === "?") showKeys();
      else if (event.key === "Escape" && isMenuOpen.value) isMenuOpen.value = false;
      else if ((event.key === "j" || event.key === "k") && !target.matches("[data-keys]")) {
        document.querySelector(/** @type {any} */ ("[data-keys]"))?.focus();
        document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key: event.key, bubbles: false }));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    };
    // Before the lists: after `g`, `k` is a page and not the row above.
    addEventListener("keydown", onKey, true);
    return () => { clearTimeout(timer); removeEventListener("keydown", onKey, true); };
  }, []);
  return html`<dialog class="keys" ref=${dialog} aria-label="Keyboard shortcuts"><h2>Keyboard shortcuts</h2>
    <dl class="facts pad">${KEYS.map(([key, text]) => html`<dt><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl>
    <h2>Pages: <kbd>g</kbd>, then</h2>
    <dl class="facts pad pages">${pagesOf().map((each) => html`<div key=${each.id}><dt><kbd>${letterOf(each.id)}</kbd></dt><dd>${each.title}</dd></div>`)}</dl>
    <form method="dialog"><button>Close</button></form></dialog>`;
}

// -- start ---------------------------------------------------------------------------------------------------------------

async function begin() {
  const root = /** @type {HTMLElement} */ (document.getElementById("app"));
  root.replaceChildren();
  render(html`<${App} />`, root);
  load(PAGES.find((each) => each.id === route.value[0]) ?? PAGES[0]);
  for (;;) {
    try {
      await loadSession();
      break;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  watch();
}
begin();
