// @ts-check
// Doctor: the problems of the configuration and of the servers, each with what helps.
import { html } from "../vendor/ui.js";
import { findings, pending, servers } from "../api.js";
import { Command, count, fixOf, Help, link, State, troubleOf } from "../parts.js";

const WITHHELD_MAX = 20;

export function Doctor(/** @type {any} */ { title, search }) {
  const troubles = servers.value.map((server) => ({ server, trouble: troubleOf(server) })).filter((each) => each.trouble);
  const total = troubles.length + findings.value.length;
  // The number in the navigation is that of the configuration: servers and withheld tools have theirs beside their pages.
  const [settings, waiting] = [findings.value.length, pending.value.length];
  return html`<div class="top"><h1>${title}</h1><span>${total ? `${count(settings, "problem")} in the configuration, ${troubles.length} of servers` : "no problems"}</span>${search}</div>
    <div class="stack">
      <section class="panel"><h2>Configuration</h2>${findings.value.length
        ? findings.value.map((each) => {
          const [fix, command] = each.fix ? fixOf(each.fix) : ["", ""];
          return html`<div class="todo"><${State} look="warn">${each.problem}</${State}> <span class="unit">${each.code}</span><p>${fix}</p>${command ? html`<${Command} text=${command} />` : null}</div>`;
        })
        : html`<p class="empty">The configuration has no problems.</p>`}</section>
      <section class="panel"><h2>Servers</h2>${troubles.length
        ? troubles.map(({ server, trouble }) => html`<div class="todo" key=${server.name}><${State} look=${trouble?.look}><a href=${link("servers", server.name)}>${trouble?.title}</a></${State}><p>${trouble?.text}</p><${Help} trouble=${trouble} /></div>`)
        : html`<p class="empty">${servers.value.length ? "All servers work." : "No servers are configured."}</p>`}</section>
      ${waiting ? html`<section class="panel"><h2>Withheld tools</h2><div class="todo"><${State} look="warn"><a href=${link("definitions")}>${count(waiting, "tool")} withheld until you approve ${waiting === 1 ? "its definition" : "their definitions"}</a></${State}>
        <p>${pending.value.slice(0, WITHHELD_MAX).map((each, i) => html`${i ? ", " : ""}<code>${each.server}.${each.tool}</code>`)}${waiting > WITHHELD_MAX ? ` and ${waiting - WITHHELD_MAX} more` : ""}</p></div></section>` : null}
      <section class="panel"><h2>More checks</h2><div class="pad"><p class="dim">The command line also checks schemas, names and programs:</p><${Command} text="isthmus doctor" /></div></section>
    </div>`;
}
