// The GPUs of the host: which are in order, what failed, which no job gets and why; one that is repaired is given back.

import { call } from "./api.js";
import { counted, element, moment, setText, table } from "./dom.js";
import { ask, say } from "./menu.js";

const LOOK_EVERY_MS = 10_000;
const HEADS = ["GPU", "State", "Used by", "Faults>", "Last fault", "What is wrong", ""];
const TONES = { ok: "good", "left out": "bad", "in error": "bad" };
const REMEDIES = { reset: "reset it", reboot: "restart the host", replace: "have it replaced", inspect: "look at it" };

export class Gpus {
  constructor() {
    this.remark = element("span", { class: "soft" });
    this.troubles = element("p", { class: "died", hidden: true });
    this.place = element("div", { class: "scroll whole", tabindex: "0", role: "region", "aria-label": "Table of GPUs" });
    this.card = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h1", {}, "GPUs"), this.remark), this.troubles, this.place);
    this.node = element("article", {}, this.card);
    this.timer = setInterval(() => document.hidden || this.look(), LOOK_EVERY_MS);
    this.look();
  }

  close() {
    clearInterval(this.timer);
  }

  // What the daemon says beside the list: whether faults are looked for, and what keeps that from being done.
  async look() {
    const answer = await call("gpus").catch(() => null); // the header says when the daemon is gone
    if (!answer) return;
    this.isWatched = answer.is_watched;
    const troubles = [...answer.troubles, answer.acts ? "" : "Faults are only reported (on_gpu_fault = report)."].filter(Boolean);
    setText(this.troubles, troubles.join("\n"));
    this.troubles.hidden = !troubles.length;
    this.draw(answer.gpus);
  }

  update({ daemon }) {
    if (daemon.gpus) this.draw(daemon.gpus);
  }

  draw(gpus) {
    const key = JSON.stringify([gpus, this.isWatched]);
    if (key === this.key) return;
    this.key = key;
    const well = gpus.filter(({ state }) => state === "ok").length;
    setText(this.remark, gpus.length ? `${counted(gpus.length, "GPU")}, ${well === gpus.length ? "all in order" : `${gpus.length - well} not in order`}` : "");
    const nothing = this.isWatched ? "No GPU is known yet." : "This host has no GPU that is watched: there is no driver of NVIDIA's.";
    this.place.replaceChildren(gpus.length ? table(HEADS, gpus.map(row), "stacked roomy") : element("p", { class: "soft" }, nothing));
  }
}

function row(gpu) {
  const id = gpu.uuid || gpu.address;
  const wrong = [gpu.left_out ?? gpu.trouble ?? "", gpu.action ? `To be done: ${REMEDIES[gpu.action] ?? gpu.action}.` : ""];
  const since = gpu.left_out_wall_at === null ? "" : `Left out since ${moment(gpu.left_out_wall_at)}.`;
  const again = element("button", { type: "button", "data-action": "gpu-return", "aria-label": `Use again: GPU ${gpu.index ?? id}`, onclick: () => giveBack(id) }, "Use again");
  const jobs = gpu.used_by.flatMap((name, place) => [place ? ", " : "", element("a", { href: `#/program/${encodeURIComponent(name)}` }, name)]);
  return element("tr", {},
    element("td", {}, element("div", {}, element("b", {}, gpu.index === null ? "" : `GPU ${gpu.index}`), ` ${gpu.name}`), element("div", { class: "soft small" }, id)),
    element("td", {}, element("span", { class: `pill ${TONES[gpu.state] ?? ""}` }, gpu.state)),
    element("td", {}, jobs),
    element("td", { class: "right" }, String(gpu.faults || "")),
    element("td", {}, gpu.last_fault === null ? "" : [element("div", {}, gpu.last_fault), element("div", { class: "soft small" }, moment(gpu.last_fault_wall_at))]),
    element("td", { class: "wide" }, wrong[0] ? [element("div", { class: "bad" }, wrong[0]), element("div", { class: "soft small" }, [wrong[1], since].filter(Boolean).join(" "))] : ""),
    element("td", {}, gpu.left_out === null ? "" : again));
}

async function giveBack(id) {
  if (!(await ask(`Let jobs use ${id} again? They get it with their next start.`, "Use again"))) return;
  try {
    await call("gpu_return", { gpu: id });
    say(`${id}: jobs get it with their next start`);
  } catch (error) {
    say(`cannot give ${id} back: ${error.message}`);
  }
}
