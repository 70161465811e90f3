// Draws what is known when anything has changed, and listens to who reads.

/** how: `for`, `ago`, `reported`. */
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
  say(time, t(how === "reported" ? "node.reported" : how, { age: words }));
}

let drawn = 0;

function draw() {
  drawn = 0;
  const focused = document.activeElement;
  showLink();
  showVerdict();
  const found = showLines() + showGpus();
  say(at("found"), terms.length ? (found ? t("found", { n: found }) : t("found.none")) : "");
  if (view.head && !performance.getEntriesByName("first view").length) performance.mark("first view");
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
