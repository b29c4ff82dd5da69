// Export and import of chats as files.

import { h } from './dom.js';
import { dialog } from './dialog.js';
import { notice } from './notices.js';
import { exported, imported } from './tree.js';

/** Downloads chats as a file. */
export function saveChats(chats, name) {
  const file = new Blob([JSON.stringify(exported(chats), null, 1)], { type: 'application/json' });
  const link = h('a', { href: URL.createObjectURL(file), download: `${name.replace(/[^\p{L}\p{N} ._-]/gu, '_').slice(0, 60)}.json` });
  link.click();
  // The download has started within a minute.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function loadChats(app, files) {
  for (const file of files) {
    try {
      const chats = imported(await file.text());
      await app.add(chats);
      notice(`${file.name}: ${chats.length} ${chats.length === 1 ? 'chat' : 'chats'} added.`);
    } catch (error) {
      notice(`${file.name}: ${error.message}`);
    }
  }
}

/** Shows the dialog for all chats: export, import and delete. */
export function showFilesDialog(app) {
  const input = h('input', { type: 'file', accept: '.json,application/json', multiple: true, hidden: true });
  input.addEventListener('change', () => loadChats(app, [...input.files]).then(() => element.close()));
  const removeAll = () => {
    const chats = app.list();
    app.remove(chats);
    element.close();
    notice(`Deleted all chats (${chats.length}).`, { label: 'Undo', run: () => app.add(chats) });
  };
  const row = (words, label, onclick, kind = '') =>
    h('div', { class: 'row' }, h('p', {}, words), h('button', { type: 'button', class: `small-button ${kind}`, onclick, disabled: onclick === null }, label));
  const some = app.list().length > 0;
  const element = dialog(
    'Export and import',
    row('Export all chats to a file, as a backup or for another browser.', 'Export all', some ? () => saveChats(app.list(), 'llama chats') : null),
    row('Import chats from an exported file.', 'Import', () => input.click()),
    row('Delete all chats in this browser.', 'Delete all', some ? removeAll : null, 'danger'),
    input,
  );
}
