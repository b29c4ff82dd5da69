// Text files attached to a message. The page shows them as chips; the request contains their text.

import { MAX_MEDIUM, mediumOf, readMedium } from './images.js';
import { reads } from './models.js';

/** Maximum size in bytes of an attached text file. */
const MAX_TEXT = 1 << 20;

/** Reads an attached file: an `image` or audio that the model reads, a `text` with its name, or a `problem`. Never rejects. */
export async function attachment(file, model) {
  const { name } = file;
  try {
    const medium = mediumOf(file);
    if (medium !== null && !reads(model, medium)) {
      return { problem: `${name}: this model does not read ${medium === 'image' ? 'images' : 'audio'}.` };
    }
    const max = medium === null ? MAX_TEXT : MAX_MEDIUM;
    if (file.size > max) {
      return { problem: `${name} is larger than ${max >> 20} MiB.` };
    }
    if (medium !== null) {
      return { image: await readMedium(file) };
    }
    const text = await file.text();
    return /[\0\uFFFD]/.test(text) ? { problem: `${name} is not a text file.` } : { text: { name, text } };
  } catch (error) {
    return { problem: `${name} cannot be read: ${error.message}` };
  }
}

/** Returns the text of a message for the model: the attached files in fences, then the typed text. */
export function fullText({ content, files = [] }) {
  return [...files.map(fenced), content].filter((part) => part !== '').join('\n\n');
}

function fenced({ name, text }) {
  // A fence that is longer than any fence in the text.
  const ticks = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = '`'.repeat(ticks + 1);
  return `${name}:\n${fence}\n${text.trimEnd()}\n${fence}`;
}

/** Returns the text without fenced files, which earlier versions of the page put into it. The last fence may be cut off. */
export function withoutFiles(content) {
  return content.replace(/^[^\n]+:\n(`{3,})\n[\s\S]*?(?:\n\1$|(?![\s\S]))/gm, '').trim();
}

/** Formats a size in bytes: `812 B`, `3.4 KB`, `1.0 MB`. */
export function size(bytes) {
  if (bytes < 1000) {
    return `${bytes} B`;
  }
  return bytes < 999950 ? `${(bytes / 1000).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Returns the valid files of a stored or imported list. */
export function validFiles(list) {
  const isFile = (file) => typeof file?.name === 'string' && typeof file.text === 'string';
  return Array.isArray(list) ? list.filter(isFile).map(({ name, text }) => ({ name, text })) : [];
}

/** Returns the size of a text in bytes. */
export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}
