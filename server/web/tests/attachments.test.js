import assert from 'node:assert/strict';
import test from 'node:test';
import { attachment, byteLength, size, validFiles, withoutFiles } from '../attachments.js';

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

test('attachments are read or have a problem', async () => {
  const model = { capabilities: ['vision'] };
  const file = (name, type, content) => Object.assign(new Blob([content], { type }), { name });
  const read = (...of) => attachment(file(...of), model);
  assert.deepEqual(await read('a.txt', 'text/plain', 'x'), { text: { name: 'a.txt', text: 'x' } });
  assert.match((await read('a.bin', '', '\0')).problem, /not a text file/);
  assert.match((await read('a.wav', 'audio/wav', 'x')).problem, /does not read audio/);
  assert.match((await read('a.txt', '', 'x'.repeat((1 << 20) + 1))).problem, /larger than 1 MiB/);
  // Node.js has no FileReader; the error is reported and not thrown.
  assert.match((await read('a.png', 'image/png', 'x')).problem, /cannot be read/);
  const gone = { name: 'b', type: '', size: 1, text: () => Promise.reject(new Error('it was removed')) };
  assert.deepEqual(await attachment(gone, model), { problem: 'b cannot be read: it was removed' });
});
