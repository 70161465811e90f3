"use strict";
// Shows what `v1/page/changes` tells. Every text goes in as text: names of pods and commands are whoever's.

// -- words ------------------------------------------------------------------------------------------------------------

const WORDS = JSON.parse(document.getElementById("words").textContent);
const KEPT = "mpsd.language";
let language = chosenLanguage();

function chosenLanguage() {
  let kept = null;
  try { kept = localStorage.getItem(KEPT); } catch { /* a browser that keeps nothing */ }
  if (kept in WORDS) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

function t(key, values = {}) {
  const forms = (WORDS[language][key] ?? key).split("|");
  const text = forms.length > 1 && values.n !== 1 ? forms[1] : forms[0];
  return text.replace(/\{(\w+)\}/g, (_whole, name) => String(values[name] ?? "?"));
}

/** The word for a value of a closed set; one that a newer mpsd tells of is shown as it is. */
const label = (set, value) => WORDS[language][`${set}.${value}`] ?? value;
const known = (value) => (value === null || value === undefined ? "?" : String(value));
const gib = (mib) => (mib === null || mib === undefined ? "?" : String(Math.floor(mib * 10 / 1024) / 10));
const percent = (value) => (value === null || value === undefined ? "?" : t("percent", { n: value }));

function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [least, unit, word] of [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"]]) {
    if (whole >= least) return t(`age.${word}`, { n: Math.floor(whole / unit) });
  }
  return t("age.s", { n: whole });
}

function clock(seconds) {
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  return new Date(seconds * 1000).toLocaleTimeString(language, options);
}

// -- elements ---------------------------------------------------------------------------------------------------------

const at = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** mpsd's own sentences, and names: they are in no language but their own. */
function own(element, text) {
  element.lang = "en";
  say(element, text);
}

/** Makes the children of `parent` those of `items`, keeping each element that is there already. */
function keyed(parent, items, make, update, key = (item) => item.id) {
  const before = parent.kept ?? new Map();
  const kept = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const found = before.get(key(item)) ?? make(item);
    kept.set(key(item), found);
    if (found === place) place = place.nextSibling;
    else parent.insertBefore(found, place);
    if (found.item !== item || found.epoch !== epoch) {
      update(found, item);
      found.item = item;
      found.epoch = epoch;
    }
  }
  for (const [name, element] of before) if (!kept.has(name)) element.remove();
  parent.kept = kept;
}

// -- what is known ----------------------------------------------------------------------------------------------------

const LISTS = ["notes", "nodes", "gpus", "waiting", "lately"];
const told = { head: null, lists: Object.fromEntries(LISTS.map((name) => [name, new Map()])) };
const RANK = { bad: 0, warn: 1, well: 2 };
let epoch = 0; // another one, and every element is made anew: the language, or what is searched for
let clockAhead = -Infinity; // seconds by which the server's clock is ahead of this browser's

function take(message) {
  if (message.whole) for (const name of LISTS) told.lists[name].clear();
  for (const name of LISTS) {
    const list = told.lists[name];
    for (const one of message.gone[name] ?? []) list.delete(one);
    for (const one of message.put[name]) list.set(one.id, one);
  }
  if (message.whole) clockAhead = -Infinity;
  takeHead(message.head);
}

function takeHead(head) {
  if (!head) return;
  told.head = head;
  clockAhead = Math.max(clockAhead, head.at - Date.now() / 1000);
}

const now = () => Date.now() / 1000 + (Number.isFinite(clockAhead) ? clockAhead : 0);
const list = (name) => [...told.lists[name].values()];
const natural = new Intl.Collator("en", { numeric: true });
const worstFirst = (one, other) => RANK[one.level] - RANK[other.level];

// -- the connection ---------------------------------------------------------------------------------------------------

const SILENT_MS = 40_000, LONGEST_PAUSE_MS = 10_000;
const link = { state: "connecting", lostAt: null, why: "" };

async function follow() {
  for (let failures = 0; ; failures++) {
    try {
      await stream(() => { failures = 0; });
    } catch (error) {
      link.why = error.reason ?? "";
    }
    lost();
    await new Promise((go) => setTimeout(go, Math.min(LONGEST_PAUSE_MS, 500 * 2 ** failures)));
  }
}

/** One connection, from its beginning to its end. */
async function stream(heard) {
  const gaveUp = new AbortController();
  let silence = setTimeout(() => gaveUp.abort(), SILENT_MS);
  try {
    const answer = await fetch("v1/page/changes", { signal: gaveUp.signal, cache: "no-store", headers: { Accept: "text/event-stream" } });
    if (!answer.ok) throw Object.assign(new Error(), { reason: `${answer.status} ${(await answer.text()).trim()}` });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => gaveUp.abort(), SILENT_MS);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        hear(event);
        heard();
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

function hear(event) {
  const [name, data] = event.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
  if (name === "page") take(JSON.parse(data));
  else if (name === "beat") takeHead(JSON.parse(data));
  if (link.state === "lost") say(at("said"), t("said.back"));
  Object.assign(link, { state: "live", lostAt: null, why: "" });
  soon();
}

function lost() {
  if (link.lostAt === null) {
    link.lostAt = Date.now() / 1000;
    if (told.head) say(at("said"), t("said.lost"));
  }
  link.state = "lost";
  soon();
}

// -- searching --------------------------------------------------------------------------------------------------------

let terms = [];
const hays = new WeakMap();

function matches(item, ...texts) {
  if (!terms.length) return true;
  if (!hays.has(item)) hays.set(item, texts.join(" ").toLowerCase());
  const hay = hays.get(item);
  return terms.every((term) => hay.includes(term));
}

const sliceMatches = (one) => matches(one, one.name, one.pid ?? "", one.holder);
const gpuMatches = (gpu) => matches(gpu, gpu.node, gpu.label, gpu.model, gpu.uuid, gpu.domain, gpu.state, gpu.reason);
const nodeMatches = (node) => matches(node, node.id, node.cordoned, node.driver);
const gpuShown = (gpu) => gpuMatches(gpu) || (gpu.slices ?? []).some(sliceMatches);

// -- the top ----------------------------------------------------------------------------------------------------------

const AGED_S = { node: 30, cluster: 75 };

function showLink() {
  const { head } = told;
  const values = { at: clock(link.lostAt ?? 0), age: age(Date.now() / 1000 - (link.lostAt ?? 0)), why: link.why };
  const kind = link.state === "lost" ? (link.why ? "refused" : "lost") : link.state;
  say(at("link-text"), t(`link.${kind}`, values));
  const old = head !== null && now() - head.at > AGED_S[head.scope];
  document.body.className = link.state === "live" ? (old || head?.away ? "live aged" : "live") : link.state;
  say(at("verdict-stale"), staleWords(head, old));
}

function staleWords(head, old) {
  if (!head) return "";
  if (link.state === "lost") return t("stale.lost", { at: clock(head.at) });
  if (head.away) {
    return t(head.away_since === null ? "stale.away.unknown" : "stale.away", { at: clock(head.away_since ?? 0), why: head.away });
  }
  return old ? t("stale.aged", { at: clock(head.at), age: age(now() - head.at) }) : "";
}

function sum(gpus, field) {
  const found = gpus.map((gpu) => gpu[field]);
  return found.some((value) => value === null) ? null : found.reduce((total, value) => total + value, 0);
}

function showVerdict() {
  const { head } = told, gpus = list("gpus"), notes = list("notes");
  const count = (level) => notes.filter((note) => note.level === level).length;
  const worst = count("bad") ? "bad" : count("warn") ? "warn" : "well";
  let level = worst, title = t(`verdict.${worst}`, { n: count(worst) });
  if (!head) [level, title] = ["none", t("verdict.connecting")];
  else if (worst === "well" && (!gpus.length || head.away)) {
    [level, title] = ["warn", t(head.away ? "verdict.connecting" : "verdict.none")];
  }
  at("verdict").dataset.level = level;
  say(at("verdict-title"), title);
  say(at("name"), head ? (head.scope === "cluster" ? t("scope.cluster") : `${t("scope.node")} ${head.name}`) : "");
  document.title = `${level === "bad" ? `✖ ${count("bad")} · ` : level === "warn" ? "▲ " : ""}${head?.name ?? "…"} – mpsd`;
  say(at("version"), head?.version ? `mpsd ${head.version}` : "");
  say(at("verdict-figures"), gpus.length ? figures(gpus) : "");
}

function figures(gpus) {
  const waiting = told.lists.waiting.size + told.head.waiting_more;
  const serves = (gpu) => gpu.state === "ready" && !told.lists.nodes.get(gpu.node)?.stale;
  const words = t("verdict.figures", {
    ready: gpus.filter(serves).length, gpus: gpus.length,
    granted: gib(sum(gpus, "granted_mib")), promised: gib(sum(gpus, "promised_mib")), used: gib(sum(gpus, "used_mib")),
  });
  return waiting ? `${words} · ${t("verdict.waiting", { n: waiting })}` : words;
}

// -- lists of lines ---------------------------------------------------------------------------------------------------

const SHORT = 12, LONG = 400;
const unfolded = new Set();

/** Shows the first of many, and a button for the rest. While something is searched for, everything found is shown. */
function lines(id, found, make, update) {
  const most = terms.length ? LONG : unfolded.has(id) ? found.length : SHORT;
  keyed(at(id), found.slice(0, most), make, update);
  const button = at(`${id}-more`);
  if (!button) return;
  button.hidden = terms.length > 0 || found.length <= SHORT;
  button.setAttribute("aria-expanded", String(unfolded.has(id)));
  say(button, unfolded.has(id) ? t("fewer") : t("more", { n: found.length }));
}

function makeLine() {
  const parts = {
    mark: el("span", { class: "mark" }), level: el("span", { class: "unseen" }), name: el("strong", { dir: "auto" }), chip: el("span", { class: "chip" }),
    words: el("span"), asks: el("span", { class: "asks" }), time: el("time"), text: el("p"),
  };
  const { mark, level, name, chip, words, asks, time, text } = parts;
  mark.append(level);
  return Object.assign(el("li", {}, el("div", { class: "line" }, mark, name, chip, words, asks, time), text), { parts });
}

function fillLine(line, level, { name = "", chip = "", words = "", asks = "", since = null, ago = false, text = "" }) {
  const { parts } = line;
  parts.mark.dataset.level = parts.chip.dataset.level = level;
  say(parts.level, t(`level.${level}`));
  own(parts.name, name);
  say(parts.chip, chip);
  say(parts.words, words);
  say(parts.asks, asks);
  own(parts.text, text);
  stamp(parts.time, since, ago ? "ago" : "for");
  for (const part of [parts.name, parts.chip, parts.words, parts.asks, parts.text]) part.hidden = !part.textContent;
}

function fillNote(line, note) {
  const chip = note.kind === "state" ? label("state", note.state) : "";
  fillLine(line, note.level, { name: note.where, chip, words: chip ? "" : t(`note.${note.kind}`), since: note.since, text: note.text });
}

function fillWaiting(line, one) {
  const words = one.place ? t("waiting.place", { n: one.place }) : "";
  fillLine(line, one.level, { name: one.name, chip: one.why ? label("why", one.why) : "", words, asks: asks(one), text: one.text });
}

function asks(one) {
  const what = [];
  if (one.memory_mib) what.push(one.gpus > 1 ? t("waiting.each", { gib: gib(one.memory_mib), gpus: one.gpus }) : t("gib", { n: gib(one.memory_mib) }));
  if (one.thread_percent) what.push(t("waiting.threads", { n: one.thread_percent }));
  return what.length ? t("waiting.asks", { what: what.join(", ") }) : "";
}

function fillLately(line, one) {
  const words = WORDS[language];
  const chip = words[`event.${one.what}`] ?? words[`state.${one.what}`] ?? one.what;
  fillLine(line, one.level, { name: one.where, chip, since: one.at, ago: true, text: one.text });
}

function showLines() {
  const notes = list("notes").filter((one) => matches(one, one.where, one.text, one.kind, one.state));
  notes.sort((one, other) => worstFirst(one, other) || (other.since ?? 0) - (one.since ?? 0) || natural.compare(one.id, other.id));
  lines("notes", notes, makeLine, fillNote);
  const waiting = list("waiting").filter((one) => matches(one, one.name, one.why, one.text));
  waiting.sort((one, other) => one.place - other.place || worstFirst(one, other) || natural.compare(one.name, other.name));
  const more = told.head?.waiting_more ?? 0, all = told.lists.waiting.size;
  at("waiting-part").hidden = !all && !more;
  say(at("waiting-title"), `${t("waiting")} (${all + more})${more ? ` – ${t("waiting.unlisted", { n: more })}` : ""}`);
  lines("waiting", waiting, makeLine, fillWaiting);
  const lately = list("lately").filter((one) => matches(one, one.where, one.what, one.text)).sort((one, other) => other.at - one.at);
  lines("lately", lately, makeLine, fillLately);
  at("lately-none").hidden = lately.length > 0;
  say(at("lately-none"), t(terms.length ? "found.none" : "lately.none"));
  return notes.length * (terms.length > 0) + waiting.length + lately.length;
}

// -- GPUs -------------------------------------------------------------------------------------------------------------

const opened = new Map(); // by id of a GPU or a node, what somebody has opened or closed

function fold(id, ...inside) {
  const summary = el("summary");
  const made = el("details", {}, summary, ...inside);
  summary.addEventListener("click", () => opened.set(id, !made.open));
  made.addEventListener("toggle", () => { epoch++; soon(); });
  return { made, summary };
}

function makeGpu(gpu) {
  const title = el(gpu.node ? "h4" : "h3", { id: `title ${gpu.id}`.replace(/\s/g, "-") });
  const parts = {
    title, chip: el("span", { class: "chip mark" }), cordoned: el("span", { class: "chip mark", "data-level": "warn" }), time: el("time"),
    why: el("p", { class: "why", lang: "en" }), bar: el("div", { class: "bar", role: "img" }), threads: el("div", { class: "bar threads", role: "img" }),
    figures: el("dl", { class: "figures" }), none: el("p", { class: "muted" }), head: el("tr"), rows: el("tbody"),
  };
  const table = el("table", { "aria-labelledby": title.id }, el("thead", {}, parts.head), parts.rows);
  Object.assign(parts, fold(gpu.id, table));
  const chips = el("div", { class: "chips" }, parts.time, parts.cordoned, parts.chip);
  const head = el("div", { class: "gpu-head" }, title, chips);
  const card = el("article", { class: "gpu", "aria-labelledby": title.id }, head, parts.why, parts.bar, parts.threads, parts.figures, parts.made, parts.none);
  return Object.assign(card, { parts });
}

function fillGpu(card, gpu) {
  const { parts } = card, slices = gpu.slices ?? [];
  const serves = gpu.state === "ready";
  card.dataset.level = gpu.level;
  parts.chip.dataset.level = serves ? "well" : gpu.level;
  parts.title.replaceChildren(gpu.label, " ", el("small", { lang: "en" }));
  own(parts.title.lastChild, gpu.model.replace(/^NVIDIA /, ""));
  say(parts.chip, label("state", gpu.state ?? "none"));
  say(parts.cordoned, t("cordoned"));
  parts.cordoned.hidden = !gpu.cordoned;
  stamp(parts.time, serves ? null : gpu.since, "for");
  own(parts.why, gpu.reason);
  parts.why.hidden = !gpu.reason || serves;
  fillBar(parts.bar, gpu, slices);
  fillThreads(parts.threads, gpu, slices);
  fillFigures(parts.figures, gpu);
  fillTable(parts, gpu, slices);
}

function fillBar(bar, gpu, slices) {
  const shown = slices.map((one) => one.memory_mib ?? one.used_mib ?? 0);
  const whole = Math.max(gpu.memory_mib ?? gpu.promised_mib ?? 0, shown.reduce((total, mib) => total + mib, 0), 1);
  const values = { gpu: gpu.label, granted: gib(gpu.granted_mib), promised: gib(gpu.promised_mib), used: gib(gpu.used_mib), holders: t("slices", { n: slices.length }) };
  bar.setAttribute("aria-label", t(gpu.slices ? "bar" : "bar.unknown", values));
  bar.classList.toggle("key", !gpu.slices);
  bar.classList.toggle("unknown", !gpu.slices);
  const hit = terms.length && !gpuMatches(gpu);
  keyed(bar, slices, makeSlice, (part, one) => fillSlice(part, one, whole, hit));
}

function makeSlice() {
  return el("div", { class: "slice" }, el("div", { class: "fill" }), el("span", { class: "tag", lang: "en", dir: "auto" }));
}

function fillSlice(part, one, whole, hit) {
  const [fill, tag] = part.children;
  const mib = one.memory_mib ?? one.used_mib ?? 0;
  part.style.flex = `0 0 ${(100 * mib) / whole}%`;
  part.title = `${one.name} ${amounts(one)}`;
  const unknown = one.used_mib === null;
  fill.style.width = unknown ? "100%" : `${Math.min(100, (100 * one.used_mib) / Math.max(1, mib))}%`;
  part.classList.toggle("unknown", unknown);
  part.classList.toggle("over", one.over || one.holder === "stranger");
  part.classList.toggle("dim", Boolean(hit) && !sliceMatches(one));
  say(tag, mib / whole > 0.1 ? one.name.slice(one.name.indexOf("/") + 1) : "");
}

function fillThreads(bar, gpu, slices) {
  const whole = Math.max(100, gpu.promised_percent ?? 0, gpu.granted_percent ?? 0);
  bar.setAttribute("aria-label", t("bar.threads", { gpu: gpu.label, granted: known(gpu.granted_percent), promised: known(gpu.promised_percent) }));
  const some = slices.filter((one) => one.reserved_percent);
  keyed(bar, some, () => el("div", { class: "slice" }), (part, one) => { part.style.flex = `0 0 ${(100 * one.reserved_percent) / whole}%`; });
}

const amounts = (one) => (one.memory_mib === null ? t("gib", { n: gib(one.used_mib) }) : `${gib(one.used_mib)} / ${t("gib", { n: gib(one.memory_mib) })}`);

function fillFigures(box, gpu) {
  const of = (part, whole) => t("of", { part, whole });
  const rows = [
    ["granted", of(gib(gpu.granted_mib), t("gib", { n: gib(gpu.promised_mib) }))],
    ["used", t("gib", { n: gib(gpu.used_mib) })],
    ["threads", of(known(gpu.granted_percent), percent(gpu.promised_percent))],
    ["clients", of(known(gpu.clients), known(gpu.promised_clients))],
  ];
  if (gpu.restarts !== 0) rows.push(["restarts", known(gpu.restarts)]);
  keyed(box, rows, () => el("div", {}, el("dt"), el("dd")), (row, [key, text]) => {
    say(row.children[0], t(key));
    say(row.children[1], text);
  }, ([key]) => key);
}

function fillTable(parts, gpu, slices) {
  const { made, summary } = parts;
  const some = slices.some(sliceMatches);
  made.hidden = !slices.length;
  parts.none.hidden = slices.length > 0;
  say(parts.none, t(gpu.slices ? "slices.none" : "slices.unknown"));
  say(summary, t("slices", { n: slices.length }));
  made.open = opened.get(gpu.id) ?? (terms.length ? some && !gpuMatches(gpu) : told.head.scope === "node" && slices.length <= 6);
  if (!made.open || !slices.length) return;
  keyed(parts.head, ["holder", "holder.used", "holder.threads", "holder.clients"], () => el("th", { scope: "col" }), (cell, key) => say(cell, t(key)), (key) => key);
  const hit = terms.length > 0 && !gpuMatches(gpu);
  keyed(parts.rows, hit ? slices.filter(sliceMatches) : slices, makeRow, fillRow);
}

function makeRow() {
  const name = el("span", { lang: "en", dir: "auto" }), chip = el("span", { class: "chip mark", "data-level": "warn" });
  const row = el("tr", {}, el("th", { scope: "row" }, name, " ", chip), el("td"), el("td"), el("td"));
  return Object.assign(row, { parts: { name, chip } });
}

function fillRow(row, one) {
  const [, use, threads, clients] = row.children, { name, chip } = row.parts;
  own(name, one.name);
  const said = [one.holder === "stranger" && t("holder.stranger"), one.over && t("slice.over"), one.ended && t("slice.ended"), one.pid !== null && t("pid", { n: one.pid })];
  const words = said.filter(Boolean);
  const bad = one.over || one.holder === "stranger";
  say(chip, words.join(", "));
  chip.hidden = !words.length;
  chip.className = bad || one.ended ? "chip mark" : "muted";
  chip.dataset.level = bad ? "bad" : "warn";
  row.className = terms.length && sliceMatches(one) ? "hit" : "";
  say(use, amounts(one));
  say(threads, percent(one.thread_percent));
  say(clients, known(one.clients));
}

const byGpu = (one, other) => worstFirst(one, other) || natural.compare(one.label, other.label);

// -- nodes ------------------------------------------------------------------------------------------------------------

const FEW = 3, MOST_OPEN = 12;

function makeNode(node) {
  const parts = { name: el("h3", { lang: "en" }), chip: el("span", { class: "chip mark" }), meta: el("span", { class: "meta" }), time: el("time", { class: "meta" }), minis: el("span", { class: "minis", role: "img" }), grid: el("div", { class: "grid" }) };
  Object.assign(parts, fold(node.id, parts.grid));
  parts.summary.append(parts.name, parts.chip, parts.meta, parts.time, parts.minis);
  return Object.assign(el("article", { class: "panel node" }, parts.made), { parts });
}

function fillNode(box, { node, gpus, open }) {
  const { parts } = box;
  own(parts.name, node.id);
  parts.chip.dataset.level = node.level;
  box.classList.toggle("silent", node.stale);
  say(parts.chip, node.stale ? t("node.stale") : t(`level.${node.level}`));
  const words = [t("node.gpus", { n: gpus.length }), t("gib", { n: `${gib(sum(gpus, "granted_mib"))}/${gib(sum(gpus, "promised_mib"))}` })];
  if (node.cordoned) words.push(t("node.cordoned", { what: node.cordoned }));
  if (node.told_at === null) words.push(t("node.never"));
  say(parts.meta, words.join(" · "));
  stamp(parts.time, node.told_at, "told");
  parts.minis.setAttribute("aria-label", words[0]);
  keyed(parts.minis, gpus, () => el("span", { class: "mini" }, el("i"), el("i")), fillMini);
  parts.made.open = opened.get(node.id) ?? open;
  keyed(parts.grid, parts.made.open ? gpus : [], makeGpu, fillGpu);
}

function fillMini(box, gpu) {
  const whole = gpu.memory_mib ?? gpu.promised_mib ?? 1;
  box.dataset.level = gpu.level;
  [gpu.granted_mib, gpu.used_mib].forEach((mib, place) => { box.children[place].style.width = `${Math.min(100, (100 * (mib ?? 0)) / whole)}%`; });
}

function showGpus() {
  const cluster = told.head?.scope === "cluster";
  const gpus = list("gpus").filter(gpuShown).sort(byGpu);
  const box = at("gpus");
  box.className = cluster ? "" : "grid";
  say(at("gpus-title"), t(cluster ? "gpus.nodes" : "gpus"));
  let found = terms.length ? gpus.length : 0;
  if (cluster) {
    const nodes = nodesShown(gpus);
    found += terms.length ? nodes.filter(({ node }) => nodeMatches(node)).length : 0;
    keyed(box, nodes, ({ node }) => makeNode(node), fillNode, ({ node }) => node.id);
  } else keyed(box, gpus, makeGpu, fillGpu);
  at("gpus-none").hidden = gpus.length > 0 || (cluster && box.hasChildNodes());
  say(at("gpus-none"), t(terms.length ? "found.none" : "gpus.none"));
  return found;
}

function nodesShown(gpus) {
  const of = Map.groupBy ? Map.groupBy(gpus, (gpu) => gpu.node) : group(gpus);
  const shown = list("nodes").filter((node) => of.has(node.id) || nodeMatches(node));
  shown.sort((one, other) => worstFirst(one, other) || natural.compare(one.id, other.id));
  const few = shown.length <= FEW;
  return shown.map((node, place) => ({ node, gpus: of.get(node.id) ?? [], open: few || (place < MOST_OPEN && (terms.length > 0 || node.level === "bad")) }));
}

function group(gpus) {
  const found = new Map();
  for (const gpu of gpus) found.set(gpu.node, [...(found.get(gpu.node) ?? []), gpu]);
  return found;
}

// -- time, and drawing ------------------------------------------------------------------------------------------------

/** how: `for`, `ago`, `told`. */
function stamp(time, since, how) {
  time.hidden = since === null;
  if (since === null) return time.removeAttribute("data-since");
  time.dateTime = new Date(since * 1000).toISOString();
  time.title = clock(since);
  Object.assign(time.dataset, { since, how });
  tick(time);
}

function tick(time) {
  const words = age(now() - Number(time.dataset.since));
  const how = time.dataset.how;
  say(time, t(how === "told" ? "node.told" : how, { age: words }));
}

let drawn = 0;

function draw() {
  drawn = 0;
  const focused = document.activeElement;
  showLink();
  showVerdict();
  const found = showLines() + showGpus();
  say(at("found"), terms.length ? (found ? t("found", { n: found }) : t("found.none")) : "");
  if (told.head && !performance.getEntriesByName("first view").length) performance.mark("first view");
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

function soon() {
  drawn ||= setTimeout(draw, 0);
}

function speak() {
  epoch++;
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-word]")) say(element, t(element.dataset.word));
  for (const element of document.querySelectorAll("[data-word-label]")) element.setAttribute("aria-label", t(element.dataset.wordLabel));
  for (const button of document.querySelectorAll("[data-language]")) button.setAttribute("aria-pressed", String(button.dataset.language === language));
  at("filter").placeholder = t("filter.hint");
  draw();
}

function listen() {
  let typed = 0;
  at("filter").addEventListener("input", (event) => {
    clearTimeout(typed);
    typed = setTimeout(() => {
      terms = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      epoch++;
      draw();
    }, 150);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    event.preventDefault();
    at("filter").focus();
  });
  for (const button of document.querySelectorAll("[data-language]")) {
    button.addEventListener("click", () => {
      language = button.dataset.language;
      try { localStorage.setItem(KEPT, language); } catch { /* it is asked again next time */ }
      speak();
    });
  }
  for (const id of ["notes", "waiting"]) {
    at(`${id}-more`).addEventListener("click", () => {
      if (!unfolded.delete(id)) unfolded.add(id);
      draw();
    });
  }
  setInterval(() => {
    showLink();
    document.querySelectorAll("time[data-since]").forEach(tick);
  }, 1000);
}

listen();
speak();
follow();
