// Short sentences at the edge of the page, which go by themselves.

import { byId, h } from './dom.js';

const SHOWN_MS = 8000;

/** Shows a sentence; `action` is a button with it: `{ label, run }`. */
export function notice(text, action = null) {
  const remove = () => element.remove();
  const press = () => {
    remove();
    action.run();
  };
  const element = h('div', { class: 'notice' }, h('span', {}, text), action && h('button', { type: 'button', class: 'small-button', onclick: press }, action.label));
  byId('notices').append(element);
  const timer = setTimeout(remove, SHOWN_MS);
  // Who is about to press the button gets time for it.
  element.addEventListener('focusin', () => clearTimeout(timer));
}
