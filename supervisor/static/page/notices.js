// Notices that this host goes away: a line above every view, and a view of its own, where drills are started and ended.

import { call } from "./api.js";
import { counted, duration, element, moment, setText, table } from "./dom.js";
import { ask, say } from "./menu.js";
import { readable } from "./program.js";

const EVERY_PROGRAM = "all"; // no program can have this name
const DRILL = "drill";
const UNITS = [["60", "minutes"], ["1", "seconds"], ["3600", "hours"]];
const KINDS = [["drill", "a drill"], ["preemption", "the provider takes the host back"], ["maintenance", "maintenance by the provider"], ["freeze", "the host is frozen for a moment"], ["shutdown", "somebody powers it off"]];
const POSSIBLE_ONLY = "freeze"; // jobs don't stop for it

// Whose notice it is, and what it says will happen.
function title(notice) {
  const who = notice.source === DRILL ? "Drill" : `Notice from ${notice.source}`;
  const what = notice.kind === "freeze" ? "may be frozen" : `${notice.certainty === "certain" ? "goes" : "may go"} away`;
  return `${who}${notice.program ? ` for ${notice.program}` : ""}: this host ${what} `;
}

const concernedBy = (notice, programs) => [...programs.values()].filter((program) => program.job && program.notice && (notice.program ?? program.name) === program.name);

const leftText = (notice, now) => (notice.deadline_wall_at === null ? "at an unknown time" : `in ${clock(notice.deadline_wall_at - now)}`);

// What a job does because of a notice; the notice itself is said beside it.
const doingOf = (program) => readable((program.notice.doing ?? "").replace(/^.*?: /, ""));

// Above every view but that of the notices.
export class NoticeLines {
  constructor() {
    this.node = element("div");
    this.lines = [];
  }

  update(notices) {
    this.lines = notices.map((notice) => {
      const [left, doing] = [element("time"), element("span")];
      const hint = [notice.source, notice.text, moment(notice.deadline_wall_at)].filter(Boolean).join(" · ");
      const more = element("a", { class: "end", href: "#/notices" }, "Notices");
      return { notice, left, doing, node: element("div", { class: "banner", title: hint }, element("div", {}, title(notice), left, doing), more) };
    });
    this.node.replaceChildren(...this.lines.map(({ node }) => node));
  }

  tick(now, programs) {
    for (const { notice, left, doing } of this.lines) {
      setText(left, leftText(notice, now));
      const concerned = concernedBy(notice, programs);
      const only = concerned.length === 1 ? doingOf(concerned[0]) : "";
      setText(doing, only ? ` · ${only}` : concerned.length ? ` · ${counted(concerned.length, "job")} concerned` : "");
    }
  }
}

export class Notices {
  // `lookAgain`: asks the daemon for the notices now.
  constructor(lookAgain) {
    this.lookAgain = lookAgain;
    this.cards = [];
    this.inForce = element("div", { class: "notices" });
    this.form = new DrillForm(lookAgain);
    this.sources = element("div");
    const part = (heading, ...content) => element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, heading)), content);
    this.node = element("article", {}, element("div", { class: "part-head" }, element("h1", {}, "Notices")), this.inForce, part("Start a drill", this.form.node), part("Where notices come from", this.sources));
  }

  close() {}

  onNotices({ notices, sources, shortest_s }) {
    const key = JSON.stringify([notices.map(({ deadline_s, ...notice }) => notice), sources]);
    if (key === this.key) return;
    this.key = key;
    this.cards = notices.map((notice) => this.card(notice));
    this.inForce.replaceChildren(...(this.cards.length ? this.cards.map(({ node }) => node) : [element("p", { class: "card none" }, "No notice is in force: this host stays.")]));
    const rows = sources.map((source) => element("tr", {}, element("td", {}, source.name), element("td", {}, duration(source.shortest_s) || "unknown"), element("td", { class: `wide ${source.trouble ? "bad" : "soft"}` }, source.trouble ?? "it answers")));
    const none = element("p", { class: "soft" }, "No source of notices is watched (notices = off, or this host has no provider that gives any). Drills work all the same.");
    const shortest = shortest_s === null ? null : element("p", { class: "soft" }, `The shortest warning of this host is ${duration(shortest_s)}.`);
    this.sources.replaceChildren(...(rows.length ? [table(["Source", "Shortest warning", "State"], rows, "stacked"), shortest ?? ""] : [none]));
  }

  card(notice) {
    const [left, jobs] = [element("div", { class: "countdown", role: "timer" }), element("div")];
    const facts = [["Kind", notice.kind], ["Source", notice.source], ["Certainty", notice.certainty], ["At", moment(notice.deadline_wall_at)], ["For", notice.program ?? "every program"], ["It says", notice.text]];
    const list = element("dl", { class: "facts" }, facts.filter(([, text]) => text).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
    const end = notice.source === DRILL ? element("button", { type: "button", "data-action": "withdraw", onclick: () => this.withdraw(notice) }, "End the drill") : null;
    const node = element("section", { class: "card notice" }, element("div", { class: "part-head" }, element("h2", {}, title(notice).trim()), end), left, element("div", { class: "columns" }, list, jobs));
    return { notice, left, jobs, node };
  }

  async withdraw(notice) {
    const whose = notice.program ?? EVERY_PROGRAM;
    try {
      const { withdrawn } = await call("drill", { name: whose, withdraw: true });
      say(`${counted(withdrawn, "drill")} ended`);
    } catch (error) {
      say(`cannot end the drill: ${error.message}`);
    }
    this.lookAgain();
  }

  update({ programs, now }) {
    this.form.offer(programs);
    for (const { notice, left, jobs } of this.cards) {
      setText(left, leftText(notice, now));
      const concerned = concernedBy(notice, programs).map((program) => [program.name, doingOf(program) || "nothing yet"]);
      const key = JSON.stringify(concerned);
      if (jobs.dataset.key === key) continue;
      jobs.dataset.key = key;
      const rows = concerned.map(([name, doing]) => element("tr", {}, element("td", {}, element("a", { href: `#/program/${encodeURIComponent(name)}` }, name)), element("td", { class: "wide" }, doing)));
      jobs.replaceChildren(rows.length ? table(["Job", "What it does"], rows, "stacked") : element("p", { class: "soft" }, "No job that runs is concerned."));
    }
  }
}

class DrillForm {
  constructor(lookAgain) {
    this.lookAgain = lookAgain;
    const options = (choices) => choices.map(([value, text]) => element("option", { value }, text));
    this.program = element("select", { "aria-label": "Program" }, options([[EVERY_PROGRAM, "every program"]]));
    this.amount = element("input", { type: "number", "aria-label": "The host goes away in", min: "1", max: "10000", step: "any", value: "2", required: "" });
    this.unit = element("select", { "aria-label": "Unit of time" }, options(UNITS));
    this.kind = element("select", { "aria-label": "As if", onchange: () => this.showCertainty() }, options(KINDS));
    this.certainty = element("select", { "aria-label": "Certainty" }, options([["certain", "certain: jobs save and stop"], ["possible", "possible: jobs save and go on"]]));
    const field = (label, ...controls) => element("label", { class: "field" }, element("span", {}, label), element("span", { class: "controls" }, controls));
    const start = element("button", { class: "main", "data-action": "drill" }, "Start the drill…");
    this.node = element("form", { class: "fields", onsubmit: (event) => this.start(event) }, field("Program", this.program), field("The host goes away in", this.amount, this.unit), field("As if", this.kind), field("Certainty", this.certainty), start);
    this.offered = "";
  }

  offer(programs) {
    const names = [...programs.values()].sort((one, other) => Boolean(other.job) - Boolean(one.job) || (one.name < other.name ? -1 : 1)).map(({ name }) => name);
    if (names.join("\n") === this.offered) return;
    this.offered = names.join("\n");
    const chosen = this.program.value;
    this.program.replaceChildren(...[[EVERY_PROGRAM, "every program"], ...names.map((name) => [name, name])].map(([value, text]) => element("option", { value }, text)));
    this.program.value = names.includes(chosen) ? chosen : EVERY_PROGRAM;
  }

  showCertainty() {
    const isPossibleOnly = this.kind.value === POSSIBLE_ONLY;
    if (isPossibleOnly) this.certainty.value = "possible";
    this.certainty.disabled = isPossibleOnly;
  }

  async start(event) {
    event.preventDefault();
    const [name, seconds] = [this.program.value, Number(this.amount.value) * Number(this.unit.value)];
    const who = name === EVERY_PROGRAM ? "Every job" : name;
    const does = this.certainty.value === "certain" ? "saves its steps, stops before the time is over, and starts again when the drill ends" : "saves its steps and trains on";
    if (!(await ask(`${who} ${does}, as if this host went away in ${duration(seconds)}. Start the drill?`, "Start the drill"))) return;
    try {
      await call("drill", { name, in_s: seconds, kind: this.kind.value, certainty: this.certainty.value });
      say(`the drill of ${name === EVERY_PROGRAM ? "every program" : name} has begun`);
    } catch (error) {
      say(`cannot start the drill: ${error.message}`);
    }
    this.lookAgain();
  }
}

function clock(seconds) {
  const left = Math.max(0, Math.round(seconds));
  if (left >= 86400) return duration(left);
  const [hours, minutes] = [Math.floor(left / 3600), Math.floor(left / 60) % 60];
  const rest = String(left % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}
