// A menu below a button, a question, and a line about what was done.

import { element } from "./dom.js";

// `items`: { label, action, isPossible, choose }, or null for a line between two.
export function openMenu(button, items) {
  const menu = element("div", { class: "popup", role: "menu", popover: "auto", "aria-label": button.getAttribute("aria-label") ?? "" });
  for (const item of items) {
    if (item === null) {
      menu.append(element("hr", { role: "separator" }));
      continue;
    }
    const entry = element("button", { type: "button", role: "menuitem", tabindex: "-1", "data-action": item.action, disabled: !item.isPossible }, item.label);
    entry.addEventListener("click", () => {
      menu.hidePopover();
      item.choose();
    });
    menu.append(entry);
  }
  document.body.append(menu);
  menu.addEventListener("keydown", (event) => moveFocus(event, menu));
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    const hadFocus = menu.contains(document.activeElement) || document.activeElement === document.body;
    menu.remove();
    button.setAttribute("aria-expanded", "false");
    if (hadFocus) button.focus();
  });
  menu.showPopover();
  button.setAttribute("aria-expanded", "true");
  const place = button.getBoundingClientRect();
  const below = place.bottom + 4 + menu.offsetHeight <= window.innerHeight ? place.bottom + 4 : Math.max(4, place.top - 4 - menu.offsetHeight);
  menu.style.top = `${below}px`;
  menu.style.left = `${Math.max(8, Math.min(place.right - menu.offsetWidth, window.innerWidth - menu.offsetWidth - 8))}px`;
  menu.querySelector("button:not(:disabled)")?.focus();
}

function moveFocus(event, menu) {
  const entries = [...menu.querySelectorAll("button:not(:disabled)")];
  const place = entries.indexOf(document.activeElement);
  const target = { ArrowDown: entries[(place + 1) % entries.length], ArrowUp: entries.at(place - 1), Home: entries[0], End: entries.at(-1) }[event.key];
  if (event.key === "Tab") menu.hidePopover();
  if (!target) return;
  event.preventDefault();
  target.focus();
}

// The answer to a question: true, or what was chosen; null for no.
export function ask(question, yes = "Yes", choices = null) {
  const select = choices && element("select", { "aria-label": question }, choices.map((choice) => element("option", {}, choice)));
  const buttons = element("menu", {}, element("button", { value: "" }, "Cancel"), element("button", { value: "yes", class: "main", autofocus: true }, yes));
  const dialog = element("dialog", { class: "question", "aria-label": question }, element("form", { method: "dialog" }, element("p", {}, question), select, buttons));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? (select ? select.value : true) : null);
    }),
  );
}

// `stays`: until something else is said.
export function say(text, stays = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  clearTimeout(say.timer);
  if (text && !stays) say.timer = setTimeout(() => (said.textContent = ""), 15000);
}
