// Application state and its operations. Views listen to the events and never modify state directly. Events: `list`
// (chats or their names changed), `chat` (shown messages changed), and `node` (a message grew). `server` reports
// changes of models or reachability, and `problem` an error message for the user.

import { begin, pause, take } from './completion.js';
import { get, post, stream } from './api.js';
import { isLoaded, startModel } from './models.js';
import { requestBody } from './settings.js';
import { keep, kept } from './store.js';
import { addMessage, children, newChat, path, show, title } from './tree.js';

/** Milliseconds between saves of a message while it streams. */
const KEEP_EVERY = 1000;

export class App extends EventTarget {
  chats = new Map();
  /** The shown chat; saved once it has a message. */
  current = newChat(kept('defaults', {}));
  models = [];
  /** Server defaults for settings that a chat does not set. */
  defaults = {};
  reachable = true;
  needsKey = false;
  #store;
  /** Running completions by chat: abort controller, message and completion id. */
  #runs = new Map();
  #kept = new Map();

  constructor(store) {
    super();
    this.#store = store;
    store.onOthers((id) => this.#reload(id));
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** Loads the stored chats. */
  async load() {
    for (const chat of await this.#store.all()) {
      this.chats.set(chat.id, chat);
    }
    this.#tell('list');
  }

  async #reload(id) {
    if (this.#runs.has(id)) {
      return;
    }
    const chat = await this.#store.one(id);
    if (chat) {
      this.chats.set(id, chat);
    } else {
      this.chats.delete(id);
    }
    if (this.current.id === id) {
      this.current = chat ?? newChat(kept('defaults', {}));
      this.#tell('chat');
    }
    this.#tell('list');
  }

  async #keep(chat) {
    this.#kept.set(chat.id, Date.now());
    try {
      await this.#store.put(chat);
    } catch (error) {
      this.#tell('problem', `Cannot save this chat in the browser: ${error.message}`);
    }
  }

  /** Chats, most recently changed first. */
  list() {
    return [...this.chats.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Shows a chat, or a new chat if the id is unknown. */
  open(id) {
    if (id === this.current.id) {
      return;
    }
    this.current = this.chats.get(id) ?? newChat(kept('defaults', {}));
    this.#tell('chat', { opened: true });
    this.#tell('list');
  }

  /** Loads the server's models and properties. */
  async ask() {
    try {
      this.models = (await get('v1/models')).data;
      const model = this.model();
      // The properties of an unloaded model are unknown.
      const props = isLoaded(model) ? await get(`props?model=${encodeURIComponent(model.id)}`).catch(() => ({})) : {};
      this.defaults = props.default_generation_settings?.params ?? {};
      Object.assign(this, { reachable: true, needsKey: false });
    } catch (error) {
      this.needsKey = error.status === 401;
      this.reachable = error.status !== 0;
    }
    this.#tell('server');
    return this.reachable;
  }

  /** The model of the shown chat. */
  model() {
    return startModel(this.models, [this.current.model, kept('model', null)]);
  }

  /** Selects a model for this chat and for new chats. */
  setModel(id) {
    keep('model', id);
    this.#change(this.current, () => (this.current.model = id));
    this.#tell('server');
    this.ask();
  }

  /** Changes the settings of the shown chat. */
  setSettings(settings) {
    this.#change(this.current, () => (this.current.settings = settings));
    this.#tell('server');
  }

  rename(chat, name) {
    this.#change(chat, () => (chat.title = name.trim()));
    this.#tell('list');
  }

  #change(chat, change) {
    change();
    if (this.chats.has(chat.id)) {
      this.#keep(chat);
    }
  }

  /** Deletes chats. */
  async remove(chats) {
    for (const { id } of chats) {
      this.#runs.get(id)?.controller.abort();
      this.chats.delete(id);
      await this.#store.remove(id);
    }
    if (chats.includes(this.current)) {
      this.open(null);
    }
    this.#tell('list');
  }

  /** Adds chats that were imported or restored. */
  async add(chats) {
    for (const chat of chats) {
      this.chats.set(chat.id, chat);
      await this.#keep(chat);
    }
    this.#tell('list');
  }

  /** Returns the running completion of a chat, or `null`. */
  running(chat = this.current) {
    return this.#runs.get(chat.id)?.node ?? null;
  }

  stop() {
    this.#runs.get(this.current.id)?.controller.abort();
  }

  /** Ends the reasoning of the running completion. */
  async answerNow() {
    const { id, node } = this.#runs.get(this.current.id) ?? {};
    if (id === undefined) {
      return;
    }
    try {
      await post('v1/chat/completions/control', { id, action: 'reasoning_end', model: node.model });
    } catch (error) {
      this.#tell('problem', error.message);
    }
  }

  /** Sends a user message and requests a completion. */
  send(content, files = [], images = []) {
    const { current } = this;
    const attached = { ...(files.length > 0 ? { files } : {}), ...(images.length > 0 ? { images } : {}) };
    const said = addMessage(current, current.leaf, { role: 'user', content, ...attached });
    return this.#answer(current, said.id);
  }

  /** Adds an edited version of a message. An edited user message requests a new completion. */
  edit(node, content) {
    const { current } = this;
    const { files, images } = node;
    const more = { ...(node.role === 'assistant' ? { finish: 'edited' } : {}), ...(files ? { files } : {}), ...(images ? { images } : {}) };
    const { id } = addMessage(current, node.parent, { role: node.role, content, ...more });
    if (node.role === 'user') {
      return this.#answer(current, id);
    }
    this.#keep(current);
    this.#tell('chat');
  }

  /** Requests another completion for a message. */
  retry(node) {
    const { current } = this;
    if (node.role === 'assistant' && node.error && node.content === '' && children(current, node.id).length === 0) {
      // Replace a failed message without content.
      show(current, node.parent);
      delete current.nodes[node.id];
      current.leaf = node.parent;
    }
    return this.#answer(current, node.role === 'user' ? node.id : node.parent);
  }

  /** Continues a message that was cut off. */
  goOn(node) {
    return this.#run(this.current, node);
  }

  show(id) {
    show(this.current, id);
    this.#keep(this.current);
    this.#tell('chat');
  }

  #answer(chat, parent) {
    const node = addMessage(chat, parent, { role: 'assistant' });
    return this.#run(chat, node);
  }

  async #run(chat, node) {
    const model = this.model()?.id ?? null;
    const before = path(chat, node.id).filter((said) => said !== node || node.content !== '');
    const body = requestBody(model, chat.settings, before);
    const controller = new AbortController();
    begin(node, Date.now());
    this.#runs.set(chat.id, { controller, node });
    Object.assign(chat, { model, updated: Date.now() });
    this.chats.set(chat.id, chat);
    this.#keep(chat);
    this.#tell('chat');
    this.#tell('list');
    try {
      await this.#attempts(chat, node, body, controller.signal);
    } catch (error) {
      this.#failed(node, error, controller.signal);
    }
    this.#runs.delete(chat.id);
    delete node.waits;
    if (this.chats.has(chat.id)) {
      this.#keep(chat);
    }
    this.#tell('node', { chat, node, done: true });
    if (!isLoaded(this.models.find(({ id }) => id === model))) {
      // The model was loaded by this request, so its context size is now known.
      this.ask();
    }
    this.#tell('list');
  }

  async #attempts(chat, node, body, signal) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        for await (const chunk of stream('v1/chat/completions', body, signal)) {
          take(node, chunk, Date.now());
          Object.assign(this.#runs.get(chat.id) ?? {}, { id: chunk.id });
          this.#tell('node', { chat, node });
          if (Date.now() - this.#kept.get(chat.id) > KEEP_EVERY) {
            this.#keep(chat);
          }
        }
        return;
      } catch (error) {
        const ms = node.stats.first ? null : pause(error, attempt);
        if (signal.aborted || ms === null) {
          throw error;
        }
        node.waits = `${error.message} Retrying…`;
        this.#tell('node', { chat, node });
        await sleep(ms, signal);
      }
    }
  }

  #failed(node, error, signal) {
    if (signal.aborted) {
      node.finish = 'stopped';
      return;
    }
    node.error = error.message;
    node.code = error.code;
    if (error.status === 401) {
      this.needsKey = true;
      this.#tell('server');
    } else if (error.status === 0) {
      // Check whether the server is reachable again.
      this.ask();
    }
  }

  /** Returns true if a chat has messages. */
  begun(chat = this.current) {
    return children(chat, null).length > 0;
  }

  title(chat = this.current) {
    return title(chat);
  }
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
