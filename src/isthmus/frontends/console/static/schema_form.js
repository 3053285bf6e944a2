// @ts-check
// A form made from a JSON schema: texts, numbers, yes/no, choices, files, lists and nested objects. Whatever a form
// cannot show (unions, free objects) is a field for JSON. `read` turns the form's state into the value.
import { html, useRef, useState } from "./vendor/ui.js";
import { isParsedExactly, parse, toJson, typedNumber } from "./api.js";
import { decoded } from "./parts.js";

let ids = 0;

/** Follows local references; a reference to nothing, or a circle, is any value. */
function resolve(/** @type {any} */ schema, /** @type {any} */ root, depth = 0) {
  if (schema === true || schema === undefined || schema === null) return {};
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#/") && depth < 20) {
    let found = root;
    for (const part of schema.$ref.slice(2).split("/")) found = found?.[decoded(part).replaceAll("~1", "/").replaceAll("~0", "~")];
    const { $ref: _, ...beside } = schema;
    return { ...resolve(found, root, depth + 1), ...beside };
  }
  // `anyOf: [X, null]` is how Python servers write an optional value.
  const choices = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(choices)) {
    const real = choices.filter((each) => each?.type !== "null");
    if (real.length === 1) {
      const { anyOf: _, oneOf: __, ...beside } = schema;
      return { ...resolve(real[0], root, depth + 1), ...beside };
    }
    if (real.length && real.every((each) => "const" in (each ?? {}))) return { ...schema, enum: real.map((each) => each.const), enumNames: real.map((each) => each.title ?? String(each.const)) };
  }
  return schema;
}

/** Whether a text is a file in base64. A text of a text type is itself, without an encoding (JSON Schema, contents). */
const isFile = (/** @type {any} */ { contentEncoding, contentMediaType, format }) =>
  contentEncoding === "base64" || (contentEncoding === undefined && (format === "byte" || format === "binary" || (typeof contentMediaType === "string" && !/^text\/|json$|xml$/.test(contentMediaType))));

/** The hub takes requests of 4 MiB, and base64 makes a file a third longer. */
const FILE_BYTES_MAX = 3_000_000;

/** Bytes as base64, and back. */
function base64Of(/** @type {Uint8Array} */ bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32768) binary += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(binary);
}
export function bytesOf(/** @type {string} */ data) {
  try {
    return Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(data); // it is not base64: saved as it is
  }
}

/** How a schema is shown. */
export function kindOf(/** @type {any} */ schema) {
  if (Array.isArray(schema.enum)) return "choice";
  const types = Array.isArray(schema.type) ? schema.type.filter((/** @type {string} */ each) => each !== "null") : [schema.type];
  const type = types.length === 1 ? types[0] : undefined;
  if (type === "string") return isFile(schema) ? "file" : "text";
  if (type === "integer" || type === "number") return "number";
  if (type === "boolean") return "yes";
  if (type === "array" && schema.items && !Array.isArray(schema.items)) return "list";
  if (type === "object" && schema.properties) return "object";
  return "json";
}

const DEPTH_MAX = 8;

/** The position of a value in a list of choices, as the form keeps it. */
function choiceOf(/** @type {any[]} */ choices, /** @type {any} */ value) {
  const at = choices.findIndex((each) => toJson(each) === toJson(value));
  return value === undefined || at < 0 ? "" : String(at);
}

/** The state of an empty form. */
export function blank(/** @type {any} */ given, root = given, depth = 0) {
  const schema = resolve(given, root), kind = depth > DEPTH_MAX ? "json" : kindOf(schema);
  const has = schema.default !== undefined && schema.default !== null;
  switch (kind) {
    case "object": return Object.fromEntries(Object.entries(schema.properties).map(([key, each]) => [key, blank(each, root, depth + 1)]));
    case "list": return has && Array.isArray(schema.default) ? schema.default.map((/** @type {any} */ each) => fill(schema.items, each, root, depth + 1)) : [];
    case "yes": return has ? Boolean(schema.default) : null;
    case "json": return has ? toJson(schema.default) : "";
    case "choice": return choiceOf(schema.enum, schema.default);
    default: return has ? String(schema.default) : "";
  }
}

/** The state of a form that shows this value. */
export function fill(/** @type {any} */ given, /** @type {any} */ value, /** @type {any} */ root = given, depth = 0) {
  const schema = resolve(given, root), kind = depth > DEPTH_MAX ? "json" : kindOf(schema);
  if (value === null || value === undefined) return blank(given, root, depth);
  if (kind === "json") return toJson(value);
  if (kind === "object") return Object.fromEntries(Object.entries(schema.properties).map(([key, each]) => [key, value?.[key] === undefined ? blank(each, root, depth + 1) : fill(each, value[key], root, depth + 1)]));
  if (kind === "list") return (Array.isArray(value) ? value : []).map((/** @type {any} */ each) => fill(schema.items, each, root, depth + 1));
  if (kind === "choice") return choiceOf(schema.enum, value);
  return kind === "yes" ? Boolean(value) : String(value);
}

/**
 * The value of a form; undefined if it is empty. Throws an `Error` that names the field.
 * @param {any} given @param {any} state @param {{root?: any, isNeeded?: boolean, path?: string, depth?: number}} where
 * @returns {any}
 */
export function read(given, state, { root = given, isNeeded = true, path = "", depth = 0 } = {}) {
  const schema = resolve(given, root), kind = depth > DEPTH_MAX ? "json" : kindOf(schema), name = path || "the value";
  switch (kind) {
    case "object": {
      const found = /** @type {Record<string, any>} */ ({});
      for (const [key, each] of Object.entries(schema.properties)) {
        const value = read(each, state?.[key], { root, isNeeded: (schema.required ?? []).includes(key), path: path ? `${path}.${key}` : key, depth: depth + 1 });
        if (value !== undefined) found[key] = value;
      }
      return isNeeded || Object.keys(found).length ? found : undefined;
    }
    case "list": {
      const found = (state ?? []).map((/** @type {any} */ each, /** @type {number} */ i) => read(schema.items, each, { root, path: `${name}[${i}]`, depth: depth + 1 }));
      return found.length || isNeeded ? found : undefined;
    }
    case "yes": return state === null ? (isNeeded ? false : undefined) : state;
    case "choice": if (state === "" || state === undefined) { if (isNeeded) throw new Error(`Choose ${name}.`); return undefined; } return schema.enum[Number(state)];
    case "number": {
      if (state === "" || state === undefined) { if (isNeeded) throw new Error(`${name} needs a number.`); return undefined; }
      const number = typedNumber(state);
      if (number === null) throw new Error(`${name} must be a number, not ${state}.`);
      return number;
    }
    case "file": if (!state) { if (isNeeded) throw new Error(`Choose a file for ${name}.`); return undefined; } return state;
    case "json": {
      if (!state?.trim()) { if (isNeeded && path) throw new Error(`${name} needs a value (JSON).`); return path ? undefined : {}; }
      if (!isParsedExactly(state)) throw new Error(`${name} has a long number, which this browser would round. Use a browser of 2025 or later, or the command line.`);
      try { return parse(state); } catch { throw new Error(`${name} must be JSON: a text needs quotes, for example "text".`); }
    }
    default: return state === "" || state === undefined ? (isNeeded ? "" : undefined) : state;
  }
}

/** @param {{schema: any, state: any, onChange: (state: any) => void, root?: any, name?: string, isNeeded?: boolean, depth?: number}} props */
export function Field({ schema: given, state, onChange, root = given, name = "", isNeeded = false, depth = 0 }) {
  const schema = resolve(given, root), kind = depth > DEPTH_MAX ? "json" : kindOf(schema);
  const id = useRef(/** @type {any} */ (null));
  id.current ??= `field-${++ids}`;
  const title = !name && kind === "json" ? schema.title ?? "Arguments" : schema.title && schema.title.toLowerCase() !== name.toLowerCase().replaceAll("_", " ") ? `${name} · ${schema.title}` : name;
  const head = html`${title}${isNeeded ? html` <span class="need" title="required">*<span class="vh">required</span></span>` : null}`;
  const hint = schema.description ? html`<p class="hint" id=${`${id.current}-hint`}>${schema.description}</p>` : null;
  const about = schema.description ? `${id.current}-hint` : undefined;
  const text = (/** @type {any} */ event) => onChange(event.currentTarget.value);
  if (kind === "object") {
    const fields = Object.entries(schema.properties).map(([key, each]) => html`<${Field} key=${key} schema=${each} root=${root} name=${key} depth=${depth + 1}
      isNeeded=${(schema.required ?? []).includes(key)} state=${state?.[key]} onChange=${(/** @type {any} */ value) => onChange({ ...state, [key]: value })} />`);
    return name ? html`<fieldset><legend>${head}</legend>${hint}${fields}</fieldset>` : html`${fields.length ? fields : html`<p class="dim">This tool takes no arguments.</p>`}`;
  }
  if (kind === "list") {
    const items = state ?? [];
    const replace = (/** @type {number} */ at, /** @type {any} */ value) => onChange(items.map((/** @type {any} */ each, /** @type {number} */ i) => (i === at ? value : each)));
    return html`<fieldset><legend>${head}</legend>${hint}
      ${items.map((/** @type {any} */ item, /** @type {number} */ i) => html`<div class="item" key=${i}><${Field} schema=${schema.items} root=${root} name=${`${i + 1}`} depth=${depth + 1} isNeeded state=${item} onChange=${(/** @type {any} */ value) => replace(i, value)} />
        <button type="button" aria-label=${`Remove ${name} ${i + 1}`} onClick=${() => onChange(items.filter((/** @type {any} */ _, /** @type {number} */ at) => at !== i))}>Remove</button></div>`)}
      <p><button type="button" onClick=${() => onChange([...items, blank(schema.items, root, depth + 1)])}>Add ${name || "item"}</button></p></fieldset>`;
  }
  if (kind === "yes") {
    return html`<div class="field"><label for=${id.current}>${head}</label>${hint}<select id=${id.current} aria-describedby=${about} value=${state === null || state === undefined ? "" : String(state)} onChange=${(/** @type {any} */ e) => onChange(e.currentTarget.value === "" ? null : e.currentTarget.value === "true")}>
      ${isNeeded ? null : html`<option value="">not set</option>`}<option value="true">yes</option><option value="false">no</option></select></div>`;
  }
  if (kind === "choice") {
    return html`<div class="field"><label for=${id.current}>${head}</label>${hint}<select id=${id.current} aria-describedby=${about} value=${state ?? ""} onChange=${text}>
      <option value="">${isNeeded ? "choose …" : "not set"}</option>${schema.enum.map((/** @type {any} */ each, /** @type {number} */ i) => html`<option value=${String(i)}>${schema.enumNames?.[i] ?? String(each)}</option>`)}</select></div>`;
  }
  if (kind === "file") return html`<${FileField} id=${id.current} head=${head} hint=${hint} about=${about} type=${schema.contentMediaType} state=${state} onChange=${onChange} />`;
  const isLong = kind === "json" || schema.maxLength > 200 || schema.format === "textarea" || /(content|text|body|query|code|prompt|message)$/i.test(name);
  if (isLong) return html`<div class="field"><label for=${id.current}>${head}${kind === "json" ? html` <span class="unit">JSON</span>` : null}</label>${hint}<textarea id=${id.current} aria-describedby=${about} value=${state ?? ""} onInput=${text} placeholder=${kind === "json" ? exampleOf(schema) : ""}></textarea></div>`;
  const type = kind === "number" ? "number" : { email: "email", uri: "url", date: "date" }[/** @type {string} */ (schema.format)] ?? "text";
  return html`<div class="field"><label for=${id.current}>${head}</label>${hint}<input id=${id.current} type=${type} step="any" aria-describedby=${about} value=${state ?? ""} onInput=${text} placeholder=${schema.examples?.[0] ?? ""} /></div>`;
}

function FileField(/** @type {any} */ { id, head, hint, about, type, state, onChange }) {
  const [problem, setProblem] = useState("");
  const load = async (/** @type {any} */ event) => {
    const input = event.currentTarget, file = input.files[0];
    setProblem("");
    if (!file) return onChange("");
    if (file.size > FILE_BYTES_MAX) {
      setProblem(`${file.name} has ${file.size.toLocaleString("en")} bytes. A file may have ${FILE_BYTES_MAX.toLocaleString("en")} here: the hub takes requests of 4 MiB. Give the tool a path or an address instead, if it takes one.`);
      input.value = "";
      return onChange("");
    }
    return onChange(base64Of(new Uint8Array(await file.arrayBuffer())));
  };
  return html`<div class="field"><label for=${id}>${head}</label>${hint}<input id=${id} type="file" accept=${type} aria-describedby=${about} onChange=${load} />
    ${state ? html`<p class="hint">${Math.floor((state.replace(/=+$/, "").length * 3) / 4).toLocaleString("en")} bytes, sent as base64</p>` : null}
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}</div>`;
}

const exampleOf = (/** @type {any} */ schema) => (schema.examples?.[0] !== undefined ? toJson(schema.examples[0]) : schema.type === "array" ? "[ ]" : "{ }");
