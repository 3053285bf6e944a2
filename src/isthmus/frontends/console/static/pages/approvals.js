// @ts-check
// Approvals: calls that wait for a person, with their whole arguments, and the decision about each.
//
// A card never moves while somebody may be about to click: new cards come last, and one that no longer waits stays in
// its place, with its height and without its buttons, until the reader dismisses it or leaves the page.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/ui.js";
import { getSpelt, held, send, toJson } from "../api.js";
import { ago, clock, Command, count, frontendOf, link, State } from "../parts.js";

const REFRESH_MS = 2000;
const PAGE = 50;
/** With so many cards, further calls are shown when the reader has dismissed some. */
const CARDS_MAX = 200;
const EXAMPLE = '[approvals.destructive]\ntools = ["*"]\ndestructive = true';

/** Characters that are invisible or change the order of what is read: a person must see them to decide. */
const HIDDEN = /[\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\udb40][\udc00-\udfff]/g;
export const shown = (/** @type {string} */ text) => text.replace(HIDDEN, (found) => [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));

/** Browsers without this (before 2025) round long numbers. */
const isExact = "rawJSON" in JSON;

/** @typedef {{word: string, look: string, text: string}} End How a request ended. */
/** @typedef {{approval: any, end: End | null, seen: number}} Card `seen` is when it was last known to wait. */

/** How a decided request ended; null while it waits. @returns {End | null} */
function endOf(/** @type {any} */ { state, scope, decidedBy, reason }) {
  if (state === "pending") return null;
  const by = decidedBy ? ` by ${decidedBy}` : "", why = reason ? `: ${reason}` : ".";
  return state === "denied" ? { word: "denied", look: "bad", text: `It was denied${by}${why}` } : { word: "allowed", look: "", text: `It was allowed ${scope === "hour" ? "for an hour" : "once"}${by}.` };
}

/** How a request ended that the hub no longer has. What was allowed once is gone when the call has used it. @returns {End} */
function endOfGone(/** @type {Card} */ { approval, seen }) {
  const { expires } = approval, isLate = Date.now() / 1000 >= expires && seen >= expires - 3 * REFRESH_MS / 1000;
  return isLate ? { word: "expired", look: "idle", text: `Nobody decided until ${clock(expires)}.` }
    : { word: "gone", look: "idle", text: "It no longer waits: it was allowed and used, or its time is over. The audit log, if it is on, has who decided." };
}

/**
 * How a request ended; null if it waits, or the hub does not answer.
 * @param {string} id @param {() => End} ifGone @returns {Promise<End | null>}
 */
const findEnd = (id, ifGone) => getSpelt(`v1/approvals/${encodeURIComponent(id)}`).then(endOf, (error) => (error.status === 404 ? ifGone() : null));

export function Approvals(/** @type {any} */ { title, search }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [cards, setCards] = useState(/** @type {Card[]} */ ([]));
  const [problem, setProblem] = useState("");
  const [told, setTold] = useState("");
  /** Requests whose decision is on its way: its response says how they end. */
  const deciding = useRef(/** @type {Set<string>} */ (new Set())).current;
  const now = useRef(cards), heading = useRef(/** @type {any} */ (null)), stack = useRef(/** @type {any} */ (null));
  const show = (/** @type {Card[]} */ next) => setCards(now.current = next);
  const finish = (/** @type {Map<string, End>} */ ends) => {
    const news = now.current.filter(({ approval, end }) => !end && ends.has(approval.id));
    if (!news.length) return;
    show(now.current.map((card) => (card.end ? card : { ...card, end: ends.get(card.approval.id) ?? null })));
    setTold(news.map(({ approval }) => `${shown(approval.tool)} for ${shown(approval.caller)}: ${shown(ends.get(approval.id)?.text ?? "")}`).join(" "));
  };
  const load = async () => {
    try {
      const asked = Date.now() / 1000;
      const page = await getSpelt(`v1/approvals?state=pending&limit=${PAGE}`);
      const waiting = new Set(page.approvals.map((/** @type {any} */ each) => each.id)), known = new Set(now.current.map((card) => card.approval.id));
      const fresh = page.approvals.filter((/** @type {any} */ each) => !known.has(each.id)).map((/** @type {any} */ approval) => ({ approval, end: null, seen: asked }));
      show([...now.current.map((card) => (waiting.has(card.approval.id) ? { ...card, seen: asked } : card)), ...fresh].slice(0, Math.max(CARDS_MAX, now.current.length)));
      setFound(page);
      setProblem("");
      held.value = Number(page.total);
      const missing = now.current.filter((card) => !card.end && !waiting.has(card.approval.id) && !deciding.has(card.approval.id));
      const ends = await Promise.all(missing.map(async (card) => /** @type {const} */ ([card.approval.id, await findEnd(card.approval.id, () => endOfGone(card))])));
      finish(new Map(/** @type {[string, End][]} */ (ends.filter(([, end]) => end))));
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  };
  useEffect(() => {
    let timer = 0, isLeft = false;
    const next = () => { if (!isLeft) timer = setTimeout(() => (document.visibilityState === "visible" ? load() : Promise.resolve()).then(next), REFRESH_MS); };
    load().then(next);
    return () => { isLeft = true; clearTimeout(timer); };
  }, []);
  const dismiss = (/** @type {string | null} */ id) => {
    const at = now.current.findIndex((card) => card.approval.id === id);
    // The focus goes to a heading: a second press of the key must not decide about the next call.
    (stack.current.children[at + 1]?.querySelector("h2") ?? heading.current).focus({ preventScroll: true });
    show(now.current.filter(({ approval, end }) => (id === null ? !end : approval.id !== id)));
  };
  const ended = cards.filter((card) => card.end).length, waits = cards.length - ended, isFull = cards.length >= CARDS_MAX && found.total > waits;
  return html`<div class="top"><h1 ref=${heading} tabindex="-1">${title}</h1><span>${found?.total ? `${count(found.total, "call")} waiting` : ""}</span>${search}</div>
    <p class="vh" role="status">${told}</p>
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}
    ${isExact ? null : html`<p class="note" role="note">This browser rounds long numbers. Compare them with <code>isthmus approvals show ID</code>.</p>`}
    ${found === null && !problem ? html`<p class="loading" role="status">Loading …</p>` : null}
    <div class="stack" ref=${stack}>${cards.map((card) => html`<${Request} key=${card.approval.id} approval=${card.approval} end=${card.end} deciding=${deciding} onEnd=${(/** @type {End} */ end) => finish(new Map([[card.approval.id, end]]))} onDecided=${load} onDismiss=${() => dismiss(card.approval.id)} />`)}</div>
    ${found === null || waits || isFull ? null : html`<section class="panel empty"><p>No call waits for approval.</p>
      ${ended ? null : html`<p>A rule holds calls until you have read them here. This one, in the hub's file, holds calls of tools that may destroy something:</p><${Command} text=${EXAMPLE} what="rule" />`}</section>`}
    ${isFull || found?.next ? html`<p class="note">${isFull ? "Further calls wait. Dismiss those that ended to see them." : "The oldest calls are shown; others follow when you have decided."}</p>` : null}
    ${ended > 1 ? html`<p><button type="button" onClick=${() => dismiss(null)}>Dismiss all ${ended} that ended</button></p>` : null}`;
}

function Request(/** @type {any} */ { approval, end, deciding, onEnd, onDecided, onDismiss }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const card = useRef(/** @type {any} */ (null)), heading = useRef(/** @type {any} */ (null)), foot = useRef(/** @type {any} */ (null)), before = useRef({ height: 0, foot: 0, isEnded: Boolean(end), hasFocus: false });
  // What the card was before its buttons go: this render has not changed the document yet.
  if (end && !before.current.isEnded) before.current = { height: card.current.getBoundingClientRect().height, foot: foot.current.getBoundingClientRect().height, isEnded: true, hasFocus: card.current.contains(document.activeElement) };
  useLayoutEffect(() => {
    if (!end) return;
    // A long reason scrolls: a card that grows would move the others, as one that shrinks.
    card.current.style.minHeight = `${before.current.height}px`;
    Object.assign(foot.current.style, { height: `${before.current.foot}px`, overflow: "auto", overflowWrap: "anywhere" });
    if (before.current.hasFocus) heading.current.focus({ preventScroll: true });
  }, [Boolean(end)]);
  // The buttons are not disabled meanwhile: a disabled button loses the focus.
  const decide = async (/** @type {string} */ what, /** @type {any} */ body) => {
    if (deciding.has(approval.id)) return;
    deciding.add(approval.id);
    setBusy(true);
    try {
      onEnd(endOf(await send("POST", `v1/approvals/${what}/${encodeURIComponent(approval.id)}`, body)));
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      const end = status === 409 ? await findEnd(approval.id, () => ({ word: "gone", look: "idle", text: `${message}.` })) : null;
      if (end) onEnd({ ...end, text: `Your decision came too late. ${end.text}` });
      else setProblem(message);
    }
    deciding.delete(approval.id);
    setBusy(false);
    await onDecided();
  };
  const facts = [
    ["Caller", `${approval.caller} (${approval.tenant})`], ["By", frontendOf(approval.frontend)], ["Set", approval.set], ["Called as", approval.name === approval.tool ? null : approval.name], ["Script", approval.script && [approval.script, ...approval.scriptLines.map((/** @type {number} */ line) => `line ${line}`)].join(", ")],
    ["Rule", approval.rule], ["Why", approval.why], ["Added by the hub", approval.added.join(", ")], ["Digest", approval.digest],
  ].filter(([, value]) => value);
  const server = approval.tool.split(".")[0];
  return html`<section class="panel" ref=${card} aria-label=${`${shown(approval.tool)} for ${shown(approval.caller)}`}>
    <div class="bar"><h2 ref=${heading} tabindex="-1"><code>${shown(approval.tool)}</code></h2>${end ? html`<${State} look=${end.look}>${end.word}</${State}>` : html`<${State} look="warn">waiting</${State}><span class="dim">for ${ago(approval.requested)}, until ${clock(approval.expires)}</span>`}<span class="grow"></span>${end ? html`<button class="plain" type="button" onClick=${onDismiss}>Dismiss</button>` : null}<a href=${link("servers", server)}>Server</a></div>
    <div class="pad stack">
      <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd><code>${shown(value)}</code></dd>`)}</dl>
      <div class="captured"><h3>Arguments</h3><pre tabindex="0" role="region" aria-label="Arguments">${shown(toJson(approval.arguments, "  "))}</pre></div>
      ${problem && !end ? html`<p class="note bad" role="alert">${problem}</p>` : null}
      ${end ? html`<div key="end" ref=${foot} tabindex="0" role="region" aria-label="How it ended"><b>${shown(end.text)}</b></div>` : html`<div key="decide" class="bar" ref=${foot}><button class="main" type="button" aria-disabled=${busy} onClick=${() => decide("allow", { for: "once" })}>Allow once</button>
        <button type="button" aria-disabled=${busy} onClick=${() => decide("allow", { for: "hour" })}>Allow the same call for an hour</button>
        <input class="grow" type="text" maxlength="1000" placeholder="Reason, told to the caller" aria-label="Reason for denying" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} />
        <button type="button" aria-disabled=${busy} onClick=${() => decide("deny", { reason })}>Deny</button></div>`}
    </div>
  </section>`;
}
