// Which view is shown, and what the header says.

import { call, follow } from "./api.js";
import { element, setText, zone } from "./dom.js";
import { focusSearch } from "./keyboard.js";
import { List } from "./list.js";
import { NoticeLines, Notices } from "./notices.js";

const main = document.getElementById("main");
const filter = document.getElementById("filter");
const connection = document.getElementById("connection");
const list = new List();
const lines = new NoticeLines();
const place = element("div");
main.append(lines.node, place);

// The views: { node, update, close }. Those besides the list exist only while they are shown, and are asked for only then.
const VIEWS = {
  programs: () => list,
  program: async (program) => new (await import("./job.js")).Job(program, () => programs),
  notices: () => new Notices(lookAtNotices),
  gpus: async () => new (await import("./gpus.js")).Gpus(),
  log: async () => new (await import("./daemon_log.js")).DaemonLog(),
  configuration: async () => new (await import("./configuration.js")).Configuration(),
};

const NOTICES_EVERY_MS = 20_000; // one for a job is seen at once, by its status
let programs = new Map();
let daemon = {};
let view = list; // what is shown
let address = null; // of the view: { kind, name }
let offset = 0; // of the daemon's clock
let isConnected = false;
let noticed = null; // which programs a notice is for, as of the last status; null: there was none
let notices = null; // what the daemon said last

const now = () => Date.now() / 1000 + offset;

function addressOf(hash) {
  const [, kind, rest] = /^#\/([a-z]+)(?:\/(.+))?$/.exec(hash) ?? [];
  if (kind !== "program") return { kind: kind in VIEWS ? kind : "programs", name: null };
  try {
    return { kind, name: decodeURIComponent(rest ?? "") };
  } catch {
    return { kind: "programs", name: null };
  }
}

function showView() {
  const wanted = addressOf(location.hash);
  const program = wanted.name === null ? undefined : programs.get(wanted.name);
  const shown = wanted.kind === "program" && program === undefined ? { kind: "programs", name: null } : wanted;
  if (address?.kind !== shown.kind || address.name !== shown.name) {
    open(shown, program, address === null);
  }
  filter.hidden = shown.kind !== "programs";
  lines.node.hidden = shown.kind === "notices";
  for (const link of document.querySelectorAll("nav a")) {
    const isShown = link.dataset.view === (shown.kind === "program" ? "programs" : shown.kind);
    if (isShown && !link.hasAttribute("aria-current")) link.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (isShown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = shown.name ?? document.querySelector(`nav a[data-view="${shown.kind}"]`).textContent;
  document.title = shown.kind === "programs" ? "supervisord" : `${title} - supervisord`;
}

async function open(wanted, program, isFirst) {
  address = wanted;
  const opened = VIEWS[wanted.kind](program);
  const next = opened instanceof Promise ? await opened.catch(() => null) : opened; // at once where it can be
  if (next === null) {
    if (address === wanted) address = null; // the daemon is gone; asked for again with the next status
    return;
  }
  if (address !== wanted) {
    next.close(); // something else was asked for meanwhile
    return;
  }
  view.close();
  view = next;
  if (notices) view.onNotices?.(notices);
  place.replaceChildren(view.node);
  if (!isFirst) {
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  draw();
}

function draw(names = []) {
  list.follow(programs, names);
  view.update({ programs, daemon, names, now: now(), filter: filter.value.trim().toLowerCase(), usage: list.extras.usage });
}

function onStatus(known, names, said, clockOffset) {
  programs = known;
  offset = clockOffset;
  if (said) {
    daemon = said;
    setText(document.getElementById("identifier"), daemon.identifier === "supervisor" ? daemon.host : daemon.identifier);
    list.summary.showGpus(daemon.gpus ?? []);
    setText(document.getElementById("trouble"), [daemon.ledger_error, daemon.hooks_error, daemon.closing ? "The daemon is shutting down." : ""].filter(Boolean).join("\n"));
  }
  showView();
  draw(names);
  const key = [...programs.values()].filter((program) => program.notice).map(({ name }) => name).join();
  if (key !== noticed) lookAtNotices();
  noticed = key;
}

function onConnection(works) {
  isConnected = works;
  connection.classList.toggle("gone", !works);
  setText(connection, works ? "live" : "the daemon does not answer; waiting for it");
  document.body.classList.toggle("gone", !works);
}

let source = follow(onStatus, onConnection);
setInterval(() => {
  if (source.readyState === EventSource.CLOSED) source = follow(onStatus, onConnection); // it was refused
  if (!document.hidden) draw();
}, 2000);

async function lookAtNotices() {
  notices = await call("notices").catch(() => ({ notices: [], sources: [], shortest_s: null }));
  lines.update(notices.notices);
  view.onNotices?.(notices);
  tick();
}

function tick() {
  if (document.hidden) return;
  lines.tick(now(), programs);
  if (view.onNotices) draw(); // its countdown
}

async function lookAtUsage() {
  if (document.hidden || !isConnected || !["programs", "program"].includes(address?.kind)) return;
  const usage = await call("top").catch(() => ({ programs: [] }));
  list.extras.usage = new Map(usage.programs.map((program) => [program.name, program]));
  draw();
}
setInterval(tick, 1000);
setInterval(() => document.hidden || !isConnected || lookAtNotices(), NOTICES_EVERY_MS);
setInterval(lookAtUsage, 5000);
setTimeout(lookAtUsage, 500);

setText(document.getElementById("zone"), `times in ${zone()}`);
filter.addEventListener("input", () => draw());
focusSearch(() => (filter.hidden ? document.querySelector('input[type="search"]:not([hidden], #filter)') : filter));
window.addEventListener("hashchange", () => {
  showView();
  draw();
});
