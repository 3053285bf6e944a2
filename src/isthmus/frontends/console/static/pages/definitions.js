// @ts-check
// Definitions: tools that are withheld because their definition changed, old and new side by side, and their approval.
import { html, useState } from "../vendor/ui.js";
import { parse, pending, refresh, send, toJson } from "../api.js";
import { ago, count, link, State } from "../parts.js";

/** JSON as lines, so that two definitions can be compared; text that is no JSON stays as it is. */
function linesOf(/** @type {string | null} */ text) {
  if (text === null) return [];
  try {
    return toJson(parse(text), "  ").split("\n");
  } catch {
    return text.split("\n");
  }
}

const LINES_MAX = 600;

/**
 * The longest common lines of two texts, as rows of [old, new]; null stands for a missing line.
 * @param {string[]} old @param {string[]} now @returns {[string | null, string | null][]}
 */
export function compare(old, now) {
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  const a = old.slice(start, old.length - end), b = now.slice(start, now.length - end);
  /** @type {[string | null, string | null][]} */
  const middle = [];
  if (a.length * b.length > LINES_MAX * LINES_MAX) {
    for (let i = 0; i < Math.max(a.length, b.length); i += 1) middle.push([a[i] ?? null, b[i] ?? null]);
  } else {
    const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) middle.push([a[i++], b[j++]]);
      else if (j >= b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) middle.push([a[i++], null]);
      else middle.push([null, b[j++]]);
    }
  }
  return [...old.slice(0, start).map((line) => /** @type {[string, string]} */ ([line, line])), ...paired(middle), ...old.slice(old.length - end).map((line) => /** @type {[string, string]} */ ([line, line]))];
}

/** What two versions of a line of JSON share: the indentation, and the name of the member. */
const headOf = (/** @type {string} */ line) => /^\s*("(?:[^"\\]|\\.)*":)?/.exec(line)?.[0] ?? "";

/**
 * Rows in which lines that replace each other stand side by side.
 * @param {[string | null, string | null][]} rows @returns {[string | null, string | null][]}
 */
function paired(rows) {
  /** @type {[string | null, string | null][]} */
  const found = [];
  for (let i = 0; i < rows.length;) {
    if (rows[i][0] !== null && rows[i][1] !== null) {
      found.push(rows[i++]);
      continue;
    }
    const removed = [], added = [];
    for (; i < rows.length && (rows[i][0] === null || rows[i][1] === null); i += 1) {
      if (rows[i][0] === null) added.push(/** @type {string} */ (rows[i][1]));
      else removed.push(/** @type {string} */ (rows[i][0]));
    }
    const heads = added.map(headOf);
    let next = 0;
    for (const line of removed) {
      const at = heads.indexOf(headOf(line), next);
      for (; next < at; next += 1) found.push([null, added[next]]);
      found.push([line, at < 0 ? null : added[next++]]);
    }
    for (; next < added.length; next += 1) found.push([null, added[next]]);
  }
  return found;
}

export function Definitions(/** @type {any} */ { title, search }) {
  const all = pending.value;
  return html`<div class="top"><h1>${title}</h1><span>${all.length ? `${count(all.length, "tool")} withheld` : ""}</span>${search}</div>
    ${all.length ? null : html`<section class="panel empty"><p>No definition waits for approval.</p><p>With <code>pin = "approve"</code> or <code>"strict"</code> under <code>[hub]</code>, a tool owner definition changes is withheld until you have read the change here.</p></section>`}
    <div class="stack">${all.map((each) => html`<${Review} key=${`${each.server}.${each.tool}.${each.fingerprint}`} review=${each} />`)}</div>`;
}

function Review(/** @type {any} */ { review }) {
  const [problem, setProblem] = useState("");
  const name = `${review.server}.${review.tool}`;
  const rows = compare(linesOf(review.before), linesOf(review.now));
  const approve = async () => {
    try {
      await send("POST", `v1/definitions/${encodeURIComponent(name)}`, { fingerprint: review.fingerprint });
      await refresh();
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  return html`<section class="panel" aria-label=${name}>
    <div class="bar"><h2><code>${name}</code></h2><${State} look="warn">${review.before === null ? "new" : "changed"}</${State}><span class="dim">seen ${ago(review.at)} ago${review.listedTo ? `, listed to clients with ${review.listedTo}` : ""}</span><span class="grow"></span>
      <a href=${link("servers", review.server)}>Server</a><button class="main" type="button" onClick=${approve}>Approve</button></div>
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}
    <div class="scroll" tabindex="0" role="region" aria-label=${`Change of ${name}`}><table class="diff"><thead><tr><th>Accepted</th><th>Now</th></tr></thead>
      <tbody>${rows.map(([old, now]) => html`<tr><td class=${old === now ? "same" : old === null ? "gap" : "del"}>${old ?? ""}</td><td class=${old === now ? "same" : now === null ? "gap" : "ins"}>${now ?? ""}</td></tr>`)}</tbody></table></div>
  </section>`;
}
