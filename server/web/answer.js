// What an answer becomes as its stream comes in.

/** Begins an answer: what was known of it is kept only if it is continued. */
export function begin(node, now) {
  delete node.error;
  delete node.finish;
  delete node.waits;
  node.stats = { started: now, generated: 0 };
}

/** Takes an object of the stream at a time in milliseconds. */
export function take(node, chunk, now) {
  const { stats } = node;
  const [choice] = chunk.choices ?? [];
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  delete node.waits;
  if (content || reasoning) {
    stats.first ??= now;
    stats.last = now;
    // The server counts exactly in the end; until then each piece is taken for a token.
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

/** Tokens in a second, as the server says or as seen from here; `null` as long as there is nothing to tell. */
export function rate(stats) {
  if (stats?.rate > 0) {
    return stats.rate;
  }
  const seconds = (stats?.last - stats?.first) / 1000;
  return stats?.generated > 1 && seconds > 0 ? (stats.generated - 1) / seconds : null;
}

/** Tokens that a prompt and its answer take in the context; `null` if that is not known. */
export function filled(stats) {
  return stats?.prompt === undefined ? null : stats.prompt + stats.generated;
}

/** Milliseconds to wait before the `attempt`th attempt (from 1) after an error; `null`: it is of no use. */
export function pause({ status, retryAfter }, attempt) {
  const passes = status === 0 || status === 429 || status === 502 || status === 503;
  if (!passes || attempt > 8) {
    return null;
  }
  return Math.min(retryAfter > 0 ? retryAfter * 1000 : 500 * 2 ** (attempt - 1), 15000);
}
