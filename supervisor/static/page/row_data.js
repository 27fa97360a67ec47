// What the list shows of a job besides its status: the course of its loss, its goodput, and what it uses.
// Asked for only while its row is in view, one question at a time; between, the course goes on with what the status says.

import { call } from "./api.js";
import { leadingMetric } from "./program.js";

const AGAIN_AFTER_MS = 60_000;
const MOST_POINTS = 240;

export class RowData {
  constructor() {
    this.usage = new Map();
    this.known = new Map(); // by name: { values, step, goodput, at }
    this.wanted = new Set();
    this.isAsking = false;
  }

  values = (name) => this.known.get(name)?.values ?? [];
  goodput = (name) => this.known.get(name)?.goodput ?? null;
  value = ({ job }) => job?.metrics?.[leadingMetric(job)] ?? null;

  follow(program) {
    const known = this.known.get(program.name);
    const value = this.value(program);
    if (!known || value === null || program.job.step === null || program.job.step === known.step) return;
    known.step = program.job.step;
    known.values.push(value);
    if (known.values.length > 2 * MOST_POINTS) known.values = thinned(known.values);
  }

  want(program) {
    const known = this.known.get(program.name);
    if (program.job && !document.hidden && Date.now() - (known?.at ?? 0) > AGAIN_AFTER_MS) this.wanted.add(program);
    if (!this.isAsking) this.ask();
  }

  async ask() {
    this.isAsking = true;
    for (const program of this.wanted) {
      this.wanted.delete(program);
      const { name, job } = program;
      const metric = leadingMetric(job);
      try {
        const { goodput } = await call("goodput", { name });
        const series = metric === null ? null : await call("series", { name, metric });
        const buckets = series?.metrics.find((one) => one.name === metric)?.buckets ?? [];
        this.known.set(name, { values: thinned(buckets.map(({ mean }) => mean)), step: job.step, goodput, at: Date.now() });
      } catch {
        this.known.set(name, { ...(this.known.get(name) ?? { values: [], step: null, goodput: null }), at: Date.now() });
      }
    }
    this.isAsking = false;
  }
}

function thinned(values) {
  const every = Math.max(1, Math.ceil(values.length / MOST_POINTS));
  return values.filter((_, place) => place % every === 0 || place === values.length - 1);
}
