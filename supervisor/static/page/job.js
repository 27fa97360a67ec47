// One program: its state and progress at the top, then curves, attempts, checkpoints, log and history.

import { Buttons } from "./actions.js";
import { call } from "./api.js";
import { Attempts } from "./attempts.js";
import { Checkpoints } from "./checkpoints.js";
import { Curves } from "./curves.js";
import { bytes, counted, duration, element, moment, plain, setText, whole } from "./dom.js";
import { Logs } from "./logs.js";
import { DOWN, about, ageText, deathText, endText, leadingMetric, newestText, readable, secondsLeft, speed, stateWord, toneOf, wasDeath } from "./program.js";
import { stepsText } from "./rows.js";
import { Timeline, marksOf } from "./timeline.js";

const LOOK_EVERY_MS = 10_000;

export class Job {
  // `programs`: gives what is known of all, for curves beside those of another job.
  constructor(program, programs) {
    this.name = program.name;
    this.isJob = Boolean(program.job);
    this.known = new Map(); // what the daemon answered last, by command
    this.state = element("span", { class: "pill", role: "status" });
    this.about = element("p", { class: "job-about" });
    const logEntry = { label: "Show the log", action: "log", isPossible: true, choose: () => this.logs.node.scrollIntoView() };
    this.buttons = new Buttons(program.name, { extra: [logEntry, null], isProminent: true });
    this.died = element("div", { class: "died", hidden: true });
    this.tiles = new Tiles();
    this.facts = element("dl", { class: "facts" });
    this.details = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, "Details")), this.facts);
    this.attempts = new Attempts(this.isJob, (attempt) => this.logs.show(attempt.attempt));
    this.curves = this.isJob ? new Curves(program.name, programs) : null;
    this.checkpoints = this.isJob ? new Checkpoints() : null;
    this.timeline = new Timeline();
    const hasDied = ["FATAL", "BACKOFF"].includes(program.wire_state) || (program.wire_state === "EXITED" && program.exit_code !== 0);
    const isOne = !program.stdout_logfile || !program.stderr_logfile;
    const live = isOne ? (program.stderr_logfile ? "stderr" : "stdout") : "together";
    this.logs = new Logs(program.name, { view: hasDied && program.stderr_logfile ? "stderr" : live, isOne });
    const head = element("div", { class: "job-head" }, element("h1", {}, program.name), this.state, this.buttons.node);
    const crumbs = element("p", { class: "crumbs" }, element("a", { href: "#/" }, "‹ All programs"));
    this.node = element("article", {}, crumbs, head, this.about, this.died, this.isJob ? this.tiles.node : null);
    const columns = (...parts) => element("div", { class: "columns" }, parts.map(({ node }) => node));
    if (this.isJob) this.node.append(this.curves.node, this.attempts.node, this.logs.node, columns(this.checkpoints, this.timeline), this.details);
    else this.node.append(this.logs.node, columns(this.attempts, this.timeline), this.details);
    this.timer = setInterval(() => document.hidden || this.look(), LOOK_EVERY_MS);
    this.look();
  }

  close() {
    clearInterval(this.timer);
    this.curves?.close();
    this.logs.close();
  }

  update({ programs, now, usage: usages }) {
    const program = programs.get(this.name);
    if (!program) return; // the list is shown next
    const usage = usages.get(this.name);
    const key = `${program.wire_state} ${program.started_wall_at} ${program.job?.attempt}`;
    if (this.key !== undefined && key !== this.key) this.look(); // it died or began: what is below has changed
    this.key = key;
    this.state.className = `pill ${toneOf(program)}`;
    setText(this.state, stateWord(program.wire_state));
    setText(this.about, deathText(program) && program.wire_state !== "RUNNING" ? "" : about(program, now));
    this.about.hidden = !this.about.textContent;
    this.buttons.update(program);
    this.program = program;
    this.showDeath();
    if (this.isJob) this.tiles.update(program, now, usage, this.known.get("goodput"));
    const facts = factsOf(program, usage).filter(([, text]) => text);
    const shown = JSON.stringify(facts);
    this.details.hidden = !facts.length;
    if (shown !== this.shownFacts) this.facts.replaceChildren(...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
    this.shownFacts = shown;
  }

  // Why it last died, in one line: at once while it is down, from its history while it runs again.
  showDeath() {
    const attempts = this.known.get("history")?.attempts ?? [];
    const death = attempts.findLast((attempt) => attempt.ended_wall_at && wasDeath(attempt));
    const isDown = (DOWN.has(this.program.wire_state) || this.program.wire_state === "BACKOFF") && (Boolean(deathText(this.program)) || (death !== undefined && death === attempts.at(-1)));
    const why = this.program.diagnosis ?? death?.diagnosis;
    const text = (isDown && deathText(this.program)) || (death ? endText(death) : "");
    const key = JSON.stringify([text, death?.ended_wall_at, isDown, why]);
    if (key === this.deathKey) return;
    this.deathKey = key;
    this.died.hidden = !text;
    this.died.className = `died ${isDown ? "" : "past"}`;
    const show = death && element("button", { type: "button", class: "plain end", onclick: () => this.logs.show(death.attempt, "stderr") }, `Log of attempt ${death.attempt}`);
    const line = element("div", { class: "head" }, element("b", {}, isDown ? "Died" : "Last died"), element("span", { class: "nowrap" }, moment(death?.ended_wall_at)), element("span", { class: "why" }, text), show ?? "");
    this.died.replaceChildren(line, ...(why ? [element("div", { class: "advice" }, adviceOf(why, isDown))] : []));
  }

  async look() {
    const requests = [["history", { limit: 100 }], ["timeline", { limit: 50 }]];
    if (this.isJob) requests.push(["goodput", {}], ["checkpoints", { verify: false }]);
    const changed = await Promise.all(requests.map(async ([command, request]) => {
      try {
        const answer = await call(command, { name: this.name, ...request });
        const isNew = JSON.stringify(answer) !== JSON.stringify(this.known.get(command));
        this.known.set(command, answer);
        return isNew;
      } catch {
        return false; // the header says when the daemon is gone; the next look asks again
      }
    }));
    const attempts = this.known.get("history")?.attempts ?? [];
    const scenes = this.known.get("timeline")?.scenes ?? [];
    const marks = marksOf(scenes);
    this.logs.offer(attempts);
    this.attempts.update(attempts, marks, this.known.get("goodput"));
    if (changed[1]) this.timeline.update(scenes);
    if (changed[3]) this.checkpoints.update(this.known.get("checkpoints"));
    if (this.program) this.showDeath();
    await this.curves?.update(attempts, marks).catch(() => null);
  }
}

// The figures at the top.
class Tiles {
  constructor() {
    this.parts = new Map();
    this.node = element("div", { class: "card tiles" });
    this.fill = element("i");
    this.bar = element("div", { class: "progress", role: "progressbar", "aria-label": "Steps done", "aria-valuemin": "0", "aria-valuemax": "100" }, this.fill);
  }

  set(key, value, ...sub) {
    let part = this.parts.get(key);
    if (!part) {
      part = { value: element("div", { class: "value" }), sub: element("div", { class: "sub" }) };
      this.parts.set(key, part);
      this.node.append(element("div", { class: "tile" }, element("div", { class: "key" }, key), part.value, key === "Progress" ? this.bar : null, part.sub));
    }
    setText(part.value, value || "–");
    setText(part.sub, sub.filter(Boolean).join(" · "));
    part.sub.title = part.sub.textContent;
  }

  update(program, now, usage, goodput) {
    const { job } = program;
    const share = job.total_steps ? Math.min(1, (job.step ?? 0) / job.total_steps) : null;
    const left = secondsLeft(program);
    this.set("Progress", job.step === null && DOWN.has(program.wire_state) ? "" : stepsText(job), share === null ? "" : `${(100 * share).toFixed(1)} %`, speed(program), left === null ? "" : `${duration(left)} left`, left ? `ends ${moment(now + left)}` : "");
    this.bar.hidden = share === null;
    this.bar.setAttribute("aria-valuenow", String(Math.round(100 * (share ?? 0))));
    this.fill.style.width = `${100 * (share ?? 0)}%`;
    const leading = leadingMetric(job);
    const others = Object.entries(job.metrics ?? {}).filter(([name]) => name !== leading);
    this.set("Metrics", leading === null ? "" : `${leading} ${plain(job.metrics[leading])}`, ...others.slice(0, 4).map(([name, value]) => `${name} ${plain(value)}`));
    const saved = job.checkpoint;
    this.set("Newest checkpoint", ageText(saved, now), newestText(job), saved ? bytes(saved.size_bytes) : "", mirrorText(job.mirror));
    this.set("Goodput", goodput?.goodput ? `${(100 * goodput.goodput).toFixed(1)} %` : "", goodput ? `attempt ${job.attempt}` : "", goodput ? `${counted(goodput.lost_steps, "step")} again` : "");
    this.set("Memory", usage ? bytes(usage.memory_bytes) : "", usage?.gpu_memory_bytes ? `GPU ${bytes(usage.gpu_memory_bytes)}` : "", job.replicas ? counted(job.replicas, "replica") : "");
  }
}

// How often the state is copied into memory and what that costs, or why it is not.
function copiesText(job) {
  if (job.memory_off) return `none: ${job.memory_off}`;
  if (job.memory_interval_s === null) return "";
  return `every ${duration(job.memory_interval_s)}, ${duration(job.memory_cost_s)} each, ${bytes(job.memory_bytes)}`;
}

function mirrorText(mirror) {
  if (!mirror) return "";
  return mirror.behind_s ? `mirror ${duration(mirror.behind_s)} behind` : "in the mirror";
}

// What to do about a death, who has to, what the daemon does, and where the line that explains it stands.
function adviceOf({ who, advice, follows, source }, isDown) {
  const todo = advice && `${who === "nobody" ? "Nobody has to act" : `For ${who}`}: ${advice}.`;
  return [todo, isDown && follows && `What follows: ${follows}.`, source && `Seen in: ${source}.`].filter(Boolean).join(" ");
}

function percent(share) {
  return share === null ? "" : `, ${Math.round(share * 100)} %`;
}

// What else is known, as [name, text]; entries without a text are left out.
function factsOf(program, usage) {
  const { job, notice } = program;
  const facts = [["Group", program.group === program.name ? "" : program.group], ["Process", program.pid === null ? "" : `${program.pid}${program.cgroup ? ` in ${program.cgroup}` : ""}`]];
  if (!job) facts.push(["Memory", usage ? bytes(usage.memory_bytes) : ""]);
  facts.push(["Notice", notice ? [notice.kind, notice.source, moment(notice.deadline_wall_at), readable(notice.doing ?? "")].filter(Boolean).join(", ") : ""]);
  facts.push(["Can outlive it", program.can_outlive], ["Not applied", program.not_applied]);
  if (job) {
    const differences = (job.proof?.differences ?? []).slice(0, 5).map((one) => `${one.name}${one.step === null ? "" : ` at step ${one.step}`}: ${one.undisturbed} undisturbed, ${one.killed} killed`);
    facts.push(["Proof", job.proof?.text], ["Proof says", differences.join("\n")], ["To write", job.proof?.verdict === "different" ? job.proof.remedy : ""]);
    facts.push(["Being proven", job.proving ? `${job.proving.doing}${percent(job.proving.done)}` : ""]);
    facts.push(["Restored", job.restored], ["Older because", job.older_text], ["Saves", job.save_error], ["Saves every", duration(job.interval_s)], ["Copies in memory", copiesText(job)]);
    facts.push(["Checkpoints in", job.checkpoint_dir], ["Mirror", job.mirror ? [job.mirror.url, job.mirror.error].filter(Boolean).join(": ") : ""]);
    facts.push(["All metrics", Object.entries(job.metrics ?? {}).map(([name, value]) => `${name} ${plain(value)}`).join(", ")]);
    facts.push(["Other conditions", (job.changed ?? []).join("; ")], ["Not saved", (job.left_out ?? []).join("; ")], ["Avoided", (job.suspects ?? []).join(", ")]);
    facts.push(["Usual time of a step", duration(job.usual_step_s)], ["GPUs left out", job.gpus_left_out], ["Storage", (job.storage_remarks ?? []).join("; ")], ["Not taken", (job.refused ?? []).join("; ")], ["Traceback", (job.traceback ?? []).join("\n")]);
  }
  facts.push(["Logs", [program.stdout_logfile, program.stderr_logfile].filter(Boolean).join("\n")]);
  return facts;
}
