// Browser storage: chats in IndexedDB, small values in localStorage. Stored data leaves the browser only in requests.

const NAME = 'llama';
const CHATS = 'chats';

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Chats by id; changes are broadcast to other tabs. */
export class ChatStore {
  #db;
  #others = new BroadcastChannel('llama-chats');

  /** Opens the database; throws if the browser does not allow storage. */
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

  /** Returns all chats. */
  all() {
    return done(this.#chats('readonly').getAll());
  }

  /** Returns a chat, or `undefined`. */
  one(id) {
    return done(this.#chats('readonly').get(id));
  }

  /** Saves a chat. */
  async put(chat) {
    await done(this.#chats('readwrite').put(chat));
    this.#others.postMessage(chat.id);
  }

  /** Deletes a chat. */
  async remove(id) {
    await done(this.#chats('readwrite').delete(id));
    this.#others.postMessage(id);
  }

  /** Calls `changed` with the id of each chat changed by another tab. */
  onOthers(changed) {
    this.#others.onmessage = ({ data }) => changed(data);
  }
}

/** In-memory store for browsers without storage; chats are lost when the page closes. */
export class NoStore {
  async all() {
    return [];
  }
  async one() {}
  async put() {}
  async remove() {}
  onOthers() {}
}

/** Returns a stored value, or `otherwise`. */
export function kept(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`llama.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Stores a value; `null` deletes it. */
export function keep(name, value) {
  try {
    if (value === null) {
      localStorage.removeItem(`llama.${name}`);
    } else {
      localStorage.setItem(`llama.${name}`, JSON.stringify(value));
    }
  } catch {
    // Storage is full or forbidden; these values are optional.
  }
}
