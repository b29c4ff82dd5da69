import assert from 'node:assert/strict';
import test from 'node:test';
import { blocks, target } from '../markdown.js';

const html = (text) => blocks(text).map((block) => block.html()).join('');

/** The tags that markdown may become, with their attributes. */
const TAG =
  /^<(?:\/?(?:p|strong|em|del|code|pre|ul|li|blockquote|table|thead|tbody|tr|th|td|h3|h4|h5|h6|ol|a|span)|br|hr|p class="verbatim"|h[3-6] class="h[1-6]"|ol start="\d+"|t[hd] align="(?:left|right|center)"|span class="tex(?: display)?"|pre class="in-[\w+#.-]*"|a href="(?:https?:\/\/|mailto:)[^"<>]*")>$/;

function isHarmless(text) {
  const made = html(text);
  for (const tag of made.match(/<[^>]*>?/g) ?? []) {
    assert.match(tag, TAG, `${JSON.stringify(text)}\nbecomes ${made}`);
  }
}

test('basic Markdown is converted', () => {
  assert.equal(html('**a** and `<b>`'), '<p><strong>a</strong> and <code>&lt;b&gt;</code></p>\n');
  assert.equal(html('# A'), '<h3 class="h1">A</h3>');
  assert.equal(html('```rust\nfn main() {}\n```'), '<pre class="in-rust"><code>fn main() {}</code></pre>');
  assert.match(html('| a |\n|--:|\n| 1 |'), /<td align="right">1<\/td>/);
  assert.match(html('[a](https://example.org/?a=1&b=2)'), /<a href="https:\/\/example.org\/\?a=1&amp;b=2">a<\/a>/);
});

test('heading levels are not skipped', () => {
  const levels = (text) => html(text).match(/<h\d class="h\d"/g).map((tag) => [tag[2], tag.at(-2)].join(':'));
  assert.deepEqual(levels('## a\n\n#### b\n\n# c\n\n###### d\n\n###### e'), ['3:2', '4:4', '3:1', '4:6', '5:6']);
});

test('unclosed code block is a code block', () => {
  assert.equal(html('```\na\nb'), '<pre class="in-"><code>a\nb</code></pre>');
});

test('formulas are distinguished from text', () => {
  const inline = '<span class="tex">a_1 b_2</span>';
  assert.equal(html('$a_1 b_2$ and \\(a_1 b_2\\)'), `<p>${inline} and ${inline}</p>\n`);
  const display = '<span class="tex display">x &lt; *y*</span>';
  assert.equal(html('$$\nx < *y*\n$$'), display);
  assert.equal(html('\\[x < *y*\\]\n'), display);
  assert.equal(html('so \\[x < *y*\\]'), `<p>so ${display}</p>\n`);
  for (const text of ['$5 and $6', 'a $ b $', '`$x$`', '\\$x\\$', '$$ without an end', 'US$100 or A$150']) {
    assert.doesNotMatch(html(text), /tex/, text);
  }
});

test('HTML tags are escaped', () => {
  assert.equal(html('a <img src=x onerror=alert(1)> b'), '<p>a &lt;img src=x onerror=alert(1)&gt; b</p>\n');
  assert.equal(html('<script>alert(1)</script>'), '<p class="verbatim">&lt;script&gt;alert(1)&lt;/script&gt;</p>');
});

test('unsafe links are removed and images become links', () => {
  for (const href of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'java\nscript:alert(1)', 'data:text/html,x', 'vbscript:x', 'file:///etc/passwd', '/v1/models', 'blob:x', '//evil.example']) {
    assert.equal(target(href), null, href);
    assert.doesNotMatch(html(`[a](<${href}>)`), /<a /, href);
  }
  assert.equal(target('https://example.org'), 'https://example.org/');
  assert.equal(html('![p](http://e.org/x.png)'), '<p><a href="http://e.org/x.png">Image: p</a></p>\n');
});

const HOSTILE = [
  '<img src=x onerror=alert(1)>',
  '<svg><script>alert(1)</script></svg>',
  '[a](javascript:alert(1))',
  '[a](https://e.org/"onmouseover="alert(1))',
  '![x](https://e.org/a"b<c>.png "t\'<i>")',
  '<a href="https://e.org" onclick=alert(1)>',
  '<https://e.org/?"onload=x>',
  '[r]: javascript:alert(1) "x"\n\n[r]',
  '```"><img src=x>\ncode\n```',
  '`<b>`',
  '$</span><img src=x>$',
  '$$\n</span><script>\n$$',
  '\\(\\href{javascript:alert(1)}{x}\\)',
  '| <b> | `|` |\n|--|--|\n| <i onclick=x> | $<u>$ |',
  '&lt;script&gt;&#60;img&#62;',
  '<!-- --!><img src=x>',
  '<![CDATA[<img>]]>',
  '- [x] <input autofocus onfocus=alert(1)>',
  '> # <style>*{}</style>',
  '1. <iframe srcdoc="<b>">',
  '[^1]: <b>',
  '\n\n',
  '    ',
  '\u0000<b>\uFFFF',
];

test('only Markdown produces HTML', () => {
  HOSTILE.forEach(isHarmless);
  let seed = 1;
  const random = (n) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * n);
  };
  for (let i = 0; i < 3000; i += 1) {
    const pieces = Array.from({ length: 1 + random(5) }, () => HOSTILE[random(HOSTILE.length)]);
    const text = pieces.join(['', ' ', '\n', '*', '`', '['][random(6)]);
    isHarmless(text.slice(random(4), text.length - random(4)));
  }
});

test('adversarial input is handled in bounded time', () => {
  for (const text of ['> '.repeat(5000) + 'x', '- '.repeat(5000) + 'x', '['.repeat(5000), '$'.repeat(20001), '\\('.repeat(10000), '\\['.repeat(10000), '*a '.repeat(5000), '`'.repeat(9999), '<'.repeat(9999)]) {
    isHarmless(text);
  }
});

/** Returns the shortest processor time of three conversions in milliseconds. */
function time(text) {
  const once = () => {
    const begin = process.cpuUsage().user;
    blocks(text).forEach((block) => block.html());
    return (process.cpuUsage().user - begin) / 1000;
  };
  return Math.min(once(), once(), once());
}

test('time is proportional to the length of the text', () => {
  const repeated = ['[', '![', '[a](', '*a ', '**a', '_a*b', '> ', '- ', '$$a\n', '\n\\[a', '[a]: x\n', '|a|\n', '<a ', '&#1', 'a@', '~a~~', '`a', 'http://', '1. ', '![](', 'a\n\n'];
  for (const part of repeated) {
    const [short, long] = [4000, 32000].map((n) => time(part.repeat(n)));
    // Eight times the length; quadratic work would take 64 times the time.
    assert.ok(long < 24 * Math.max(short, 20), `${JSON.stringify(part)}: ${short} ms, ${long} ms`);
  }
});

test('long runs and deep nesting remain readable', () => {
  const plain = blocks('*a '.repeat(2000))[0].html();
  assert.ok(plain.startsWith('<p>*a *a') && !plain.includes('verbatim'), plain.slice(0, 80));
  assert.match(blocks(`${'> '.repeat(40)}**x**`)[0].html(), /(<blockquote>\s*){30}/);
  assert.match(blocks('text\n$$a$$\nmore').map((b) => b.html()).join(''), /<p>text<\/p>\s*<span class="tex display">a<\/span>/);
});

test('complete blocks keep their keys while text grows', () => {
  const text = '# A\n\nfirst\n\n- a\n- b\n\n```js\nlet x;\n```\n\nlast words';
  const all = blocks(text);
  const before = blocks(text.slice(0, -6));
  assert.deepEqual(
    before.slice(0, -1).map(({ key }) => key),
    all.slice(0, -1).map(({ key }) => key),
  );
  assert.notEqual(before.at(-1).key, all.at(-1).key);
});
