// The stream of changes: opened again for as long as the page is, and its loss said at once.

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
