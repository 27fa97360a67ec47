// What the daemon is asked. Every request goes to the server that the page came from.

function post(path, request) {
  return fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
}

async function failureOf(response) {
  const answer = await response.json().catch(() => ({}));
  return Object.assign(new Error(answer.error?.message || answer.error?.code || `${response.status} ${response.statusText}`), { code: answer.error?.code });
}

export async function call(command, request = {}) {
  const response = await post(`/api/v1/${command}`, request);
  if (!response.ok) throw await failureOf(response);
  return (await response.json()).result;
}

// A command for many programs; gives [{ name, result, error }] in the order in which they ended, and hands each on as it comes.
export async function callForAll(command, names, request, take = () => {}) {
  const response = await post("/api/v1/each", { command, names, arguments: request });
  if (!response.ok) throw await failureOf(response);
  const outcomes = [];
  let rest = "";
  for await (const piece of pieces(response)) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      outcomes.push(JSON.parse(line));
      take(outcomes);
    }
  }
  if (outcomes.length < names.length) throw new Error(`the connection ended after ${outcomes.length} of ${names.length}`);
  return outcomes;
}

async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

// The newest state of all programs by name; `changed` is called with it and the names that changed.
export function follow(changed, connected) {
  const programs = new Map();
  const source = new EventSource("/page/live");
  source.onopen = () => connected(true);
  source.onerror = () => connected(false); // it asks again by itself, unless the server refused
  source.addEventListener("status", (event) => {
    const status = JSON.parse(event.data);
    const names = new Set([...Object.keys(status.programs), ...status.removed]);
    if (status.all) {
      programs.forEach((_, name) => names.add(name));
      programs.clear();
    }
    for (const [name, program] of Object.entries(status.programs)) programs.set(name, program);
    for (const name of status.removed) programs.delete(name);
    changed(programs, names, status.daemon, status.at - Date.now() / 1000);
  });
  return source;
}

// Hands on the end of a log and what is added to it, until `signal` aborts; with `attempt` what that one printed.
export async function readLog(name, channel, count, attempt, signal, take) {
  const query = new URLSearchParams({ name, channel, bytes: String(count), ...(attempt ? { attempt } : { follow: "1" }) });
  const response = await fetch(`/api/v1/tail?${query}`, { signal });
  if (!response.ok) throw await failureOf(response);
  for await (const piece of pieces(response)) take(piece);
}

let plotting = null;

// The plotting library; null where the daemon has none.
export function plots() {
  plotting ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = "/page/plotly.min.js";
    script.onload = () => resolve(window.Plotly ?? null);
    script.onerror = () => resolve(null);
    document.head.append(script);
  });
  return plotting;
}
