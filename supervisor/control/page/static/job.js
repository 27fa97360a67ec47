// One program: its facts, curves, attempts, checkpoints, logs and history.

import { buttons, enable } from "./actions.js";
import { call, plots, readLog } from "./api.js";
import { bytes, counted, duration, element, moment, plain, setText } from "./dom.js";
import { legend, marksOf, pieces, strip, wasDeath } from "./life.js";
import { about, speed } from "./list.js";

const KEPT_CHARACTERS = 2_000_000; // of a log, in the page
const LOOK_EVERY_MS = 10_000;
const MOST_MARKS = 50; // of each kind, in a curve

function percent(share) {
  return share === null ? "" : `, ${Math.round(share * 100)} %`;
}

export class Job {
  constructor(program) {
    this.name = program.name;
    this.isJob = Boolean(program.job);
    this.drawn = new Map();
    this.abort = new AbortController();
    this.state = element("span", { class: "state" });
    this.about = element("p", { class: "soft" });
    this.facts = element("dl", { class: "facts" });
    this.actions = buttons(program);
    this.curvesRemark = element("p", { class: "soft" }, "No values yet.");
    this.curves = element("div", {}, this.curvesRemark);
    this.places = new Map();
    this.drawnReports = new Map(); // what the curve of each metric shows
    this.attempts = element("div", { class: "scroll" });
    this.life = element("div");
    this.ran = [];
    this.shownAttempt = element("select", { "aria-label": "Of which attempt" });
    this.marks = [];
    this.goodput = element("p");
    this.checkpoints = element("div", { class: "scroll" });
    this.events = element("div", { class: "scroll" });
    const part = (title, ...content) => element("section", {}, element("h2", {}, title), ...content);
    this.node = element("article", {}, element("p", {}, element("a", { href: "#/" }, "All programs")), element("h1", {}, program.name, " ", this.state), this.about, this.actions, this.facts);
    if (this.isJob) this.node.append(part("Metrics", this.curves), part("Attempts", this.goodput, this.life, legend(), this.attempts), part("Checkpoints", this.checkpoints));
    else this.node.append(part("History", this.life, this.attempts));
    this.node.append(part("Logs", this.logs()), part("Timeline", this.events));
    this.timer = setInterval(() => this.look(), LOOK_EVERY_MS);
    this.look();
  }

  close() {
    clearInterval(this.timer);
    this.abort.abort();
    this.logAbort?.abort();
  }

  update(program, now) {
    this.state.className = `state ${program.wire_state}`;
    setText(this.state, program.wire_state);
    setText(this.about, about(program, now));
    enable(this.actions, program);
    const job = program.job;
    const facts = [["Speed", speed(job, program.wire_state)]];
    if (job) {
      facts.unshift(["Step", job.step === null ? "" : `${job.step}${job.total_steps ? ` of ${job.total_steps}` : ""}, attempt ${job.attempt}`]);
      if (job.checkpoint) facts.push(["Last checkpoint", `step ${job.checkpoint.step}, ${duration(now - job.checkpoint.committed_wall_at)} ago`]);
      facts.push(["Metrics", Object.entries(job.metrics ?? {}).map(([name, value]) => `${name} ${plain(value)}`).join(", ")]);
      facts.push(["Restored", job.restored], ["Saves", job.save_error], ["Checkpoints in", job.checkpoint_dir]);
      facts.push(["Other conditions", (job.changed ?? []).join("; ")], ["Not saved", (job.left_out ?? []).join("; ")]);
      facts.push(["Proof", job.proof?.text], ["Being proven", job.proving ? `${job.proving.doing}${percent(job.proving.done)}` : ""]);
      facts.push(["Proof says", (job.proof?.differences ?? []).slice(0, 5).map((each) => `${each.name}${each.step === null ? "" : ` at step ${each.step}`}: ${each.undisturbed} undisturbed, ${each.killed} killed`).join("\n")]);
      facts.push(["To write", job.proof?.verdict === "different" ? job.proof.remedy : ""]);
      facts.push(["Storage", (job.storage_remarks ?? []).join("; ")], ["Traceback", (job.traceback ?? []).join("\n")]);
    }
    if (program.diagnosis) {
      const why = program.diagnosis;
      const shown = why.what ? `${why.what}: ${why.line}` : why.line;
      facts.unshift(["Why it died", `${shown} (${why.source})`], ["To be done", why.who === "nobody" ? why.advice : `by ${why.who}: ${why.advice}`], ["What follows", why.follows]);
    }
    if (program.notice) facts.push(["Notice", [program.notice.kind, program.notice.source, moment(program.notice.deadline_wall_at), program.notice.doing].filter(Boolean).join(", ")]);
    const shown = facts.filter(([, text]) => text);
    const key = JSON.stringify(shown);
    if (key !== this.shownFacts) {
      this.shownFacts = key;
      this.facts.replaceChildren(...shown.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
    }
  }

  async look() {
    const parts = [["history", { name: this.name, limit: 100 }, (found) => this.drawAttempts(found.attempts)], ["timeline", { name: this.name, limit: 50 }, (found) => this.drawEvents(found.scenes)]];
    if (this.isJob) parts.push(["goodput", { name: this.name }, (found) => this.drawGoodput(found)], ["checkpoints", { name: this.name, verify: false }, (found) => this.drawCheckpoints(found)]);
    const drawings = parts.map(async ([command, request, draw]) => {
      try {
        const found = await call(command, request);
        const key = JSON.stringify(found);
        if (this.drawn.get(command) !== key) draw(found);
        this.drawn.set(command, key);
      } catch {
        this.drawn.delete(command); // the header says when the daemon is gone; the next look asks again
      }
    });
    await Promise.all(drawings);
    this.life.replaceChildren(strip(this.ran, this.marks));
    if (this.isJob) await this.drawCurves().catch(() => null);
  }

  drawAttempts(attempts) {
    this.ran = attempts;
    this.offerAttempts();
    const rows = attempts.toReversed().map((each) => {
      const steps = each.to_step === null ? "" : `${each.from_step ?? 0} to ${each.to_step}`;
      const cells = [moment(each.started_wall_at), each.ended_wall_at ? duration(each.ended_wall_at - each.started_wall_at) : "runs", steps, each.lost_steps ? `${each.lost_steps} lost` : "", each.cause ?? "", each.text ?? ""];
      const bar = this.isJob ? [element("td", {}, element("div", { class: "bar" }, pieces(each)))] : [];
      const number = element("button", { type: "button", "aria-label": `What attempt ${each.attempt} printed`, onclick: () => this.showAttempt(each.attempt) }, String(each.attempt));
      return element("tr", {}, element("td", {}, number), cells.map((text) => element("td", {}, String(text))), bar);
    });
    this.attempts.replaceChildren(table(["Attempt", "Began", "Lasted", "Steps", "Lost", "End", "", ...(this.isJob ? ["Time"] : [])], rows));
  }

  offerAttempts() {
    const chosen = this.shownAttempt.value;
    const offered = this.ran.toReversed().map((each) => element("option", { value: String(each.attempt) }, `attempt ${each.attempt}`));
    this.shownAttempt.replaceChildren(element("option", { value: "" }, "live"), ...offered);
    this.shownAttempt.value = this.ran.some((each) => String(each.attempt) === chosen) ? chosen : "";
  }

  showAttempt(number) {
    this.shownAttempt.value = String(number);
    this.shownAttempt.dispatchEvent(new Event("change"));
    this.shownAttempt.scrollIntoView();
  }

  drawGoodput(found) {
    const share = found.goodput === null ? "no goodput yet" : `${(100 * found.goodput).toFixed(1)} % of ${duration(found.wanted_s)} went into steps that were kept`;
    const causes = Object.entries(found.causes).map(([cause, count]) => `${cause} ${count}`).join(", ");
    setText(this.goodput, `${share}; ${counted(found.attempts, "attempt")}, ${counted(found.lost_steps, "step")} lost${causes ? `; interrupted by: ${causes}` : ""}`);
  }

  drawCheckpoints(found) {
    const rows = found.checkpoints.map((each) => {
      const state = each.quarantined ? `quarantined: ${each.reason ?? "reason not recorded"}` : (each.reason ?? "");
      const mirrored = found.mirror === null ? "" : found.mirror.includes(each.name) ? "here and in the mirror" : "here";
      return element("tr", {}, [each.name, each.step ?? "", bytes(each.size_bytes), moment(each.created_wall_at), mirrored].map((text) => element("td", {}, String(text))), element("td", { class: state ? "bad" : "" }, state));
    });
    this.checkpoints.replaceChildren(rows.length ? table(["Name", "Step", "Size", "Written", found.mirror === null ? "" : "Where", ""], rows) : element("p", { class: "soft" }, "There is no checkpoint yet."));
  }

  drawEvents(scenes) {
    this.marks = marksOf(scenes);
    const rows = scenes.toReversed().map((each) => element("tr", {}, [moment(each.wall_at), each.attempt, each.event, each.was === each.state ? each.state : `${each.was} → ${each.state}`, [...each.effects, each.reason ?? ""].filter(Boolean).join("; ")].map((text) => element("td", {}, String(text)))));
    this.events.replaceChildren(table(["Time", "Attempt", "What happened", "State", "What followed"], rows));
  }

  async drawCurves() {
    if (document.hidden) return;
    const { metrics } = await call("series", { name: this.name });
    if (!metrics.length) return;
    const library = await plots();
    setText(this.curvesRemark, library ? "" : "To see curves, install the plotting library beside the daemon: pip install 'plotly>=6,<7'");
    if (!library) return;
    for (const { name, reports } of metrics) {
      const key = [reports, this.ran.length, this.ran.at(-1)?.cause, this.marks.length].join();
      if (this.drawnReports.get(name) === key) continue;
      const found = await call("series", { name: this.name, metric: name });
      this.drawCurve(library, name, found.metrics.find((each) => each.name === name).buckets);
      this.drawnReports.set(name, key);
    }
  }

  drawCurve(library, name, buckets) {
    let place = this.places.get(name);
    if (!place) {
      place = element("div", { class: "plot" });
      this.places.set(name, place);
      this.curves.append(place);
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (variable) => style.getPropertyValue(variable).trim();
    const attempts = [...new Set(buckets.map((each) => each.attempt))];
    const traces = attempts.map((attempt) => {
      const own = buckets.filter((each) => each.attempt === attempt);
      const text = own.map((each) => (each.count > 1 ? `${plain(each.least)} to ${plain(each.greatest)} in ${each.count} reports` : ""));
      return { x: own.map((each) => each.step), y: own.map((each) => each.mean), text, mode: own.length > 1 ? "lines" : "markers", name: `attempt ${attempt}` };
    });
    const line = (step, name, text) => ({ type: "line", x0: step, x1: step, y0: 0, y1: 1, yref: "paper", line: { color: colour(name), dash: "dot", width: 1 }, label: { text: escaped(text), textposition: "end", textangle: -90, font: { size: 10 } } });
    const ended = new Map(this.ran.map((each) => [each.attempt, each]));
    const ends = attempts.filter((number) => number !== attempts.at(-1) || ended.get(number)?.cause).map((number) => {
      const found = ended.get(number);
      return line(buckets.findLast((each) => each.attempt === number).step, !found || wasDeath(found) ? "--bad" : "--soft", found?.cause ?? "");
    });
    const marks = this.marks.flatMap((mark) => {
      const before = buckets.findLast((each) => each.wall_at <= mark.at);
      return before ? [line(before.step, "--warn", mark.kind)] : [];
    });
    const shapes = [...ends.slice(-MOST_MARKS), ...marks.slice(-MOST_MARKS)];
    const axis = { gridcolor: colour("--line"), zeroline: false };
    const layout = { shapes, title: { text: escaped(name) }, paper_bgcolor: colour("--back"), plot_bgcolor: colour("--back"), font: { color: colour("--text") }, xaxis: { ...axis, title: { text: "step" } }, yaxis: axis, margin: { l: 60, r: 20, t: 40, b: 40 }, showlegend: attempts.length > 1 };
    library.react(place, traces, layout, { responsive: true, displaylogo: false });
  }

  logs() {
    const channel = element("select", { "aria-label": "Which log" }, element("option", {}, "stdout"), element("option", {}, "stderr"));
    const amount = element("select", { "aria-label": "From where" }, [["16384", "last 16 KB"], ["262144", "last 256 KB"], ["16777216", "last 16 MB"]].map(([value, text]) => element("option", { value }, text)));
    const search = element("input", { type: "search", placeholder: "Show lines with…", "aria-label": "Show lines with" });
    const log = element("pre", { class: "log", tabindex: "0" });
    let content = "";
    const show = (added) => {
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
      const wanted = search.value.toLowerCase();
      if (wanted) setText(log, content.split("\n").filter((line) => line.toLowerCase().includes(wanted)).join("\n"));
      else if (added === null || content.length > KEPT_CHARACTERS) setText(log, content);
      else log.append(added);
      if (isAtEnd) log.scrollTop = log.scrollHeight;
    };
    const begin = () => {
      this.logAbort?.abort();
      const abort = (this.logAbort = new AbortController());
      content = "";
      show(null);
      const take = (added) => {
        content = (content + added).slice(-KEPT_CHARACTERS);
        show(added);
      };
      const attempt = this.shownAttempt.value;
      readLog(this.name, channel.value, Number(amount.value), attempt, abort.signal, take).catch((error) => {
        if (abort.signal.aborted) return;
        if (!content) setText(log, error.message);
        if (attempt) return;
        this.logTimer = setTimeout(() => !abort.signal.aborted && begin(), 3000); // the daemon may be gone for a moment
      });
    };
    this.offerAttempts();
    this.shownAttempt.addEventListener("change", begin);
    channel.addEventListener("change", begin);
    amount.addEventListener("change", begin);
    search.addEventListener("input", () => show(null));
    begin();
    return element("div", {}, this.shownAttempt, " ", channel, " ", amount, " ", search, log);
  }
}

function table(heads, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, heads.map((each) => element("th", { scope: "col" }, each)))), element("tbody", {}, rows));
}

// The plotting library reads a few tags in titles.
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
