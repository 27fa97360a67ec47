// All programs, one row each. A row is changed in place, so that focus and selection stay where they are.

import { buttons, enable } from "./actions.js";
import { bytes, duration, element, setText } from "./dom.js";

class Row {
  constructor(program) {
    this.link = element("a", { href: `#/program/${encodeURIComponent(program.name)}` }, program.name);
    this.state = element("span", { class: "state" });
    this.bar = element("progress", { max: 1, "aria-label": "steps done", hidden: true });
    this.steps = element("span", { class: "nowrap" });
    this.rest = element("td", { class: "number", "data-label": "speed" });
    this.saved = element("td", { class: "number", "data-label": "checkpoint" });
    this.used = element("td", { class: "number", "data-label": "memory" });
    this.about = element("div", { class: "soft" });
    this.actions = buttons(program);
    const progress = element("td", {}, this.bar, " ", this.steps);
    this.node = element("tr", {}, element("td", {}, this.link, this.about), element("td", {}, this.state), progress, this.rest, this.saved, this.used, element("td", {}, this.actions));
  }

  update(program, now, usage) {
    const job = program.job;
    this.state.className = `state ${program.wire_state}`;
    setText(this.state, program.wire_state);
    setText(this.about, about(program, now));
    const counts = Boolean(job && job.total_steps);
    this.bar.hidden = !counts;
    if (counts) this.bar.value = Math.min(1, (job.step ?? 0) / job.total_steps);
    setText(this.steps, job && job.step !== null ? `step ${job.step}${job.total_steps ? ` of ${job.total_steps}` : ""}` : "");
    setText(this.rest, speed(job, program.wire_state));
    setText(this.saved, job && job.checkpoint ? `${duration(now - job.checkpoint.committed_wall_at)} ago` : "");
    setText(this.used, [usage && bytes(usage.memory_bytes), usage && usage.gpu_memory_bytes ? `GPU ${bytes(usage.gpu_memory_bytes)}` : ""].filter(Boolean).join(", "));
    enable(this.actions, program);
  }
}

export function about(program, now) {
  const parts = [];
  if (program.wire_state === "RUNNING" && program.started_wall_at) parts.push(`pid ${program.pid}, up ${duration(now - program.started_wall_at)}`);
  else if (program.description) parts.push(program.description);
  for (const text of [program.says, program.warning, program.wire_state === "RUNNING" ? program.reason : null]) if (text) parts.push(text);
  return parts.join("; ");
}

export function speed(job, state) {
  if (!job || !job.step_s || state !== "RUNNING") return "";
  const left = job.total_steps ? `, ${duration((job.total_steps - (job.step ?? 0)) * job.step_s)} left` : "";
  return `${Number((1 / job.step_s).toPrecision(3))} steps/s${left}`;
}

export class List {
  constructor() {
    this.rows = new Map();
    this.usage = new Map();
    const heads = ["Program", "State", "Progress", "Speed", "Checkpoint", "Memory", "Actions"].map((each) => element("th", { scope: "col" }, each));
    this.body = element("tbody");
    this.empty = element("p", { class: "soft" }, "No program is configured.");
    this.node = element("div", {}, element("table", { class: "programs" }, element("thead", {}, element("tr", {}, heads)), this.body), this.empty);
  }

  update(programs, names, now, filter) {
    for (const name of names) {
      const program = programs.get(name);
      if (program === undefined) {
        this.rows.get(name)?.node.remove();
        this.rows.delete(name);
      } else if (!this.rows.has(name)) {
        const row = new Row(program);
        this.rows.set(name, row);
        const after = [...this.rows.keys()].filter((each) => each > name).sort()[0];
        this.body.insertBefore(row.node, after === undefined ? null : this.rows.get(after).node);
      }
    }
    this.empty.hidden = programs.size > 0;
    for (const [name, row] of this.rows) {
      row.node.hidden = !name.toLowerCase().includes(filter);
      if (!row.node.hidden) row.update(programs.get(name), now, this.usage.get(name));
    }
  }
}
