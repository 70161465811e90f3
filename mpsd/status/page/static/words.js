"use strict";
// The words of both languages, and numbers and times in them.

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
