// What is said of a program: its state, whether it needs a person, why it died, how fast it is.

import { counted, duration, moment, whole } from "./dom.js";

const SUPERVISORS_TIME = /^[A-Z][a-z]{2} \d{2} \d{2}:\d{2} [AP]M/; // how the description of a program that is down begins
export const DOWN = new Set(["STOPPED", "EXITED", "FATAL", "UNKNOWN"]);
const TONES = { RUNNING: "good", STARTING: "warn", STOPPING: "warn", BACKOFF: "warn", FATAL: "bad", UNKNOWN: "bad" };
const WANTED_ENDS = new Set(["done", "stopped"]); // causes of an end that somebody asked for

export const tone = (state) => TONES[state] ?? "";

export function stateWord(state) {
  return state.charAt(0) + state.slice(1).toLowerCase();
}

function failedToEnd(program) {
  return program.wire_state === "EXITED" && (program.exit_code > 0 || program.signal !== null);
}

export const toneOf = (program) => (failedToEnd(program) ? "bad" : tone(program.wire_state));

// What is wrong with a program that works or waits; "" if nothing is.
function trouble(program) {
  const job = program.job;
  return [job?.save_error && `cannot save: ${job.save_error}`, job?.mirror?.error && `mirror: ${job.mirror.error}`, job?.waits_for_storage && "waits for its storage", job?.proof?.verdict === "different" && job.proof.text].filter(Boolean).join("; ");
}

// attention: a person should look at it; training; other.
export function section(program) {
  if (["FATAL", "BACKOFF", "UNKNOWN"].includes(program.wire_state) || (failedToEnd(program) && program.wanted) || trouble(program)) return "attention";
  return program.job && !DOWN.has(program.wire_state) ? "training" : "other";
}

// Why a program that is down, or waits, died; "" if nothing is known.
export function deathText(program) {
  if (program.diagnosis) return [program.diagnosis.what, program.diagnosis.line].filter(Boolean).join(": ");
  return program.reason ?? (failedToEnd(program) ? program.description : "");
}

export function wasDeath(attempt) {
  return attempt.cause !== null && !WANTED_ENDS.has(attempt.cause);
}

// How an attempt ended, in one line.
export function endText(attempt) {
  if (attempt.ended_wall_at === null) return "it runs";
  const again = attempt.lost_steps ? `; ${counted(attempt.lost_steps, "step")} done again` : "";
  return `${[attempt.cause, attempt.text].filter(Boolean).join(": ")}${again}`;
}

export function attentionText(program) {
  return [deathText(program), trouble(program)].filter(Boolean).join("; ") || program.description || "";
}

// The daemon counts in seconds; people don't.
export function readable(text) {
  return text.replace(/\b(\d{2,}) s\b/g, (_, seconds) => duration(Number(seconds)));
}

// What a person should know of a job that trains, though nothing has to be done at once.
export function remarksOn({ job, says, warning, notice }) {
  const doing = notice?.doing ? readable(notice.doing) : "";
  return [job?.slower && `slower than usual: ${job.slower}`, job?.silence, job?.gpus_missing, says, warning, doing].filter(Boolean);
}

export function about(program, now) {
  const parts = [];
  if (program.wire_state === "RUNNING" && program.started_wall_at) parts.push(`up ${duration(now - program.started_wall_at)}`, `pid ${program.pid}`);
  else if (program.description) parts.push(program.description.replace(SUPERVISORS_TIME, moment(program.ended_wall_at)));
  parts.push(program.not_applied, program.wire_state === "RUNNING" ? program.reason : null, ...remarksOn(program));
  return parts.filter(Boolean).join(" · ");
}

export function speed(program) {
  const job = program.job;
  return job?.step_s && program.wire_state === "RUNNING" ? `${Number((1 / job.step_s).toPrecision(3))} steps/s` : "";
}

export function secondsLeft(program) {
  const job = program.job;
  if (!job?.step_s || !job.total_steps || program.wire_state !== "RUNNING") return null;
  return Math.max(0, job.total_steps - (job.step ?? 0)) * job.step_s;
}

// The metric that a list shows: the loss, or what the job reports first.
export function leadingMetric(job) {
  const names = Object.keys(job?.metrics ?? {});
  return names.includes("loss") ? "loss" : (names[0] ?? null);
}

// How old a checkpoint is; it may be newer than the page's idea of now.
// The newest state that outlives the worker, and the newest that outlives the host's memory.
export function newestText({ memory_step, checkpoint }) {
  if (memory_step === null) return checkpoint ? `step ${whole(checkpoint.step)}` : "none yet";
  return `newest: step ${whole(memory_step)} in memory, ${checkpoint ? whole(checkpoint.step) : "none"} on disk`;
}

export function ageText(checkpoint, now) {
  if (!checkpoint) return "";
  const age = now - checkpoint.committed_wall_at;
  return age < 1 ? "just now" : `${duration(age)} ago`;
}
