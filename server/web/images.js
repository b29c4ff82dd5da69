// Images and audio attached to a message. They are stored with the chat and sent as `data:` URLs or as base64.

/** Maximum size in bytes of an attached image or audio file. */
export const MAX_MEDIUM = 20 << 20;

/** Media types of images that the server decodes. */
const IMAGES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'image/bmp'];

/** Media types of audio that the server decodes, with the names of their formats. */
const AUDIO = {
  'audio/wav': 'wav',
  'audio/wave': 'wav',
  'audio/x-wav': 'wav',
  'audio/vnd.wave': 'wav',
  'audio/mpeg': 'mp3',
  'audio/mp3': 'mp3',
  'audio/flac': 'flac',
  'audio/x-flac': 'flac',
  'audio/ogg': 'ogg',
};

/** Returns the medium of a file that the server decodes, `image` or `audio`, or `null`. */
export function mediumOf({ type }) {
  if (IMAGES.includes(type)) {
    return 'image';
  }
  return Object.hasOwn(AUDIO, type) ? 'audio' : null;
}

/** Reads an image or audio file: `{ name, url }`. */
export async function readMedium(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return { name: file.name, url };
}

/** Returns the media type and the base64 data of a `data:` URL, or `null`. */
function parsed(url) {
  const [, type, data] = /^data:([a-z0-9./-]+)(?:;[^,;]+)*;base64,(.*)$/s.exec(url) ?? [];
  return type === undefined ? null : { type, data };
}

/** Returns true for the `data:` URL of audio. */
export function isAudio({ url }) {
  return mediumOf({ type: parsed(url)?.type }) === 'audio';
}

/** Returns the valid images and audio files of a stored or imported list. */
export function validMedia(list) {
  const isUrl = (url) => typeof url === 'string' && mediumOf({ type: parsed(url)?.type }) !== null;
  const isValid = (medium) => typeof medium?.name === 'string' && isUrl(medium.url);
  return Array.isArray(list) ? list.filter(isValid).map(({ name, url }) => ({ name, url })) : [];
}

function part({ url }) {
  const { type, data } = parsed(url);
  if (Object.hasOwn(AUDIO, type)) {
    return { type: 'input_audio', input_audio: { data, format: AUDIO[type] } };
  }
  return { type: 'image_url', image_url: { url } };
}

/** Returns the content of a message for the server: its text, or parts with the media before the text. */
export function withMedia(text, media = []) {
  if (media.length === 0) {
    return text;
  }
  const parts = media.map(part);
  return text === '' ? parts : [...parts, { type: 'text', text }];
}
