// The GPUs of the host, one row each, below all programs. Nothing is shown on a host without any.

import { element, moment } from "./dom.js";

const HEADS = ["GPU", "Name", "Used by", "State", "Faults", "Last fault", "Left out because"];

export class Gpus {
  constructor() {
    const heads = HEADS.map((each) => element("th", { scope: "col" }, each));
    this.body = element("tbody");
    this.node = element("section", { hidden: true }, element("h2", {}, "GPUs"), element("table", { class: "programs" }, element("thead", {}, element("tr", {}, heads)), this.body));
  }

  update(gpus) {
    this.node.hidden = gpus.length === 0;
    this.body.replaceChildren(...gpus.map(row));
  }
}

function row(gpu) {
  const number = gpu.index === null ? "" : `${gpu.index} `;
  const last = gpu.last_fault === null ? "" : `${moment(gpu.last_fault_wall_at)}: ${gpu.last_fault}`;
  const because = [gpu.left_out ?? gpu.trouble ?? "", gpu.action ? `(${gpu.action})` : ""].filter(Boolean).join(" ");
  const cells = [`${number}${gpu.uuid || gpu.address}`, gpu.name, gpu.used_by.join(", "), gpu.state, gpu.faults || "", last, because];
  return element("tr", {}, cells.map((text, place) => element("td", { "data-label": HEADS[place].toLowerCase() }, String(text))));
}
