// The key `/` leads to the field that filters, as on many pages.

export function focusSearch(find) {
  window.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    find()?.focus();
  });
}
