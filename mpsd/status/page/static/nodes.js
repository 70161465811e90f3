// The nodes of a cluster with their GPUs, and all GPUs.

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
  const words = [t("node.gpus", { n: gpus.length }), t("gib", { n: `${gib(sum(gpus, "grantedMiB"))}/${gib(sum(gpus, "promisedMiB"))}` })];
  if (node.cordoned) words.push(t("node.cordoned", { what: node.cordoned }));
  if (node.reported_at === null) words.push(t("node.never"));
  say(parts.meta, words.join(" · "));
  stamp(parts.time, node.reported_at, "reported");
  parts.minis.setAttribute("aria-label", words[0]);
  keyed(parts.minis, gpus, () => el("span", { class: "mini" }, el("i"), el("i")), fillMini);
  parts.made.open = opened.get(node.id) ?? open;
  keyed(parts.grid, parts.made.open ? gpus : [], makeGpu, fillGpu);
}

function fillMini(box, gpu) {
  const whole = gpu.memoryMiB ?? gpu.promisedMiB ?? 1;
  box.dataset.level = gpu.level;
  [gpu.grantedMiB, gpu.usedMiB].forEach((mib, place) => { box.children[place].style.width = `${Math.min(100, (100 * (mib ?? 0)) / whole)}%`; });
}

function showGpus() {
  const cluster = view.head?.scope === "cluster";
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
