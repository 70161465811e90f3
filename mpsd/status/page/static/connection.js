// Asks for the view again and again for as long as the page is open, and says at once when no answer comes.

const PAUSE_MS = 1000, SHARE = 10, LONGEST_PAUSE_MS = 10_000, SILENT_MS = 30_000;
const link = { state: "connecting", lostAt: null, why: "" };
let tag = ""; // of the view that was taken last

async function follow() {
  for (let failures = 0; ;) {
    const began = Date.now();
    try {
      await ask();
      failures = 0;
      live();
    } catch (error) {
      failures++;
      lost(error.reason ?? "");
    }
    const pause = failures ? 500 * 2 ** failures : Math.max(PAUSE_MS, SHARE * (Date.now() - began));
    await new Promise((go) => setTimeout(go, Math.min(LONGEST_PAUSE_MS, pause)));
  }
}

async function ask() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const answer = await fetch("v1/page", { signal: AbortSignal.timeout(SILENT_MS), cache: "no-store", headers });
  if (answer.status === 304) return;
  if (!answer.ok) throw Object.assign(new Error(), { reason: `${answer.status} ${(await answer.text()).trim()}` });
  take(await answer.json());
  tag = answer.headers.get("ETag") ?? "";
}

function live() {
  if (link.state === "lost") say(at("said"), t("said.back"));
  Object.assign(link, { state: "live", lostAt: null, why: "" });
  soon();
}

function lost(why) {
  if (link.lostAt === null) {
    link.lostAt = Date.now() / 1000;
    if (view.head) say(at("said"), t("said.lost"));
  }
  Object.assign(link, { state: "lost", why });
  soon();
}
