// Chips of attached files, and thumbnails of attached images.

import { byteLength, size } from './attachments.js';
import { h, iconButton } from './dom.js';

/** Creates the chip of a file, with its name and size. `onremove` adds a button that removes the file. */
export function chip({ name, text }, onremove = null) {
  const button = onremove ? iconButton('close', `Remove ${name}`, onremove) : null;
  return h('span', { class: 'chip', title: name }, h('b', {}, name), h('span', {}, size(byteLength(text))), button);
}

/** Creates the thumbnail of an image. `onremove` adds a button that removes the image. */
export function thumbnail({ name, url }, onremove = null) {
  const button = onremove ? iconButton('close', `Remove ${name}`, onremove) : null;
  return h('span', { class: 'thumbnail', title: name }, h('img', { src: url, alt: name, loading: 'lazy' }), button);
}
