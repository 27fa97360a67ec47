// All programs: of a thousand only the rows in view exist. Which rows there are says list_model.js, how they look rows.js.

import { actOnAll } from "./actions.js";
import { counted, element, setText } from "./dom.js";
import { COLUMNS, rowsOf } from "./list_model.js";
import { RowData } from "./row_data.js";
import { GroupRow, ProgramRow, SectionRow } from "./rows.js";
import { Summary } from "./summary.js";

const KINDS = { section: SectionRow, group: GroupRow };
const BEYOND_PX = 400; // rows so far above and below the window exist too
const PHONE = window.matchMedia("(max-width: 900px)");

export class List {
  // `asks`: whether the daemon that the page came from is the one of the programs; else the list only shows them.
  constructor({ asks = true } = {}) {
    this.asks = asks;
    this.extras = new RowData();
    this.programs = new Map();
    this.now = 0;
    this.chosen = new Set();
    this.rows = [];
    this.drawn = new Map(); // by key: the rows that exist
    this.view = { filter: "", states: new Set(), sort: { by: "name", isDescending: false }, folds: readFolds(), isPhone: PHONE.matches };
    this.summary = new Summary((state) => this.toggleState(state), asks);
    this.all = element("input", { type: "checkbox", "aria-label": "Choose all that are shown", onchange: () => this.choose(this.shownNames(), this.all.checked) });
    this.heads = COLUMNS.map(([key, label]) => element("div", { role: "columnheader", class: key === "loss" || key === "goodput" ? key : "" }, element("button", { type: "button", class: "plain", onclick: () => this.sortBy(key) }, label)));
    const heads = element("div", { class: "row heads", role: "row" }, element("div", { role: "columnheader" }, this.all), this.heads, element("div", { role: "columnheader" }, element("span", { class: "unseen" }, "Actions")));
    this.space = element("div", { class: "space", role: "rowgroup" });
    this.table = element("div", { class: "programs", role: "table", "aria-label": "Programs" }, element("div", { role: "rowgroup", class: "head-group" }, heads), this.space);
    this.empty = element("p", { class: "none card", hidden: true });
    this.bar = this.chosenBar();
    this.node = element("div", {}, element("h1", { class: "unseen" }, "All programs"), this.summary.node, this.table, this.empty, this.bar);
    this.showSort();
    PHONE.addEventListener("change", () => {
      this.view.isPhone = PHONE.matches;
      this.drawAll();
    });
    const onScroll = () => {
      this.frame ??= requestAnimationFrame(() => {
        this.frame = null;
        this.drawWindow();
      });
    };
    window.addEventListener("scroll", onScroll, { passive: true });
    window.addEventListener("resize", onScroll, { passive: true });
  }

  chosenBar() {
    this.chosenText = element("span", { role: "status" });
    const button = (action, label) => element("button", { type: "button", "data-action": `all-${action}`, onclick: () => actOnAll(action, this.chosenInOrder()) }, label);
    const none = element("button", { type: "button", onclick: () => this.choose([...this.chosen], false) }, "Choose none");
    return element("div", { class: "chosen-bar", hidden: true }, this.chosenText, button("start", "Start"), button("stop", "Stop"), button("restart", "Restart"), none);
  }

  // Keeps up with what changed, also while another view is shown.
  follow(programs, names) {
    for (const name of names) {
      const program = programs.get(name);
      if (program?.job) this.extras.follow(program);
      if (!program) this.chosen.delete(name);
    }
  }

  update({ programs, now, filter }) {
    this.programs = programs;
    this.now = now;
    this.view.filter = filter;
    if (this.node.isConnected) this.drawAll();
  }

  close() {}

  drawAll() {
    const { rows, height } = rowsOf(this.programs, this.view, this.extras, this.now);
    this.rows = rows;
    this.space.style.height = `${height}px`;
    this.table.hidden = rows.length === 0;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.empty.hidden = rows.length > 0;
    setText(this.empty, this.programs.size ? "No program is like that." : "No program is configured.");
    this.summary.update(this.programs, this.now, this.view.states);
    this.drawWindow();
    this.showChosen();
  }

  drawWindow() {
    if (!this.node.isConnected) return;
    const top = this.space.getBoundingClientRect().top;
    const [from, until] = [-top - BEYOND_PX, -top + window.innerHeight + BEYOND_PX];
    const first = this.rows.findIndex((row) => row.top + row.height > from);
    const keys = new Set();
    let previous = null;
    for (let place = Math.max(0, first); first >= 0 && place < this.rows.length && this.rows[place].top < until; place++) {
      const row = this.rows[place];
      keys.add(row.key);
      const drawn = this.rowFor(row);
      drawn.update(row, this);
      drawn.node.style.transform = `translateY(${row.top}px)`;
      drawn.node.style.height = `${row.height}px`;
      drawn.node.setAttribute("aria-rowindex", String(place + 2));
      const next = previous ? previous.nextSibling : this.space.firstChild; // the order of the keyboard is that of the eye
      if (next !== drawn.node) this.space.insertBefore(drawn.node, next);
      previous = drawn.node;
      if (row.program && this.asks) this.extras.want(row.program);
    }
    for (const [key, drawn] of this.drawn) {
      if (keys.has(key)) continue;
      drawn.node.remove();
      this.drawn.delete(key);
    }
  }

  rowFor(row) {
    let drawn = this.drawn.get(row.key);
    if (!drawn) {
      drawn = new (KINDS[row.kind] ?? ProgramRow)(row, this);
      this.drawn.set(row.key, drawn);
    }
    return drawn;
  }

  toggleState(state) {
    const { states } = this.view;
    if (state === null) states.clear();
    else if (!states.delete(state)) states.add(state);
    this.drawAll();
  }

  sortBy(key) {
    const { sort } = this.view;
    this.view.sort = { by: key, isDescending: sort.by === key && !sort.isDescending };
    this.showSort();
    this.drawAll();
  }

  showSort() {
    const { by, isDescending } = this.view.sort;
    this.heads.forEach((head, place) => {
      if (COLUMNS[place][0] === by) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  fold(name, isFolded) {
    this.view.folds.set(name, isFolded);
    localStorage.setItem("folds", JSON.stringify([...this.view.folds]));
    this.drawAll();
  }

  shownNames = () => this.rows.flatMap((row) => (row.program ? [row.program.name] : row.folded ? row.members.map(({ name }) => name) : []));
  chosenInOrder = () => [...this.programs.keys()].filter((name) => this.chosen.has(name));

  choose(names, isChosen) {
    for (const name of names) {
      if (isChosen) this.chosen.add(name);
      else this.chosen.delete(name);
    }
    this.drawAll();
  }

  showChosen() {
    this.bar.hidden = this.chosen.size === 0;
    setText(this.chosenText, `${counted(this.chosen.size, "program")} chosen`);
    const shown = this.shownNames();
    this.all.checked = shown.length > 0 && shown.every((name) => this.chosen.has(name));
    this.all.indeterminate = !this.all.checked && this.chosen.size > 0;
  }
}

function readFolds() {
  try {
    return new Map(JSON.parse(localStorage.getItem("folds")) ?? []);
  } catch {
    return new Map();
  }
}
