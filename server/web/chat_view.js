// Conversation view: messages, scroll position and screen reader announcements.

import { byId, icon } from './dom.js';
import { MessageView } from './message_view.js';
import { path } from './tree.js';

/** Distance from the end in pixels within which the view scrolls automatically. */
const NEAR = 80;

export class ChatView {
  #app;
  #views = [];
  #scroll = byId('scroll');
  #messages = byId('messages');
  #said = byId('said');
  #toEnd = byId('to-end');
  #follows = true;
  #frame = 0;
  #told = 0;

  constructor(app) {
    this.#app = app;
    this.#toEnd.append(icon('down'));
    this.#toEnd.addEventListener('click', () => this.toEnd());
    this.#scroll.addEventListener('scroll', () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#keepUp()).observe(this.#messages);
    app.addEventListener('chat', ({ detail }) => this.#show(detail?.opened));
    app.addEventListener('node', ({ detail }) => this.#grown(detail));
    app.addEventListener('version', ({ detail }) => this.#version(detail));
    this.#show(true);
  }

  toEnd() {
    this.#follows = true;
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  /** Updates the view to match the chat. */
  #show(isOther = false) {
    const { current } = this.#app;
    const nodes = path(current);
    const same = isOther ? 0 : nodes.findIndex((node, i) => this.#views[i]?.node.id !== node.id);
    const n = same === -1 ? nodes.length : same;
    this.#views.splice(n).forEach(({ element }) => element.remove());
    this.#views.forEach((view, i) => view.update(nodes[i]));
    for (const node of nodes.slice(n)) {
      const view = new MessageView(this.#app, node);
      this.#views.push(view);
      this.#messages.append(view.element);
    }
    this.#views.forEach(({ element }, i) => element.classList.toggle('last', i >= this.#views.length - 1));
    byId('welcome').hidden = nodes.length > 0;
    document.body.classList.toggle('empty', nodes.length === 0);
    byId('title').textContent = this.#app.title();
    document.title = nodes.length > 0 ? `${this.#app.title()} · llama` : 'llama';
    if (isOther || this.#app.running()) {
      // Existing messages are not announced.
      this.#told = Math.max(0, (this.#views.at(-1)?.blocks.length ?? 0) - 1);
      this.toEnd();
    }
  }

  #grown({ chat, node, done }) {
    if (chat !== this.#app.current) {
      return;
    }
    const update = () => {
      this.#frame = 0;
      this.#views.find((view) => view.node === node)?.update();
      this.#tell(node, done);
    };
    if (done) {
      cancelAnimationFrame(this.#frame);
      update();
      this.#frame = 0;
    } else if (this.#frame === 0) {
      // Tokens arrive faster than frames are rendered.
      this.#frame = requestAnimationFrame(update);
    }
  }

  /** Announces a message paragraph by paragraph, each when it is complete. */
  #tell(node, done) {
    const view = this.#views.find((shown) => shown.node === node);
    const complete = view ? view.blocks.slice(this.#told, done ? undefined : -1) : [];
    for (const block of complete) {
      const line = document.createElement('p');
      line.textContent = block.querySelector('.code') ? 'A block of code.' : block.textContent;
      this.#said.append(line);
    }
    this.#told += complete.length;
    while (this.#said.childElementCount > 20) {
      this.#said.firstElementChild.remove();
    }
  }

  #version({ id, label }) {
    const at = this.#views.findIndex((view) => view.node.parent === this.#app.current.nodes[id].parent);
    const { scrollTop } = this.#scroll;
    this.#follows = false;
    this.#app.show(id);
    this.#scroll.scrollTop = scrollTop;
    this.#views[at]?.focus(label);
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#toEnd.hidden = this.#follows;
  }

  #keepUp() {
    if (this.#follows) {
      this.#scroll.scrollTop = this.#scroll.scrollHeight;
    }
  }
}
