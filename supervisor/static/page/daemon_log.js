// The daemon's own log: an entry a line, with its level, what happened and the facts; filtered by level and by words.

import { readLog } from "./api.js";
import { bytes, duration, element, moment, segments, setText } from "./dom.js";

const NAME = "supervisord"; // by which the daemon gives its own log
const AMOUNTS = [["262144", "last 256 KB"], ["1048576", "last 1 MB"], ["16777216", "last 16 MB"]];
const LEVELS = [["all", "All"], ["warning", "Warnings"], ["error", "Errors"]];
const SEVERITY = { debug: 0, info: 1, warning: 2, error: 3, critical: 3 };
const LEAST = { all: 0, warning: 2, error: 3 };
const TONES = { warning: "warn", error: "bad", critical: "bad" };
const MOST_LINES = 2000; // that are drawn
const KEPT_LINES = 20_000;
const DRAW_EVERY_MS = 100;
const AGAIN_AFTER_MS = 3000;
const UNIT = /_(s|bytes)$/;
const SAID_ELSEWHERE = new Set(["event", "level", "timestamp", "program"]);

export class DaemonLog {
  constructor() {
    this.lines = [];
    this.utcOffset = 0; // of the clock that the daemon's log is written by
    this.level = "all";
    this.amount = element("select", { "aria-label": "How much", onchange: () => this.begin() }, AMOUNTS.map(([value, text]) => element("option", { value }, text)));
    this.search = element("input", { type: "search", placeholder: "Lines with…", "aria-label": "Show lines with", oninput: () => this.draw(true) });
    this.follow = element("input", { type: "checkbox", checked: true });
    const levels = segments("Level", LEVELS, this.level, (level) => {
      this.level = level;
      this.draw(true);
    });
    const query = new URLSearchParams({ name: NAME, bytes: "16777216" });
    const download = element("a", { class: "button", href: `/api/v1/tail?${query}`, download: "supervisord.log", "aria-label": "Download the daemon's log" }, "↓ Download");
    this.place = element("div", { class: "log entries", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "The daemon's log", "data-empty": "No line is like that." });
    this.count = element("span", { class: "soft" });
    const tools = element("div", { class: "tools" }, levels, this.amount, this.search, element("label", {}, this.follow, "follow"), download);
    this.node = element("article", {}, element("section", { class: "card" }, element("div", { class: "part-head" }, element("h1", {}, "Daemon’s log"), this.count, tools), this.place));
    this.begin();
  }

  update({ daemon }) {
    this.utcOffset = daemon.utc_offset_s ?? 0;
  }

  close() {
    clearTimeout(this.again);
    this.abort?.abort();
  }

  async begin() {
    this.close();
    const abort = (this.abort = new AbortController());
    this.lines = [];
    let rest = "";
    try {
      await readLog(NAME, "stdout", Number(this.amount.value), "", abort.signal, (piece) => {
        const texts = (rest + piece).split("\n");
        rest = texts.pop();
        this.lines.push(...texts.filter(Boolean).map(parsed));
        if (this.lines.length > KEPT_LINES) this.lines.splice(0, this.lines.length - KEPT_LINES);
        this.timer ??= setTimeout(() => this.draw(), DRAW_EVERY_MS);
      });
    } catch (error) {
      if (abort.signal.aborted) return;
      if (!this.lines.length) this.place.dataset.empty = error.message;
    }
    this.draw(true);
    if (!abort.signal.aborted) this.again = setTimeout(() => this.begin(), AGAIN_AFTER_MS);
  }

  draw(isAnew = false) {
    this.timer = null;
    const words = this.search.value.toLowerCase();
    const isShown = (line) => line.severity >= LEAST[this.level] && (!words || line.text.toLowerCase().includes(words));
    if (isAnew) {
      this.place.replaceChildren();
      this.drawn = null;
    }
    const from = this.drawn ? this.lines.lastIndexOf(this.drawn) + 1 : 0;
    const added = this.lines.slice(from).filter(isShown).slice(-MOST_LINES);
    this.drawn = this.lines.at(-1) ?? null;
    this.place.append(...added.map((line) => entry(line, this.utcOffset)));
    while (this.place.childElementCount > MOST_LINES) this.place.firstChild.remove();
    const wrong = this.lines.filter(({ severity }) => severity >= SEVERITY.warning).length;
    setText(this.count, `${wrong} of ${this.lines.length} lines are warnings or errors`);
    if (this.follow.checked) this.place.scrollTop = this.place.scrollHeight;
  }
}

// What a line says; one that is no entry of the daemon's (an interpreter's last words) stays as it is.
function parsed(text) {
  try {
    const facts = JSON.parse(text);
    if (typeof facts.event === "string") return { text, facts, severity: SEVERITY[facts.level] ?? 1 };
  } catch {
    // not JSON
  }
  return { text, facts: null, severity: 1 };
}

// The unit stands at the end of a fact's name.
function written(key, value) {
  if (typeof value === "number" && key.endsWith("_bytes")) return bytes(value);
  if (typeof value === "number" && key.endsWith("_s")) return value < 60 ? `${value} s` : duration(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function entry({ text, facts }, utcOffset) {
  if (!facts) return element("div", { class: "entry" }, element("span", { class: "what" }, text));
  const rest = Object.entries(facts).filter(([key, value]) => !SAID_ELSEWHERE.has(key) && value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  const told = rest.map(([key, value]) => element("span", { class: "fact" }, element("span", { class: "dim" }, `${key.replace(UNIT, "").replaceAll("_", " ")} `), written(key, value)));
  const who = facts.program ? element("a", { href: `#/program/${encodeURIComponent(facts.program)}` }, facts.program) : null;
  return element("div", { class: `entry ${TONES[facts.level] ?? ""}`, title: text },
    element("span", { class: "when dim" }, moment(Date.parse(`${facts.timestamp}Z`) / 1000 - utcOffset)), element("span", { class: "level" }, facts.level), element("span", { class: "what" }, element("b", {}, facts.event.replaceAll("_", " ").replace(".", " ")), who ? [" ", who] : "", told));
}
