import assert from 'node:assert/strict';
import test from 'node:test';
import { begin, filled, pause, progress, rate, take } from '../completion.js';

const delta = (fields, finish = null) => ({ model: 'tiny', choices: [{ delta: fields, finish_reason: finish }] });

test('stream chunks extend the message', () => {
  const node = { content: '', error: 'an earlier failure', finish: 'stopped' };
  begin(node, 1000);
  assert.deepEqual([node.error, node.finish], [undefined, undefined]);
  take(node, delta({ role: 'assistant', content: '' }), 1500);
  assert.equal(node.stats.first, undefined, 'nothing was said yet');
  take(node, delta({ reasoning_content: 'hm' }), 2000);
  take(node, delta({ content: 'Hel' }), 2500);
  take(node, delta({ content: 'lo' }), 3000);
  assert.deepEqual([node.content, node.reasoning, node.stats.thinking], ['Hello', 'hm', 0]);
  assert.equal(rate(node.stats), 2, 'as seen from here');
  assert.equal(filled(node.stats), null);
  take(node, delta({}, 'length'), 3000);
  take(node, { choices: [], usage: { prompt_tokens: 10, completion_tokens: 4 }, timings: { predicted_per_second: 7 } }, 3100);
  assert.deepEqual([node.finish, rate(node.stats), filled(node.stats), node.model], ['length', 7, 14, 'tiny']);
});

test('progress of the prompt is known, and the context in use after a stop', () => {
  const node = { content: '' };
  begin(node, 1000);
  assert.equal(progress(node.stats), null);
  const at = (processed) => ({ choices: [{ delta: {} }], prompt_progress: { total: 100, cache: 20, processed }, timings: { predicted_per_second: 0 } });
  take(node, at(20), 1100);
  assert.equal(progress(node.stats), 0);
  take(node, at(60), 1200);
  assert.equal(progress(node.stats), 0.5);
  take(node, at(100), 1300);
  assert.equal(progress(node.stats), null);
  take(node, delta({ content: 'Hel' }), 2000);
  take(node, delta({ content: 'lo' }), 2500);
  assert.deepEqual([filled(node.stats), node.stats.cached], [102, 20], 'without the final chunk');
});

test('speed is null before the first tokens', () => {
  assert.equal(rate(undefined), null);
  assert.equal(rate({ generated: 1, first: 5, last: 5 }), null);
  assert.equal(filled(undefined), null);
});

test('transient errors are retried, permanent ones are not', () => {
  assert.equal(pause({ status: 0, retryAfter: null }, 1), 500);
  assert.equal(pause({ status: 429, retryAfter: 3 }, 1), 3000);
  assert.equal(pause({ status: 503, retryAfter: null }, 8), 15000);
  assert.equal(pause({ status: 503, retryAfter: null }, 9), null);
  assert.equal(pause({ status: 400, retryAfter: null }, 1), null);
  assert.equal(pause({ status: 500, retryAfter: null }, 1), null);
});
