// Transient notifications.

import { byId, h } from './dom.js';

const SHOWN_MS = 8000;

/** Shows a notification; `action` adds a button: `{ label, run }`. */
export function notice(text, action = null) {
  const remove = () => element.remove();
  const press = () => {
    remove();
    action.run();
  };
  const element = h('div', { class: 'notice' }, h('span', {}, text), action && h('button', { type: 'button', class: 'small-button', onclick: press }, action.label));
  byId('notices').append(element);
  const timer = setTimeout(remove, SHOWN_MS);
  // Do not hide the button while the user is about to press it.
  element.addEventListener('focusin', () => clearTimeout(timer));
}
