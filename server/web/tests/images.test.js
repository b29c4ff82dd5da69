import assert from 'node:assert/strict';
import test from 'node:test';
import { isAudio, mediumOf, validMedia, withMedia } from '../images.js';
import { reads } from '../models.js';
import { requestBody } from '../settings.js';
import { addMessage, exported, imported, matches, newChat, path, title } from '../tree.js';

const url = 'data:image/png;base64,AA';
const image = { name: 'cat.png', url };

test('images precede the text of a message', () => {
  const part = { type: 'image_url', image_url: { url } };
  assert.equal(withMedia('hi'), 'hi');
  assert.deepEqual(withMedia('hi', [image]), [part, { type: 'text', text: 'hi' }]);
  assert.deepEqual(withMedia('', [image, image]), [part, part]);
  const files = [{ name: 'a', text: 'x' }];
  const { messages } = requestBody('tiny', {}, [{ role: 'user', content: 'hi', files, images: [image] }]);
  assert.deepEqual(messages[0].content, [part, { type: 'text', text: 'a:\n```\nx\n```\n\nhi' }]);
});

test('audio is sent as base64 with its format', () => {
  const sound = { name: 'a.mp3', url: 'data:audio/mpeg;base64,AAAA' };
  const part = { type: 'input_audio', input_audio: { data: 'AAAA', format: 'mp3' } };
  assert.deepEqual(withMedia('hi', [sound]), [part, { type: 'text', text: 'hi' }]);
  assert.ok(isAudio(sound) && !isAudio(image));
  const withCodec = { name: 'a.ogg', url: 'data:audio/ogg;codecs=vorbis;base64,AA' };
  assert.deepEqual(validMedia([sound, withCodec, { name: 'a', url: 'data:audio/midi;base64,AA' }]), [sound, withCodec]);
});

test('only media that the server decodes are accepted', () => {
  const types = ['image/webp', 'audio/x-wav', 'image/svg+xml', 'toString', ''];
  assert.deepEqual(types.map((type) => mediumOf({ type })), ['image', 'audio', null, null, null]);
  const svg = { name: 'a', url: 'data:image/svg+xml;base64,AA' };
  const far = { name: 'a', url: 'https' + ':' + '//a/b.png' };
  assert.deepEqual(validMedia([{ ...image, x: 1 }, svg, far, null, { url }]), [image]);
  assert.deepEqual(validMedia('x'), []);
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

test('a loaded model without a projector reads no media', () => {
  const model = (capabilities, value) => ({ id: 'a', capabilities, status: { value } });
  assert.ok(reads(model(['completion', 'vision'], 'loaded'), 'image'));
  assert.ok(!reads(model(['completion', 'vision'], 'loaded'), 'audio') && reads(model(['audio'], 'loaded'), 'audio'));
  assert.ok(!reads(model(['completion'], 'loaded'), 'image'));
  assert.ok(reads(model(['completion'], 'unloaded'), 'image'), 'the projector of an unloaded model is unknown');
});
