// Elements and numbers. Text always becomes a text node, so nothing that a job says is ever read as HTML.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
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

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, count > 0 ? Math.floor(Math.log10(count) / 3) : 0);
  return power ? `${(count / 1000 ** power).toPrecision(3)} ${units[power]}` : `${count} B`;
}

export function counted(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

export function moment(at) {
  return at === null || at === undefined ? "" : new Date(at * 1000).toLocaleString();
}

export function plain(number) {
  return typeof number === "number" ? Number(number.toPrecision(5)).toString() : String(number ?? "");
}
