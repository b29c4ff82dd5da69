// Dialogs for chat settings and the API key.

import { apiKey, setApiKey } from './api.js';
import { dialog } from './dialog.js';
import { h } from './dom.js';
import { notice } from './notices.js';
import { SETTINGS, read, typed, valid } from './settings.js';
import { keep } from './store.js';

/** Creates the field of a setting: `{ row, result }`, where `result()` parses the input. */
function field(setting, value, byDefault) {
  const id = `set-${setting.name}`;
  const error = h('p', { class: 'field-error', id: `${id}-error`, role: 'alert' });
  const attributes = { id, 'aria-describedby': `${id}-help ${id}-error` };
  const placeholder = byDefault === undefined ? '' : `default: ${byDefault}`;
  const input = {
    choice: () => h('select', attributes, ...(setting.options ?? []).map(([of, label]) => h('option', { value: of }, label))),
    // Not `type=number`, which hides invalid input and reacts to the mouse wheel.
    number: () => h('input', { ...attributes, type: 'text', inputmode: 'decimal', autocomplete: 'off', placeholder }),
  }[setting.kind]?.() ?? h('textarea', { ...attributes, rows: setting.rows, class: setting.kind === 'json' ? 'code-area' : null, spellcheck: setting.kind === 'text' });
  input.value = typed(setting, value);
  const result = () => {
    const found = read(setting, input.value);
    error.textContent = found.error ?? '';
    input.setAttribute('aria-invalid', found.error !== undefined);
    return found;
  };
  input.addEventListener('change', result);
  const row = h('div', { class: `field ${setting.kind}` }, h('label', { for: id }, setting.label), input, h('p', { class: 'help', id: `${id}-help` }, setting.help), error);
  return { row, input, result };
}

/** Shows the settings of the current chat. */
export function showSettings(app) {
  const settings = valid(app.current.settings);
  const fields = SETTINGS.map((setting) => ({ setting, ...field(setting, settings[setting.name], app.defaults[setting.name]) }));
  const numbers = fields.filter(({ setting }) => setting.kind === 'number').map(({ row }) => row);
  const [system, ...others] = fields.filter(({ setting }) => setting.kind !== 'number').map(({ row }) => row);
  const collect = () => {
    const results = fields.map(({ setting, input, result }) => ({ name: setting.name, input, ...result() }));
    const wrong = results.find(({ error }) => error !== undefined);
    wrong?.input.focus();
    const set = results.filter(({ value }) => value !== undefined).map(({ name, value }) => [name, value]);
    return wrong ? null : Object.fromEntries(set);
  };
  const save = (event) => {
    event.preventDefault();
    const chosen = collect();
    if (chosen) {
      app.setSettings(chosen);
      element.close();
    }
  };
  const asDefaults = () => {
    const chosen = collect();
    if (chosen) {
      keep('defaults', chosen);
      app.setSettings(chosen);
      element.close();
      notice('New chats will use these settings.');
    }
  };
  const clear = () => fields.forEach(({ input, result }) => {
    input.value = '';
    result();
  });
  const button = (label, onclick, kind = '') => h('button', { type: 'button', class: `small-button ${kind}`, onclick }, label);
  const form = h(
    'form',
    { onsubmit: save, novalidate: true },
    h('div', { class: 'fields' }, system, h('div', { class: 'grid' }, ...numbers), ...others),
    h('p', { class: 'help' }, 'Empty fields use the defaults of the server.'),
    h('div', { class: 'buttons' }, button('Clear', clear), button('Use for new chats', asDefaults), h('button', { class: 'small-button primary' }, 'Save')),
  );
  const element = dialog('Settings of this chat', form);
}

/** Asks for the API key. Calls `done` with whether a key was entered. */
export function askForKey(done) {
  let given = false;
  const input = h('input', { type: 'password', id: 'key', autocomplete: 'current-password', required: true });
  input.value = apiKey();
  const save = (event) => {
    event.preventDefault();
    setApiKey(input.value.trim());
    given = true;
    element.close();
  };
  const words = apiKey() ? 'The server rejected this key. Enter another one.' : 'This server requires an API key. The key is stored in this browser.';
  const form = h(
    'form',
    { onsubmit: save },
    h('p', {}, words),
    h('div', { class: 'field' }, h('label', { for: 'key' }, 'API key'), input),
    h('div', { class: 'buttons' }, h('button', { class: 'small-button primary' }, 'Save')),
  );
  const element = dialog('API key', form);
  element.addEventListener('close', () => done(given));
  input.focus();
}
