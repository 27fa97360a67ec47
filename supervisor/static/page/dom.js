// Elements, and how numbers, times and sizes are written. Text always becomes a text node, so nothing that a job says is ever read as HTML.

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Buttons of which one is pressed: [value, label]; `choose` gets the value.
export function segments(label, options, value, choose) {
  const buttons = options.map(([option, text]) => element("button", { type: "button", "aria-pressed": String(option === value), "data-value": option }, text));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      choose(button.dataset.value);
    });
  }
  return element("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

export function table(heads, rows, kind = "") {
  const cells = heads.map((head) => element("th", { scope: "col", class: head.endsWith(">") ? "right" : "" }, head ? head.replace(">", "") : element("span", { class: "unseen" }, "Actions")));
  for (const row of rows) heads.forEach((head, place) => (row.cells[place].dataset.label = head.replace(">", "").toLowerCase())); // phones show no heads
  return element("table", { class: kind }, element("thead", {}, element("tr", {}, cells)), element("tbody", {}, rows));
}

const WIDE_RANGE = 50; // greatest to least value, above which a line would show nothing but its first fall

// A line through the values, as wide and high as its place; on a logarithmic scale where it falls far.
export function spark(values, width = 72, height = 24) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("class", "spark");
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const numbers = values.filter(Number.isFinite);
  if (numbers.length > 1) {
    const isWide = Math.min(...numbers) > 0 && Math.max(...numbers) > WIDE_RANGE * Math.min(...numbers);
    const finite = isWide ? numbers.map(Math.log) : numbers;
    const [least, greatest] = [Math.min(...finite), Math.max(...finite)];
    const scale = (height - 3) / (greatest - least || 1);
    const points = finite.map((value, place) => `${((width * place) / (finite.length - 1)).toFixed(1)} ${(height - 1.5 - (value - least) * scale).toFixed(1)}`);
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", `M${points.join("L")}`);
    drawing.append(path);
  }
  return drawing;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 1 && seconds > 0) return `${Math.round(seconds * 1000)} ms`;
  if (whole < 60) return `${whole} s`;
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

// As supervisorctl writes sizes: 1 KB is 1024 bytes.
export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1024 && power < units.length - 1) [count, power] = [count / 1024, power + 1];
  return `${power ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function counted(number, word) {
  return `${whole(number)} ${word}${number === 1 ? "" : "s"}`;
}

const two = (number) => String(number).padStart(2, "0");

// Local date and time, as supervisorctl writes them; the header names the zone.
export function moment(at) {
  if (at === null || at === undefined) return "";
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return "unknown"; // what a job wrote into its manifest may be no time at all
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

// 12480 as 12,480, whatever the browser's language.
export function whole(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function plain(number) {
  if (typeof number !== "number") return String(number ?? "");
  return number !== 0 && Math.abs(number) < 1e-3 ? number.toExponential(2) : Number(number.toPrecision(4)).toString();
}
