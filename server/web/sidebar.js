// Chat list: grouping by day, search, rename and delete.

import { byId, h, icon, iconButton } from './dom.js';
import { showFilesDialog, saveChats } from './files.js';
import { notice } from './notices.js';
import { matches } from './tree.js';

const DAY = 24 * 3600 * 1000;

/** Returns the group of a chat in the list. */
function dayOf(time, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const days = [
    [midnight, 'Today'],
    [midnight - DAY, 'Yesterday'],
    [midnight - 7 * DAY, 'Last 7 days'],
    [midnight - 30 * DAY, 'Last 30 days'],
  ];
  return days.find(([from]) => time >= from)?.[1] ?? 'Older';
}

export class Sidebar {
  #app;
  #nav = byId('sidebar');
  #list = byId('chats');
  #search = byId('search');
  #menu = byId('menu');
  #wide = matchMedia('(min-width: 52rem)');

  constructor(app) {
    this.#app = app;
    byId('open-sidebar').append(icon('menu'));
    byId('close-sidebar').append(icon('close'));
    byId('new-chat').prepend(icon('plus'));
    byId('data').prepend(icon('box'));
    byId('open-sidebar').addEventListener('click', () => this.setOpen(true));
    byId('close-sidebar').addEventListener('click', () => this.setOpen(false));
    byId('veil').addEventListener('click', () => this.setOpen(false));
    byId('new-chat').addEventListener('click', () => this.newChat());
    byId('data').addEventListener('click', () => showFilesDialog(app));
    byId('theme').addEventListener('click', () => this.#nextTheme());
    this.#search.addEventListener('input', () => this.#show());
    this.#wide.addEventListener('change', () => this.setOpen(false));
    this.#nav.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && document.body.classList.contains('drawer')) {
        event.stopPropagation();
        this.setOpen(false);
      }
    });
    for (const type of ['list', 'chat']) {
      app.addEventListener(type, () => this.#show());
    }
    this.setOpen(false, false);
    this.#nameTheme();
    this.#show();
  }

  /** Opens or closes the list, which covers the conversation on narrow screens. */
  setOpen(isOpen, moveFocus = true) {
    const isDrawer = !this.#wide.matches;
    document.body.classList.toggle('drawer', isOpen && isDrawer);
    this.#nav.inert = isDrawer && !isOpen;
    byId('page').inert = isDrawer && isOpen;
    byId('open-sidebar').setAttribute('aria-expanded', isOpen);
    if (moveFocus && isDrawer) {
      byId(isOpen ? 'close-sidebar' : 'open-sidebar').focus();
    }
  }

  newChat() {
    this.#app.open(null);
    this.setOpen(false, false);
    byId('question').focus();
  }

  search() {
    this.setOpen(true, false);
    this.#search.focus();
    this.#search.select();
  }

  #nextTheme() {
    globalThis.theme.next();
    this.#nameTheme();
  }

  #nameTheme() {
    const names = { auto: 'system', light: 'light', dark: 'dark' };
    const name = names[globalThis.theme.get()];
    byId('theme').replaceChildren(icon('theme'), `Theme: ${name}`);
  }

  #show() {
    const words = this.#search.value.trim();
    const chats = this.#app.list().filter((chat) => words === '' || matches(chat, words));
    const now = Date.now();
    const groups = grouped(chats, (chat) => dayOf(chat.updated, now));
    const focused = document.activeElement?.closest?.('#chats [data-id]')?.dataset.id;
    const parts = [...groups].flatMap(([day, of]) => [h('h2', {}, day), h('ul', {}, ...of.map((chat) => this.#item(chat)))]);
    const none = h('p', { class: 'muted' }, words ? 'No matching chats.' : 'Chats are stored in this browser.');
    this.#list.replaceChildren(...(parts.length > 0 ? parts : [none]));
    if (focused) {
      this.#list.querySelector(`[data-id="${focused}"] a`)?.focus();
    }
  }

  #item(chat) {
    const name = this.#app.title(chat);
    const isShown = chat === this.#app.current;
    const link = h('a', { href: `#${chat.id}`, 'aria-current': isShown ? 'page' : null, title: name, onclick: () => this.setOpen(false, false) }, name);
    const isRunning = this.#app.running(chat) !== null;
    const busy = isRunning ? h('span', { class: 'busy', role: 'img', 'aria-label': 'generating' }) : null;
    const more = iconButton('more', `More for ${name}`, (event) => this.#openMenu(event.currentTarget, chat), { 'aria-haspopup': 'menu' });
    return h('li', { 'data-id': chat.id, class: isShown ? 'shown' : '' }, link, busy, more);
  }

  #openMenu(button, chat) {
    const items = [
      ['Rename', () => this.#rename(chat)],
      ['Export', () => saveChats([chat], this.#app.title(chat))],
      ['Delete', () => this.#remove(chat)],
    ];
    const press = (run) => () => {
      this.#menu.hidePopover();
      run();
    };
    this.#menu.replaceChildren(...items.map(([label, run]) => h('button', { type: 'button', role: 'menuitem', onclick: press(run) }, label)));
    this.#menu.setAttribute('aria-label', `More for ${this.#app.title(chat)}`);
    this.#menu.onkeydown = (event) => this.#menuKey(event, button);
    this.#menu.showPopover();
    const { right, bottom, top } = button.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.#menu;
    this.#menu.style.left = `${Math.max(8, right - width)}px`;
    this.#menu.style.top = `${bottom + height + 8 > innerHeight ? top - height : bottom}px`;
    this.#menu.firstElementChild.focus();
  }

  #menuKey(event, button) {
    const items = [...this.#menu.children];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      items[(to + items.length) % items.length].focus();
    } else if (event.key === 'Escape' || event.key === 'Tab') {
      event.preventDefault();
      event.stopPropagation();
      this.#menu.hidePopover();
      button.focus();
    }
  }

  #rename(chat) {
    const item = this.#list.querySelector(`[data-id="${chat.id}"]`);
    const input = h('input', { class: 'rename', 'aria-label': 'Name of the chat', maxlength: 200 });
    input.value = this.#app.title(chat);
    let isOver = false;
    const end = (keeps) => {
      if (!isOver) {
        isOver = true;
        this.#app.rename(chat, keeps ? input.value : chat.title);
        this.#list.querySelector(`[data-id="${chat.id}"] a`)?.focus();
      }
    };
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' || event.key === 'Escape') {
        event.stopPropagation();
        end(event.key === 'Enter');
      }
    });
    input.addEventListener('blur', () => end(true));
    item.replaceChildren(input);
    input.focus();
    input.select();
  }

  #remove(chat) {
    const name = this.#app.title(chat);
    this.#app.remove([chat]);
    this.#search.focus();
    notice(`Deleted “${name}”.`, { label: 'Undo', run: () => this.#app.add([chat]) });
  }
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }
  return groups;
}
