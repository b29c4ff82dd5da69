// Converts Markdown to HTML, block by block. HTML in the text is escaped, images become links, and only http(s) and
// mailto links are allowed. `rich.js` sanitizes the result again.

import { Lexer, Marked } from './vendor/marked.esm.js';

/** Escapes HTML. */
export function escape(text) {
  const names = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
  return text.replace(/[&<>"']/g, (c) => names[c]);
}

/** Escapes HTML except character references such as `&amp;`, which Markdown supports. */
function escapeText(text) {
  return text.replace(/[^&]+|&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{0,31});|&/g, (part) => (part.length > 1 && part[0] === '&' ? part : escape(part)));
}

/** Returns the URL of a link, or `null` if its scheme is not allowed. */
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
  // The default tokenizer treats text after tags such as `<script>` as raw, but tags are escaped here.
  text({ text, tokens }) {
    return tokens ? this.parser.parseInline(tokens) : escapeText(text);
  },
  html({ text, block }) {
    return block ? verbatim(text) : escape(text);
  },
  link({ href, tokens }) {
    return link(href, this.parser.parseInline(tokens));
  },
  // Loading an image would leak information about the conversation to its server.
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

/** Formulas: inline `$…$` and `\(…\)`, display `$$…$$` and `\[…\]`. Lengths are limited, so that many unclosed delimiters take little time. */
const FORMULAS = [
  { display: true, open: '$$', form: /^\$\$((?:[^$\\]|\\[^]){1,4000}?)\$\$/ },
  { display: true, open: '\\[', form: /^\\\[((?:[^\\]|\\[^\]]){1,4000}?)\\\]/ },
  { display: false, open: '\\(', form: /^\\\(((?:[^\\]|\\[^)]){1,1000}?)\\\)/ },
  // As in Pandoc, so that "$5 and $6" is not a formula.
  { display: false, open: '$', form: /^\$((?!\s)(?:[^$\\\n]|\\[^\n]){0,1000}?[^\s$\\]|[^\s$\\])\$(?![\d$])/ },
];

/** Maximum number of positions in a paragraph at which a formula may start. */
const MAX_STARTS = 64;

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
  // Only formulas in this paragraph interrupt it: each interruption takes time proportional to the rest of the text.
  start(src) {
    const end = src.search(/\n[ \t]*\n/);
    const paragraph = end < 0 ? src : src.slice(0, end);
    const begins = paragraph.matchAll(/\n {0,3}(?:\$\$|\\\[)/g);
    for (const { index } of [...begins].slice(0, MAX_STARTS)) {
      if (block.tokenizer(src.slice(index + 1))) {
        return index + 1;
      }
    }
    return undefined;
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
    // Consume the whole run; trying each position would be slow.
    const [run] = /^\$*/.exec(src);
    return run ? { type: 'text', raw: run, text: run } : undefined;
  },
  renderer: formulaHtml,
};

const marked = new Marked({ gfm: true, renderer, extensions: [block, inline] });

/** Maximum number of characters of one run of text that could start a link, an emphasis, or a tag. The lexer searches the rest of the run for each. */
const MAX_DELIMITERS = 1000;
/** Maximum depth of quotes and lists. The lexer copies the rest of the text at each level. */
const MAX_DEPTH = 32;

/** Lexer whose time is proportional to the length of the text: runs with too many delimiters, and blocks that are nested too deeply, remain plain. */
class BoundedLexer extends Lexer {
  depth = 0;

  blockTokens(src, tokens = [], isClipped = false) {
    if (this.depth >= MAX_DEPTH) {
      tokens.push({ type: 'paragraph', raw: src, text: src, tokens: [plain(src)] });
      return tokens;
    }
    this.depth++;
    try {
      return super.blockTokens(src, tokens, isClipped);
    } finally {
      this.depth--;
    }
  }

  inlineTokens(src, tokens = []) {
    if (src.length > MAX_DELIMITERS && (src.match(/[[\]!*_~`<>&$\\@:.]/g)?.length ?? 0) > MAX_DELIMITERS) {
      tokens.push(plain(src));
      return tokens;
    }
    return super.inlineTokens(src, tokens);
  }
}

function plain(src) {
  return { type: 'text', raw: src, text: src, escaped: false };
}

/** Returns the blocks of a text, each with a `key` that determines its HTML. Only the last block grows. */
export function blocks(text) {
  try {
    const tokens = new BoundedLexer(marked.defaults).lex(text);
    const links = JSON.stringify(tokens.links);
    nestHeadings(tokens);
    const shown = tokens.filter((token) => token.type !== 'space' && token.type !== 'def');
    return shown.map((token) => ({ key: `${token.raw}\n${token.level}${links}`, html: () => html(token) }));
  } catch {
    return [{ key: text, html: () => verbatim(text) }];
  }
}

/** Maps heading levels: the page has two levels above those of a message, and levels must not be skipped. */
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

/** Shows text verbatim if it is nested too deeply. */
function verbatim(text) {
  return `<p class="verbatim">${escape(text.trimEnd())}</p>`;
}
