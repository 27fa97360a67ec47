// The time line of a program: its attempts one after the other, coloured by where their time went, with what ended them.

import { duration, element, moment } from "./dom.js";

export const SPENT = ["starting", "restoring", "tracing", "replaying", "training", "saving", "data", "hung", "down", "stopped"];
const WANTED = new Set(["done", "stopped"]); // ends that somebody asked for

// Notices and roll-backs, from the timeline's entries: [{ at, kind, text }], oldest first.
export function marksOf(scenes) {
  return scenes.flatMap((each) => {
    if (each.event.startsWith("notice received")) return [{ at: each.wall_at, kind: "notice", text: each.event }];
    const from = each.effects.find((text) => text.startsWith("quarantine") || text.includes("before step"));
    return from ? [{ at: each.wall_at, kind: "rollback", text: from }] : [];
  });
}

export function wasDeath(attempt) {
  return attempt.cause !== null && !WANTED.has(attempt.cause);
}

// A strip from the first attempt that is shown until now.
export function strip(attempts, marks) {
  if (!attempts.length) return element("div");
  const now = Date.now() / 1000;
  const begin = attempts[0].started_wall_at;
  const total = Math.max(now - begin, 1);
  const place = (node, from, until) => {
    node.style.left = `${(100 * Math.max(from - begin, 0)) / total}%`;
    if (until !== undefined) node.style.width = `${(100 * Math.max(until - from, 0)) / total}%`;
    return node;
  };
  const blocks = attempts.map((each) => {
    const until = each.ended_wall_at ?? now;
    const title = `attempt ${each.attempt}, ${moment(each.started_wall_at)}, ${duration(until - each.started_wall_at)}${each.cause ? `, ${each.cause}` : ""}`;
    const content = pieces(each);
    return place(element("div", { class: "bar", title }, content.length ? content : whole()), each.started_wall_at, until);
  });
  const deaths = attempts.filter((each) => wasDeath(each) && each.ended_wall_at).map((each) => ({ at: each.ended_wall_at, kind: "death", text: `attempt ${each.attempt}: ${each.cause} ${each.text ?? ""}` }));
  const ticks = [...deaths, ...marks.filter((each) => each.at >= begin)].map((each) => place(element("i", { class: `mark ${each.kind}`, title: `${moment(each.at)}: ${each.text}` }), each.at));
  const summary = `time line: attempts ${attempts[0].attempt} to ${attempts.at(-1).attempt}, ${ticks.length} marks`;
  return element("div", {}, element("div", { class: "life", role: "img", "aria-label": summary }, blocks, ticks), element("div", { class: "life-ends soft" }, element("span", {}, moment(begin)), element("span", {}, "now")));
}

// The categories of an attempt's time, each as wide as its share.
export function pieces(attempt) {
  const total = SPENT.reduce((sum, name) => sum + (attempt.spent_s[name] ?? 0), 0);
  return SPENT.filter((name) => attempt.spent_s[name] > 0).map((name) => {
    const piece = element("i", { class: name, title: `${name} ${duration(attempt.spent_s[name])}` });
    piece.style.width = `${(100 * attempt.spent_s[name]) / total}%`;
    return piece;
  });
}

function whole() {
  const piece = element("i", { class: "training" });
  piece.style.width = "100%";
  return piece;
}

export function legend() {
  const marks = [["death", "an end that nobody asked for"], ["notice", "notice"], ["rollback", "checkpoint left out"]];
  return element("div", { class: "legend" }, SPENT.map((each) => element("span", {}, element("i", { class: each }), each)), marks.map(([kind, text]) => element("span", {}, element("i", { class: kind }), text)));
}
