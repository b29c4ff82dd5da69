import assert from 'node:assert/strict';
import test from 'node:test';
import { canRecord, clock, wav } from '../recorder.js';

test('recordings are WAV files of one channel', () => {
  const file = new DataView(wav([new Float32Array([0, 1, -2]), new Float32Array([0, 0, -2])], 16000));
  const text = (at, n) => Array.from({ length: n }, (_, i) => String.fromCharCode(file.getUint8(at + i))).join('');
  assert.deepEqual([text(0, 4), text(8, 8), text(36, 4)], ['RIFF', 'WAVEfmt ', 'data']);
  assert.deepEqual([file.byteLength, file.getUint32(4, true), file.getUint32(40, true)], [50, 42, 6]);
  assert.deepEqual([20, 22, 32, 34].map((at) => file.getUint16(at, true)), [1, 1, 2, 16]);
  assert.deepEqual([file.getUint32(24, true), file.getUint32(28, true)], [16000, 32000]);
  // The mean of the channels, limited to -1 and 1.
  assert.deepEqual([44, 46, 48].map((at) => file.getInt16(at, true)), [0, 16384, -32767]);
});

test('times have minutes and seconds', () => {
  assert.deepEqual([0, 7999, 90000].map(clock), ['0:00', '0:07', '1:30']);
});

test('browsers without a microphone cannot record', () => {
  assert.equal(canRecord(), false);
});
