// The line above all programs: how many are in which state, what went wrong last, and whether GPUs are left out.

import { call } from "./api.js";
import { counted, duration, element, moment, setText, whole } from "./dom.js";
import { endText, stateWord, tone, wasDeath } from "./program.js";

const ORDER = ["FATAL", "UNKNOWN", "BACKOFF", "STARTING", "STOPPING", "RUNNING", "EXITED", "STOPPED"];
const LOOKED_AT = 5; // programs that ended last, when the last fault is looked for

export class Summary {
  constructor(toggle, asks) {
    this.toggle = toggle;
    this.asks = asks;
    this.chips = element("div", { class: "summary", role: "group", "aria-label": "States" });
    this.fault = element("span");
    this.mirror = element("span");
    this.gpus = element("a", { href: "#/gpus", hidden: true });
    this.facts = element("div", { class: "facts-line" }, this.fault, this.mirror, this.gpus);
    this.node = element("div", {}, this.chips);
    this.faultKey = "";
  }

  update(programs, now, states) {
    const counts = new Map();
    let behind = null;
    for (const { wire_state, job } of programs.values()) {
      counts.set(wire_state, (counts.get(wire_state) ?? 0) + 1);
      if (job?.mirror) behind = Math.max(behind ?? 0, job.mirror.behind_s);
    }
    const key = JSON.stringify([[...counts], [...states]]);
    if (key !== this.key) this.drawChips(programs.size, counts, states);
    this.key = key;
    setText(this.mirror, behind === null ? "" : behind ? `mirror: ${duration(behind)} behind` : "mirror: up to date");
    this.mirror.hidden = behind === null;
    if (this.asks) this.lookForFault(programs);
    if (this.last) setText(this.fault, `last fault: ${this.last.name}, ${duration(Math.max(0, now - this.last.at))} ago: ${this.last.text}`);
    this.fault.title = this.last ? `${moment(this.last.at)} ${this.last.text}` : "";
    this.fault.hidden = !this.last;
  }

  // "8 GPUs", or how many of them are not in order.
  showGpus(gpus) {
    const wrong = gpus.filter(({ state }) => state !== "ok").length;
    setText(this.gpus, wrong ? `${wrong} of ${counted(gpus.length, "GPU")} not in order` : counted(gpus.length, "GPU"));
    this.gpus.className = wrong ? "bad" : "";
    this.gpus.hidden = gpus.length === 0;
  }

  drawChips(total, counts, states) {
    const chip = (state, label, count, isPressed) => element("button", { type: "button", class: `chip ${state ? tone(state) : ""}`, "aria-pressed": String(isPressed), "data-state": state ?? "", onclick: () => this.toggle(state) }, element("b", {}, whole(count)), label);
    const focused = this.chips.contains(document.activeElement) ? document.activeElement.dataset.state : null;
    const present = ORDER.filter((state) => counts.has(state) || states.has(state));
    this.chips.replaceChildren(chip(null, total === 1 ? "program" : "programs", total, states.size === 0), ...present.map((state) => chip(state, stateWord(state), counts.get(state) ?? 0, states.has(state))), this.facts);
    if (focused !== null) this.chips.querySelector(`[data-state="${focused}"]`)?.focus();
  }

  // The newest end that nobody asked for. A running program's status doesn't tell why its last attempt ended; its history does.
  async lookForFault(programs) {
    const key = [...programs.values()].map(({ name, started_wall_at, ended_wall_at }) => `${name}${started_wall_at}${ended_wall_at}`).join();
    if (key === this.faultKey) return;
    this.faultKey = key;
    const newest = [...programs.values()].filter(({ started_wall_at }) => started_wall_at).sort((one, other) => lastAt(other) - lastAt(one));
    for (const { name } of newest.slice(0, LOOKED_AT)) {
      const { attempts } = await call("history", { name, limit: 3 }).catch(() => ({ attempts: [] }));
      const death = attempts.findLast((attempt) => attempt.ended_wall_at && wasDeath(attempt));
      if (death && !(this.last?.at >= death.ended_wall_at)) this.last = { name, at: death.ended_wall_at, text: endText(death) };
    }
  }
}

const lastAt = (program) => Math.max(program.started_wall_at ?? 0, program.ended_wall_at ?? 0);
