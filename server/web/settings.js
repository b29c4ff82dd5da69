// Settings of a chat. One table defines the form, the validation and the request fields; unset settings are not sent.

import { fullText } from './attachments.js';
import { withMedia } from './images.js';

/**
 * `kind`: `number` with `min`, `max` and `step`; `text`; `lines`, a list; `json`; `choice` of `options`, pairs of value and label.
 * `field`: the request field, if it differs from `name`.
 */
export const SETTINGS = [
  {
    name: 'system',
    label: 'System prompt',
    kind: 'text',
    rows: 4,
    help: 'Instructions for the model, placed before the conversation.',
  },
  {
    name: 'temperature',
    label: 'Temperature',
    kind: 'number',
    min: 0,
    max: 5,
    step: 0.05,
    help: '0 always selects the most likely token; higher values are more random.',
  },
  { name: 'top_p', label: 'Top-p', kind: 'number', min: 0, max: 1, step: 0.01, help: 'Keep the most likely tokens with this total probability; 1: off.' },
  { name: 'top_k', label: 'Top-k', kind: 'number', min: 0, max: 1000000, step: 1, help: 'Keep this number of most likely tokens; 0: off.' },
  {
    name: 'min_p',
    label: 'Min-p',
    kind: 'number',
    min: 0,
    max: 1,
    step: 0.01,
    help: 'Minimum probability relative to the most likely token; 0: off.',
  },
  {
    name: 'repeat_penalty',
    label: 'Repeat penalty',
    kind: 'number',
    min: 0.01,
    max: 10,
    step: 0.01,
    help: 'Penalizes recent tokens; 1: off.',
  },
  { name: 'presence_penalty', label: 'Presence penalty', kind: 'number', min: -2, max: 2, step: 0.1, help: 'Penalty for tokens that already occur; 0: off.' },
  { name: 'frequency_penalty', label: 'Frequency penalty', kind: 'number', min: -2, max: 2, step: 0.1, help: 'Penalty per occurrence of a token; 0: off.' },
  { name: 'max_tokens', label: 'Maximum tokens', kind: 'number', min: 1, max: 10000000, step: 1, help: 'Completion length in tokens, including reasoning.' },
  { name: 'seed', label: 'Seed', kind: 'number', min: 0, max: 4294967295, step: 1, help: 'A fixed seed makes completions reproducible.' },
  {
    name: 'reasoning_effort',
    label: 'Thinking',
    kind: 'choice',
    options: [
      ['', 'Model default'],
      ['none', 'Off'],
      ['low', 'Low'],
      ['medium', 'Medium'],
      ['high', 'High'],
    ],
    help: 'If the model supports it.',
  },
  { name: 'stop', label: 'Stop at', kind: 'lines', rows: 2, help: 'Strings that end the completion, one per line.' },
  {
    name: 'json_schema',
    label: 'JSON schema',
    kind: 'json',
    rows: 4,
    help: 'Completions must match this schema.',
  },
];

/** Parses input: returns `{ value }` (`undefined` for empty input) or `{ error }` with a message. */
export function read(setting, typed) {
  const text = typed.trim();
  if (text === '') {
    return { value: undefined };
  }
  if (setting.kind === 'number') {
    return readNumber(setting, text);
  }
  if (setting.kind === 'lines') {
    return { value: typed.split('\n').filter((line) => line !== '') };
  }
  if (setting.kind === 'json') {
    return readSchema(text);
  }
  return { value: setting.kind === 'choice' ? text : typed };
}

function readNumber({ min, max, step }, text) {
  const value = Number(text);
  if (!Number.isFinite(value) || value < min || value > max) {
    return { error: `Expected a number from ${min} to ${max}.` };
  }
  return step === 1 && !Number.isInteger(value) ? { error: 'Expected an integer.' } : { value };
}

function readSchema(text) {
  try {
    const schema = JSON.parse(text);
    const isSchema = (typeof schema === 'object' && schema !== null && !Array.isArray(schema)) || typeof schema === 'boolean';
    // Keep the original formatting.
    return isSchema ? { value: text } : { error: 'Expected an object.' };
  } catch (error) {
    return { error: `Invalid JSON: ${error.message}` };
  }
}

/** Formats a value for input. */
export function typed(setting, value) {
  if (value === undefined) {
    return '';
  }
  return setting.kind === 'lines' ? value.join('\n') : String(value);
}

/** Returns the valid settings; drops others, which imported files may contain. */
export function valid(settings) {
  const pairs = SETTINGS.map((setting) => {
    const value = settings[setting.name];
    const isList = Array.isArray(value) && value.every((item) => typeof item === 'string');
    const fits = setting.kind === 'lines' ? isList || value === undefined : !Array.isArray(value);
    return [setting.name, fits ? read(setting, typed(setting, value)).value : undefined];
  });
  return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
}

/** Returns the request for `messages`. The last message is the user's, or an assistant message to continue. */
export function requestBody(model, settings, messages) {
  const { system, json_schema: schema, ...fields } = valid(settings);
  const said = messages.map(({ role, reasoning, ...message }) => {
    const content = withMedia(fullText(message), message.images);
    return role === 'assistant' && reasoning ? { role, content, reasoning_content: reasoning } : { role, content };
  });
  const body = {
    ...(model ? { model } : {}),
    messages: system ? [{ role: 'system', content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    reasoning_control: true,
    ...fields,
  };
  if (schema) {
    body.json_schema = JSON.parse(schema);
  }
  if (said.at(-1)?.role === 'assistant') {
    body.continue_final_message = true;
  }
  return body;
}
