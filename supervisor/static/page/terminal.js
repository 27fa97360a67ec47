// What a program printed as a terminal would show it: colours, and lines that are written again (progress bars).

const TOKENS = /\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^[\]]|\n|\r|\x08|[^\x1b\r\n\x08]+/g;
const UNFINISHED = /\x1b(?:\[[0-9;?]*|\][^\x07\x1b]{0,200})?$/;
const UP_AT_MOST = 50; // lines that a program can go back to
const FLAGS = { 1: "b", 2: "dim", 3: "i", 4: "u", 7: "inverse" };

export class Line {
  constructor(kind) {
    this.kind = kind;
    this.runs = []; // { text, style }, style being a list of classes
    this.isDrawn = false;
  }

  get text() {
    return this.runs.map((run) => run.text).join("");
  }

  get length() {
    return this.runs.reduce((sum, run) => sum + run.text.length, 0);
  }

  // Writes over what stands at `column`, as a terminal does.
  write(column, text, style) {
    this.isDrawn = false;
    const length = this.length;
    const last = this.runs.at(-1);
    if (column === length && last?.style === style) last.text += text;
    else if (column === length) this.runs.push({ text, style });
    else {
      const gap = column > length ? [{ text: " ".repeat(column - length), style: "" }] : [];
      this.runs = [...this.cut(0, column), ...gap, { text, style }, ...this.cut(column + text.length, length)];
    }
  }

  erase(from, until) {
    this.isDrawn = false;
    this.runs = from === 0 ? (until === Infinity ? [] : [{ text: " ".repeat(until), style: "" }, ...this.cut(until, Infinity)]) : this.cut(0, from);
  }

  cut(from, until) {
    const runs = [];
    let at = 0;
    for (const { text, style } of this.runs) {
      const piece = text.slice(Math.max(0, from - at), Math.max(0, until - at));
      if (piece) runs.push({ text: piece, style });
      at += text.length;
    }
    return runs;
  }
}

// One stream of output; `add` gets each new line.
export class Terminal {
  constructor(kind, add) {
    this.kind = kind;
    this.add = add;
    this.rest = "";
    this.recent = [];
    this.row = 0; // of `recent`
    this.column = 0;
    this.style = new Set();
  }

  feed(text) {
    let whole = this.rest + text;
    this.rest = UNFINISHED.exec(whole)?.[0] ?? "";
    if (this.rest) whole = whole.slice(0, -this.rest.length);
    for (const [token, parameters, command] of whole.matchAll(TOKENS)) {
      if (token === "\n") [this.row, this.column] = [this.row + 1, 0];
      else if (token === "\r") this.column = 0;
      else if (token === "\b") this.column = Math.max(0, this.column - 1);
      else if (command) this.control(command, parameters);
      else if (token[0] !== "\x1b") this.write(token);
      if (token === "\n") this.fill(this.row); // an empty line is a line too
    }
  }

  fill(count) {
    while (this.recent.length < count) {
      const line = new Line(this.kind);
      this.recent.push(line);
      this.add(line);
    }
    if (this.recent.length > 2 * UP_AT_MOST) {
      const gone = this.recent.length - UP_AT_MOST;
      this.recent.splice(0, gone);
      this.row = Math.max(0, this.row - gone);
    }
  }

  line() {
    this.fill(this.row + 1);
    return this.recent[this.row];
  }

  write(text) {
    this.line().write(this.column, text, [...this.style].join(" "));
    this.column += text.length;
  }

  control(command, parameters) {
    const number = Number.parseInt(parameters, 10);
    const count = Math.min(Math.max(1, number || 1), 1000);
    if (command === "m") this.colour(parameters);
    else if (command === "K") {
      const all = number === 2;
      this.line().erase(all || number === 1 ? 0 : this.column, number === 1 ? this.column : Infinity);
    } else if (command === "A") this.row = Math.max(0, this.row - count);
    else if (command === "B") this.row = Math.min(this.recent.length, this.row + count);
    else if (command === "C") this.column += count;
    else if (command === "D") this.column = Math.max(0, this.column - count);
    else if (command === "G") this.column = count - 1;
  }

  colour(parameters) {
    const codes = parameters.split(";").map(Number);
    for (let place = 0; place < codes.length; place++) {
      const code = codes[place];
      const setColour = (number) => {
        for (const name of this.style) if (/^f\d/.test(name)) this.style.delete(name);
        if (number !== null) this.style.add(`f${number % 8}`);
      };
      if (code === 0) this.style.clear();
      else if (FLAGS[code]) this.style.add(FLAGS[code]);
      else if (code === 22) ["b", "dim"].forEach((name) => this.style.delete(name));
      else if (FLAGS[code - 20]) this.style.delete(FLAGS[code - 20]);
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) setColour(code % 10);
      else if (code === 39) setColour(null);
      else if (code === 38 || code === 48) {
        if (code === 38 && codes[place + 1] === 5 && codes[place + 2] < 16) setColour(codes[place + 2]);
        place += codes[place + 1] === 5 ? 2 : 4;
      }
    }
  }
}
