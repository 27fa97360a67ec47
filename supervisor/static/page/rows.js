// The rows of the list: a section's title, a group, a program. A row is changed in place, so that focus stays where it is.

import { Buttons } from "./actions.js";
import { bytes, duration, element, plain, setText, spark, whole } from "./dom.js";
import { leftText } from "./list_model.js";
import { about, ageText, attentionText, newestText, remarksOn, speed, stateWord, tone, toneOf } from "./program.js";

const cell = (kind, ...content) => element("div", { class: kind, role: "cell" }, ...content);

export class SectionRow {
  constructor() {
    this.count = element("span", { class: "count" });
    this.title = element("span");
    this.node = element("div", { class: "row section", role: "row" }, element("div", { class: "wide", role: "cell" }, this.title, " ", this.count));
  }

  update(row) {
    setText(this.title, row.title);
    setText(this.count, String(row.count));
  }
}

export class GroupRow {
  constructor(row, list) {
    this.box = element("input", { type: "checkbox", "aria-label": `Choose all of ${row.name}`, onchange: () => list.choose(this.members, this.box.checked) });
    this.fold = element("button", { type: "button", class: "plain fold", onclick: () => list.fold(row.name, !this.isFolded) }, row.name);
    this.states = element("span");
    this.node = element("div", { class: "row group", role: "row" }, cell("", this.box), cell("", this.fold), cell("", this.states));
  }

  update(row, { chosen }) {
    this.members = row.members.map(({ name }) => name);
    this.isFolded = row.folded;
    this.fold.setAttribute("aria-expanded", String(!row.folded));
    this.box.checked = this.members.every((name) => chosen.has(name));
    this.box.indeterminate = !this.box.checked && this.members.some((name) => chosen.has(name));
    const counts = new Map();
    for (const { wire_state } of row.members) counts.set(wire_state, (counts.get(wire_state) ?? 0) + 1);
    const key = JSON.stringify([...counts]);
    if (key === this.key) return;
    this.key = key;
    this.states.replaceChildren(...[...counts].flatMap(([state, count]) => [element("span", { class: `pill ${tone(state)}` }, `${count} ${stateWord(state).toLowerCase()}`), " "]));
  }
}

export class ProgramRow {
  constructor(row, list) {
    const { name, href } = row.program;
    this.name = name;
    this.box = element("input", { type: "checkbox", "aria-label": `Choose ${name}`, onchange: () => list.choose([name], this.box.checked) });
    this.link = element("a", { ...(href === null ? {} : { href: href ?? `#/program/${encodeURIComponent(name)}` }), title: name }, name);
    this.sub = element("div", { class: "sub" });
    this.state = element("span", { class: "pill" });
    this.buttons = new Buttons(name);
    this.used = cell("number used");
    this.node = element("div", { role: "row" });
    this.lead = [cell("", this.box), cell("", element("div", { class: "name" }, this.link), this.sub), cell("state", this.state)];
    this.build(row.kind);
  }

  build(kind) {
    this.kind = kind;
    if (kind === "training") {
      this.fill = element("i");
      this.steps = element("div", { class: "sub" });
      this.bar = element("div", { class: "progress", role: "progressbar", "aria-label": `Steps of ${this.name}`, "aria-valuemin": "0", "aria-valuemax": "100" }, this.fill);
      this.speed = element("div", { class: "line" });
      this.left = element("div", { class: "sub" });
      this.loss = cell("loss");
      this.saved = cell("number saved");
      this.goodput = cell("number goodput");
      this.middle = [cell("steps", this.bar, this.steps), cell("speed number", this.speed, this.left), this.loss, this.saved, this.goodput];
    } else {
      this.about = cell("about");
      this.middle = [this.about];
    }
    this.node.replaceChildren(...this.lead, ...this.middle, this.used, this.buttons.node);
  }

  update(row, { now, extras, chosen }) {
    const { program } = row;
    if (row.kind !== this.kind) this.build(row.kind);
    this.box.checked = chosen.has(this.name);
    this.node.className = `row ${row.kind}${row.isMember ? " member" : ""}${this.box.checked ? " chosen" : ""}`;
    this.state.className = `pill ${toneOf(program)}`;
    setText(this.state, stateWord(program.wire_state));
    const used = extras.usage.get(this.name);
    setText(this.used, used ? bytes(used.memory_bytes) : "");
    this.used.title = used?.gpu_memory_bytes ? `GPU ${bytes(used.gpu_memory_bytes)}` : "";
    this.buttons.update(program);
    if (row.kind === "training") this.updateTraining(program, now, extras);
    else {
      const text = row.kind === "attention" ? attentionText(program) : about(program, now);
      setText(this.about, text);
      this.about.title = text;
      setText(this.sub, row.kind === "attention" && program.job?.step ? stepsText(program.job) : "");
    }
  }

  updateTraining(program, now, extras) {
    const { job } = program;
    setText(this.sub, [`attempt ${job.attempt}`, ...remarksOn(program)].join(" · "));
    this.sub.title = this.sub.textContent;
    const share = job.total_steps ? Math.min(1, (job.step ?? 0) / job.total_steps) : 0;
    this.bar.hidden = !job.total_steps;
    this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.fill.style.width = `${(100 * share).toFixed(1)}%`;
    setText(this.steps, stepsText(job));
    setText(this.speed, speed(program));
    setText(this.left, leftText(program, duration));
    setText(this.saved, ageText(job.checkpoint, now));
    this.saved.title = newestText(job);
    const goodput = extras.goodput(this.name);
    setText(this.goodput, goodput === null ? "" : `${(100 * goodput).toFixed(1)} %`);
    const values = extras.values(this.name);
    const key = `${values.length} ${values.at(-1)}`;
    if (key === this.lossKey) return;
    this.lossKey = key;
    const value = extras.value(program);
    this.loss.replaceChildren(spark(values), value === null ? "" : plain(value));
  }
}

export function stepsText(job) {
  if (job.step === null) return job.section === "import" || !job.is_imported ? "importing" : "starting";
  return `${whole(job.step)}${job.total_steps ? ` of ${whole(job.total_steps)}` : " steps"}`;
}
