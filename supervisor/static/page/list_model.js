// Which rows the list has, in which order and how high: a pure function of what is known and what the user chose.

import { about, secondsLeft, section } from "./program.js";

export const SECTIONS = [["attention", "Needs attention"], ["training", "Training"], ["other", "Other programs"]];
const FOLDED_FROM = 9; // a group with so many members is folded until somebody opens it
const HEIGHTS = { section: 32, group: 36, attention: 52, training: 52, other: 36 };
const PHONE_HEIGHTS = { section: 32, group: 44, attention: 78, training: 88, other: 56 };

const progressOf = ({ job }) => (job?.total_steps ? (job.step ?? 0) / job.total_steps : null);

// What each column sorts by; null comes last in either direction.
export const COLUMNS = [
  ["name", "Program", null],
  ["state", "State", ({ wire_state }) => wire_state],
  ["progress", "Progress", progressOf],
  ["speed", "Speed", ({ job, wire_state }) => (job?.step_s && wire_state === "RUNNING" ? 1 / job.step_s : null)],
  ["loss", "Loss", (program, extras) => extras.value(program)],
  ["checkpoint", "Saved", ({ job }) => (job?.checkpoint ? -job.checkpoint.committed_wall_at : null)],
  ["goodput", "Goodput", ({ name }, extras) => extras.goodput(name)],
  ["memory", "Memory", ({ name }, extras) => extras.usage.get(name)?.memory_bytes ?? null],
];

function compare(sort, extras) {
  const read = COLUMNS.find(([key]) => key === sort.by)[2] ?? (() => 0);
  const direction = sort.isDescending ? -1 : 1;
  const byName = (one, other) => (one.name < other.name ? -1 : 1);
  return (one, other) => {
    const [first, second] = [read(one, extras), read(other, extras)];
    if (first === second || sort.by === "name") return sort.by === "name" ? direction * byName(one, other) : byName(one, other);
    if (first === null) return 1;
    if (second === null) return -1;
    return direction * (first < second ? -1 : 1);
  };
}

function matches(program, view, now) {
  if (view.states.size && !view.states.has(program.wire_state)) return false;
  if (!view.filter) return true;
  const text = `${program.name} ${program.group} ${program.wire_state} ${about(program, now)}`.toLowerCase();
  return view.filter.split(/\s+/).every((word) => text.includes(word));
}

export function isFolded(name, size, view) {
  if (view.filter || view.states.size) return false; // what was looked for is to be seen
  return view.folds.get(name) ?? size >= FOLDED_FROM;
}

// The rows: { key, kind, height, top, program | members | title, … }. `view`: filter, states, sort, folds, isPhone.
export function rowsOf(programs, view, extras, now) {
  const parts = new Map(SECTIONS.map(([key]) => [key, []]));
  for (const program of programs.values()) if (matches(program, view, now)) parts.get(section(program)).push(program);
  const heights = view.isPhone ? PHONE_HEIGHTS : HEIGHTS;
  const rows = [];
  let top = 0;
  const add = (row, kind) => {
    rows.push({ ...row, kind, height: heights[kind], top });
    top += heights[kind];
  };
  const order = compare(view.sort, extras);
  for (const [part, title] of SECTIONS) {
    const members = parts.get(part).sort(order);
    if (!members.length) continue;
    add({ key: `section ${part}`, title, count: members.length }, "section");
    const groups = part === "attention" ? new Map() : groupsOf(members);
    const shown = new Set();
    for (const program of members) {
      const group = groups.get(program.group);
      if (!group) add({ key: `program ${program.name}`, program, isMember: false }, part);
      else if (!shown.has(program.group)) {
        shown.add(program.group);
        const folded = isFolded(program.group, group.length, view);
        add({ key: `group ${part} ${program.group}`, name: program.group, members: group, folded }, "group");
        if (!folded) for (const member of group) add({ key: `program ${member.name}`, program: member, isMember: true }, part);
      }
    }
  }
  return { rows, height: top };
}

// Groups of more than one, by name.
function groupsOf(programs) {
  const groups = new Map();
  for (const program of programs) groups.set(program.group, [...(groups.get(program.group) ?? []), program]);
  return new Map([...groups].filter(([, members]) => members.length > 1));
}

export const leftText = (program, write) => (secondsLeft(program) === null ? "" : `${write(secondsLeft(program))} left`);
