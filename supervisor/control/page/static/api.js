// What the daemon is asked. Every request goes to the server that the page came from.

export async function call(command, request = {}) {
  const response = await fetch(`/api/v1/${command}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
  const answer = await response.json().catch(() => ({}));
  if (answer.error) throw Object.assign(new Error(answer.error.message || answer.error.code), { code: answer.error.code });
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return answer.result;
}

// The newest state of all programs by name; `changed` is called with it and the names that changed.
export function follow(changed, connected) {
  const programs = new Map();
  const source = new EventSource("/page/live");
  source.onopen = () => connected(true);
  source.onerror = () => connected(false); // it asks again by itself, unless the server refused
  source.addEventListener("status", (event) => {
    const found = JSON.parse(event.data);
    const names = new Set([...Object.keys(found.programs), ...found.removed]);
    if (found.all) {
      programs.forEach((_, name) => names.add(name));
      programs.clear();
    }
    for (const [name, program] of Object.entries(found.programs)) programs.set(name, program);
    for (const name of found.removed) programs.delete(name);
    changed(programs, names, found.daemon, found.at - Date.now() / 1000);
  });
  return source;
}

// Hands on the end of a log and what is added to it, until `signal` aborts; with `attempt` what that one printed.
export async function readLog(name, channel, count, attempt, signal, take) {
  const query = new URLSearchParams({ name, channel, bytes: String(count), ...(attempt ? { attempt } : { follow: "1" }) });
  const response = await fetch(`/api/v1/tail?${query}`, { signal });
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ? answer.error.message : response.statusText);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    take(value);
  }
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
