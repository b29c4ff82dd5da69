import assert from 'node:assert/strict';
import test from 'node:test';
import { startModel } from '../models.js';

const model = (id, status, template) => ({ id, status: { value: status }, meta: { has_chat_template: template } });
const models = [model('embed', 'loaded', false), model('broken', 'failed', true), model('far', 'unloaded', true), model('near', 'loaded', true)];

test('a chat starts on a model with a template', () => {
  assert.equal(startModel(models, [null, null]).id, 'near');
  assert.equal(startModel(models.slice(0, 3), [null, null]).id, 'far');
  assert.equal(startModel(models.slice(0, 1), [null, null]).id, 'embed');
  assert.equal(startModel([], [null, null]), null);
  assert.equal(startModel([{ id: 'only' }], [null, null]).id, 'only');
});

test('the chosen model wins', () => {
  assert.equal(startModel(models, ['far', 'near']).id, 'far');
  assert.equal(startModel(models, ['gone', 'embed']).id, 'embed');
});
