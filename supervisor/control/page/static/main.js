// Which view is shown, and what the header says.

import { call, follow } from "./api.js";
import { element, setText, zone } from "./dom.js";
import { Job } from "./job.js";
import { Gpus } from "./gpus.js";
import { List } from "./list.js";
import { Notices } from "./summary.js";

const main = document.getElementById("main");
const filter = document.getElementById("filter");
const connection = document.getElementById("connection");
const list = new List();
const gpus = new Gpus();
list.below.append(gpus.node);
const notices = new Notices();
const view = element("div");
main.append(notices.node, view);
let programs = new Map();
let job = null;
let offset = 0; // of the daemon's clock
let isConnected = false;
let noticed = ""; // which programs a notice is for

const now = () => Date.now() / 1000 + offset;

function wantedName() {
  const wanted = /^#\/program\/(.+)$/.exec(location.hash);
  try {
    return wanted ? decodeURIComponent(wanted[1]) : null;
  } catch {
    return null;
  }
}

function showView() {
  const name = wantedName();
  const program = name === null ? undefined : programs.get(name);
  if (job !== null && job.name !== name) {
    job.close();
    job = null;
  }
  if (program !== undefined && job === null) {
    job = new Job(program);
    view.replaceChildren(job.node);
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  } else if (name === null || program === undefined) {
    job?.close();
    job = null;
    if (view.firstChild !== list.node) view.replaceChildren(list.node);
  }
  filter.hidden = job !== null;
  document.title = job === null ? "supervisord" : `${job.name} - supervisord`;
}

function draw(names = []) {
  const program = job === null ? undefined : programs.get(job.name);
  if (program !== undefined) job.update(program, now(), list.extras.usage.get(job.name));
  list.update(programs, now(), filter.value.trim().toLowerCase(), names);
}

function onStatus(known, names, daemon, clockOffset) {
  programs = known;
  offset = clockOffset;
  if (daemon) {
    setText(document.getElementById("identifier"), daemon.identifier === "supervisor" ? daemon.host : daemon.identifier);
    gpus.update(daemon.gpus ?? []);
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
  const answer = await call("notices").catch(() => ({ notices: [] }));
  notices.update(answer.notices);
  notices.tick(now(), programs);
}

async function lookAtUsage() {
  if (document.hidden || !isConnected) return;
  const usage = await call("top").catch(() => ({ programs: [] }));
  list.extras.usage = new Map(usage.programs.map((program) => [program.name, program]));
  draw();
}
setInterval(() => document.hidden || notices.tick(now(), programs), 1000);
setInterval(() => document.hidden || !isConnected || lookAtNotices(), 10_000);
setInterval(lookAtUsage, 5000);
setTimeout(lookAtUsage, 500);

setText(document.getElementById("zone"), `times in ${zone()}`);
filter.addEventListener("input", () => draw());
window.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) return;
  event.preventDefault();
  const search = filter.hidden ? document.querySelector('input[type="search"]:not([hidden], #filter)') : filter;
  search?.focus();
});
window.addEventListener("hashchange", () => {
  showView();
  draw();
});
