// What a chat says about its answers. One table, from which the form, the checks and the requests come; what is not set is not sent.

/**
 * `kind`: `number` with `min`, `max` and `step`; `text`; `lines`, a list; `json`; `choice` of `options`, pairs of value and label.
 * `field`: where a request has it, if not under `name`.
 */
export const SETTINGS = [
  {
    name: 'system',
    label: 'System prompt',
    kind: 'text',
    rows: 4,
    help: 'Instructions that come before everything else.',
  },
  {
    name: 'temperature',
    label: 'Temperature',
    kind: 'number',
    min: 0,
    max: 5,
    step: 0.05,
    help: '0 always takes the most likely token; more varies more.',
  },
  { name: 'top_p', label: 'Top-p', kind: 'number', min: 0, max: 1, step: 0.01, help: 'Probability that the tokens kept sum to; 1 is off.' },
  { name: 'top_k', label: 'Top-k', kind: 'number', min: 0, max: 1000000, step: 1, help: 'How many of the most likely tokens are kept; 0 keeps all.' },
  {
    name: 'min_p',
    label: 'Min-p',
    kind: 'number',
    min: 0,
    max: 1,
    step: 0.01,
    help: 'Least probability relative to the most likely token; 0 is off.',
  },
  {
    name: 'repeat_penalty',
    label: 'Repeat penalty',
    kind: 'number',
    min: 0.01,
    max: 10,
    step: 0.01,
    help: 'Makes tokens that stood there lately less likely; 1 is off.',
  },
  { name: 'presence_penalty', label: 'Presence penalty', kind: 'number', min: -2, max: 2, step: 0.1, help: 'Subtracted once for a token that occurs; 0 is off.' },
  { name: 'frequency_penalty', label: 'Frequency penalty', kind: 'number', min: -2, max: 2, step: 0.1, help: 'Subtracted for each occurrence of a token; 0 is off.' },
  { name: 'max_tokens', label: 'Longest answer', kind: 'number', min: 1, max: 10000000, step: 1, help: 'In tokens, what is thought included.' },
  { name: 'seed', label: 'Seed', kind: 'number', min: 0, max: 4294967295, step: 1, help: 'The same seed gives the same answer.' },
  {
    name: 'reasoning_effort',
    label: 'Thinking',
    kind: 'choice',
    options: [
      ['', 'As the model does by itself'],
      ['none', 'Off'],
      ['low', 'Little'],
      ['medium', 'Some'],
      ['high', 'Much'],
    ],
    help: 'Where the model lets one choose.',
  },
  { name: 'stop', label: 'Stop at', kind: 'lines', rows: 2, help: 'Texts that end an answer before them, one on each line.' },
  {
    name: 'json_schema',
    label: 'JSON schema',
    kind: 'json',
    rows: 4,
    help: 'Answers are documents of this schema.',
  },
];

/** What was typed, as a value: `{ value }`, `undefined` for nothing, or `{ error }`, a sentence. */
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
  return step === 1 && !Number.isInteger(value) ? { error: 'Expected a whole number.' } : { value };
}

function readSchema(text) {
  try {
    const schema = JSON.parse(text);
    const isSchema = (typeof schema === 'object' && schema !== null && !Array.isArray(schema)) || typeof schema === 'boolean';
    // Kept as it was typed.
    return isSchema ? { value: text } : { error: 'Expected an object.' };
  } catch (error) {
    return { error: `This is not JSON: ${error.message}` };
  }
}

/** A value as it is typed. */
export function typed(setting, value) {
  if (value === undefined) {
    return '';
  }
  return setting.kind === 'lines' ? value.join('\n') : String(value);
}

/** Settings that have a meaning; others, such as those of an imported file, are left out. */
export function valid(settings) {
  const pairs = SETTINGS.map((setting) => {
    const value = settings[setting.name];
    const isList = Array.isArray(value) && value.every((item) => typeof item === 'string');
    const fits = setting.kind === 'lines' ? isList || value === undefined : !Array.isArray(value);
    return [setting.name, fits ? read(setting, typed(setting, value)).value : undefined];
  });
  return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
}

/** The request for the answer to `messages`, of which the last is the user's or, to be continued, the assistant's. */
export function requestBody(model, settings, messages) {
  const { system, json_schema: schema, ...fields } = valid(settings);
  const said = messages.map(({ role, content, reasoning }) =>
    role === 'assistant' && reasoning ? { role, content, reasoning_content: reasoning } : { role, content },
  );
  const body = {
    ...(model ? { model } : {}),
    messages: system ? [{ role: 'system', content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
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
