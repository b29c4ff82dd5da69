import assert from 'node:assert/strict';
import test from 'node:test';
import { EventReader } from '../sse.js';

const STREAM = ': pause\n\ndata: {"a":1}\n\ndata:two\ndata: lines\r\n\r\nevent: x\ndata: [DONE]\n\n';
const EVENTS = ['{"a":1}', 'two\nlines', '[DONE]'];

test('events do not depend on chunk boundaries', () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const reader = new EventReader();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) {
      events.push(...reader.push(STREAM.slice(at, at + size)));
    }
    assert.deepEqual(events, EVENTS, `pieces of ${size}`);
  }
});

test('incomplete event is ignored', () => {
  assert.deepEqual(new EventReader().push('data: half\n'), []);
});
