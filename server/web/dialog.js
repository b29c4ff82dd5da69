// Modal dialogs; the browser traps and restores the focus.

import { h, iconButton } from './dom.js';

let n = 0;

/** Shows a dialog. `close()` of the result closes it; Esc and a click outside close it, too. */
export function dialog(title, ...children) {
  n += 1;
  const id = `dialog-${n}`;
  const close = () => element.close();
  const head = h('div', { class: 'dialog-head' }, h('h2', { id }, title), iconButton('close', 'Close', close));
  const element = h('dialog', { 'aria-labelledby': id }, head, ...children);
  element.addEventListener('close', () => element.remove());
  // Close the dialog only for clicks that start outside of it.
  element.addEventListener('mousedown', (event) => {
    if (event.target === element) {
      close();
    }
  });
  document.body.append(element);
  element.showModal();
  return element;
}
