// A chat is a tree of messages. Edited and regenerated messages are siblings, so no version is lost.

import { validFiles, withoutFiles } from './attachments.js';
import { validMedia } from './images.js';

const ROLES = ['user', 'assistant'];

/** Returns a unique id. */
export function newId() {
  // `crypto.randomUUID` requires a secure context.
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Creates a chat without messages, with initial `settings`. */
export function newChat(settings = {}, now = Date.now()) {
  return {
    id: newId(),
    title: '',
    created: now,
    updated: now,
    model: null,
    settings: { ...settings },
    nodes: {},
    leaf: null,
    chosen: {},
  };
}

/** Adds a message below `parent` (`null`: at the root) and shows it. */
export function addMessage(chat, parent, fields, now = Date.now()) {
  // Start with a letter: objects list numeric keys first, which would change the order of siblings.
  const node = { id: `m${newId()}`, parent, time: now, content: '', ...fields };
  chat.nodes[node.id] = node;
  show(chat, node.id);
  chat.updated = now;
  return node;
}

/** Returns the children of a message (`null`: of the root), oldest first. */
export function children(chat, parent) {
  return Object.values(chat.nodes).filter((node) => node.parent === parent);
}

/** Returns the shown messages in order. */
export function path(chat, leaf = chat.leaf) {
  const nodes = [];
  for (let node = chat.nodes[leaf]; node; node = chat.nodes[node.parent]) {
    nodes.push(node);
  }
  return nodes.reverse();
}

/** Shows a message and its most recently shown descendants. */
export function show(chat, id) {
  for (let node = chat.nodes[id]; node; node = chat.nodes[node.parent]) {
    chat.chosen[node.parent ?? ''] = node.id;
  }
  let leaf = id;
  for (;;) {
    const next = children(chat, leaf);
    if (next.length === 0) {
      break;
    }
    leaf = (next.find((node) => node.id === chat.chosen[leaf]) ?? next.at(-1)).id;
  }
  chat.leaf = leaf;
}

/** Returns the position of a message among its siblings: `{ ids, at }`. */
export function place(chat, id) {
  const ids = children(chat, chat.nodes[id].parent).map((node) => node.id);
  return { ids, at: ids.indexOf(id) };
}

/** Returns the title of a chat, or the start of its first message; of a message without words, the name of its file. */
export function title(chat) {
  const [first] = children(chat, null);
  // A title needs only the start; texts with files are long.
  const typed = withoutFiles((first?.content ?? '').slice(0, 4000));
  const file = first?.files?.[0]?.name ?? first?.images?.[0]?.name ?? first?.content.split(':\n')[0];
  const words = (chat.title || typed || file || 'New chat').trim().replace(/\s+/g, ' ');
  return words.length > 60 ? `${words.slice(0, 59).trimEnd()}…` : words;
}

/** Returns true if a chat's title or messages contain all words. */
export function matches(chat, words) {
  const texts = [chat.title, ...Object.values(chat.nodes).flatMap(({ content, files = [], images = [] }) => [content, ...[...files, ...images].map(({ name }) => name)])];
  const text = texts.join('\n').toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Returns the exported form of chats. */
export function exported(chats) {
  return { format: 'llama-chats', version: 1, chats };
}

/** Parses exported chats, validates them and assigns new ids; throws an `Error` with a message. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error('The file is not valid JSON.');
  }
  if (file?.format !== 'llama-chats' || file.version !== 1 || !Array.isArray(file.chats)) {
    throw new Error('The file is not a chat export.');
  }
  return file.chats.map((chat, i) => {
    try {
      return importedChat(chat);
    } catch (error) {
      throw new Error(`Chat ${i + 1} in the file is invalid: ${error.message}.`);
    }
  });
}

function importedChat(from) {
  const chat = newChat();
  const text = (value) => (typeof value === 'string' ? value : '');
  const number = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);
  const ids = new Map();
  if (typeof from?.nodes !== 'object' || from.nodes === null) {
    throw new Error('it has no messages');
  }
  for (const [id, node] of Object.entries(from.nodes)) {
    if (typeof node?.content !== 'string' || !ROLES.includes(node.role)) {
      throw new Error('a message has no content or no role');
    }
    const parent = node.parent === null ? null : ids.get(node.parent);
    // Parents precede their children, so the tree has no cycles.
    if (parent === undefined) {
      throw new Error('a message refers to a missing parent');
    }
    const time = number(node.time, chat.created);
    const added = addMessage(chat, parent, { role: node.role, content: node.content }, time);
    for (const name of ['reasoning', 'model', 'finish'].filter((name) => typeof node[name] === 'string')) {
      added[name] = node[name];
    }
    const files = validFiles(node.files);
    if (files.length > 0) {
      added.files = files;
    }
    const images = validMedia(node.images);
    if (images.length > 0) {
      added.images = images;
    }
    if (typeof node.stats === 'object' && node.stats !== null) {
      const stats = Object.entries(node.stats).filter(([, value]) => Number.isFinite(value));
      added.stats = Object.fromEntries(stats);
    }
    ids.set(id, added.id);
  }
  if (ids.has(from.leaf)) {
    show(chat, ids.get(from.leaf));
  }
  const plain = ([, value]) => ['string', 'number', 'boolean'].includes(typeof value) || Array.isArray(value);
  const settings = Object.entries(from.settings ?? {}).filter(plain);
  return {
    ...chat,
    title: text(from.title),
    model: text(from.model) || null,
    settings: Object.fromEntries(settings),
    created: number(from.created, chat.created),
    updated: number(from.updated, chat.updated),
  };
}
