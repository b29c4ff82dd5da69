// Entry point of the page.

import { App } from './app.js';
import { ChatView } from './chat_view.js';
import { Composer } from './composer.js';
import { byId, h, icon } from './dom.js';
import { notice } from './notices.js';
import { askForKey, showSettings } from './settings_view.js';
import { Sidebar } from './sidebar.js';
import { ChatStore, NoStore } from './store.js';

/** Milliseconds between attempts to reach the server. */
const LOOK_EVERY = 2000;

async function openStore() {
  try {
    return await ChatStore.open();
  } catch {
    notice('This browser does not allow storage. Chats are lost when the page is closed.');
    return new NoStore();
  }
}

function showServer(app) {
  const picker = byId('model');
  const model = app.model();
  const names = app.models.map(({ id }) => id);
  if (picker.dataset.names !== JSON.stringify(names)) {
    picker.dataset.names = JSON.stringify(names);
    picker.replaceChildren(...names.map((id) => h('option', { value: id }, id)));
  }
  picker.value = model?.id ?? '';
  picker.disabled = names.length < 2;
  const n = model?.max_model_len;
  const about = model ? `${model.id}${n ? `, context of ${n.toLocaleString('en')} tokens` : ''}` : '';
  byId('about').textContent = about;
  byId('settings-button').classList.toggle('set', Object.keys(app.current.settings).length > 0);
  const banner = byId('banner');
  const words = app.reachable ? '' : 'The server cannot be reached. Reconnecting…';
  if (banner.textContent !== words) {
    banner.textContent = words;
  }
  banner.hidden = app.reachable;
}

/** Connects to the server; asks for an API key if the server requires one. */
function watchServer(app) {
  let timer = null;
  let asking = false;
  const look = async () => {
    timer = null;
    await app.ask();
  };
  app.addEventListener('server', () => {
    showServer(app);
    if (!app.reachable) {
      timer ??= setTimeout(look, LOOK_EVERY);
    }
    if (app.needsKey && !asking) {
      asking = true;
      askForKey((given) => {
        asking = false;
        app.needsKey = false;
        if (given) {
          app.ask();
        }
      });
    }
  });
  app.addEventListener('chat', () => showServer(app));
  addEventListener('online', () => app.ask());
  return look();
}

function keys(app, sidebar) {
  document.addEventListener('keydown', (event) => {
    const ctrl = event.ctrlKey || event.metaKey;
    const inDialog = document.querySelector('dialog[open]') !== null;
    if (event.key === 'Escape' && !inDialog && app.running()) {
      app.stop();
    } else if (ctrl && event.shiftKey && event.key.toLowerCase() === 'o' && !inDialog) {
      event.preventDefault();
      sidebar.newChat();
    } else if (ctrl && !event.shiftKey && event.key.toLowerCase() === 'k' && !inDialog) {
      event.preventDefault();
      sidebar.search();
    } else if (ctrl && event.key === ',' && !inDialog) {
      event.preventDefault();
      showSettings(app);
    }
  });
}

/** Puts the chat id into the URL, so that history and bookmarks work. */
function address(app) {
  const plain = location.pathname + location.search;
  let follows = false;
  const follow = () => {
    follows = true;
    app.open(location.hash.slice(1) || null);
    follows = false;
    if (!app.begun() && location.hash !== '') {
      history.replaceState(null, '', plain);
    }
  };
  const lead = () => {
    const wanted = app.begun() ? `#${app.current.id}` : '';
    if (!follows && location.hash !== wanted) {
      history.pushState(null, '', wanted || plain);
    }
  };
  addEventListener('hashchange', follow);
  app.addEventListener('chat', lead);
  if (location.hash !== '') {
    follow();
  }
}

async function start() {
  const app = new App(await openStore());
  await app.load();
  const sidebar = new Sidebar(app);
  new ChatView(app);
  const composer = new Composer(app);
  app.addEventListener('problem', ({ detail }) => notice(detail));
  byId('settings-button').append(icon('sliders'));
  byId('settings-button').addEventListener('click', () => showSettings(app));
  byId('model').addEventListener('change', ({ target }) => app.setModel(target.value));
  address(app);
  keys(app, sidebar);
  if (!matchMedia('(pointer: coarse)').matches) {
    composer.focus();
  }
  await watchServer(app);
}

start();
