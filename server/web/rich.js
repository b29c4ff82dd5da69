// Text of a model as elements. All markup of the page that comes from text is made here, and goes through DOMPurify; the page's policy
// on content (`require-trusted-types-for`) lets no other place parse HTML.

import { copyText, h, icon } from './dom.js';
import { parts } from './highlight.js';
import { blocks } from './markdown.js';

const { DOMPurify, temml } = globalThis;

const ALLOWED = {
  ALLOWED_TAGS: `a blockquote br code del em h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul`.split(' '),
  ALLOWED_ATTR: ['href', 'class', 'start', 'align'],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // The form of addresses is asked of all others.
  ADD_URI_SAFE_ATTR: ['start', 'align'],
  RETURN_DOM_FRAGMENT: true,
};

const MATHML = 'http://www.w3.org/1998/Math/MathML';

/** Shows a text in `parent`, which has shown earlier states of it: blocks that are as before stay, with what is selected in them. */
export function showRich(parent, text) {
  const wanted = blocks(text);
  const shown = [...parent.children];
  for (const [i, { key, html }] of wanted.entries()) {
    if (shown[i]?.richKey === key) {
      continue;
    }
    const element = h('div', { class: 'block' }, made(html()));
    element.richKey = key;
    if (shown[i]) {
      shown[i].replaceWith(element);
    } else {
      parent.append(element);
    }
  }
  shown.slice(wanted.length).forEach((element) => element.remove());
}

function made(html) {
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
  }
  fragment.querySelectorAll('span.tex').forEach(showFormula);
  fragment.querySelectorAll('pre').forEach(showCode);
  for (const table of fragment.querySelectorAll('table')) {
    const frame = h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' });
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

function showFormula(span) {
  const source = span.textContent;
  const display = span.classList.contains('display');
  const formula = h('span', { class: display ? 'formula display' : 'formula' });
  if (display) {
    // It may be wider than the page.
    formula.tabIndex = 0;
    formula.setAttribute('role', 'group');
    formula.setAttribute('aria-label', 'Formula');
  }
  try {
    const options = { displayMode: display, throwOnError: true, trust: false, maxSize: [20, 20], maxExpand: 200 };
    temml.render(source, formula, options);
    harmless(formula);
  } catch {
    formula.className = 'formula failed';
    formula.replaceChildren(h('code', {}, source));
  }
  span.replaceWith(formula);
}

/** Formulas are symbols: what could lead elsewhere, or be confused with a part of the page, is taken off. */
function harmless(formula) {
  for (const element of formula.querySelectorAll('*')) {
    if (element.namespaceURI !== MATHML && element.localName !== 'span') {
      throw new Error(`a formula has no ${element.localName}`);
    }
    for (const { name } of [...element.attributes]) {
      if (/^(?:on|id$|src|.*href$|action)/i.test(name)) {
        element.removeAttribute(name);
      }
    }
  }
}

function showCode(pre) {
  const language = pre.className.slice('in-'.length);
  const text = pre.textContent;
  const code = h('code', { tabindex: '0' });
  code.append(...parts(text, language).map(({ kind, text: part }) => (kind ? h('span', { class: `c-${kind}` }, part) : part)));
  const head = h('div', { class: 'code-head' }, h('span', {}, language || 'text'), copyButton('Copy code', () => text));
  const frame = h('div', { class: 'code' }, head, h('pre', {}, code));
  pre.replaceWith(frame);
}

/** A button that copies what `text` gives, and says so. */
export function copyButton(label, text) {
  const button = h('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label }, icon('copy'));
  button.addEventListener('click', async () => {
    const copied = await copyText(text()).then(
      () => true,
      () => false,
    );
    button.replaceChildren(icon(copied ? 'check' : 'close'));
    const said = copied ? 'Copied' : 'The browser did not copy';
    button.setAttribute('aria-label', said);
    setTimeout(() => {
      button.replaceChildren(icon('copy'));
      button.setAttribute('aria-label', label);
    }, 1500);
  });
  return button;
}
