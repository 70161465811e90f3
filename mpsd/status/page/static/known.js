// What the server has reported, and which of it is searched for.

const LISTS = ["notes", "nodes", "gpus", "waiting", "recent"];
const view = { head: null, lists: Object.fromEntries(LISTS.map((name) => [name, new Map()])) };
const RANK = { bad: 0, warn: 1, well: 2 };
let epoch = 0; // another one, and every element is made anew: the language, or what is searched for
let clockAhead = -Infinity; // seconds by which the server's clock is ahead of this browser's

/** What has not changed stays the same object, and is not drawn again. */
function take(answer) {
  for (const name of LISTS) {
    const before = view.lists[name];
    view.lists[name] = new Map(answer[name].map((one) => [one.id, unchanged(before.get(one.id), one)]));
  }
  view.head = answer.head;
  if (link.state !== "live") clockAhead = -Infinity;
  clockAhead = Math.max(clockAhead, view.head.at - Date.now() / 1000);
}

const unchanged = (before, now) => (JSON.stringify(before) === JSON.stringify(now) ? before : now);
const now = () => Date.now() / 1000 + (Number.isFinite(clockAhead) ? clockAhead : 0);
const list = (name) => [...view.lists[name].values()];
const natural = new Intl.Collator("en", { numeric: true });
const worstFirst = (one, other) => RANK[one.level] - RANK[other.level];

// -- searching

let terms = [];
const hays = new WeakMap();

function matches(item, ...texts) {
  if (!terms.length) return true;
  if (!hays.has(item)) hays.set(item, texts.join(" ").toLowerCase());
  const hay = hays.get(item);
  return terms.every((term) => hay.includes(term));
}

const sliceMatches = (one) => matches(one, one.name, one.pid ?? "", one.holder, one.claim, ...one.others);
const gpuMatches = (gpu) => matches(gpu, gpu.node, gpu.label, gpu.model, gpu.uuid, gpu.domain, gpu.state, gpu.reason);
const nodeMatches = (node) => matches(node, node.id, node.cordoned, node.driver);
const gpuShown = (gpu) => gpuMatches(gpu) || (gpu.slices ?? []).some(sliceMatches);
