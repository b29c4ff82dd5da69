// Requests to the server. Paths are relative, so that the page works behind a path prefix.

import { EventReader } from './sse.js';

/** Error response of the server, or a network error (status 0). */
export class ServerError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

const KEY = 'llama.key';

/** Returns the API key, or an empty string. */
export function apiKey() {
  return localStorage.getItem(KEY) ?? '';
}

/** Stores the API key in this browser. */
export function setApiKey(key) {
  if (key) {
    localStorage.setItem(KEY, key);
  } else {
    localStorage.removeItem(KEY);
  }
}

/** Sends a GET request; returns the JSON response. */
export async function get(path) {
  const response = await ask(path, {});
  return response.json();
}

/** Sends a POST request with a JSON body; returns the JSON response. */
export async function post(path, body) {
  const response = await ask(path, posted(body));
  return response.json();
}

function posted(body) {
  return { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
}

/** Yields the objects of a streaming response. Ends early without an error only if `signal` is aborted. */
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
  return new ServerError('The connection was lost before the completion was finished.');
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
  return new ServerError(error?.message ?? `The server returned status ${status}.`, { status, retryAfter, code: error?.code ?? null });
}
