import assert from 'node:assert/strict';
import test from 'node:test';
import { byteLength, size, validFiles, withoutFiles } from '../attachments.js';

test('sizes have three digits at most', () => {
  assert.deepEqual([0, 999, 1000, 999949, 999950, 1048576].map(size), ['0 B', '999 B', '1.0 KB', '999.9 KB', '1.0 MB', '1.0 MB']);
  assert.equal(byteLength('aä🦙'), 7);
});

test('files are taken out of a text, code is not', () => {
  assert.equal(withoutFiles('a.txt:\n```\nx\n```\n\nwhy?'), 'why?');
  assert.equal(withoutFiles('Run this\n```\nx\n```'), 'Run this\n```\nx\n```');
  assert.deepEqual(validFiles([{ name: 'a', text: 'b', c: 1 }, null, { name: 'a' }]), [{ name: 'a', text: 'b' }]);
  assert.deepEqual(validFiles('x'), []);
});
