// Builds an assistant message from a completion stream.

/** Resets a message for a new stream. Its content is kept only if the message is continued. */
export function begin(node, now) {
  delete node.error;
  delete node.finish;
  delete node.waits;
  node.stats = { started: now, generated: 0 };
}

/** Applies a chunk of the stream, received at `now` in milliseconds. */
export function take(node, chunk, now) {
  const { stats } = node;
  const [choice] = chunk.choices ?? [];
  if (chunk.prompt_progress) {
    const { total, cache, processed } = chunk.prompt_progress;
    Object.assign(stats, { prompt: total, cached: cache, processed });
    return;
  }
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  delete node.waits;
  if (content || reasoning) {
    stats.first ??= now;
    stats.last = now;
    // The final chunk has exact counts; until then, each chunk counts as one token.
    stats.generated += 1;
  }
  if (reasoning) {
    node.reasoning = (node.reasoning ?? '') + reasoning;
    stats.thinking = now - stats.first;
  }
  if (content) {
    node.content += content;
  }
  node.model = chunk.model ?? node.model;
  node.finish = choice?.finish_reason ?? node.finish;
  if (chunk.usage) {
    stats.prompt = chunk.usage.prompt_tokens;
    stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    stats.generated = chunk.usage.completion_tokens;
  }
  if (chunk.timings) {
    stats.rate = chunk.timings.predicted_per_second;
    stats.promptRate = chunk.timings.prompt_per_second;
  }
}

/** Returns tokens per second, reported by the server or measured here; `null` if unknown. */
export function rate(stats) {
  if (stats?.rate > 0) {
    return stats.rate;
  }
  const seconds = (stats?.last - stats?.first) / 1000;
  return stats?.generated > 1 && seconds > 0 ? (stats.generated - 1) / seconds : null;
}

/** Returns the processed part of a prompt from 0 to 1 while it is not complete; `null` if unknown or complete. */
export function progress(stats) {
  const { prompt, cached, processed, first } = stats ?? {};
  if (first !== undefined || processed === undefined || processed >= prompt) {
    return null;
  }
  return (processed - cached) / (prompt - cached);
}

/** Returns the context tokens of a prompt and its completion; `null` if unknown. */
export function filled(stats) {
  return stats?.prompt === undefined ? null : stats.prompt + stats.generated;
}

/** Returns the delay in milliseconds before retry `attempt` (from 1); `null` if the error is permanent. */
export function pause({ status, retryAfter }, attempt) {
  const passes = status === 0 || status === 429 || status === 502 || status === 503;
  if (!passes || attempt > 8) {
    return null;
  }
  return Math.min(retryAfter > 0 ? retryAfter * 1000 : 500 * 2 ** (attempt - 1), 15000);
}
