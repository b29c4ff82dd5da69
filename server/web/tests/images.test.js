import assert from 'node:assert/strict';
import test from 'node:test';
import { isImage, validImages, withImages } from '../images.js';
import { readsImages } from '../models.js';
import { requestBody } from '../settings.js';
import { addMessage, exported, imported, matches, newChat, path, title } from '../tree.js';

const url = 'data:image/png;base64,AA';
const image = { name: 'cat.png', url };

test('images precede the text of a message', () => {
  const part = { type: 'image_url', image_url: { url } };
  assert.equal(withImages('hi'), 'hi');
  assert.deepEqual(withImages('hi', [image]), [part, { type: 'text', text: 'hi' }]);
  assert.deepEqual(withImages('', [image, image]), [part, part]);
  const files = [{ name: 'a', text: 'x' }];
  const { messages } = requestBody('tiny', {}, [{ role: 'user', content: 'hi', files, images: [image] }]);
  assert.deepEqual(messages[0].content, [part, { type: 'text', text: 'a:\n```\nx\n```\n\nhi' }]);
});

test('only images that the server decodes are accepted', () => {
  assert.ok(isImage({ type: 'image/webp' }) && !isImage({ type: 'image/svg+xml' }) && !isImage({ type: '' }));
  const svg = { name: 'a', url: 'data:image/svg+xml;base64,AA' };
  const far = { name: 'a', url: 'https' + ':' + '//a/b.png' };
  assert.deepEqual(validImages([{ ...image, x: 1 }, svg, far, null, { url }]), [image]);
  assert.deepEqual(validImages('x'), []);
});

test('images are exported and imported with chats', () => {
  const chat = newChat();
  addMessage(chat, null, { role: 'user', content: '', images: [image] });
  const [back] = imported(JSON.stringify(exported([chat])));
  assert.deepEqual(path(back)[0].images, [image]);
  assert.equal(title(back), 'cat.png');
  assert.ok(matches(back, 'cat.png'));
  const text = JSON.stringify(exported([chat])).replace('image/png', 'text/html');
  assert.equal(path(imported(text)[0])[0].images, undefined);
});

test('a loaded model without a projector reads no images', () => {
  const model = (capabilities, value) => ({ id: 'a', capabilities, status: { value } });
  assert.ok(readsImages(model(['completion', 'vision'], 'loaded')));
  assert.ok(!readsImages(model(['completion'], 'loaded')));
  assert.ok(readsImages(model(['completion'], 'unloaded')), 'the projector of an unloaded model is unknown');
});
