// Which view is shown, and what the header says.

import { call, follow } from "./api.js";
import { setText } from "./dom.js";
import { Job } from "./job.js";
import { Gpus } from "./gpus.js";
import { List } from "./list.js";

const main = document.getElementById("main");
const filter = document.getElementById("filter");
const connection = document.getElementById("connection");
const list = new List();
const gpus = new Gpus();
list.node.append(gpus.node);
let programs = new Map();
let job = null;
let offset = 0; // of the daemon's clock
let isConnected = false;

const now = () => Date.now() / 1000 + offset;

function wantedName() {
  const found = /^#\/program\/(.+)$/.exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : null;
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
    main.replaceChildren(job.node);
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  } else if (name === null || program === undefined) {
    job?.close();
    job = null;
    if (main.firstChild !== list.node) main.replaceChildren(list.node);
  }
  filter.hidden = job !== null;
  document.title = job === null ? "supervisord" : `${job.name} - supervisord`;
}

function draw(names = []) {
  const program = job === null ? undefined : programs.get(job.name);
  if (program !== undefined) job.update(program, now());
  list.update(programs, names, now(), filter.value.trim().toLowerCase());
}

function onStatus(found, names, daemon, clockOffset) {
  programs = found;
  offset = clockOffset;
  if (daemon) {
    setText(document.getElementById("identifier"), daemon.identifier || "supervisord");
    gpus.update(daemon.gpus ?? []);
    setText(document.getElementById("trouble"), [daemon.ledger_error, daemon.hooks_error].filter(Boolean).join("\n"));
  }
  showView();
  draw(names);
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

async function lookAtUsage() {
  if (document.hidden || job !== null || !isConnected) return;
  try {
    const found = await call("top");
    list.usage = new Map(found.programs.map((each) => [each.name, each]));
  } catch {
    list.usage = new Map();
  }
}
setInterval(lookAtUsage, 5000);
setTimeout(lookAtUsage, 500);

filter.addEventListener("input", () => draw());
window.addEventListener("hashchange", () => {
  showView();
  draw();
});
