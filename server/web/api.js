// Requests to the server that this page comes from. Paths are relative, so that it also works below a prefix.

import { EventReader } from './sse.js';

/** What the server refused, or why it cannot be reached (status 0). */
export class ServerError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

const KEY = 'llama.key';

/** The key that requests name; empty if there is none. */
export function apiKey() {
  return localStorage.getItem(KEY) ?? '';
}

/** Keeps a key in this browser. */
export function setApiKey(key) {
  if (key) {
    localStorage.setItem(KEY, key);
  } else {
    localStorage.removeItem(KEY);
  }
}

/** The answer to a GET, as JSON. */
export async function get(path) {
  const response = await ask(path, {});
  return response.json();
}

/** The answer to a POST of JSON, as JSON. */
export async function post(path, body) {
  const response = await ask(path, posted(body));
  return response.json();
}

function posted(body) {
  return { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
}

/** The objects of a streamed answer. Ends early, without an error, only if `signal` says so. */
export async function* stream(path, body, signal) {
  const response = await ask(path, { ...posted(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    const { value, done } = await unlessLost(reader.read(), signal);
    if (done) {
      throw lost();
    }
    for (const data of events.push(value)) {
      if (data === '[DONE]') {
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) {
        throw new ServerError(chunk.error.message, { status: 500, code: chunk.error.code });
      }
      yield chunk;
    }
  }
}

function lost() {
  return new ServerError('The connection to the server was lost before the answer was complete.');
}

async function unlessLost(promise, signal) {
  try {
    return await promise;
  } catch (error) {
    throw signal.aborted ? error : lost();
  }
}

async function ask(path, { headers = {}, ...init }) {
  const key = apiKey();
  const auth = key ? { authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...init, headers: { ...headers, ...auth } });
  } catch (error) {
    throw init.signal?.aborted ? error : new ServerError('The server cannot be reached.');
  }
  if (!response.ok) {
    throw await refused(response);
  }
  return response;
}

async function refused(response) {
  const { status } = response;
  const retryAfter = Number(response.headers.get('retry-after')) || null;
  const error = await response.json().then(
    (body) => body.error,
    () => null,
  );
  return new ServerError(error?.message ?? `The server answered with status ${status}.`, { status, retryAfter, code: error?.code ?? null });
}
