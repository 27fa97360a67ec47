// What can be done to a program, or to several at once, and what came of it.

import { call, callForAll } from "./api.js";
import { counted, element, setText } from "./dom.js";
import { ask, openMenu, say } from "./menu.js";
import { DOWN } from "./program.js";

const SIGNALS = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "KILL"];

// Why a program is not stopped for a restart.
const KEPT_RUNNING = new Set(["NOT_SAVED", "CANT_RESTART"]);

// What a stop says; nothing of a program that has just ended by itself, which is to run again all the same.
async function stopToRestart(name, request) {
  try {
    return await call("stop", { name, restarts: true, ...request });
  } catch (error) {
    if (error.code !== "NOT_RUNNING") throw error;
    return {};
  }
}

// A job that can't save trains on, and a program that could not be started again runs on, unless the user says otherwise.
async function restart(name) {
  let stopped;
  try {
    stopped = await stopToRestart(name, { only_if_saved: true });
  } catch (error) {
    if (!KEPT_RUNNING.has(error.code) || !(await ask(`${name}: ${error.message}. Restart it nevertheless?`, "Restart"))) throw error;
    stopped = await stopToRestart(name, {});
  }
  try {
    await call("start", { name, wait: false });
  } catch (error) {
    throw stopped.is_loss ? Object.assign(error, { message: `${error.message}\n${stopped.text}`, isLoss: true }) : error;
  }
  return stopped;
}

const ACTIONS = {
  start: { label: "Start", does: (name) => call("start", { name, wait: false }) },
  stop: { label: "Stop", asks: (name) => `Stop ${name}?`, does: (name) => call("stop", { name }) },
  restart: { label: "Restart", asks: (name) => `Restart ${name}?`, does: restart },
  checkpoint: { label: "Checkpoint", does: (name) => call("checkpoint", { name }) },
  signal: { label: "Send a signal…", asks: (name) => `Which signal to send to ${name}?`, yes: "Send", choices: SIGNALS, does: (name, signal) => call("signal", { name, signal }) },
  clear: { label: "Empty the logs…", asks: (name) => `Empty the logs of ${name}?`, yes: "Empty", does: (name) => call("clear", { name }) },
};

function isPossible(action, program) {
  const isDown = DOWN.has(program.wire_state);
  if (action === "start") return isDown || program.wire_state === "BACKOFF";
  if (action === "clear") return true;
  return action === "stop" || action === "restart" ? !isDown : program.pid !== null;
}

const primary = (program) => (isPossible("start", program) ? "start" : "stop");

async function act(action, name) {
  const { label, asks, yes, choices, does } = ACTIONS[action];
  const answer = asks ? await ask(asks(name), yes ?? label, choices) : true;
  if (answer === null) return;
  say(`${action} ${name}…`);
  try {
    const result = await does(name, answer);
    say(`${action} ${name}: ${result.text ?? `done${result.checkpoint ? ` (${result.checkpoint})` : ""}`}`, result.is_loss);
  } catch (error) {
    say(`${action} ${name}: ${error.message}`, KEPT_RUNNING.has(error.code) || error.isLoss);
  }
}

// The buttons of one program: those that its state asks for, and a menu with all.
export class Buttons {
  constructor(name, { extra = [], isProminent = false } = {}) {
    this.extra = extra;
    this.isProminent = isProminent;
    this.program = null;
    const button = (action) => element("button", { type: "button", "data-action": action, onclick: () => act(this.first.dataset.action, name) });
    this.first = button("start");
    this.more = element("button", { type: "button", class: "menu", "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": `More for ${name}`, "data-action": "menu", onclick: () => this.open() }, "⋯");
    this.save = element("button", { type: "button", "data-action": "checkpoint", hidden: true, onclick: () => act("checkpoint", name) }, "Checkpoint");
    this.node = element("div", { class: "do", role: "cell" }, isProminent ? this.save : null, this.first, this.more);
    if (isProminent) this.node.removeAttribute("role");
  }

  update(program) {
    this.program = program;
    const action = primary(program);
    this.first.dataset.action = action;
    setText(this.first, ACTIONS[action].label);
    this.first.setAttribute("aria-label", `${ACTIONS[action].label} ${program.name}`);
    this.first.disabled = !isPossible(action, program);
    this.first.classList.toggle("main", action === "start" && (this.isProminent || ["FATAL", "BACKOFF"].includes(program.wire_state)));
    this.save.hidden = !program.job;
    this.save.disabled = !isPossible("checkpoint", program);
  }

  open() {
    const { name, job } = this.program;
    const names = Object.keys(ACTIONS).filter((action) => action !== "checkpoint" || job);
    const entries = names.map((action) => ({ label: ACTIONS[action].label, action, isPossible: isPossible(action, this.program), choose: () => act(action, name) }));
    openMenu(this.more, [...this.extra, ...entries.slice(0, -2), null, ...entries.slice(-2)]);
  }
}

// Starts, stops or restarts several; says what came of it.
export async function actOnAll(action, names) {
  const what = counted(names.length, "program");
  if (action !== "start" && !(await ask(`${ACTIONS[action].label} ${what}? ${names.slice(0, 8).join(", ")}${names.length > 8 ? ", …" : ""}`, ACTIONS[action].label))) return;
  const progress = (outcomes) => say(`${action}: ${outcomes.length} of ${names.length}…`, true);
  let stops = [];
  const losses = () => stops.filter(({ result }) => result?.is_loss).map(({ name, result }) => `${name}: ${result.text}`);
  try {
    let outcomes = [];
    let starting = names;
    if (action !== "start") {
      outcomes = await callForAll("stop", names, action === "restart" ? { only_if_saved: true, restarts: true } : {}, (heard) => progress((stops = heard)));
      const refused = new Set(outcomes.filter(({ error }) => error && error.code !== "NOT_RUNNING").map(({ name }) => name));
      starting = names.filter((name) => !refused.has(name));
    }
    if (action !== "stop") {
      const kept = new Set(starting);
      outcomes = [...outcomes.filter(({ name }) => !kept.has(name)), ...(await callForAll("start", starting, { wait: false }, progress))];
    }
    const failures = outcomes.filter(({ error }) => error);
    const lines = [...failures.map(({ name, error }) => `${name}: ${error.message ?? error.code}`), ...losses()];
    say([`${action} ${what}: ${failures.length ? `${names.length - failures.length} done, ${failures.length} not` : "done"}`, ...lines].join("\n"), lines.length > 0);
  } catch (error) {
    say([`${action} ${what}: ${error.message}`, ...losses()].join("\n"), losses().length > 0); // what the stops lost is lost
  }
}
