// The curves of a job: a panel for each metric, drawn by plotly where the daemon has it, and else as a plain line.

import { call, plots } from "./api.js";
import { element, plain, segments, setText, spark } from "./dom.js";
import { wasDeath } from "./program.js";

const MOST_MARKS = 40; // of each kind, in a panel
const LABEL_SHARE = 0.06; // of a panel's width, for a label
const FIRST_PANELS = 6;
const RANGES = [["1", "whole run"], ["0.5", "last half"], ["0.1", "last tenth"]];

export class Curves {
  // `programs`: gives what is known of all, for curves beside those of another job.
  constructor(name, programs) {
    this.name = name;
    this.programs = programs;
    this.panels = new Map(); // by metric
    this.settings = { smoothing: 0, isLog: false, by: "step", share: "1" };
    this.attempts = [];
    this.marks = [];
    this.isInView = false;
    const redraw = (change) => {
      Object.assign(this.settings, change);
      for (const panel of this.panels.values()) this.drawPanel(panel);
    };
    const smoothing = element("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: "0", "aria-label": "Smoothing", oninput: () => redraw({ smoothing: Number(smoothing.value) }) });
    const isLog = element("input", { type: "checkbox", onchange: () => redraw({ isLog: isLog.checked }) });
    const range = element("select", { "aria-label": "Range", onchange: () => redraw({ share: range.value }) }, RANGES.map(([value, text]) => element("option", { value }, text)));
    const by = segments("Along", [["step", "By step"], ["time", "By time"]], "step", (value) => redraw({ by: value }));
    this.remark = element("p", { class: "soft" }, "No values yet.");
    this.grid = element("div", { class: "panels" });
    this.more = element("button", { type: "button", hidden: true, onclick: () => this.showMore() });
    this.most = FIRST_PANELS;
    const tools = element("div", { class: "tools" }, element("label", {}, "Smoothing", smoothing), element("label", {}, isLog, "logarithmic"), by, range);
    this.node = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, "Curves"), tools), this.remark, this.grid, this.more);
    this.observer = new IntersectionObserver(([entry]) => {
      this.isInView = entry.isIntersecting;
      if (this.isInView) this.look();
    });
    this.observer.observe(this.node);
    this.sizes = new ResizeObserver((entries) => {
      for (const { target } of entries) if (target.classList.contains("js-plotly-plot")) this.library.Plots.resize(target);
    });
  }

  close() {
    this.observer.disconnect();
    this.sizes.disconnect();
    for (const { plot } of this.panels.values()) window.Plotly?.purge(plot);
  }

  update(attempts, marks) {
    this.attempts = attempts;
    this.marks = marks;
    return this.look();
  }

  showMore() {
    this.most = Infinity;
    this.look();
  }

  async look() {
    if (document.hidden || !this.isInView) return;
    const { metrics } = await call("series", { name: this.name });
    if (!metrics.length) return;
    this.library = await plots();
    setText(this.remark, this.library ? "" : "These are plain lines. For curves to work with, install the plotting library beside the daemon: pip install 'plotly>=6,<7'");
    this.remark.hidden = Boolean(this.library);
    this.more.hidden = metrics.length <= this.most;
    setText(this.more, `Show all ${metrics.length} metrics`);
    const shown = metrics.slice(0, this.most);
    for (const { name } of shown) this.panelOf(name); // all at once, so that none changes its width later
    for (const metric of shown) {
      const panel = this.panelOf(metric.name);
      setText(panel.value, plain(metric.last));
      this.offer(panel, metrics);
      const key = [metric.reports, this.attempts.length, this.attempts.at(-1)?.cause, this.marks.length].join();
      if (panel.key === key) continue;
      const answer = await call("series", { name: this.name, metric: metric.name });
      panel.buckets = bucketsOf(answer, metric.name);
      await this.readBeside(panel);
      this.drawPanel(panel);
      panel.key = key;
    }
  }

  // What can be drawn in the same panel: another metric of this job, or this metric of another one.
  offer(panel, metrics) {
    const others = metrics.map(({ name }) => name).filter((name) => name !== panel.name);
    const jobs = [...this.programs().values()].filter(({ name, job }) => name !== this.name && job && (panel.name in (job.metrics ?? {}) || (panel.name === "steps_per_second" && job.step_s))).map(({ name }) => name);
    const key = JSON.stringify([others, jobs]);
    if (panel.offered === key) return;
    panel.offered = key;
    const chosen = panel.choice.value;
    const group = (label, kind, names, text) => (names.length ? [element("optgroup", { label }, names.map((name) => element("option", { value: `${kind} ${name}` }, text(name))))] : []);
    panel.choice.replaceChildren(element("option", { value: "" }, "compare…"), ...group("And a metric", "metric", others, (name) => `with ${labelOf(name)}`), ...group("And a job", "job", jobs, (name) => `with ${name}`));
    panel.choice.value = [...panel.choice.options].some(({ value }) => value === chosen) ? chosen : "";
    panel.choice.classList.toggle("chosen", panel.choice.value !== "");
    panel.choice.hidden = panel.choice.options.length < 2;
  }

  async drawBeside(panel) {
    panel.choice.classList.toggle("chosen", panel.choice.value !== "");
    await this.readBeside(panel).catch(() => null); // the next look asks again
    this.drawPanel(panel);
  }

  async readBeside(panel) {
    const [kind, ...words] = panel.choice.value.split(" ");
    const other = words.join(" ");
    panel.beside = null;
    if (!kind || !this.library) return;
    const [name, metric] = kind === "metric" ? [this.name, other] : [other, panel.name];
    const buckets = bucketsOf(await call("series", { name, metric }), metric);
    panel.beside = { buckets, label: kind === "metric" ? labelOf(metric) : name, isOtherScale: kind === "metric" };
  }

  panelOf(name) {
    let panel = this.panels.get(name);
    if (!panel) {
      panel = { name, value: element("span", { class: "value" }), plot: element("div", { class: "plot" }), buckets: [], beside: null };
      const label = labelOf(name);
      panel.choice = element("select", { class: "beside", "aria-label": `Draw beside ${label}`, onchange: () => this.drawBeside(panel) }, element("option", { value: "" }, "compare…"));
      const enlarge = element("button", { type: "button", class: "plain small", "aria-label": `Draw ${label} larger`, "aria-pressed": "false", onclick: () => enlarge.setAttribute("aria-pressed", String(panel.node.classList.toggle("wide"))) }, "larger");
      panel.node = element("div", { class: "panel" }, element("div", { class: "panel-head" }, element("b", { title: label }, label), panel.choice, panel.value, enlarge), panel.plot);
      this.panels.set(name, panel);
      this.grid.append(panel.node);
      this.sizes.observe(panel.plot);
    }
    return panel;
  }

  drawPanel(panel) {
    const { buckets, plot } = panel;
    if (!buckets.length) return;
    if (!this.library) {
      plot.replaceChildren(spark(buckets.map(({ mean }) => mean), 400, 200));
      return;
    }
    const { isLog, by, share } = this.settings;
    const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
    const numbers = [...new Set(buckets.map(({ attempt }) => attempt))];
    const traces = numbers.flatMap((number, place) => {
      const again = Math.min(...buckets.filter(({ attempt }) => attempt > number).map(({ step }) => step));
      return this.tracesOf(buckets.filter(({ attempt }) => attempt === number), number, (place + 1) / numbers.length, again, colour("--accent"));
    });
    const axis = { gridcolor: colour("--line"), zeroline: false, linecolor: colour("--line"), tickfont: { size: 11 }, automargin: true };
    const xs = buckets.map((bucket) => this.across(bucket));
    const range = share === "1" ? undefined : [xs[Math.floor((xs.length - 1) * (1 - Number(share)))], xs.at(-1)];
    traces.push(...this.tracesBeside(panel, colour("--second")));
    const isSecondAxis = panel.beside?.isOtherScale ?? false;
    const layout = {
      shapes: this.lines(buckets, numbers, colour), paper_bgcolor: colour("--card"), plot_bgcolor: colour("--card"), font: { color: colour("--soft"), family: "inherit" },
      xaxis: { ...axis, type: by === "time" ? "date" : "linear", ...(range ? { range, autorange: false } : { autorange: true }) }, yaxis: { ...axis, type: isLog ? "log" : "linear", ...heightOf(buckets, isLog) },
      ...(isSecondAxis ? { yaxis2: { ...axis, overlaying: "y", side: "right", showgrid: false, tickfont: { size: 11, color: colour("--second") }, type: isLog ? "log" : "linear" } } : {}),
      margin: { l: 8, r: 8, t: 14, b: 22 }, showlegend: false, hovermode: "x", hoverlabel: { font: { size: 11 } }, uirevision: JSON.stringify([isLog, by, share]),
    };
    this.library.react(plot, traces, layout, { displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
  }

  // What is drawn beside: along steps in one line, with the later values where a step was done again; along time a line
  // for each attempt.
  tracesBeside({ beside }, color) {
    if (!beside?.buckets.length) return [];
    const { buckets, label, isOtherScale } = beside;
    const { smoothing, by } = this.settings;
    const attempts = [...new Set(buckets.map(({ attempt }) => attempt))];
    const again = ({ step, attempt }) => buckets.some((other) => other.attempt > attempt && other.step <= step);
    const parts = by === "step" ? [buckets.filter((bucket) => !again(bucket))] : attempts.map((number) => buckets.filter(({ attempt }) => attempt === number));
    return parts.map((part) => {
      const values = part.map(({ mean }) => mean);
      return { x: part.map((bucket) => this.across(bucket)), y: smoothing ? smoothed(values, smoothing) : values, mode: part.length > 1 ? "lines" : "markers", line: { color, width: 1.8 }, marker: { color }, name: escaped(label), yaxis: isOtherScale ? "y2" : "y", hovertemplate: `%{y:.4~g}<extra>${escaped(label)}</extra>` };
    });
  }

  // Plotly reads times as UTC; the page shows local ones.
  across(bucket) {
    if (this.settings.by === "step") return bucket.step;
    return new Date(bucket.wall_at * 1000 - new Date(bucket.wall_at * 1000).getTimezoneOffset() * 60_000).toISOString().slice(0, 23);
  }

  // Older attempts are paler, and steps that a later one did again, from step `again` on, are faint. With smoothing the
  // values themselves stay, thin, behind the line.
  tracesOf(buckets, number, newness, again, accent) {
    const x = buckets.map((bucket) => this.across(bucket));
    const values = buckets.map(({ mean }) => mean);
    const text = buckets.map(({ count, least, greatest }) => (count > 1 ? `, ${plain(least)} to ${plain(greatest)} in ${count} reports` : ""));
    const { smoothing } = this.settings;
    const y = smoothing ? smoothed(values, smoothing) : values;
    const firstAgain = buckets.findIndex(({ step }) => step >= again);
    const kept = firstAgain < 0 ? buckets.length : firstAgain;
    const part = (from, until, name, opacity) => {
      if (until <= from) return [];
      const line = { x: x.slice(from, until), y: y.slice(from, until), text: text.slice(from, until), mode: until - from > 1 ? "lines" : "markers", opacity, line: { color: accent, width: 1.8 }, marker: { color: accent }, name, hovertemplate: `%{y:.4~g}%{text}<extra>${name}</extra>` };
      const raw = { ...line, y: values.slice(from, until), opacity: 0.3 * opacity, line: { color: accent, width: 1 }, hoverinfo: "skip", hovertemplate: undefined };
      return smoothing ? [raw, line] : [line];
    };
    const opacity = 0.35 + 0.65 * newness;
    return [...part(0, kept, `attempt ${number}`, opacity), ...part(Math.max(0, kept - 1), firstAgain < 0 ? 0 : buckets.length, `attempt ${number}, done again`, 0.35 * opacity)];
  }

  lines(buckets, numbers, colour) {
    const line = (bucket, name, text) => ({ type: "line", x0: this.across(bucket), x1: this.across(bucket), y0: 0, y1: 1, yref: "paper", line: { color: colour(name), dash: "dot", width: 1 }, label: { text: escaped(text), textposition: "end", textangle: -90, xanchor: "right", yanchor: "bottom", font: { size: 10, color: colour(name) } } });
    const ended = new Map(this.attempts.map((attempt) => [attempt.attempt, attempt]));
    const ends = numbers.filter((number) => number !== numbers.at(-1) || ended.get(number)?.cause).map((number) => {
      const attempt = ended.get(number);
      return line(buckets.findLast((bucket) => bucket.attempt === number), !attempt || wasDeath(attempt) ? "--bad" : "--soft", attempt?.cause ?? "");
    });
    const marks = this.marks.flatMap((mark) => {
      const before = buckets.findLast((bucket) => bucket.wall_at <= mark.at);
      return before ? [line(before, mark.kind === "rollback" ? "--accent" : "--warn", mark.kind)] : [];
    });
    return apart([...ends.slice(-MOST_MARKS), ...marks.slice(-MOST_MARKS)], [this.across(buckets[0]), this.across(buckets.at(-1))]);
  }
}

const labelOf = (metric) => (metric === "steps_per_second" ? "steps/s" : metric);
const bucketsOf = ({ metrics }, metric) => metrics.find(({ name }) => name === metric)?.buckets ?? [];

// Of lines that stand close together only the last keeps its label, or none could be read.
function apart(shapes, [begin, end]) {
  const at = (x) => (typeof x === "number" ? x : Date.parse(x));
  const gap = (at(end) - at(begin)) * LABEL_SHARE;
  return shapes.map((shape) => {
    const isClose = shapes.some((other) => at(other.x0) > at(shape.x0) && at(other.x0) - at(shape.x0) < gap);
    return isClose ? { ...shape, label: undefined } : shape;
  });
}

// Of values that differ only by rounding the axis would show nothing but that.
function heightOf(buckets, isLog) {
  const values = buckets.map(({ mean }) => mean).filter(Number.isFinite);
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  const isFlat = greatest - least < 1e-6 * Math.max(Math.abs(least), Math.abs(greatest));
  if (!isFlat || greatest === 0 || (isLog && greatest < 0)) return { autorange: true };
  return { range: isLog ? [Math.log10(greatest) - 1, Math.log10(greatest) + 1] : [0, 1.25 * greatest], autorange: false };
}

// An exponential mean, without the pull of its start (as TensorBoard's).
function smoothed(values, weight) {
  let [sum, count] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value * (1 - weight);
    count = count * weight + (1 - weight);
    return sum / count;
  });
}

// The plotting library reads a few tags in labels.
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
