// Dialogs: the browser keeps the focus within and gives it back.

import { h, iconButton } from './dom.js';

let n = 0;

/** Shows a dialog. `close()` of the result closes it, and is called by Esc and by a press beside it. */
export function dialog(title, ...children) {
  n += 1;
  const id = `dialog-${n}`;
  const close = () => element.close();
  const head = h('div', { class: 'dialog-head' }, h('h2', { id }, title), iconButton('close', 'Close', close));
  const element = h('dialog', { 'aria-labelledby': id }, head, ...children);
  element.addEventListener('close', () => element.remove());
  // A press beside it, not one that ends beside it.
  element.addEventListener('mousedown', (event) => {
    if (event.target === element) {
      close();
    }
  });
  document.body.append(element);
  element.showModal();
  return element;
}
