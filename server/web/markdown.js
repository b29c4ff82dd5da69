// Markdown to HTML, block by block. Nothing of a text passes as HTML: tags stand there as they were written, pictures are links, and
// links go to pages and mail only. What comes out is sanitized once more before it is shown (`rich.js`).

import { Marked } from './vendor/marked.esm.js';

/** A text with no meaning in HTML. */
export function escape(text) {
  const names = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
  return text.replace(/[&<>"']/g, (c) => names[c]);
}

/** The same, but for names of characters, such as `&amp;`: markdown has them, too. */
function escapeText(text) {
  return text.replace(/[^&]+|&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{0,31});|&/g, (part) => (part.length > 1 && part[0] === '&' ? part : escape(part)));
}

/** The target of a link, or `null` if it is none that may be followed. */
export function target(href) {
  try {
    const url = new URL(href);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(href, html) {
  const url = target(href);
  return url === null ? html : `<a href="${escape(url)}">${html}</a>`;
}

const renderer = {
  // The library's own leaves text as it is after tags such as `<script>`, which are no tags here.
  text({ text, tokens }) {
    return tokens ? this.parser.parseInline(tokens) : escapeText(text);
  },
  html({ text, block }) {
    return block ? verbatim(text) : escape(text);
  },
  link({ href, tokens }) {
    return link(href, this.parser.parseInline(tokens));
  },
  // Fetching one would tell its server what is being talked about.
  image({ href, text }) {
    return link(href, `Image: ${escape(text || href)}`);
  },
  heading({ depth, level = 6, tokens }) {
    return `<h${level} class="h${depth}">${this.parser.parseInline(tokens)}</h${level}>`;
  },
  code({ text, lang }) {
    const language = /^[\w+#.-]{1,32}/.exec(lang ?? '')?.[0] ?? '';
    return `<pre class="in-${escape(language)}"><code>${escape(text)}</code></pre>`;
  },
  checkbox({ checked }) {
    return checked ? '☑ ' : '☐ ';
  },
};

/** Formulas: `$…$` and `\(…\)` in a line; `$$…$$` and `\[…\]` on lines of their own. Lengths are bounded, so that many openings without an end take little time. */
const FORMULAS = [
  { display: true, open: '$$', form: /^\$\$((?:[^$\\]|\\[^]){1,4000}?)\$\$/ },
  { display: true, open: '\\[', form: /^\\\[((?:[^\\]|\\[^\]]){1,4000}?)\\\]/ },
  { display: false, open: '\\(', form: /^\\\(((?:[^\\]|\\[^)]){1,1000}?)\\\)/ },
  // As others have it, so that "$5 and $6" is no formula.
  { display: false, open: '$', form: /^\$((?!\s)(?:[^$\\\n]|\\[^\n]){0,1000}?[^\s$\\]|[^\s$\\])\$(?![\d$])/ },
];

function formula(src) {
  for (const { display, open, form } of FORMULAS) {
    const found = src.startsWith(open) ? form.exec(src) : null;
    if (found) {
      return { raw: found[0], text: found[1].trim(), display };
    }
  }
  return null;
}

function formulaHtml({ text, display }) {
  return `<span class="tex${display ? ' display' : ''}">${escape(text)}</span>`;
}

const block = {
  name: 'formulaBlock',
  level: 'block',
  start(src) {
    const at = src.search(/\n {0,3}(?:\$\$|\\\[)/);
    return at < 0 ? undefined : at + 1;
  },
  tokenizer(src) {
    const indent = /^ {0,3}/.exec(src)[0];
    const found = formula(src.slice(indent.length));
    const end = /^[ \t]*(?:\n|$)/.exec(src.slice(indent.length + (found?.raw.length ?? 0)));
    return found?.display && end ? { type: 'formulaBlock', ...found, raw: indent + found.raw + end[0] } : undefined;
  },
  renderer: formulaHtml,
};

const inline = {
  name: 'formula',
  level: 'inline',
  start: (src) => /\$|\\[([]/.exec(src)?.index,
  tokenizer(src) {
    const found = formula(src);
    if (found) {
      return { type: 'formula', ...found };
    }
    // All of them at once: looking for a formula at each would take long.
    const [run] = /^\$*/.exec(src);
    return run ? { type: 'text', raw: run, text: run } : undefined;
  },
  renderer: formulaHtml,
};

const marked = new Marked({ gfm: true, renderer, extensions: [block, inline] });

/** The blocks of a text, each with what its HTML follows from (`key`). A block that goes on to grow is the last one. */
export function blocks(text) {
  try {
    const tokens = marked.lexer(text);
    const links = JSON.stringify(tokens.links);
    nestHeadings(tokens);
    const shown = tokens.filter((token) => token.type !== 'space' && token.type !== 'def');
    return shown.map((token) => ({ key: `${token.raw}\n${token.level}${links}`, html: () => html(token) }));
  } catch {
    return [{ key: text, html: () => verbatim(text) }];
  }
}

/** The page has two levels of headings above those of a message, and none of them may be left out, as texts like to do. */
function nestHeadings(tokens) {
  let before = 2;
  for (const token of tokens.filter(({ type }) => type === 'heading')) {
    token.level = Math.min(token.depth + 2, before + 1, 6);
    before = token.level;
  }
}

function html(token) {
  try {
    return marked.parser([token]);
  } catch {
    return verbatim(token.raw);
  }
}

/** What is nested too deeply, such as thousands of quotes within each other, stands there as it was written. */
function verbatim(text) {
  return `<p class="verbatim">${escape(text.trimEnd())}</p>`;
}
