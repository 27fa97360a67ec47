// The logs of a program: stdout and stderr together, side by side or one of them; live or of one attempt.

import { call, readLog } from "./api.js";
import { element, segments, setText } from "./dom.js";
import { Terminal } from "./terminal.js";

const MOST_LINES = 5000; // in a pane
const DRAW_EVERY_MS = 100;
const AGAIN_AFTER_MS = 3000; // the daemon may be gone for a moment
const AMOUNTS = [["65536", "last 64 KB"], ["1048576", "last 1 MB"], ["16777216", "last 16 MB"]];
const LABELS = [["together", "Together"], ["apart", "Side by side"], ["stdout", "stdout"], ["stderr", "stderr"]];
const VIEWS = { together: [["stdout", "stderr"]], apart: [["stdout"], ["stderr"]], stdout: [["stdout"]], stderr: [["stderr"]] };

// One place for lines, of one stream or of two.
class Pane {
  constructor(logs, channels) {
    this.logs = logs;
    this.lines = [];
    this.gone = 0;
    this.node = element("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": channels.join(" and "), "data-empty": "Nothing was printed." });
    this.terminals = channels.map((channel) => new Terminal(channels.length > 1 ? channel : "", (line) => this.lines.push(line)));
  }

  feed(place, text) {
    this.terminals[place].feed(text);
    this.timer ??= setTimeout(() => this.draw(), DRAW_EVERY_MS);
  }

  fail(text) {
    if (!this.lines.length) this.node.dataset.empty = text;
  }

  draw(isAnew = false) {
    this.timer = null;
    const words = this.logs.search.value.toLowerCase();
    if (isAnew || this.lines.length > 2 * MOST_LINES) {
      if (this.lines.length > MOST_LINES) this.lines.splice(0, this.lines.length - MOST_LINES);
      for (const line of this.lines) Object.assign(line, { isDrawn: false, node: null });
      this.node.replaceChildren();
    }
    for (const line of this.lines) {
      if (line.isDrawn) continue;
      const isShown = !words || line.text.toLowerCase().includes(words);
      if (isShown && !line.node) this.node.append((line.node = element("div", { class: line.kind })));
      if (line.node) {
        line.node.replaceChildren(...line.runs.flatMap(({ text, style }) => highlighted(text, words).map((part) => (style ? element("span", { class: style }, part) : part))));
        line.node.hidden = !isShown;
      }
      line.isDrawn = true;
    }
    while (this.node.childElementCount > MOST_LINES) this.node.firstChild.remove();
    if (this.logs.follow.checked) this.node.scrollTop = this.node.scrollHeight;
  }
}

function highlighted(text, words) {
  if (!words) return [text];
  const parts = [];
  let from = 0;
  for (let at = text.toLowerCase().indexOf(words); at >= 0; at = text.toLowerCase().indexOf(words, from)) {
    parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + words.length)));
    from = at + words.length;
  }
  return [...parts, text.slice(from)].filter((part) => part !== "");
}

export class Logs {
  // `opened`: { view, isOne } to begin with; isOne: both streams go into one file, or one of them into none.
  constructor(name, opened) {
    this.name = name;
    this.isOne = opened.isOne;
    this.view = opened.view;
    this.attempts = [];
    this.attempt = element("select", { "aria-label": "Of which attempt", onchange: () => this.begin() }, element("option", { value: "" }, "live"));
    this.amount = element("select", { "aria-label": "How much", onchange: () => this.begin() }, AMOUNTS.map(([value, text]) => element("option", { value }, text)));
    this.search = element("input", { type: "search", placeholder: "Lines with…", "aria-label": "Show lines with", oninput: () => this.panes.forEach((pane) => pane.draw(true)) });
    this.follow = element("input", { type: "checkbox", checked: true });
    this.downloads = element("span");
    this.choice = element("span");
    const tools = element("div", { class: "tools" }, this.choice, this.attempt, this.amount, this.search, element("label", {}, this.follow, "follow"), this.downloads);
    this.place = element("div", { class: "logs" });
    this.title = element("h2", {}, "Log");
    this.node = element("section", { class: "card" }, element("div", { class: "part-head" }, this.title, tools), this.place);
    this.choose(opened.view);
  }

  choose(view) {
    this.view = view;
    this.choice.replaceChildren(this.isOne ? "" : segments("Which log", LABELS, view, (value) => this.change(value)));
    this.begin();
  }

  change(view) {
    this.view = view;
    this.begin();
  }

  begin() {
    this.close();
    const abort = (this.abort = new AbortController());
    this.panes = VIEWS[this.view].map((channels) => {
      const pane = new Pane(this, channels);
      channels.forEach((channel, place) => this.read(pane, place, channel, abort));
      return pane;
    });
    this.place.replaceChildren(...this.panes.map(({ node }) => node));
    this.downloads.replaceChildren(...VIEWS[this.view].flat().flatMap((channel) => [this.download(channel), " "]));
  }

  async read(pane, place, channel, abort) {
    const attempt = this.attempt.value;
    let hasText = false; // of this stream: the other one of the pane may have begun before this one's file existed
    const take = (text) => {
      if (abort.signal.aborted) return;
      hasText = true;
      pane.feed(place, text);
    };
    try {
      await readLog(this.name, channel, Number(this.amount.value), attempt, abort.signal, take);
    } catch (error) {
      pane.fail(error.message);
    }
    if (attempt || abort.signal.aborted) return;
    setTimeout(() => abort.signal.aborted || (hasText ? this.beginAgain(abort) : this.read(pane, place, channel, abort)), AGAIN_AFTER_MS);
  }

  // Reads all anew once the daemon answers; until then what is shown stays.
  async beginAgain(abort) {
    const answers = await call("pid").then(() => true, () => false);
    if (abort.signal.aborted) return;
    if (answers) this.begin();
    else setTimeout(() => abort.signal.aborted || this.beginAgain(abort), AGAIN_AFTER_MS);
  }

  download(channel) {
    const attempt = this.attempt.value;
    const query = new URLSearchParams({ name: this.name, channel, bytes: "16777216", ...(attempt ? { attempt } : {}) });
    const label = VIEWS[this.view].flat().length > 1 ? `↓ ${channel}` : "↓ Download";
    return element("a", { class: "button", href: `/api/v1/tail?${query}`, download: `${this.name.replaceAll(/[^\w.-]/g, "_")}${attempt ? `-${attempt}` : ""}-${channel}.log`, "aria-label": `Download ${channel}` }, label);
  }

  offer(attempts) {
    const numbers = attempts.map(({ attempt }) => attempt).join();
    if (numbers === this.offered) return;
    this.offered = numbers;
    const chosen = this.attempt.value;
    const options = attempts.toReversed().map(({ attempt }) => element("option", { value: String(attempt) }, `attempt ${attempt}`));
    this.attempt.replaceChildren(element("option", { value: "" }, "live"), ...options);
    this.attempt.value = attempts.some(({ attempt }) => String(attempt) === chosen) ? chosen : "";
  }

  // What an attempt printed, where the reason for its end is.
  show(attempt, view = this.view) {
    this.attempt.value = String(attempt);
    this.choose(view);
    this.node.scrollIntoView({ block: "start" });
    this.place.firstChild.focus({ preventScroll: true });
  }

  close() {
    this.abort?.abort();
  }
}
