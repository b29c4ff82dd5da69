// Message view with its actions.

import { chip, thumbnail } from './chips.js';
import { progress, rate } from './completion.js';
import { h, iconButton } from './dom.js';
import { copyButton, showRich } from './rich.js';
import { place } from './tree.js';

/** `1 token`, `1,234 tokens`. */
export function plural(n, noun) {
  return `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
}

/** Formats a server message as a sentence. */
function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(whole) ? whole : `${whole}.`;
}

/** Shows generation speed and prompt statistics. */
function speedLabel(stats) {
  const speed = rate(stats);
  if (speed === null) {
    return null;
  }
  const prompt = stats.prompt === undefined ? null : `Prompt: ${plural(stats.prompt, 'token')}, ${(stats.cached ?? 0).toLocaleString('en')} cached`;
  return h('span', { class: 'speed', title: prompt }, `${plural(stats.generated, 'token')}, ${speed.toFixed(1)} tokens/s`);
}

export class MessageView {
  #app;
  #node;
  #chips = h('div', { class: 'chips' });
  #text = h('div', { class: 'text' });
  #thought = h('div', { class: 'thought-text' });
  #summary = h('summary');
  #details = h('details', { class: 'thought', hidden: true }, this.#summary, this.#thought);
  #note = h('div', { class: 'note' });
  #actions = h('div', { class: 'actions' });

  constructor(app, node) {
    this.#app = app;
    this.#node = node;
    const isUser = node.role === 'user';
    const name = h('h2', { class: 'visually-hidden' }, isUser ? 'You said' : 'The model answered');
    this.element = h('article', { class: `message ${node.role}`, 'data-id': node.id }, name, isUser ? this.#chips : this.#details, this.#text, this.#note, this.#actions);
    this.#details.addEventListener('toggle', () => this.update());
    this.update();
  }

  get node() {
    return this.#node;
  }

  /** Rendered blocks; only the last one changes. */
  get blocks() {
    return [...this.#text.children];
  }

  /** Updates the view. A change by another tab replaces the message object. */
  update(node = this.#node) {
    this.#node = node;
    const isRunning = this.#app.running() === node;
    this.element.classList.toggle('running', isRunning);
    this.element.setAttribute('aria-busy', isRunning);
    if (node.role === 'user') {
      this.#text.textContent = node.content;
      this.#text.hidden = node.content === '';
      this.#showChips();
    } else {
      showRich(this.#text, node.content);
      this.#showThought(isRunning);
    }
    this.#showNote(isRunning);
    this.#showActions(isRunning);
  }

  /** Shows the attached files and images, which never change. */
  #showChips() {
    const { files = [], images = [] } = this.#node;
    if (this.#chips.childElementCount === 0) {
      this.#chips.append(...images.map((image) => thumbnail(image)), ...files.map((file) => chip(file)));
    }
  }

  #showThought(isRunning) {
    const { reasoning, stats, content } = this.#node;
    this.#details.hidden = !reasoning;
    if (!reasoning) {
      return;
    }
    const seconds = Math.max(1, Math.round((stats?.thinking ?? 0) / 1000));
    const words = isRunning && content === '' ? 'Thinking…' : stats?.thinking === undefined ? 'Thoughts' : `Thought for ${plural(seconds, 'second')}`;
    if (this.#summary.textContent !== words) {
      this.#summary.textContent = words;
    }
    // Reasoning is long and rarely opened, so render it on demand.
    if (this.#details.open) {
      showRich(this.#thought, reasoning);
    }
  }

  #showNote(isRunning) {
    const { error, waits, content, reasoning, finish, role, stats } = this.#node;
    const done = isRunning ? progress(stats) : null;
    const key = JSON.stringify([error, waits, isRunning, content === '', Boolean(reasoning), finish, done]);
    if (role === 'user' || this.#note.dataset.key === key) {
      return;
    }
    this.#note.dataset.key = key;
    this.#note.replaceChildren();
    if (isRunning) {
      this.#note.append(...this.#whileRunning(done));
    } else if (error) {
      const retry = h('button', { type: 'button', class: 'small-button', onclick: () => this.#app.retry(this.#node) }, 'Try again');
      this.#note.append(h('div', { class: 'error', role: 'alert' }, h('span', {}, sentence(error)), retry));
    } else if (finish !== 'stop' && finish !== 'edited') {
      const why = finish === 'length' ? 'Maximum length reached.' : finish === 'stopped' ? 'Stopped.' : 'The completion was cut off.';
      const goOn = h('button', { type: 'button', class: 'small-button', onclick: () => this.#app.goOn(this.#node) }, 'Continue');
      this.#note.append(h('div', { class: 'cut' }, h('span', {}, why), content === '' ? null : goOn));
    }
  }

  #whileRunning(done) {
    const { waits, content, reasoning } = this.#node;
    if (waits) {
      return [h('span', { class: 'muted' }, waits)];
    }
    if (content !== '') {
      return [];
    }
    if (reasoning) {
      const title = 'End reasoning and start the response';
      return [h('button', { type: 'button', class: 'small-button', title, onclick: () => this.#app.answerNow() }, 'Answer now')];
    }
    if (done !== null) {
      const words = `Reading the prompt: ${Math.floor(done * 100)} %`;
      return [h('span', { class: 'reading' }, h('progress', { value: done, max: 1, 'aria-label': 'Prompt read' }), words)];
    }
    return [h('span', { class: 'waiting' }, h('span', { class: 'visually-hidden' }, 'Waiting for the response'), h('i'), h('i'), h('i'))];
  }

  #showActions(isRunning) {
    const { ids, at } = place(this.#app.current, this.#node.id);
    const key = JSON.stringify([isRunning, ids, at, this.#node.stats?.rate]);
    if (this.#actions.dataset.key === key) {
      return;
    }
    this.#actions.dataset.key = key;
    this.#actions.replaceChildren();
    if (isRunning) {
      return;
    }
    const isUser = this.#node.role === 'user';
    const isEmpty = this.#node.content === '';
    this.#actions.append(
      ...(isEmpty ? [] : [copyButton('Copy message', () => this.#node.content), iconButton('edit', 'Edit', () => this.#edit())]),
      ...(isUser ? [] : [iconButton('redo', 'Regenerate', () => this.#app.retry(this.#node))]),
      ...(ids.length > 1 ? [this.#versions(ids, at)] : []),
    );
    const speed = isUser ? null : speedLabel(this.#node.stats);
    this.#actions.append(...(speed ? [speed] : []));
  }

  #versions(ids, at) {
    const to = (step, name, label) =>
      iconButton(name, label, () => this.#app.dispatchEvent(new CustomEvent('version', { detail: { id: ids[at + step], label } })), {
        disabled: ids[at + step] === undefined,
      });
    const words = h('span', {}, `${at + 1}/${ids.length}`);
    return h('span', { class: 'versions', role: 'group', 'aria-label': `Version ${at + 1} of ${ids.length}` }, to(-1, 'left', 'Previous version'), words, to(1, 'right', 'Next version'));
  }

  /** Focuses the enabled button with a label, or another button of its group. */
  focus(label) {
    const buttons = [...this.#actions.querySelectorAll('.versions button:not(:disabled)')];
    (buttons.find((button) => button.getAttribute('aria-label') === label) ?? buttons[0])?.focus();
  }

  #edit() {
    const isUser = this.#node.role === 'user';
    const area = h('textarea', { 'aria-label': 'Edit message', rows: Math.min(16, this.#node.content.split('\n').length + 1) });
    area.value = this.#node.content;
    const close = () => {
      form.replaceWith(this.#text);
      this.#actions.hidden = false;
      this.#actions.querySelector('[aria-label="Edit"]')?.focus();
    };
    const save = () => {
      const text = area.value;
      close();
      if (text.trim() !== '' && text !== this.#node.content) {
        this.#app.edit(this.#node, text);
      }
    };
    const onkeydown = (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      } else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        save();
      }
    };
    const onsubmit = (event) => {
      event.preventDefault();
      save();
    };
    const form = h(
      'form',
      { class: 'edit', onkeydown, onsubmit },
      area,
      h('div', { class: 'buttons' }, h('button', { type: 'button', class: 'small-button', onclick: close }, 'Cancel'), h('button', { class: 'small-button primary' }, isUser ? 'Send' : 'Save')),
    );
    this.#text.replaceWith(form);
    this.#actions.hidden = true;
    area.focus();
  }
}
