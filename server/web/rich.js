// Renders model output. All HTML generated from text is created here and sanitized by DOMPurify. The content security
// policy (`require-trusted-types-for`) prevents HTML parsing elsewhere.

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
  // All other attributes must be valid URIs.
  ADD_URI_SAFE_ATTR: ['start', 'align'],
  RETURN_DOM_FRAGMENT: true,
};

const MATHML = 'http://www.w3.org/1998/Math/MathML';

/** Renders a text in `parent`. Unchanged blocks are reused, which preserves the selection. */
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
    // Wide formulas scroll, so they must be focusable.
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

/** Rejects elements and removes attributes that could link elsewhere or imitate parts of the page. */
function harmless(formula) {
  for (const element of formula.querySelectorAll('*')) {
    if (element.namespaceURI !== MATHML && element.localName !== 'span') {
      throw new Error(`element ${element.localName} is not allowed in a formula`);
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

/** Creates a button that copies the result of `text()` and shows a confirmation. */
export function copyButton(label, text) {
  const button = h('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label }, icon('copy'));
  button.addEventListener('click', async () => {
    const copied = await copyText(text()).then(
      () => true,
      () => false,
    );
    button.replaceChildren(icon(copied ? 'check' : 'close'));
    const said = copied ? 'Copied' : 'Copying failed';
    button.setAttribute('aria-label', said);
    setTimeout(() => {
      button.replaceChildren(icon('copy'));
      button.setAttribute('aria-label', label);
    }, 1500);
  });
  return button;
}
