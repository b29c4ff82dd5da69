// Chats as files: out of the browser, and into it.

import { h } from './dom.js';
import { dialog } from './dialog.js';
import { notice } from './notices.js';
import { exported, imported } from './tree.js';

/** Hands chats to the reader as a file. */
export function saveChats(chats, name) {
  const file = new Blob([JSON.stringify(exported(chats), null, 1)], { type: 'application/json' });
  const link = h('a', { href: URL.createObjectURL(file), download: `${name.replace(/[^\p{L}\p{N} ._-]/gu, '_').slice(0, 60)}.json` });
  link.click();
  // The browser takes it before the next minute.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function loadChats(app, files) {
  for (const file of files) {
    try {
      const chats = imported(await file.text());
      await app.add(chats);
      notice(`${file.name}: ${chats.length} ${chats.length === 1 ? 'chat is' : 'chats are'} added.`);
    } catch (error) {
      notice(`${file.name}: ${error.message}`);
    }
  }
}

/** Everything that concerns all chats. */
export function showFilesDialog(app) {
  const input = h('input', { type: 'file', accept: '.json,application/json', multiple: true, hidden: true });
  input.addEventListener('change', () => loadChats(app, [...input.files]).then(() => element.close()));
  const removeAll = () => {
    const chats = app.list();
    app.remove(chats);
    element.close();
    notice(`All chats are deleted (${chats.length}).`, { label: 'Undo', run: () => app.add(chats) });
  };
  const row = (words, label, onclick, kind = '') =>
    h('div', { class: 'row' }, h('p', {}, words), h('button', { type: 'button', class: `small-button ${kind}`, onclick, disabled: onclick === null }, label));
  const some = app.list().length > 0;
  const element = dialog(
    'Chats as files',
    row('Save all chats in one file, for another browser or as a copy.', 'Save all', some ? () => saveChats(app.list(), 'llama chats') : null),
    row('Add the chats of such a file to those here.', 'Add from a file', () => input.click()),
    row('Delete all chats of this browser.', 'Delete all', some ? removeAll : null, 'danger'),
    input,
  );
}
