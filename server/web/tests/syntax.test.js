import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';

// A browser loads no module of the page if one of them cannot be parsed. The other tests import only modules without the DOM.
test('all modules can be parsed', () => {
  const directory = new URL('..', import.meta.url);
  const names = readdirSync(directory).filter((name) => name.endsWith('.js'));
  assert.ok(names.includes('main.js') && names.length > 20, `${names}`);
  for (const name of names) {
    const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '--check'], { input: readFileSync(new URL(name, directory)), encoding: 'utf8' });
    assert.equal(status, 0, `${name}: ${stderr}`);
  }
});
