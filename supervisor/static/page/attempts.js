// The attempts of a program: a time line coloured by where the time went, with what ended them, and a table.

import { counted, duration, element, moment, setText, table, whole } from "./dom.js";
import { endText, wasDeath } from "./program.js";

const SPENT = ["starting", "restoring", "tracing", "replaying", "training", "saving", "data", "hung", "down", "stopped"];
const WORDS = { starting: "starting", restoring: "restoring", tracing: "first step", replaying: "done again", training: "training", saving: "saving", data: "waiting for data", hung: "hung", down: "down", stopped: "stopped" };
const MARKS = [["death", "died"], ["notice", "notice"], ["rollback", "checkpoint left out"]];

export class Attempts {
  constructor(isJob, showLog) {
    this.isJob = isJob;
    this.showLog = showLog;
    this.goodput = element("span", { class: "soft" });
    this.life = element("div");
    this.legend = element("div", { class: "legend" });
    this.rows = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of attempts" });
    this.node = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, isJob ? "Attempts" : "Runs"), this.goodput), this.life, this.legend, this.rows);
  }

  update(attempts, marks, goodput) {
    this.life.replaceChildren(...strip(attempts, marks));
    const used = new Set(attempts.flatMap(({ spent_s }) => Object.keys(spent_s).filter((name) => spent_s[name] > 0)));
    const shown = MARKS.filter(([kind]) => marks.some((mark) => mark.kind === kind) || (kind === "death" && attempts.some(wasDeath)));
    const entries = [...SPENT.filter((name) => used.has(name)).map((name) => [name, WORDS[name]]), ...shown];
    this.legend.replaceChildren(...entries.map(([kind, text]) => element("span", {}, element("i", { class: kind }), text)));
    if (goodput) setText(this.goodput, goodputText(goodput));
    const rows = attempts.toReversed().map((attempt) => this.row(attempt));
    this.rows.replaceChildren(rows.length ? table(["No.", "Began", "Lasted>", ...(this.isJob ? ["Steps>", "Where its time went"] : []), "How it ended"], rows, "stacked") : element("p", { class: "soft" }, "It has never run."));
  }

  row(attempt) {
    const number = element("button", { type: "button", class: "plain", "aria-label": `What attempt ${attempt.attempt} printed`, title: "What it printed", onclick: () => this.showLog(attempt) }, String(attempt.attempt));
    const lasted = duration((attempt.ended_wall_at ?? Date.now() / 1000) - attempt.started_wall_at);
    const steps = attempt.to_step === null ? "" : `${whole(attempt.from_step ?? 0)} → ${whole(attempt.to_step)}`;
    const ofJob = this.isJob ? [element("td", { class: "right" }, steps), element("td", {}, element("div", { class: "bar" }, pieces(attempt)))] : [];
    const end = [endText(attempt), ...attempt.refused.map(([name, reason]) => `${name} was refused: ${reason}`), attempt.older_text].filter(Boolean).join("; ");
    return element("tr", {}, element("td", {}, number), element("td", {}, moment(attempt.started_wall_at)), element("td", { class: "right" }, lasted), ofJob, element("td", { class: `wide ${wasDeath(attempt) ? "bad" : ""}` }, end));
  }
}

function goodputText(goodput) {
  const share = goodput.goodput === null ? "" : `${(100 * goodput.goodput).toFixed(1)} % of ${duration(goodput.wanted_s)} went into steps that were kept`;
  const causes = Object.entries(goodput.causes).map(([cause, count]) => `${cause} ${count}`).join(", ");
  return [share, counted(goodput.attempts, "attempt"), `${counted(goodput.lost_steps, "step")} done again`, causes && `interrupted by: ${causes}`].filter(Boolean).join(" · ");
}

// A strip from the first attempt that is shown until now.
function strip(attempts, marks) {
  if (!attempts.length) return [];
  const now = Date.now() / 1000;
  const begin = attempts[0].started_wall_at;
  const total = Math.max(now - begin, 1);
  const place = (node, from, until) => {
    node.style.left = `${(100 * Math.max(from - begin, 0)) / total}%`;
    if (until !== undefined) node.style.width = `${(100 * Math.max(until - from, 0)) / total}%`;
    return node;
  };
  const blocks = attempts.map((attempt) => {
    const until = attempt.ended_wall_at ?? now;
    const title = `attempt ${attempt.attempt}, ${moment(attempt.started_wall_at)}, ${duration(until - attempt.started_wall_at)}: ${endText(attempt)}`;
    return place(element("div", { class: "bar", title }, pieces(attempt)), attempt.started_wall_at, until);
  });
  const deaths = attempts.filter((attempt) => wasDeath(attempt) && attempt.ended_wall_at).map((attempt) => ({ at: attempt.ended_wall_at, kind: "death", text: `attempt ${attempt.attempt} ended: ${endText(attempt)}` }));
  const ticks = [...deaths, ...marks.filter((mark) => mark.at >= begin)].map((mark) => place(element("i", { class: `mark ${mark.kind}`, title: `${moment(mark.at)}: ${mark.text}` }), mark.at));
  const summary = `Time line of ${counted(attempts.length, "attempt")}, ${counted(deaths.length, "death")}; the table below has them all`;
  return [element("div", { class: "life", role: "img", "aria-label": summary }, blocks, ticks), element("div", { class: "life-ends" }, element("span", {}, moment(begin)), element("span", {}, "now"))];
}

// The categories of an attempt's time, each as wide as its share; one piece for what has no account.
function pieces(attempt) {
  const spent = SPENT.filter((name) => attempt.spent_s[name] > 0);
  const total = spent.reduce((sum, name) => sum + attempt.spent_s[name], 0);
  const shares = spent.length ? spent.map((name) => [name, attempt.spent_s[name] / total]) : [["training", 1]];
  return shares.map(([name, share]) => {
    const piece = element("i", { class: name, title: spent.length ? `${WORDS[name]} ${duration(attempt.spent_s[name])}` : "" });
    piece.style.width = `${100 * share}%`;
    return piece;
  });
}
