// Choice of the model of a chat.

/** Returns true if a model is loaded; always true for a server with a single model. */
export function isLoaded(model) {
  return Boolean(model) && (model.status?.value ?? 'loaded') === 'loaded';
}

/** Returns true unless a model is known not to read a medium, `image` or `audio`. */
export function reads(model, medium) {
  const capability = medium === 'image' ? 'vision' : 'audio';
  return !isLoaded(model) || (model.capabilities?.includes(capability) ?? false);
}

/** Returns true unless a model is known to lack a chat template, as embedding models do. */
function canChat(model) {
  return model.meta?.has_chat_template !== false && model.status?.value !== 'failed';
}

/** Returns the first of the `wanted` models that exists, or else a model that can chat, a loaded one if possible. */
export function startModel(models, wanted) {
  const found = wanted.map((id) => models.find((model) => model.id === id)).find(Boolean);
  const able = models.filter(canChat);
  return found ?? able.find(isLoaded) ?? able[0] ?? models.find(isLoaded) ?? models[0] ?? null;
}
