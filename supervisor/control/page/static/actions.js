// The buttons of a program, and what came of them.

import { call } from "./api.js";
import { element } from "./dom.js";

const SIGNALS = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "KILL"];
const DOWN = ["STOPPED", "EXITED", "FATAL", "UNKNOWN"];

// `stays`: until something else is said.
export function say(text, stays = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  clearTimeout(say.timer);
  if (text && !stays) say.timer = setTimeout(() => (said.textContent = ""), 15000);
}

function confirmed(question, choices = null) {
  const select = choices && element("select", { "aria-label": question }, choices.map((each) => element("option", {}, each)));
  const yes = element("button", { value: "yes" }, "Yes");
  const form = element("form", { method: "dialog" }, element("p", {}, question), select, " ", yes, " ", element("button", { value: "" }, "No"));
  const dialog = element("dialog", {}, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? (select ? select.value : true) : null);
    }),
  );
}

// A job that can't save trains on, unless the user says that its last steps may be lost.
async function restart(name) {
  let stopped;
  try {
    stopped = await call("stop", { name, only_if_saved: true });
  } catch (error) {
    if (error.code !== "NOT_SAVED" || !(await confirmed(`${name}: ${error.message}. Restart it nevertheless?`))) throw error;
    stopped = await call("stop", { name });
  }
  await call("start", { name, wait: false });
  return stopped;
}

const ACTIONS = {
  start: { does: (name) => call("start", { name, wait: false }) },
  stop: { asks: "Stop", does: (name) => call("stop", { name }) },
  restart: { asks: "Restart", does: restart },
  checkpoint: { does: (name) => call("checkpoint", { name }) },
  signal: { asks: "Which signal to send to", choices: SIGNALS, does: (name, signal) => call("signal", { name, signal }) },
  clear: { asks: "Empty the logs of", does: (name) => call("clear", { name }) },
};

function possible(action, program) {
  const isDown = DOWN.includes(program.wire_state);
  if (action === "start") return isDown || program.wire_state === "BACKOFF";
  if (action === "clear") return true;
  return action === "stop" || action === "restart" ? !isDown : program.pid !== null;
}

export function buttons(program) {
  const row = element("div", { class: "actions" });
  for (const [action, { asks, choices, does }] of Object.entries(ACTIONS)) {
    if (action === "checkpoint" && !program.job) continue;
    const button = element("button", { type: "button", "data-action": action }, action);
    button.addEventListener("click", async () => {
      const answer = asks ? await confirmed(`${asks} ${program.name}?`, choices) : true;
      if (answer === null) return;
      say(`${action} ${program.name}…`);
      try {
        const result = await does(program.name, answer);
        const done = result.text ?? `done${result.checkpoint ? ` (${result.checkpoint})` : ""}`;
        say(`${action} ${program.name}: ${done}`, result.is_loss);
      } catch (error) {
        say(`${action} ${program.name}: ${error.message}`, error.code === "NOT_SAVED");
      }
    });
    row.append(button);
  }
  return row;
}

export function enable(row, program) {
  for (const button of row.children) button.disabled = !possible(button.dataset.action, program);
}
