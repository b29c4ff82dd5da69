// Images attached to a message. They are stored with the chat and sent as `data:` URLs.

/** Maximum size in bytes of an attached image. */
export const MAX_IMAGE = 20 << 20;

/** Media types that the server decodes. */
const TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'image/bmp'];

/** Returns true if a file is an image that the server decodes. */
export function isImage({ type }) {
  return TYPES.includes(type);
}

/** Reads an image file: `{ name, url }`. */
export async function readImage(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return { name: file.name, url };
}

/** Returns the valid images of a stored or imported list. */
export function validImages(list) {
  const isUrl = (url) => typeof url === 'string' && TYPES.some((type) => url.startsWith(`data:${type};base64,`));
  const isValid = (image) => typeof image?.name === 'string' && isUrl(image.url);
  return Array.isArray(list) ? list.filter(isValid).map(({ name, url }) => ({ name, url })) : [];
}

/** Returns the content of a message for the server: its text, or parts with the images before the text. */
export function withImages(text, images = []) {
  if (images.length === 0) {
    return text;
  }
  const parts = images.map(({ url }) => ({ type: 'image_url', image_url: { url } }));
  return text === '' ? parts : [...parts, { type: 'text', text }];
}
