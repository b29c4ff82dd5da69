// Creates elements without HTML strings, so that model output is never parsed as HTML here.

/** Creates an element. `on…` entries are listeners, others attributes; `null` and `false` omit an attribute, `true` sets it empty. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) {
      element.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== false && value !== undefined) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns the element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

// Icon paths in a 24 x 24 view box.
const ICONS = {
  plus: 'M12 5v14M5 12h14',
  menu: 'M4 7h16M4 12h16M4 17h16',
  close: 'M6 6l12 12M18 6L6 18',
  search: 'M11 4a7 7 0 1 0 0 14a7 7 0 1 0 0-14M16 16l4 4',
  sliders: 'M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M8 8h8v8H8z',
  copy: 'M9 9h10v10H9zM15 9V5H5v10h4',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  edit: 'M5 19l1-4L16.5 4.5l3 3L9 18z',
  redo: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
  forward: 'M6 5l9 7-9 7zM18.5 5v14',
  left: 'M14 6l-6 6 6 6',
  right: 'M10 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
  file: 'M20 11.5l-7.8 7.8a5 5 0 0 1-7-7l8.5-8.6a3.4 3.4 0 0 1 4.8 4.8l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.4-7.4',
  mic: 'M12 4a3 3 0 0 1 3 3v4a3 3 0 0 1-6 0V7a3 3 0 0 1 3-3M6 11a6 6 0 0 0 12 0M12 17v3',
  box: 'M4 5h16v4H4zM5.5 9v10h13V9M10 13h4',
  theme: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
};

const SVG = 'http://www.w3.org/2000/svg';

/** Creates a decorative icon. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const path = document.createElementNS(SVG, 'path');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', name === 'more' ? 'icon dots' : 'icon');
  svg.setAttribute('aria-hidden', 'true');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** Creates a button that shows only an icon. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...attributes }, icon(name));
}

/** Copies text to the clipboard, also without TLS, where the clipboard API is unavailable. */
export async function copyText(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text);
  }
  const area = h('textarea', { class: 'visually-hidden', 'aria-hidden': 'true' });
  const before = document.activeElement;
  area.value = text;
  (before?.closest('dialog') ?? document.body).append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  before?.focus();
  if (!copied) {
    throw new Error('the browser rejected the copy');
  }
}
