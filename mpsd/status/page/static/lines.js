// What wants to be looked at, who waits, what happened: lists, the worst or the newest first.

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
  const restart = note.restart_at === null ? "" : t("note.restart", { at: clock(note.restart_at) });
  const text = [note.text, note.remedy, restart].filter(Boolean).join("; ");
  fillLine(line, note.level, { name: note.where, chip, words: chip ? "" : t(`note.${note.kind}`), since: note.since, text });
}

function fillWaiting(line, one) {
  const words = one.place ? t("waiting.place", { n: one.place }) : "";
  fillLine(line, one.level, { name: one.name, chip: one.why ? label("why", one.why) : "", words, asks: asks(one), since: one.since ?? null, text: one.text });
}

function asks(one) {
  const what = [];
  if (one.memory_mib) what.push(one.gpus > 1 ? t("waiting.each", { gib: gib(one.memory_mib), gpus: one.gpus }) : t("gib", { n: gib(one.memory_mib) }));
  if (one.thread_percent) what.push(t("waiting.threads", { n: one.thread_percent }));
  return what.length ? t("waiting.asks", { what: what.join(", ") }) : "";
}

function fillRecent(line, one) {
  const words = WORDS[language];
  const chip = words[`event.${one.what}`] ?? words[`state.${one.what}`] ?? one.what;
  fillLine(line, one.level, { name: one.where, chip, since: one.at, ago: true, text: one.text });
}

/** How many wait; null where that is not known. */
function waitingCount() {
  const pods = view.head?.pods;
  return pods?.away && pods.since === null ? null : view.lists.waiting.size + (view.head?.waiting_more ?? 0);
}

function podsAway({ away, since }) {
  if (!away) return "";
  return since === null ? t("waiting.unknown", { why: away }) : t("waiting.away", { at: clock(since), why: away });
}

function showLines() {
  const notes = list("notes").filter((one) => matches(one, one.where, one.text, one.kind, one.state));
  notes.sort((one, other) => worstFirst(one, other) || (other.since ?? 0) - (one.since ?? 0) || natural.compare(one.id, other.id));
  lines("notes", notes, makeLine, fillNote);
  const waiting = list("waiting").filter((one) => matches(one, one.name, one.why, one.text));
  waiting.sort((one, other) => one.place - other.place || worstFirst(one, other) || natural.compare(one.name, other.name));
  const more = view.head?.waiting_more ?? 0, pods = view.head?.pods;
  at("waiting-part").hidden = waitingCount() === 0 && !pods;
  say(at("waiting-title"), `${t("waiting")} (${known(waitingCount())})${more ? ` – ${t("waiting.unlisted", { n: more })}` : ""}`);
  lines("waiting", waiting, makeLine, fillWaiting);
  at("waiting").hidden = !waiting.length;
  say(at("waiting-away"), pods ? podsAway(pods) : "");
  at("waiting-away").hidden = !pods?.away;
  at("waiting-elsewhere").hidden = !pods;
  const recent = list("recent").filter((one) => matches(one, one.where, one.what, one.text)).sort((one, other) => other.at - one.at);
  lines("recent", recent, makeLine, fillRecent);
  at("recent-none").hidden = recent.length > 0;
  say(at("recent-none"), t(terms.length ? "found.none" : "recent.none"));
  return notes.length * (terms.length > 0) + waiting.length + recent.length;
}
