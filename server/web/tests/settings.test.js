import assert from 'node:assert/strict';
import test from 'node:test';
import { SETTINGS, read, requestBody, typed, valid } from '../settings.js';

const setting = (name) => SETTINGS.find((of) => of.name === name);
const question = [{ role: 'user', content: 'hi', time: 1, id: 'm1' }];

test('unset settings are not sent', () => {
  const body = requestBody('tiny', {}, question);
  assert.deepEqual(body, {
    model: 'tiny',
    messages: [{ role: 'user', content: 'hi' }],
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    reasoning_control: true,
  });
});

test('settings become fields of the request', () => {
  const settings = { system: 'be brief', temperature: 0, top_k: 5, stop: ['a', 'b'], reasoning_effort: 'none', json_schema: '{"type":"object"}' };
  const { messages, stream, stream_options: _, return_progress: ___, reasoning_control: __, ...fields } = requestBody(null, settings, question);
  assert.deepEqual(messages[0], { role: 'system', content: 'be brief' });
  assert.deepEqual(fields, { temperature: 0, top_k: 5, stop: ['a', 'b'], reasoning_effort: 'none', json_schema: { type: 'object' } });
  assert.equal(stream, true);
});

test('attached files precede the typed text', () => {
  const files = [{ name: 'a.md', text: 'x\n```\ny\n```\n' }, { name: 'b.txt', text: 'z' }];
  const { messages } = requestBody('tiny', {}, [{ ...question[0], files }, { role: 'user', content: '', files: [files[1]] }]);
  assert.equal(messages[0].content, 'a.md:\n````\nx\n```\ny\n```\n````\n\nb.txt:\n```\nz\n```\n\nhi');
  assert.deepEqual(messages[1], { role: 'user', content: 'b.txt:\n```\nz\n```' });
});

test('final assistant message is continued', () => {
  const messages = [...question, { role: 'assistant', content: 'he', reasoning: 'hm' }];
  const body = requestBody('tiny', {}, messages);
  assert.equal(body.continue_final_message, true);
  assert.deepEqual(body.messages[1], { role: 'assistant', content: 'he', reasoning_content: 'hm' });
});

test('input is validated', () => {
  const temperature = setting('temperature');
  assert.deepEqual(read(temperature, ' 0.7 '), { value: 0.7 });
  assert.deepEqual(read(temperature, ''), { value: undefined });
  for (const wrong of ['x', '-1', '6', 'Infinity', '0x']) {
    assert.match(read(temperature, wrong).error, /number from 0 to 5/, wrong);
  }
  assert.match(read(setting('top_k'), '1.5').error, /integer/);
  assert.match(read(setting('json_schema'), '{').error, /Invalid JSON/);
  assert.match(read(setting('json_schema'), '[]').error, /object/);
  assert.deepEqual(read(setting('stop'), 'a\n\n b\n'), { value: ['a', ' b'] });
});

test('formatted values parse back', () => {
  const values = { system: 'a\nb', temperature: 0.25, top_k: 0, stop: ['x', 'y'], reasoning_effort: 'low', json_schema: '{ "a": 1 }' };
  for (const [name, value] of Object.entries(values)) {
    assert.deepEqual(read(setting(name), typed(setting(name), value)), { value });
  }
  assert.deepEqual(valid(values), values);
});

test('invalid values are dropped', () => {
  assert.deepEqual(valid({ temperature: 'hot', top_p: 7, stop: [1], seed: [2], json_schema: '{', other: 1, min_p: 0.1 }), { min_p: 0.1 });
});
