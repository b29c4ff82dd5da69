import assert from 'node:assert/strict';
import test from 'node:test';
import { addMessage, children, exported, imported, matches, newChat, path, place, show, title } from '../tree.js';

/** Two questions, of which the second has two wordings, and the first answer a second version. */
function grown() {
  const chat = newChat({ temperature: 0.5 }, 1);
  const say = (parent, role, content) => addMessage(chat, parent, { role, content }, 2);
  const q = say(null, 'user', 'first   question');
  const a = say(q.id, 'assistant', 'answer');
  const q2 = say(a.id, 'user', 'second');
  const a2 = say(q2.id, 'assistant', 'yes');
  const q3 = say(a.id, 'user', 'other second');
  const other = say(q.id, 'assistant', 'other answer');
  return { chat, q, a, q2, a2, q3, other };
}

const said = (chat) => path(chat).map(({ content }) => content);

test('edited and regenerated messages are siblings', () => {
  const { chat, q, a, q2, q3, other } = grown();
  assert.deepEqual(said(chat), ['first   question', 'other answer']);
  assert.deepEqual(place(chat, other.id), { ids: [a.id, other.id], at: 1 });
  assert.deepEqual(place(chat, q2.id), { ids: [q2.id, q3.id], at: 0 });
  assert.deepEqual(children(chat, null), [q]);
});

test('previously shown descendants are shown again', () => {
  const { chat, a, q2, other } = grown();
  show(chat, a.id);
  assert.deepEqual(said(chat), ['first   question', 'answer', 'other second']);
  show(chat, q2.id);
  assert.deepEqual(said(chat), ['first   question', 'answer', 'second', 'yes']);
  show(chat, other.id);
  show(chat, a.id);
  assert.deepEqual(said(chat), ['first   question', 'answer', 'second', 'yes']);
});

test('title falls back to the first message', () => {
  const { chat } = grown();
  assert.equal(title(chat), 'first question');
  chat.title = 'x'.repeat(100);
  assert.equal(title(chat).length, 60);
  assert.equal(title(newChat()), 'New chat');
});

test('title has neither files nor their contents', () => {
  const titled = (fields) => {
    const chat = newChat();
    addMessage(chat, null, { role: 'user', ...fields });
    return title(chat);
  };
  const files = [{ name: 'report.txt', text: 'many lines' }];
  assert.equal(titled({ content: 'What is wrong?', files }), 'What is wrong?');
  assert.equal(titled({ content: '', files }), 'report.txt');
  // Messages of earlier versions contain their files.
  assert.equal(titled({ content: 'Look:\n\nreport.txt:\n```\nmany\nlines\n```\n' }), 'Look:');
  assert.equal(titled({ content: `long.txt:\n\`\`\`\n${'line\n'.repeat(5000)}\`\`\`\n\nWhy?` }), 'long.txt');
  assert.equal(titled({ content: 'a.md:\n````\n```\nx\n```\n````\n' }), 'a.md');
});

test('import restores attached files', () => {
  const chat = newChat();
  addMessage(chat, null, { role: 'user', content: 'a', files: [{ name: 'n', text: 't', html: '<b>' }, { name: 1 }] });
  const [back] = imported(JSON.stringify(exported([chat])));
  assert.deepEqual(path(back)[0].files, [{ name: 'n', text: 't' }]);
  assert.ok(matches(chat, 'n'));
});

test('search covers all versions', () => {
  const { chat } = grown();
  assert.ok(matches(chat, 'OTHER yes'));
  assert.ok(!matches(chat, 'yes no'));
});

test('import restores exported chats with new ids', () => {
  const { chat } = grown();
  chat.title = 'name';
  const [back] = imported(JSON.stringify(exported([chat])));
  assert.notEqual(back.id, chat.id);
  assert.deepEqual(said(back), said(chat));
  assert.deepEqual([back.title, back.settings, back.created], ['name', { temperature: 0.5 }, 1]);
  assert.equal(Object.keys(back.nodes).length, Object.keys(chat.nodes).length);
  const ids = Object.keys(chat.nodes);
  assert.ok(Object.keys(back.nodes).every((id) => !ids.includes(id)));
});

test('invalid files are rejected with a message', () => {
  const file = (nodes) => JSON.stringify({ format: 'llama-chats', version: 1, chats: [{ nodes }] });
  const node = { parent: null, role: 'user', content: 'a' };
  for (const [text, words] of [
    ['{', /not valid JSON/],
    ['[]', /not a chat export/],
    ['{"format":"llama-chats","version":2,"chats":[]}', /not a chat export/],
    [file(null), /no messages/],
    [file({ a: { ...node, role: 'system' } }), /no content or no role/],
    [file({ a: { ...node, content: 1 } }), /no content or no role/],
    [file({ a: { ...node, parent: 'a' } }), /missing parent/],
    [file({ a: { ...node, parent: 'b' }, b: { ...node, parent: 'a' } }), /missing parent/],
  ]) {
    assert.throws(() => imported(text), words, text);
  }
});

test('unknown fields in a file are dropped', () => {
  const text = `{"format":"llama-chats","version":1,"chats":[{"title":{},"created":"x","settings":{"__proto__":{"a":1},"seed":7},
    "nodes":{"__proto__":{"parent":null,"role":"user","content":"a","html":"<b>","stats":{"rate":"x","generated":3}}},"leaf":"nowhere"}]}`;
  const [chat] = imported(text);
  const [node] = path(chat);
  assert.equal(chat.title, '');
  assert.deepEqual(Object.keys(node).sort(), ['content', 'id', 'parent', 'role', 'stats', 'time']);
  assert.deepEqual(node.stats, { generated: 3 });
  assert.deepEqual(chat.settings, { seed: 7 });
  assert.equal({}.a, undefined);
});
