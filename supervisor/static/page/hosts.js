// The programs of several hosts in one list, each host a group. It only shows; a program's name leads to the page of its own daemon.

import { counted, element, setText, zone } from "./dom.js";
import { focusSearch } from "./keyboard.js";
import { List } from "./list.js";

const LOOK_EVERY_MS = 2000;
const filter = document.getElementById("filter");
const connection = document.getElementById("connection");
const list = new List({ asks: false });
const secret = location.hash.slice(1) || sessionStorage.getItem("secret") || "";
let programs = new Map();
let offset = 0; // of the clock of the process that asks the hosts

sessionStorage.setItem("secret", secret); // for a reload; the address itself may be seen by others
history.replaceState(null, "", location.pathname);
document.getElementById("main").append(element("h1", { class: "unseen" }, "Several hosts"), list.node);
setText(document.getElementById("zone"), `times in ${zone()}`);

// A host that does not answer stands where a program would that needs a person.
function silentHost(host) {
  return { name: host.name, group: host.name, wire_state: "UNKNOWN", reason: host.error, job: null, href: host.url, wanted: true };
}

function programsOf({ hosts }) {
  const known = new Map();
  for (const host of hosts) {
    if (host.error !== null) known.set(host.name, silentHost(host));
    for (const program of host.programs ?? []) {
      const name = `${host.name}:${program.name}`;
      const href = host.url && `${host.url}/#/program/${encodeURIComponent(program.name)}`;
      known.set(name, { ...program, name, group: host.name, href });
    }
  }
  return known;
}

function draw() {
  list.update({ programs, now: Date.now() / 1000 + offset, filter: filter.value.trim().toLowerCase() });
}

function showConnection(text) {
  connection.classList.toggle("gone", text !== "live");
  document.body.classList.toggle("gone", text !== "live");
  setText(connection, text);
}

async function look() {
  try {
    const response = await fetch("/hosts.json", { headers: { Authorization: `Bearer ${secret}` } });
    if (response.status === 403) return showConnection("this address is not complete; open the one that supervisorctl printed");
    const answer = await response.json();
    const silent = answer.hosts.filter(({ error }) => error !== null).length;
    const names = new Set([...programs.keys()]);
    programs = programsOf(answer);
    for (const name of programs.keys()) names.add(name);
    offset = answer.at - Date.now() / 1000;
    setText(document.getElementById("identifier"), `${counted(answer.hosts.length, "host")}${silent ? `, ${silent} without an answer` : ""}`);
    setText(document.getElementById("trouble"), answer.hosts.filter(({ trouble }) => trouble).map(({ name, trouble }) => `${name}: ${trouble}`).join("\n"));
    list.follow(programs, names);
    showConnection("live");
    draw();
  } catch {
    showConnection("supervisorctl does not answer; start it again");
  }
  setTimeout(look, LOOK_EVERY_MS);
}

filter.addEventListener("input", draw);
focusSearch(() => filter);
look();
