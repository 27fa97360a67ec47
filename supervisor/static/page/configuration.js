// The configuration: what is to be said of the file, which programs it has, and what a new reading would change.

import { call } from "./api.js";
import { counted, element, setText, table } from "./dom.js";
import { ask, say } from "./menu.js";

const CHANGES = [["added", "is new"], ["changed", "has changed"], ["removed", "is gone from the file"]];

export class Configuration {
  constructor() {
    this.facts = element("dl", { class: "facts" });
    this.remarks = element("ul", { class: "remarks" });
    this.remarkCount = element("span", { class: "soft" });
    this.outcome = element("div", { role: "status" });
    this.programs = element("div", { class: "scroll whole", tabindex: "0", role: "region", "aria-label": "Table of programs" });
    const button = (action, label, does, kind = "") => element("button", { type: "button", class: kind, "data-action": action, onclick: does }, label);
    this.apply = button("update", "Apply the changes…", () => this.applyChanges(), "main");
    this.apply.hidden = true;
    const tools = element("div", { class: "tools" }, button("reread", "Read the file again", () => this.reread()), this.apply);
    const part = (heading, ...content) => element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, heading[0]), heading[1] ?? null), content);
    this.node = element("article", {}, element("div", { class: "part-head" }, element("h1", {}, "Configuration"), tools), this.outcome, part(["Remarks", this.remarkCount], this.remarks), part(["Programs in the file"], this.programs), part(["The daemon"], this.facts));
    this.look();
  }

  close() {}

  async look() {
    const [{ programs }, { version }, { pid }] = await Promise.all([call("avail"), call("version"), call("pid")]).catch(() => [{ programs: [] }, {}, {}]);
    this.known = { programs, version, pid };
    this.drawPrograms();
  }

  update({ daemon, programs }) {
    const remarks = daemon.remarks ?? [];
    const refused = [...programs.values()].filter(({ not_applied }) => not_applied);
    const key = JSON.stringify([remarks, refused.map(({ name, not_applied }) => [name, not_applied]), daemon.logfile, this.known?.pid]);
    if (key === this.key) return;
    this.key = key;
    setText(this.remarkCount, remarks.length ? counted(remarks.length, "remark") : "");
    const lines = [...remarks.map(remarkOf), ...refused.map(({ name, not_applied }) => element("li", {}, element("b", {}, name), ` was not changed by the last update: ${not_applied}`))];
    this.remarks.replaceChildren(...(lines.length ? lines : [element("li", { class: "soft" }, "There is nothing to be said of the file.")]));
    const facts = [["Name", daemon.identifier], ["Host", daemon.host], ["File", daemon.file], ["Log", daemon.logfile], ["Version", this.known?.version], ["Process", this.known?.pid]];
    this.facts.replaceChildren(...facts.filter(([, text]) => text).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, String(text))]));
  }

  drawPrograms(changes = new Map()) {
    const rows = merged(this.known.programs, changes).map(({ program, state, count }) => {
      const name = count > 1 ? `${program.group}:*` : program.in_use ? element("a", { href: `#/program/${encodeURIComponent(program.name)}` }, program.name) : program.name;
      return element("tr", {}, element("td", {}, name, count > 1 ? element("span", { class: "soft" }, ` ${counted(count, "program")}`) : ""), element("td", { class: "right" }, String(program.priority)), element("td", {}, program.autostart ? "with the daemon" : "by hand"), element("td", { class: `wide ${state ? "warn-text" : ""}` }, state));
    });
    this.programs.replaceChildren(rows.length ? table(["Program", "Priority>", "Starts", "Difference"], rows, "stacked") : element("p", { class: "soft" }, "The file has no program."));
  }

  async reread() {
    try {
      const answer = await call("reread");
      const changes = new Map(CHANGES.flatMap(([kind, words]) => answer[kind].map((name) => [name, words])));
      const broken = answer.broken.flatMap(({ section, problems, kept }) => problems.map((problem) => element("li", { class: "bad" }, `[${section}] can't be loaded: ${problem}`, kept.length ? ` (${kept.join(", ")} goes on as before)` : "")));
      const lines = CHANGES.filter(([kind]) => answer[kind].length).map(([kind, words]) => element("li", {}, element("b", {}, answer[kind].join(", ")), ` ${answer[kind].length > 1 && kind === "changed" ? "have changed" : words}`));
      this.outcome.replaceChildren(element("section", { class: "card" }, element("ul", { class: "remarks" }, broken, lines.length || broken.length ? lines : element("li", {}, "The file says what the daemon does: there is nothing to apply."))));
      this.apply.hidden = changes.size === 0;
      this.known.programs = (await call("avail")).programs;
      this.drawPrograms(changes);
    } catch (error) {
      this.fail(error.message);
    }
  }

  async applyChanges() {
    if (!(await ask("Apply the changes? Programs whose section changed are stopped and started again; jobs save first.", "Apply"))) return;
    say("update…");
    try {
      const { actions } = await call("update");
      say(`update: ${actions.length ? "done" : "nothing to do"}`);
      const lines = actions.map(({ name, action, text }) => element("li", { class: action === "refused" ? "bad" : "" }, element("b", {}, name), ` ${action}${text ? `: ${text}` : ""}`));
      this.outcome.replaceChildren(element("section", { class: "card" }, element("ul", { class: "remarks" }, lines)));
      this.apply.hidden = true;
      await this.look();
    } catch (error) {
      this.fail(error.message);
    }
  }

  fail(text) {
    this.outcome.replaceChildren(element("p", { class: "died" }, text));
  }
}

// Programs of a group of which the same is to be said, in one row.
function merged(programs, changes) {
  const rows = new Map();
  for (const program of programs) {
    const state = changes.get(program.name) ?? (program.in_use ? "" : "not in use");
    const key = JSON.stringify([program.group, program.priority, program.autostart, state]);
    const row = rows.get(key) ?? { program, state, count: 0 };
    rows.set(key, { ...row, count: row.count + 1 });
  }
  return [...rows.values()];
}

// "FILE:LINE: [section] text", with the place apart from what is said.
function remarkOf(text) {
  const [, place, rest] = /^(.*?:\d+): (.*)$/s.exec(text) ?? [null, "", text];
  const [, section, words] = /^(\[[^\]]*\]) (.*)$/s.exec(rest) ?? [null, "", rest];
  return element("li", {}, section ? [element("b", {}, section), " "] : "", words, place ? element("div", { class: "soft small" }, place) : null);
}
