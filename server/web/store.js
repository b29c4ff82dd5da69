// What stays in this browser: chats in its database, small things beside it. Nothing of it is ever sent to the server but in requests.

const NAME = 'llama';
const CHATS = 'chats';

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Chats by id. Other tabs of this page are told of changes. */
export class ChatStore {
  #db;
  #others = new BroadcastChannel('llama-chats');

  /** Opens the database; throws where the browser allows none. */
  static async open() {
    const store = new ChatStore();
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: 'id' });
    store.#db = await done(request);
    return store;
  }

  #chats(mode) {
    return this.#db.transaction(CHATS, mode).objectStore(CHATS);
  }

  /** All of them. */
  all() {
    return done(this.#chats('readonly').getAll());
  }

  /** One, or `undefined`. */
  one(id) {
    return done(this.#chats('readonly').get(id));
  }

  /** Keeps the present state of a chat. */
  async put(chat) {
    await done(this.#chats('readwrite').put(chat));
    this.#others.postMessage(chat.id);
  }

  /** Forgets one. */
  async remove(id) {
    await done(this.#chats('readwrite').delete(id));
    this.#others.postMessage(id);
  }

  /** Calls `changed` with the id of each chat that another tab has changed. */
  onOthers(changed) {
    this.#others.onmessage = ({ data }) => changed(data);
  }
}

/** A store for browsers that keep nothing: chats last as long as the page. */
export class NoStore {
  async all() {
    return [];
  }
  async one() {}
  async put() {}
  async remove() {}
  onOthers() {}
}

/** A small value that was kept, or `otherwise`. */
export function kept(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`llama.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keeps a small value; `null` forgets it. */
export function keep(name, value) {
  try {
    if (value === null) {
      localStorage.removeItem(`llama.${name}`);
    } else {
      localStorage.setItem(`llama.${name}`, JSON.stringify(value));
    }
  } catch {
    // A full or forbidden store: what is kept is a convenience.
  }
}
