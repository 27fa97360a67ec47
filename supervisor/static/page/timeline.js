// What happened to a program, in a user's words.

import { element, moment, table } from "./dom.js";
import { stateWord } from "./program.js";

const EVENTS = [
  [/^start requested.*/, "A start was requested"],
  [/^stop requested.*/, "A stop was requested"],
  [/^checkpoint selected \(.*?\bstep (\d+).*/, "The checkpoint of step $1 is whole and was chosen"],
  [/^checkpoint selected.*/, "There is no checkpoint yet"],
  [/^steps done \(step (\d+)\)/, "Step $1 was done"],
  [/^worker exited \((.*)\)$/, "The process ended: $1"],
  [/^deadline passed.*/, "The time to wait was over"],
  [/^flush requested.*/, "A checkpoint was requested"],
  [/^checkpoint committed.*?step (\d+).*/, "The checkpoint of step $1 was written"],
  [/^checkpoint save failed \(?(.*?)\)?$/, "A checkpoint could not be written: $1"],
  [/^notice received \((.*)\)$/, "A notice came: $1"],
  [/^notice changed \((.*)\)$/, "The notice changed: $1"],
  [/^notice ended.*/, "The notice ended"],
  [/^done reported.*/, "Training was done"],
  [/^failure reported \(?(.*?)\)?$/, "The worker reported a failure: $1"],
  [/^stacks collected.*/, "The stacks of a process that hung were saved"],
];
const END = "record the end: ";
const EFFECTS = [
  [/^start the process$/, "starts the process"],
  [/^select a checkpoint( \(.*\))?$/, "$1"],
  [/^train from .*\/step-0*(\d+)\S*$/, "goes on from step $1"],
  [/^train from the beginning$/, "trains from the beginning"],
  [/^record that it should run$/, ""],
  [/^record that it should stay stopped$/, ""],
  [/^request a flush \((.*)\)$/, "asks for a checkpoint ($1)"],
  [/^send the stop signal$/, "sends the stop signal"],
];

function inWords(text, words) {
  const rule = words.find(([pattern]) => pattern.test(text));
  return rule ? text.replace(rule[0], rule[1]) : text;
}

// Notices and roll-backs, from the timeline's entries: [{ at, kind, text }], oldest first.
export function marksOf(scenes) {
  return scenes.flatMap((scene) => {
    if (scene.event.startsWith("notice received")) return [{ at: scene.wall_at, kind: "notice", text: scene.event }];
    const leftOut = scene.effects.find((text) => text.startsWith("quarantine") || text.includes("before step"));
    return leftOut ? [{ at: scene.wall_at, kind: "rollback", text: leftOut }] : [];
  });
}

// The event and what followed; the end of a process once, with the fullest word on why.
function sentence(scene) {
  const end = scene.effects.find((effect) => effect.startsWith(END));
  const event = end ? `It ended: ${scene.reason ?? end.slice(END.length)}` : inWords(scene.event, EVENTS);
  const followed = scene.effects.filter((effect) => effect !== end).map((effect) => inWords(effect, EFFECTS));
  if (!end && scene.reason && !event.includes(scene.reason)) followed.push(scene.reason);
  return [event.charAt(0).toUpperCase() + event.slice(1), ...followed.filter(Boolean)].join("; ");
}

export class Timeline {
  constructor() {
    this.rows = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of events" });
    this.node = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, "What happened")), this.rows);
  }

  update(scenes) {
    const rows = scenes.toReversed().map((scene) => {
      const text = sentence(scene);
      const state = scene.was === scene.state ? "" : stateWord(scene.state);
      return element("tr", { title: `${scene.event}: ${scene.was} → ${scene.state}; ${scene.effects.join("; ")}` }, element("td", {}, moment(scene.wall_at)), element("td", { class: "wide" }, text), element("td", {}, state));
    });
    this.rows.replaceChildren(rows.length ? table(["Time", "What happened", "Then"], rows, "stacked") : element("p", { class: "soft" }, "Nothing since the daemon began to supervise it."));
  }
}
