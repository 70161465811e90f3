// What is said in a second: connected or not, well or not.

const AGED_S = { node: 30, cluster: 75 };

function showLink() {
  const { head } = view;
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
  const { head } = view, gpus = list("gpus"), notes = list("notes");
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
  const waiting = waitingCount();
  const serves = (gpu) => gpu.state === "ready" && !view.lists.nodes.get(gpu.node)?.stale;
  const words = t("verdict.figures", {
    ready: gpus.filter(serves).length, gpus: gpus.length,
    granted: gib(sum(gpus, "grantedMiB")), promised: gib(sum(gpus, "promisedMiB")), used: gib(sum(gpus, "usedMiB")),
  });
  return waiting === 0 ? words : `${words} · ${t("verdict.waiting", { n: known(waiting) })}`;
}
