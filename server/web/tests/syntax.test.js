import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';

const check = (input) => spawnSync(process.execPath, ['--input-type=module', '--check'], { input, encoding: 'utf8' });

// A browser loads no module of the page if one of them cannot be parsed. The other tests import only modules without the DOM.
test('all modules can be parsed', () => {
  const directory = new URL('..', import.meta.url);
  const names = readdirSync(directory).filter((name) => name.endsWith('.js'));
  assert.ok(names.includes('main.js') && names.length > 20, `${names}`);
  for (const name of names) {
    const { status, stderr } = check(readFileSync(new URL(name, directory)));
    assert.equal(status, 0, `${name}: ${stderr}`);
  }
});

test('a broken module is found', () => {
  const { status, stderr } = check("export const label = 'the page's name';");
  assert.notEqual(status, 0);
  assert.match(stderr, /SyntaxError/);
});
