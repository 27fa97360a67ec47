// The checkpoints of a job: those on the disk, in the mirror, and in quarantine with the reason.

import { bytes, counted, element, moment, setText, table, whole } from "./dom.js";

export class Checkpoints {
  constructor() {
    this.remark = element("span", { class: "soft" });
    this.rows = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of checkpoints" });
    this.node = element("section", { class: "card" }, element("div", { class: "part-head" }, element("h2", {}, "Checkpoints"), this.remark), this.rows);
  }

  update({ checkpoints, mirror }) {
    const good = checkpoints.filter(({ quarantined }) => !quarantined);
    const size = good.reduce((sum, { size_bytes }) => sum + (size_bytes ?? 0), 0);
    setText(this.remark, good.length ? `${counted(good.length, "checkpoint")}, ${bytes(size)}` : "");
    const rows = checkpoints.map((checkpoint) => {
      const state = checkpoint.quarantined ? `quarantined: ${checkpoint.reason ?? "reason not recorded"}` : (checkpoint.reason ?? "");
      const place = [mirror?.includes(checkpoint.name) ? "disk and mirror" : "disk", checkpoint.replayed ? "proven: trained twice with equal bits" : ""].filter(Boolean).join("; ");
      return element("tr", { title: checkpoint.name }, element("td", { class: "right" }, checkpoint.step === null ? checkpoint.name : whole(checkpoint.step)), element("td", {}, moment(checkpoint.created_wall_at)), element("td", { class: "right" }, bytes(checkpoint.size_bytes)), element("td", {}, `attempt ${checkpoint.attempt}`), element("td", { class: `wide ${state ? "bad" : "soft"}` }, state || place));
    });
    this.rows.replaceChildren(rows.length ? table(["Step>", "Written", "Size>", "By", "Where"], rows, "stacked") : element("p", { class: "soft" }, "There is no checkpoint yet."));
  }
}
