"use strict";
// Numbers and words. null is what the server does not know; it is drawn as a dash.

const dash = "–";
const known = (v) => v !== null && v !== undefined;
const group = (v) => Math.round(v).toLocaleString("en-US").replace(/^-0$/, "0");
const quantity = (v) => !known(v) ? dash : Math.abs(v) < 99.95 ? v.toFixed(1) : group(v);
const rate = (v) => !known(v) ? dash : `${quantity(v)} /s`;
const count = (v) => !known(v) ? dash : group(v);
const percent = (v) => !known(v) ? dash : `${(v * 100).toFixed(0)} %`;
const ratio = (v) => !known(v) ? "unknown" : v.toFixed(2);

function duration(s) {
  if (!known(s)) return dash;
  if (s > 0 && s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 0.01) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 100) return `${s.toFixed(1)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return `${(s / 3600).toFixed(1)} h`;
}

function bytes(v) {
  if (!known(v)) return dash;
  const gib = v / 1073741824;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${(v / 1048576).toFixed(0)} MiB`;
}

const clock = (date) => date.toLocaleTimeString("en-GB");

const constraintNames = {
  curve: "capacity curve", sequence_slots: "sequence slots", token_slots: "token slots (KV cache)",
  token_budget: "token budget of a step", queue: "queue backlog", lora: "LoRA adapters",
};
// words turns a code such as hw_thermal into words.
const words = (code) => code.replaceAll("_", " ");

const zones = {
  stable: { glyph: "●", words: "stable: below the watermark" }, risk: { glyph: "▲", words: "risk: between the watermark and full" },
  unstable: { glyph: "■", words: "unstable: over full" }, unknown: { glyph: "○", words: "not known" },
};
const limitSources = {
  flag: "set by a flag", metric: "as the engine exports it", blocks: "KV blocks × block size", server_info: "from the engine's /server_info",
  cmdline: "from the engine's command line", default: "assumed default",
};
const bandwidthSources = { gpm: "measured on the GPU", engine: "the engine's own estimate", model: "this exporter's step model" };

const zoneOf = (v, watermark) => !known(v) ? "unknown" : v <= watermark ? "stable" : v <= 1 ? "risk" : "unstable";

const byId = (id) => document.getElementById(id);

// say changes text only where it differs, so that an unchanged page costs nothing and keeps a selection.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// fit gives a parent exactly n children, keeping those it has.
function fit(parent, n, make) {
  while (parent.children.length > n) parent.lastElementChild.remove();
  while (parent.children.length < n) parent.append(make());
  return [...parent.children];
}

// morph makes an element like another with as few changes as can be: what a reader points at,
// has selected or is being read by a screen reader stays.
function morph(element, like) {
  for (const { name } of [...element.attributes]) if (!like.hasAttribute(name)) element.removeAttribute(name);
  for (const { name, value } of like.attributes) if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  const old = [...element.childNodes], wanted = [...like.childNodes];
  wanted.forEach((node, i) => {
    if (!old[i]) element.append(node);
    else if (old[i].nodeName !== node.nodeName) old[i].replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) morph(old[i], node);
    else if (old[i].nodeValue !== node.nodeValue) old[i].nodeValue = node.nodeValue;
  });
  old.slice(wanted.length).forEach((node) => node.remove());
}

// facts fills a definition list with [term, value, note] rows; a row with stack puts its value below its term.
function facts(list, rows) {
  fit(list, rows.length, () => {
    const row = element("div");
    row.append(element("dt"), element("dd"), element("dd", "note"));
    return row;
  }).forEach((row, i) => {
    const [term, value, note, stack] = rows[i];
    say(row.children[0], term);
    say(row.children[1], value);
    say(row.children[2], note || "");
    row.children[2].hidden = !note;
    row.classList.toggle("stack", Boolean(stack));
  });
}
