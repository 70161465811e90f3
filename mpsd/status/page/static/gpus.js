// A GPU: its bars, its figures, and the table behind them.

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
  const shown = slices.map((one) => one.memoryMiB ?? one.usedMiB ?? 0);
  const whole = Math.max(gpu.memoryMiB ?? gpu.promisedMiB ?? 0, shown.reduce((total, mib) => total + mib, 0), 1);
  const values = { gpu: gpu.label, granted: gib(gpu.grantedMiB), promised: gib(gpu.promisedMiB), used: gib(gpu.usedMiB), holders: t("slices", { n: slices.length }) };
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
  const mib = one.memoryMiB ?? one.usedMiB ?? 0;
  part.style.flex = `0 0 ${(100 * mib) / whole}%`;
  part.title = `${one.name} ${amounts(one)}`;
  const unknown = one.usedMiB === null;
  fill.style.width = unknown ? "100%" : `${Math.min(100, (100 * one.usedMiB) / Math.max(1, mib))}%`;
  part.classList.toggle("unknown", unknown);
  part.classList.toggle("over", one.over || one.holder === "foreign");
  part.classList.toggle("dim", Boolean(hit) && !sliceMatches(one));
  say(tag, mib / whole > 0.1 ? one.name.slice(one.name.indexOf("/") + 1) : "");
}

function fillThreads(bar, gpu, slices) {
  const whole = Math.max(100, gpu.promisedPercent ?? 0, gpu.grantedPercent ?? 0);
  bar.setAttribute("aria-label", t("bar.threads", { gpu: gpu.label, granted: known(gpu.grantedPercent), promised: known(gpu.promisedPercent) }));
  const some = slices.filter((one) => one.reservedPercent);
  keyed(bar, some, () => el("div", { class: "slice" }), (part, one) => { part.style.flex = `0 0 ${(100 * one.reservedPercent) / whole}%`; });
}

const amounts = (one) => (one.memoryMiB === null ? t("gib", { n: gib(one.usedMiB) }) : `${gib(one.usedMiB)} / ${t("gib", { n: gib(one.memoryMiB) })}`);

function fillFigures(box, gpu) {
  const of = (part, whole) => t("of", { part, whole });
  const rows = [
    ["granted", of(gib(gpu.grantedMiB), t("gib", { n: gib(gpu.promisedMiB) }))],
    ["used", t("gib", { n: gib(gpu.usedMiB) })],
    ["threads", of(known(gpu.grantedPercent), percent(gpu.promisedPercent))],
    ["clients", of(known(gpu.clients), known(gpu.promisedClients))],
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
  made.open = opened.get(gpu.id) ?? (terms.length ? some && !gpuMatches(gpu) : view.head.scope === "node" && slices.length <= 6);
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
  name.title = one.others.join(", ");
  const said = [one.holder === "foreign" && t("holder.foreign"), one.over && t("slice.over"), one.ended && t("slice.ended"), one.violations && t("slice.violations", { n: one.violations }), one.pid !== null && t("pid", { n: one.pid }),
    one.claim && t("slice.claim", { claim: one.claim }), one.others.length > 0 && t("slice.shared", { n: one.others.length })];
  const words = said.filter(Boolean);
  const bad = one.over || one.holder === "foreign";
  say(chip, words.join(", "));
  chip.hidden = !words.length;
  chip.className = bad || one.ended || one.violations ? "chip mark" : "muted";
  chip.dataset.level = bad ? "bad" : "warn";
  row.className = terms.length && sliceMatches(one) ? "hit" : "";
  say(use, amounts(one));
  say(threads, percent(one.threadPercent));
  say(clients, known(one.clients));
}

const byGpu = (one, other) => worstFirst(one, other) || natural.compare(one.label, other.label);
