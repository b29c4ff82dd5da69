import assert from 'node:assert/strict';
import test from 'node:test';
import { parts } from '../highlight.js';

const kinds = (text, language) => parts(text, language).filter(({ kind }) => kind !== '').map(({ kind, text: of }) => [kind, of]);

test('code is split into parts', () => {
  assert.deepEqual(kinds('let x = f("a // b", 0x1F); // c', 'js'), [
    ['word', 'let'],
    ['call', 'f'],
    ['text', '"a // b"'],
    ['number', '0x1F'],
    ['comment', '// c'],
  ]);
  assert.deepEqual(kinds("x = 'a' # 'c", 'Python'), [
    ['text', "'a'"],
    ['comment', "# 'c"],
  ]);
  assert.deepEqual(kinds('SELECT a FROM t -- x', 'sql'), [
    ['word', 'SELECT'],
    ['word', 'FROM'],
    ['comment', '-- x'],
  ]);
  assert.deepEqual(kinds('<b class="x"><!-- c -->', 'html'), [
    ['word', 'b'],
    ['text', '"x"'],
    ['comment', '<!-- c -->'],
  ]);
});

test('parts add up to the input', () => {
  const texts = ['', '"never ends', '/* never ends', '`${', "it's", 'a\u0000b', '<!-- <', '#'.repeat(1000), '"\\'.repeat(5000)];
  for (const language of ['', 'js', 'python', 'sh', 'html', 'sql', 'text', 'no such', 'constructor']) {
    for (const text of texts) {
      assert.equal(parts(text, language).map((part) => part.text).join(''), text);
    }
  }
});
