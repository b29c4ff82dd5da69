// Chips of attached files and audio, and thumbnails of attached images.

import { byteLength, size } from './attachments.js';
import { h, iconButton } from './dom.js';
import { isAudio } from './images.js';

/** Creates the chip of a file, with its name and size. `onremove` adds a button that removes the file. */
export function chip({ name, text }, onremove = null) {
  return chipOf(name, byteLength(text), onremove);
}

function chipOf(name, n, onremove) {
  const button = onremove ? iconButton('close', `Remove ${name}`, onremove) : null;
  return h('span', { class: 'chip', title: name }, h('b', {}, name), h('span', {}, size(n)), button);
}

/** Creates the thumbnail of an image, or the chip of audio. `onremove` adds a button that removes the medium. */
export function thumbnail({ name, url }, onremove = null) {
  if (isAudio({ url })) {
    const data = url.slice(url.indexOf(',') + 1);
    return chipOf(name, Math.floor((data.length * 3) / 4), onremove);
  }
  const button = onremove ? iconButton('close', `Remove ${name}`, onremove) : null;
  return h('span', { class: 'thumbnail', title: name }, h('img', { src: url, alt: name, loading: 'lazy' }), button);
}
